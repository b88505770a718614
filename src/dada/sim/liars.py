"""Peers that do not do what the protocol says. Each wraps a member and changes what it says.

A liar is a member like any other underneath, so that others come to know it and ask it; it lies in what it sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from dada.core.compiled import Array
from dada.peer.inputs import Send
from dada.peer.member import Member
from dada.peer.messages import (
    Descriptor,
    EdgeState,
    Follow,
    FriendsReply,
    Message,
    ModelDelta,
    ModelOffer,
    PeerId,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    StateReply,
    StateRequest,
    ViewReply,
    ViewRequest,
    encode,
)
from dada.sim.world import Deed, SendBytes


class Liar:
    """A member whose words are changed on the way out; kinds of liars say how.

    Parameters
    ----------
    member : Member
        What it would be if it were honest.
    rng : numpy.random.Generator
        Its chance.
    """

    def __init__(self, member: Member, rng: np.random.Generator) -> None:
        self.member, self.rng = member, rng
        self.beta = member.peer.config.beta
        self.n_predictors = member.peer.config.n_predictors

    @property
    def deadline(self) -> float:
        """See `Member`."""
        return self.member.deadline

    def restore(self, records: dict[bytes, bytes]) -> None:
        """See `Member`."""
        self.member.restore(records)

    def start(self, now: float, known: Iterable[Descriptor] = ()) -> Sequence[Deed]:
        """See `Member`."""
        return self._lied(self.member.start(now, known))

    def on_timer(self, now: float) -> Sequence[Deed]:
        """See `Member`."""
        return [*self._lied(self.member.on_timer(now)), *self.mischief()]

    def receive_bytes(self, sender: PeerId, data: bytes, now: float) -> Sequence[Deed]:
        """See `Member`."""
        return self._lied(self.member.receive_bytes(sender, data, now))

    def on_unreachable(self, peer: PeerId, now: float) -> Sequence[Deed]:
        """See `Member`."""
        return self._lied(self.member.on_unreachable(peer, now))

    def leave(self, now: float) -> Sequence[Deed]:
        """See `Member`."""
        return self._lied(self.member.leave(now))

    def _lied(self, deeds: Sequence[Deed]) -> list[Deed]:
        return [Send(deed.to, self.lie(deed.to, deed.message)) if isinstance(deed, Send) else deed for deed in deeds]

    def lie(self, to: PeerId, message: Message) -> Message:
        """What is said in place of a message."""
        return message

    def mischief(self) -> Sequence[Deed]:
        """What is done beyond the protocol whenever the member wakes."""
        return ()

    def victims(self, n: int) -> tuple[PeerId, ...]:
        """Some peers of the view."""
        return self.member.sampling.sample(n)


def _in_place_of_models(message: Message, snapshot: Snapshot) -> Message:
    """The message with another model in it."""
    if isinstance(message, SnapshotReply | StateReply | ModelOffer) or (
        isinstance(message, EdgeState) and message.snapshot
    ):
        return msgspec.structs.replace(message, snapshot=snapshot)
    return message


def _as_snapshot(model: Array, epoch: int, sequence: int) -> Snapshot:
    used = np.flatnonzero(model)
    return Snapshot(epoch, sequence, used.astype("<u4").tobytes(), model[used].astype("<f4").tobytes())


class Exaggerator(Liar):
    """Sends models outside the ball, numbers that are none, coordinates that do not exist, and impossible moves."""

    def lie(self, to: PeerId, message: Message) -> Message:
        """See `Liar`."""
        number = self.member.peer.model.number
        lies = (
            Snapshot(*number, b"\x00\x00\x00\x00", np.float32(1e30).tobytes()),
            Snapshot(*number, b"\x00\x00\x00\x00", np.float32(np.nan).tobytes()),
            Snapshot(*number, b"\xff\xff\xff\xff", np.float32(1.0).tobytes()),
            Snapshot(*number, b"\x00" * 8, np.ones(2, "<f4").tobytes()),
            Snapshot(*number, b"\x00", b""),
        )
        if isinstance(message, ModelDelta):
            gamma = (5.0, -1.0, math.nan, math.inf, 1.0)[self.rng.integers(5)]
            j = int(self.rng.integers(-3, self.n_predictors + 3))
            away = int(self.rng.integers(-3, self.n_predictors + 3))
            return msgspec.structs.replace(message, gamma=gamma, j=j, away=away)
        return _in_place_of_models(message, lies[self.rng.integers(len(lies))])


class Attractor(Liar):
    """Offers a useless but well-formed model together with the loss, degree and size that attract most."""

    def __init__(self, member: Member, rng: np.random.Generator) -> None:
        super().__init__(member, rng)
        model = rng.standard_normal(self.n_predictors) * (rng.random(self.n_predictors) < 0.1)
        model[0] = 1.0
        self.model = 0.99 * self.beta * model / np.abs(model).sum()

    def lie(self, to: PeerId, message: Message) -> Message:
        """See `Liar`."""
        message = _in_place_of_models(message, _as_snapshot(self.model, *self.member.peer.model.number))
        if isinstance(message, StateReply):
            return msgspec.structs.replace(message, loss=-self.beta, degree=0.0, size=10**6)
        if isinstance(message, ModelOffer):
            return msgspec.structs.replace(message, size=10**6)
        return message


class Poisoner(Attractor):
    """As an attractor, with the opposite of a model that was honestly learned."""

    def lie(self, to: PeerId, message: Message) -> Message:
        """See `Liar`."""
        self.model = -self.member.peer.model.alpha.astype(np.float64)
        return super().lie(to, message)


class Chameleon(Liar):
    """Honest until others have come to trust it, and then wrong: its model turns into its opposite."""

    def lie(self, to: PeerId, message: Message) -> Message:
        """See `Liar`."""
        peer = self.member.peer
        if self.member.planner.wakeups < 40:
            return message
        if isinstance(message, ModelDelta):
            # Takes the place of the next move: a whole model, of the number that the move would have had.
            return SnapshotReply(_as_snapshot(-peer.model.alpha, *peer.model.number))
        return _in_place_of_models(message, _as_snapshot(-peer.model.alpha, *peer.model.number))


class Claimer(Liar):
    """Answers every word about an edge with a version nobody can exceed and a weight that drowns all others."""

    def lie(self, to: PeerId, message: Message) -> Message:
        """See `Liar`."""
        if isinstance(message, EdgeState):
            version, weight = 2 ** int(self.rng.integers(10, 49)), 10.0 ** int(self.rng.integers(0, 10))
            snapshot = self.member.peer.model.snapshot()
            return EdgeState(version, self.member.me, weight, snapshot)
        return message

    def mischief(self) -> Sequence[Deed]:
        """See `Liar`."""
        return [Send(peer, self.lie(peer, EdgeState(1, self.member.me, 1.0))) for peer in self.victims(2)]


class Rewinder(Liar):
    """Says what was true in the past: old versions of edges, with other weights, and in the name of others."""

    def mischief(self) -> Sequence[Deed]:
        """See `Liar`."""
        lies: list[Deed] = []
        for peer in self.victims(3):
            edge = self.member.peer.edges.get(peer)
            version = 0 if edge is None else int(self.rng.integers(edge.version + 1))
            author = (self.member.me, peer, b"somebody")[self.rng.integers(3)]
            lies.append(Send(peer, EdgeState(version, author, float(self.rng.random()))))
            lies.append(Send(peer, Follow(version, bool(self.rng.integers(2)))))
        return lies


class Garbler(Liar):
    """Puts random bytes, cut-off messages and messages of another version on the wire."""

    def mischief(self) -> Sequence[Deed]:
        """See `Liar`."""
        sound = encode(StateReply(1, self.member.peer.model.snapshot(), 0.0, 0.0, 1))
        garbage = (
            self.rng.bytes(int(self.rng.integers(1, 200))),
            sound[: int(self.rng.integers(len(sound)))],
            b"\x07" + sound[1:],
            sound[:1] + bytes([sound[1]]) + self.rng.bytes(len(sound)),
        )
        return [SendBytes(peer, garbage[self.rng.integers(len(garbage))]) for peer in self.victims(3)]


class Flooder(Liar):
    """Asks one peer hundreds of times for all it has."""

    def mischief(self) -> Sequence[Deed]:
        """See `Liar`."""
        question = (SnapshotRequest(), StateRequest(1))[self.rng.integers(2)]
        return [Send(peer, question) for peer in self.victims(1) for _ in range(100)]


class Gossip(Liar):
    """Spreads views of peers that do not exist, oversized views, and views that nobody asked for."""

    def lie(self, to: PeerId, message: Message) -> Message:
        """See `Liar`."""
        if isinstance(message, ViewRequest | ViewReply | FriendsReply):
            most = 4 if isinstance(message, FriendsReply) else 15
            size = (most, most, most, 40)[self.rng.integers(4)]
            ghosts = tuple(Descriptor(self.rng.bytes(8), 0) for _ in range(size))
            return type(message)(ghosts)
        return message

    def mischief(self) -> Sequence[Deed]:
        """See `Liar`."""
        return [Send(peer, self.lie(peer, ViewReply(()))) for peer in self.victims(2)]


KINDS: tuple[type[Liar], ...] = (
    Exaggerator, Attractor, Poisoner, Chameleon, Claimer, Rewinder, Garbler, Flooder, Gossip,
)  # fmt: skip
