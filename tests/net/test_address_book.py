"""Which addresses are dialled, and who pays."""

from dada.net.transport import DIAL_BYTES, LARGEST_RATIO, AddressBook, Hearsay


class World:
    """An address book, the hearsay that it reads, and a clock."""

    def __init__(self, received=DIAL_BYTES, most_unanswered=100):
        self.told, self.now = {}, 0.0
        self.book = AddressBook(
            lambda peer: self.told.get(peer, Hearsay((), None)),
            lambda peer: received,
            lambda: self.now,
            most_unanswered,
        )

    def name(self, n, source=b"liar"):
        """A liar names peers that do not exist, all at its victim's host."""
        for k in range(n):
            self.told[b"%d" % k] = Hearsay(tuple(f"10.0.0.1:{8 * k + port}" for port in range(8)), source)

    def dials(self):
        """Dial every peer as often as the book allows; nobody answers."""
        made = []
        for peer in self.told:
            while (choice := self.book.choose(peer)).addresses:
                assert len(choice.addresses) == 1
                self.book.settle(choice.guess)
                made += choice.addresses
        return made


def test_whoever_names_an_address_pays_for_the_dial():
    world = World(received=10 * DIAL_BYTES)
    world.name(50)
    made = world.dials()
    assert len(made) == len(set(made)) == LARGEST_RATIO * 10
    world.now = 10_000.0
    assert world.dials() == []


def test_few_dials_per_minute_stay_unanswered():
    world = World(received=10**9, most_unanswered=7)
    world.name(50, source=None)
    made = [world.dials()]
    world.now = 61.0
    made.append(world.dials())
    assert [len(dials) for dials in made] == [7, 7]
    assert not set(made[0]) & set(made[1])


def test_an_answered_dial_costs_nothing_and_an_unanswered_address_is_not_dialled_again_soon():
    world = World(received=DIAL_BYTES // 2)
    world.name(20)
    for peer in world.told:
        choice = world.book.choose(peer)
        world.book.settle(choice.guess, choice.addresses)
    assert len(world.dials()) == 1


def test_a_peer_that_moved_is_sought_at_its_new_address():
    world = World()
    world.book.prove(b"ann", ("10.0.0.2:4",))
    world.book.claim(b"ann", ("10.0.0.2:5", "https://relay.example"))
    assert world.book.choose(b"ann").addresses == ("10.0.0.2:4", "https://relay.example")
    assert world.book.choose(b"ann", prefer_new=True).addresses == ("10.0.0.2:5",)
    assert world.book.choose(b"ann", prefer_new=True).guess is None
