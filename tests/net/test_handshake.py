"""Who is let in: every refusal on real sockets and in memory."""

import asyncio

import pytest

from dada.net.session import HandshakeError, Party, Refusal, Terms, shake_hands
from dada.net.transport import FrameStream, Kind, frame
from dada.peer.messages import PROTOCOL_VERSION, Goodbye, Hello, encode
from dada.peer.signatures import Membership
from dada.sim.virtual import VirtualSeal
from tests.helpers.net import Transports, run

KINDS = ("memory", "iroh")
HELLO = Hello(b"problem", 7)
SECRET = b"a secret of the network"


async def meet(
    kind, ann_terms=None, bob_terms=None, ann_hello=HELLO, bob_hello=HELLO, bob=None, timeout_s=8.0, bob_revoked=()
):
    """Ann dials Bob; returns what each end of the handshake came to, an introduction or an error."""
    async with Transports(kind) as transports:
        ann_transport, bob_transport = await transports.make(), await transports.make()
        link = await ann_transport.dial(bob_transport.me, bob_transport.addresses)

        async def as_ann():
            terms = Terms() if ann_terms is None else ann_terms
            party = Party(ann_transport.me, True, terms, ann_hello, ("ann:1",), bytes(32))
            try:
                return await shake_hands(FrameStream(link), party, timeout_s)
            except HandshakeError:
                link.close()
                raise

        async def as_bob():
            stream = FrameStream(await bob_transport.accept())
            if bob is not None:
                return await bob(stream)
            terms = Terms() if bob_terms is None else bob_terms
            party = Party(bob_transport.me, False, terms, bob_hello, ("bob:1",), b"n" * 32, bob_revoked)
            return await shake_hands(stream, party)

        return await asyncio.gather(as_ann(), as_bob(), return_exceptions=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("secret", [b"", SECRET])
def test_members_of_one_network_introduce_themselves(kind, secret):
    ann, bob = run(meet(kind, Terms(secret), Terms(secret)))
    assert (ann.hello, ann.addresses) == (HELLO, ("bob:1",))
    assert (bob.hello, bob.addresses) == (HELLO, ("ann:1",))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("secrets", [(SECRET, b"another secret here"), (SECRET, b""), (b"", SECRET)])
def test_a_wrong_secret_is_refused_and_both_ends_know_why(kind, secrets):
    ann, bob = run(meet(kind, Terms(secrets[0]), Terms(secrets[1])))
    assert bob.refusal == Refusal.SECRET
    assert ann.refusal == Refusal.BY_OTHER
    assert "wrong network secret" in str(ann)


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_is_not_on_the_list_is_refused(kind):
    ann, bob = run(meet(kind, bob_terms=Terms(allowed=frozenset({b"somebody else"}))))
    assert bob.refusal == Refusal.NOT_ALLOWED
    assert ann.refusal == Refusal.BY_OTHER


ANN, BOB = b"\x01" * 32, b"\x02" * 32
FOUNDER = Membership(b"network", b"founder", VirtualSeal(b"founder"))


def member(certificate):
    return Terms(membership=Membership(b"network", b"founder", VirtualSeal(b"any")), certificate=certificate)


def test_members_of_a_network_with_a_founder_show_their_certificates():
    ann, bob = run(meet("memory", member(FOUNDER.admit(ANN)), member(FOUNDER.admit(BOB))))
    assert (ann.certificate.peer, bob.certificate.peer) == (BOB, ANN)


@pytest.mark.parametrize(
    ("certificate", "flaw"),
    [(None, "none was sent"), (FOUNDER.admit(BOB), "it admits 0202020202"), (FOUNDER.admit(ANN, 9), "it expired on")],
)
def test_whoever_has_no_valid_certificate_is_refused_and_both_ends_know_why(certificate, flaw):
    ann, bob = run(meet("memory", member(certificate), member(FOUNDER.admit(BOB))))
    assert bob.refusal == Refusal.CERTIFICATE
    assert ann.refusal == Refusal.BY_OTHER
    for end in (ann, bob):
        assert flaw in str(end)
        assert "the founder makes one with `dada peer admit`" in str(end)


def test_a_revoked_member_is_refused():
    terms = member(FOUNDER.admit(BOB))
    ann, bob = run(meet("memory", member(FOUNDER.admit(ANN)), terms, bob_revoked={ANN}))
    assert bob.refusal == Refusal.REVOKED
    assert "membership revoked by the founder" in str(ann)


@pytest.mark.parametrize("kind", KINDS)
def test_another_learning_problem_is_refused(kind):
    ann, bob = run(meet(kind, ann_hello=Hello(b"another problem", 1)))
    assert Refusal.PROBLEM in {ann.refusal, bob.refusal}


@pytest.mark.parametrize("kind", KINDS)
def test_another_protocol_version_is_refused(kind):
    async def old_bob(stream):
        await stream.receive()
        await stream.link.send(frame(Kind.GREETING, b"dada\x01" + bytes(32)))
        return await stream.receive()

    ann, bob = run(meet(kind, bob=old_bob))
    assert ann.refusal == Refusal.VERSION
    assert f"the other end uses version 1, this peer {PROTOCOL_VERSION}: update the older one" in str(ann)
    assert bob == (Kind.REFUSAL, b"another protocol version")


@pytest.mark.parametrize(
    "sent",
    [
        frame(Kind.GREETING, b"nonsense"),
        frame(Kind.PROOF, bytes(32)),
        frame(Kind.MESSAGE, encode(Goodbye())),
        b"\xff\xff\xff\xff\x00",
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        frame(Kind.GREETING, b"dada" + bytes([PROTOCOL_VERSION]) + bytes(31)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_instead_of_a_greeting_is_refused(kind, sent):
    async def odd_bob(stream):
        await stream.link.send(sent)
        await stream.drain()

    ann, _ = run(meet(kind, bob=odd_bob))
    assert isinstance(ann, HandshakeError)
    assert ann.refusal == Refusal.FRAME


@pytest.mark.parametrize("kind", KINDS)
def test_a_handshake_has_a_time_limit(kind):
    async def silent_bob(stream):
        await stream.drain()

    ann, _ = run(meet(kind, bob=silent_bob, timeout_s=0.2))
    assert ann.refusal == Refusal.SILENCE


def test_the_secret_and_anything_that_fits_another_link_stay_inside():
    """A stranger that answers gets no proof, and the proof of one link is not that of another."""
    received = []

    async def listening_bob(stream):
        greeting = await stream.receive()
        await stream.link.send(frame(Kind.GREETING, b"dada" + bytes([PROTOCOL_VERSION]) + b"n" * 32))
        received.append((greeting, await stream.receive()))

    async def lying_ann(nonce):
        async with Transports("memory") as transports:
            ann, bob = await transports.make(), await transports.make()
            link = await ann.dial(bob.me, bob.addresses)
            there = FrameStream(await bob.accept())
            party = Party(ann.me, True, Terms(SECRET), HELLO, (), nonce)
            talking = asyncio.create_task(shake_hands(FrameStream(link), party))
            await listening_bob(there)
            link.close()
            await asyncio.gather(talking, return_exceptions=True)

    run(lying_ann(b"1" * 32))
    run(lying_ann(b"2" * 32))
    (_, first), (_, second) = received
    assert first != second
    assert SECRET not in first[1] + second[1]

    async def asking_ann():
        """An acceptor proves nothing to a dialler that has proved nothing."""
        async with Transports("memory") as transports:
            ann, bob = await transports.make(), await transports.make()
            stream = FrameStream(await ann.dial(bob.me, bob.addresses))
            party = Party(bob.me, False, Terms(SECRET), HELLO, (), bytes(32))
            answering = asyncio.create_task(shake_hands(FrameStream(await bob.accept()), party))
            await stream.link.send(frame(Kind.GREETING, b"dada" + bytes([PROTOCOL_VERSION]) + bytes(32)))
            await stream.link.send(frame(Kind.PROOF, bytes(32) + b"\x90"))
            received = [await stream.receive(), await stream.receive()]
            stream.link.close()
            await asyncio.gather(answering, return_exceptions=True)
            return [kind for kind, _ in received]

    assert run(asking_ann()) == [Kind.GREETING, Kind.REFUSAL]


def test_words_of_a_stranger_cannot_disturb_a_terminal():
    async def rude_bob(stream):
        await stream.receive()
        await stream.link.send(frame(Kind.REFUSAL, b"\x1b[2Jgo away\x07" + b"x" * 900))
        await stream.drain()

    ann, _ = run(meet("memory", bob=rude_bob))
    assert str(ann).startswith("refused by the other end: ?[2Jgo away?")
    assert len(str(ann)) < 200
