"""Trees of peers: what is refused, what is kept and forgotten, and what a restart finds again."""

import numpy as np
import pytest

from dada.core.model_steps import UserRows
from dada.peer.grove import DICTIONARY_KEY, NO_SPLIT, AtomArrays, AtomTerms, Plot, SharedGrove, name_of
from dada.peer.inputs import Persist, Refused, Send
from dada.peer.messages import (
    LARGEST_ATOM,
    MOST_ATOMS,
    MOST_PLANTINGS,
    AtomRecord,
    AtomReply,
    AtomRequest,
    CodecError,
    ImplausibleError,
    decode,
    encode,
)
from dada.sim.virtual import VirtualSeal

TERMS = AtomTerms(n_features=2, n_cuts=3, depth=2, per_user=4)
SOUND = AtomArrays(np.array([[0, 1, 0]]), np.array([[2, 0, NO_SPLIT]]), np.array([[127, -127, 5, 0]])).write()[0]


def atom(value):
    return SOUND[:-1] + bytes([value])


def grove(me, *grown):
    plot = Plot(UserRows(np.ones((2, 3), np.int8)), np.ones((2, 1)), np.zeros((2, 2), np.uint8), grown)
    return SharedGrove(me, TERMS, plot, b"network", VirtualSeal(me))


def meet(one, other):
    """Exchange messages until nobody answers."""
    queue = [(one, other, effect) for effect in one.ask(other.records.own.peer)]
    while queue:
        sender, receiver, effect = queue.pop(0)
        if isinstance(effect, Send):
            answers = receiver.receive(sender.records.own.peer, decode(encode(effect.message)))
            queue += [(receiver, sender, answer) for answer in answers]


def planted(*groves):
    for one in groves:
        one.plant()
    for one in groves[1:]:
        meet(one, groves[0])
    for one in groves[1:]:
        meet(one, groves[0])
    for one in groves:
        one.adopt()


FALSE = {
    "too deep": SOUND + SOUND,
    "cut short": SOUND[:-1],
    "unknown feature": b"\x02\x00" + SOUND[2:],
    "unknown threshold": SOUND[:6] + b"\x03" + SOUND[7:],
    "a feature where nothing is tested": SOUND[:4] + b"\x01" + SOUND[5:],
    "a leaf below -1": SOUND[:-1] + b"\x80",
}


@pytest.mark.parametrize("false", FALSE.values(), ids=FALSE)
def test_a_false_tree_is_refused(false):
    TERMS.check(SOUND)
    ann, liar = grove(b"ann", atom(1)), grove(b"liar", false)
    liar.plant()
    before = ann.records.digest
    with pytest.raises(ImplausibleError, match="a tree"):
        ann.receive(b"liar", AtomReply(tuple(liar.records)))
    assert ann.records.digest == before


def test_trees_that_their_owner_did_not_sign_are_refused():
    ann, bob = grove(b"ann", atom(1)), grove(b"bob", atom(2))
    bob.plant()
    (record,) = bob.records
    changed = AtomRecord(record.peer, record.version, (atom(3),), record.signature)
    with pytest.raises(ImplausibleError, match="false signature"):
        ann.receive(b"eve", AtomReply((changed,)))


@pytest.mark.parametrize(
    "record",
    [
        AtomRecord(b"eve", 1, (b"x" * (LARGEST_ATOM + 1),)),
        AtomRecord(b"eve", 1, (SOUND,) * (MOST_ATOMS + 1)),
        AtomRecord(b"eve", MOST_PLANTINGS + 1, ()),
    ],
)
def test_records_beyond_the_bounds_are_not_decoded(record):
    with pytest.raises(CodecError):
        decode(encode(AtomReply((record,))))


def test_all_have_the_same_dictionary_and_equal_trees_are_one_coordinate():
    groves = [grove(bytes([65 + k]), atom(k), atom(99)) for k in range(4)]
    planted(*groves)
    assert {one.name for one in groves} == {groves[0].name}
    assert groves[0].names == sorted(name_of(tree) for tree in (atom(0), atom(1), atom(2), atom(3), atom(99)))
    assert groves[0].rows().A.shape == (2, 3 + 5)


def test_a_tree_is_forgotten_unless_it_is_in_use():
    ann, bob = grove(b"ann", atom(1)), grove(b"bob", atom(2), atom(3))
    planted(ann, bob)
    bob.plot = bob.plot._replace(grown=(atom(4),))
    bob.plant()
    meet(bob, ann)
    ann.keep({name_of(atom(2))})
    ann.adopt()
    assert set(ann.atoms) == {atom(1), atom(2), atom(4)}
    meet(ann, bob)
    bob.adopt()
    assert bob.name == ann.name


def test_a_peer_that_lost_its_records_publishes_above_them():
    ann, bob = grove(b"ann", atom(1)), grove(b"bob", atom(2))
    planted(ann, bob)
    again = grove(b"ann", atom(0))
    again.plant()
    meet(again, bob)
    meet(again, bob)
    assert again.records.digest == bob.records.digest
    assert again.records.own.version == 2
    assert {record.atoms for record in bob.records} == {(atom(0),), (atom(2),)}


def test_records_and_dictionary_survive_a_restart():
    ann, bob = grove(b"ann", atom(1)), grove(b"bob", atom(2))
    stored = {}

    def store(effects):
        stored.update({effect.key: effect.value for effect in effects if isinstance(effect, Persist)})

    store(ann.plant())
    bob.plant()
    store(ann.receive(b"bob", AtomReply(tuple(bob.records))))
    store(ann.adopt())
    again = grove(b"ann", atom(1))
    again.restore(stored, ann.name)
    assert (again.names, again.records.digest, again.plant()) == (ann.names, ann.records.digest, [])
    with pytest.raises(ValueError, match="trees of the stored model are missing"):
        grove(b"ann").restore({key: stored[key] for key in stored if not key.startswith(DICTIONARY_KEY)}, ann.name)


def test_an_unknown_dictionary_is_asked_about_once():
    ann = grove(b"ann", atom(1))
    planted(ann)
    assert len(ann.ask_about(b"bob", b"unknown!")) == 1
    assert ann.ask_about(b"eve", b"unknown!") == ann.ask_about(b"eve", ann.name) == []


def test_one_peer_gets_few_replies_between_two_exchanges():
    ann = grove(b"ann", atom(1))
    planted(ann)
    kinds = [type(effect) for _ in range(10) for effect in ann.receive(b"eve", AtomRequest(b"", b"none"))]
    assert kinds == [Send] * 8 + [Refused] * 2
    ann.ask(b"bob")
    assert type(ann.receive(b"eve", AtomRequest(b"", b"none"))[0]) is Send


def test_the_last_version_of_a_record_stays():
    ann = grove(b"ann")
    for k in range(MOST_PLANTINGS + 2):
        ann.plot = ann.plot._replace(grown=(atom(k % 100),))
        ann.plant()
    assert ann.records.own.version == MOST_PLANTINGS
    decode(encode(AtomReply(tuple(ann.records))))


def test_a_peer_that_rests_no_longer_waits_for_a_lost_answer():
    ann, bob, eve = (grove(me, atom(value)) for value, me in enumerate((b"ann", b"bob", b"eve")))
    for one in (ann, bob, eve):
        one.plant()
    asked = ann.receive(b"bob", bob.request())
    assert [send.to for send in asked] == [b"bob"]
    assert ann.receive(b"eve", eve.request()) == []
    ann.rest()
    assert [send.to for send in ann.receive(b"eve", eve.request())] == [b"eve"]
