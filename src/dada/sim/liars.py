"""Peers that break the protocol.

A liar drives an honest member, so that others meet it and ask it, and changes the messages of this member.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from msgspec.structs import astuple, replace

from dada.core.compiled import Array
from dada.peer import messages
from dada.peer.copies import ModelCopy
from dada.peer.inputs import Effect, Send
from dada.peer.member import Member
from dada.peer.messages import Descriptor, Message, ModelSnapshot, PeerId, Statement, encode
from dada.peer.sampling import signed_card
from dada.peer.signatures import content_of, statement_of
from dada.sim.virtual import VirtualSeal

# Samples that a liar claims to have.
CLAIMED = 10**6


class SendBytes(NamedTuple):
    """Send bytes that are not an encoded message."""

    to: PeerId
    data: bytes


Deed = Effect | SendBytes


class Liar:
    """Changes the messages of an honest member before they are sent; subclasses are kinds of liars.

    `gang` holds the ids of all liars of the network; some kinds cooperate. `source` is the member whose model a liar
    misuses: its own, or that of another identity of the same attacker.
    """

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        self.member, self.rng, self.gang = member, rng, gang
        self.source = member
        self.beta = member.peer.config.beta

    @property
    def n_predictors(self) -> int:
        """Weights in a model; trees may change their number."""
        return self.member.peer.config.n_predictors

    def falsify(self, effects: Sequence[Effect]) -> list[Deed]:
        """The effects of the member, with other messages."""
        return [Send(one.to, self.lie_to(one.to, one.message)) if isinstance(one, Send) else one for one in effects]

    def overhear(self, sender: PeerId, message: Message) -> None:
        """A message to the member has arrived."""

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """The message that is sent to a peer in place of another."""
        return self.lie(message)

    def lie(self, message: Message) -> Message:
        """The message that is sent in place of another."""
        return message

    def attack(self) -> Sequence[Deed]:
        """What the liar does in addition whenever the timer of its member fires."""
        return ()

    def as_snapshot(self, model: Array, epoch: int, sequence: int) -> ModelSnapshot:
        """A model in the form of this network; one over other trees is cut off, or filled with zeros."""
        config, size = self.member.peer.config, min(model.size, self.n_predictors)
        model = np.append(model[:size], np.zeros(self.n_predictors - size, model.dtype))
        used = np.flatnonzero(model)
        if not config.sends_codes:
            return ModelSnapshot(epoch, sequence, used.astype("<u4").tobytes(), model[used].astype("<f4").tobytes())
        copy = ModelCopy.zero(self.n_predictors, epoch, config.dtype)
        copy.alpha[:] = np.ldexp(np.rint(np.ldexp(model.astype(np.float64), -config.finest)), config.finest)
        used = np.flatnonzero(copy.alpha)
        copy.support[: used.size], copy.n_support = used, used.size
        copy.sequence, copy.exponent = sequence, config.finest
        return self.member.peer.own.snapshot_of(copy)

    def card(self, peer: PeerId) -> Descriptor:
        """The descriptor of a peer whose key the liar has: a member of its gang, or an invented one."""
        return signed_card(peer, 1, (), VirtualSeal(peer))

    def victims(self, n: int) -> tuple[PeerId, ...]:
        """Some peers of the view."""
        return self.member.sampling.sample(n)


def _in_place_of_models(message: Message, snapshot: ModelSnapshot) -> Message:
    """The message with another model in it."""
    if isinstance(message, messages.SnapshotReply | messages.StateReply | messages.ModelOffer) or (
        isinstance(message, messages.EdgeState) and message.snapshot
    ):
        return replace(message, snapshot=snapshot)
    return message


class Exaggerator(Liar):
    """Sends models outside the l1 ball, values that are not finite, unknown coordinates and impossible moves."""

    # Of the last model, in beta: the shared models of block steps are refused beyond 4.
    NORM = 5.0

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        own, number = self.member.peer.own.shared, self.member.peer.own.shared.number
        lies = [
            self.as_snapshot(own.alpha * (self.NORM * self.beta / max(own.norm, 1e-9)), *number),
            ModelSnapshot(*number, b"\x00\x00\x00\x00", np.float32(1e30).tobytes()),
            ModelSnapshot(*number, b"\x00\x00\x00\x00", np.float32(np.nan).tobytes()),
            ModelSnapshot(*number, b"\xff\xff\xff\xff", np.float32(1.0).tobytes()),
            ModelSnapshot(*number, b"\x00" * 8, np.ones(2, "<f4").tobytes()),
            ModelSnapshot(*number, b"\x00", b""),
        ]
        if isinstance(message, messages.ModelDelta):
            gamma = (5.0, -1.0, math.nan, math.inf, 1.0)[self.rng.integers(5)]
            j = int(self.rng.integers(-3, self.n_predictors + 3))
            away = int(self.rng.integers(-3, self.n_predictors + 3))
            return replace(message, gamma=gamma, j=j, away=away)
        if self.member.peer.config.sends_codes:
            # Exponents beyond both bounds, no entries, and random bits; a snapshot begins with the width of its values.
            codes = (b"\x7f\x00\x80\x7f", b"\x80\x00\x80\x7f", b"", self.rng.bytes(int(self.rng.integers(1, 60))))
            code = codes[self.rng.integers(len(codes))]
            lies += [ModelSnapshot(*number, b"", bytes([width]) + code) for width in (0, 6, 255)]
            if isinstance(message, messages.BlockChange):
                return replace(message, code=code)
        return _in_place_of_models(message, lies[self.rng.integers(len(lies))])


class Attractor(Liar):
    """Sends a useless but well-formed model with the loss, degree and size that attract most."""

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        super().__init__(member, rng, gang)
        model = rng.standard_normal(self.n_predictors) * (rng.random(self.n_predictors) < 0.1)
        model[0] = 1.0
        self.model = 0.99 * self.beta * model / np.abs(model).sum()

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        message = _in_place_of_models(message, self.as_snapshot(self.model, *self.member.peer.own.shared.number))
        if isinstance(message, messages.StateReply):
            return replace(message, loss=-self.beta, degree=0.0, size=CLAIMED)
        if isinstance(message, messages.ModelOffer | messages.EdgeAck | messages.FollowAck):
            return replace(message, size=CLAIMED)
        return message


class Poisoner(Attractor):
    """An attractor with the negative of an honestly learned model."""

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        self.model = -self.source.peer.own.model.alpha.astype(np.float64)
        return super().lie(message)


class Chameleon(Liar):
    """Honest until others have come to trust it; then it sends the negative of its model."""

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        if self.member.planner.wakeups < 40:
            return message
        own = self.member.peer.own.model
        snapshot = self.as_snapshot(-own.alpha, *self.member.peer.own.shared.number)
        if isinstance(message, messages.ModelChange):
            # A whole model with the number of the change that it replaces.
            return messages.SnapshotReply(snapshot)
        return _in_place_of_models(message, snapshot)


class Claimer(Liar):
    """Claims edges with huge versions and with weights far above all others."""

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        if isinstance(message, messages.EdgeState):
            version, weight = 2 ** int(self.rng.integers(10, 49)), 10.0 ** int(self.rng.integers(0, 10))
            snapshot = self.member.peer.own.snapshot()
            return messages.EdgeState(version, self.member.me, weight, snapshot)
        return message

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        return [Send(peer, self.lie(messages.EdgeState(1, self.member.me, 1.0))) for peer in self.victims(2)]


class Rewinder(Liar):
    """Sends old versions of edges, with other weights, and in the name of others."""

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        lies: list[Deed] = []
        for peer in self.victims(3):
            edge = self.member.peer.edges.get(peer)
            version = 0 if edge is None else int(self.rng.integers(edge.version + 1))
            author = (self.member.me, peer, b"somebody")[self.rng.integers(3)]
            lies.append(Send(peer, messages.EdgeState(version, author, float(self.rng.random()))))
            lies.append(Send(peer, messages.Follow(version, bool(self.rng.integers(2)))))
        return lies


class Garbler(Liar):
    """Sends random bytes, truncated messages and messages of another version."""

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        sound = encode(messages.StateReply(1, self.member.peer.own.snapshot(), 0.0, 0.0, 1))
        garbage = (
            self.rng.bytes(int(self.rng.integers(1, 200))),
            sound[: int(self.rng.integers(len(sound)))],
            b"\x07" + sound[1:],
            sound[:1] + bytes([sound[1]]) + self.rng.bytes(len(sound)),
        )
        return [SendBytes(peer, garbage[self.rng.integers(len(garbage))]) for peer in self.victims(3)]


class Flooder(Liar):
    """Sends one peer a hundred requests at a time."""

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        question = (messages.SnapshotRequest(), messages.StateRequest(1))[self.rng.integers(2)]
        return [Send(peer, question) for peer in self.victims(1) for _ in range(100)]


class Gossip(Liar):
    """Sends views of invented peers, oversized views, and unsolicited views."""

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        if isinstance(message, messages.ViewRequest | messages.ViewReply | messages.FriendsReply):
            most = 4 if isinstance(message, messages.FriendsReply) else 15
            size = (most, most, most, 40)[self.rng.integers(4)]
            return type(message)(tuple(self.card(self.rng.bytes(8)) for _ in range(size)))
        return message

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """See `Liar`. Half of the views name the receiver itself."""
        false = self.lie(message)
        if isinstance(false, messages.ViewRequest | messages.ViewReply) and self.rng.integers(2):
            return type(false)((self.card(peer), *false.view[1:]))
        return false

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        return [Send(peer, self.lie_to(peer, messages.ViewReply(()))) for peer in self.victims(2)]


class Equivocator(Liar):
    """Sends every second peer another model with the same number, and signs both."""

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """See `Liar`."""
        if peer[-1] % 2:
            return message
        own = self.member.peer.own
        snapshot = self.as_snapshot(0.9 * own.shared.alpha, *own.shared.number)
        statement = statement_of(own.copy_of(snapshot))
        signature = self.member.seal.sign(content_of(statement))
        if isinstance(message, messages.FollowAck) and message.digest:
            return replace(message, digest=statement.digest, signature=signature)
        if isinstance(message, messages.SnapshotReply | messages.ModelChange):
            return messages.SnapshotReply(snapshot, signature)
        return _in_place_of_models(message, snapshot)


class Acknowledger(Liar):
    """Acknowledges what it never received, with false versions, authors and numbers of models."""

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        if not isinstance(message, messages.FollowAck | messages.EdgeAck):
            return message
        version = (message.version, message.version + 1, max(0, message.version - 1), 2**40)[self.rng.integers(4)]
        false = replace(message, version=version, sequence=message.sequence + int(self.rng.integers(3)))
        if isinstance(false, messages.FollowAck):
            return replace(false, follows=bool(self.rng.integers(2)))
        return replace(false, author=(false.author, self.member.me)[self.rng.integers(2)])

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        number = self.member.peer.own.shared.number
        acks = messages.FollowAck(1, True, *number), messages.EdgeAck(1, self.member.me, *number)
        return [Send(peer, self.lie(ack)) for peer in self.victims(2) for ack in acks]


def _with_gang(message: Message, liar: Liar) -> Message:
    """The message with other liars in place of all peers that it names."""
    if isinstance(message, messages.ViewRequest | messages.ViewReply | messages.FriendsReply):
        most = 4 if isinstance(message, messages.FriendsReply) else 15
        chosen = liar.rng.permutation(len(liar.gang))[:most]
        return type(message)(tuple(liar.card(liar.gang[p]) for p in chosen))
    return message


class Conspirator(Liar):
    """Names no peers but liars, and slanders others: with false proofs, and with epochs that they never had."""

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        return _with_gang(message, self)

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        victims = [peer for peer in self.victims(3) if peer not in self.gang]
        if len(victims) < 2:
            return ()
        first, second = (Statement(1, 1, self.rng.bytes(16), self.rng.bytes(64)) for _ in range(2))
        epoch = self.member.peer.own.shared.epoch + int(self.rng.integers(100))
        lies: list[Deed] = [Send(victims[0], messages.EpochSeen(epoch, b""))]
        return [*lies, Send(victims[0], messages.Equivocation(victims[1], first, second))]


class Signer(Liar):
    """Sends every peer a model of its choice, and signs it. No two statements contradict each other."""

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        super().__init__(member, rng, gang)
        self.sent = 0
        self.last_sent: dict[PeerId, Statement] = {}

    @abstractmethod
    def image(self, peer: PeerId) -> Array:
        """The model that a peer receives."""

    def next_number(self, peer: PeerId) -> int:
        """The number of the next model for a peer."""
        self.sent += 1
        return self.sent

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """See `Liar`."""
        if isinstance(message, messages.FollowAck):
            last = self.last_sent.get(peer)
            if last is None:
                return message
            return replace(messages.FollowAck(message.version, message.follows, *astuple(last)), size=CLAIMED)
        if isinstance(message, messages.ModelChange):
            message = messages.SnapshotReply(self.member.peer.own.snapshot())
        if not isinstance(message, messages.SnapshotReply | messages.StateReply | messages.ModelOffer):
            return message
        epoch = self.member.peer.own.shared.epoch
        snapshot = self.as_snapshot(self.image(peer), epoch, self.next_number(peer))
        statement = statement_of(self.member.peer.own.copy_of(snapshot))
        statement = replace(statement, signature=self.member.seal.sign(content_of(statement)))
        self.last_sent[peer] = statement
        if isinstance(message, messages.SnapshotReply):
            return messages.SnapshotReply(snapshot, statement.signature)
        return replace(message, snapshot=snapshot, size=CLAIMED)


class Turncoat(Signer):
    """Sends an honestly learned model and its negative in turns of twenty wake-ups, the same to all."""

    TURN = 20

    def image(self, peer: PeerId) -> Array:
        """See `Signer`."""
        sign = 1.0 - 2.0 * (self.member.planner.wakeups // self.TURN % 2)
        return sign * self.source.peer.own.shared.alpha.astype(np.float64)

    def next_number(self, peer: PeerId) -> int:
        """See `Signer`."""
        return 10**6 * (self.member.planner.wakeups // self.TURN) + self.member.peer.own.shared.sequence


class Mirror(Signer):
    """Sends each victim the victim's own model, which fits its samples best, and slowly turns it against all others.

    It gets the models by following its victims and by asking for snapshots. It claims a million samples.
    """

    DRIFT, MOST_DRIFT = 0.01, 1.0

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        super().__init__(member, rng, gang)
        self.models: dict[PeerId, Array] = {}

    def overhear(self, sender: PeerId, message: Message) -> None:
        """See `Liar`."""
        if isinstance(message, messages.SnapshotReply | messages.ModelOffer) and sender not in self.gang:
            self.models[sender] = self.member.peer.own.copy_of(message.snapshot).alpha.astype(np.float64)

    def image(self, peer: PeerId) -> Array:
        """See `Signer`."""
        own = self.source.peer.own.model.alpha.astype(np.float64)
        mean = sum(self.models.values(), np.zeros_like(own)) / max(1, len(self.models))
        drift = min(self.DRIFT * self.member.planner.wakeups, self.MOST_DRIFT)
        image = self.models.get(peer, own) - drift * mean
        return 0.99 * image * min(1.0, self.beta / max(np.abs(image).sum(), 1e-9))

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        victims = self.victims(4)
        version = messages.VERSIONS_PER_LIFE * (self.member.peer.own.shared.epoch + 1) + self.sent
        oracle: list[Deed] = [Send(peer, messages.SnapshotRequest()) for peer in victims]
        oracle += [Send(peer, messages.Follow(version, follows=True)) for peer in victims]
        reply = messages.SnapshotReply(self.member.peer.own.snapshot())
        # Peers that do not follow ignore models.
        followers = [peer for peer in self.member.peer.neighbourhood.followers if peer in self.models]
        return [*oracle, *(Send(peer, self.lie_to(peer, reply)) for peer in followers)]


class ForkedMirror(Mirror):
    """A mirror that numbers the models of each victim from one: the same numbers for all, with different models."""

    def next_number(self, peer: PeerId) -> int:
        """See `Mirror`."""
        last = self.last_sent.get(peer)
        return 1 if last is None else last.sequence + 1


class TieredMirror(Mirror):
    """A mirror that gives every victim a range of numbers of its own, so that no two of them hold similar numbers."""

    def next_number(self, peer: PeerId) -> int:
        """See `Mirror`."""
        last = self.last_sent.get(peer)
        return 10**6 * (1 + len(self.last_sent)) if last is None else last.sequence + 1


class Shadow(Mirror):
    """A mirror with one victim: all peers get the image of the same one, so it never contradicts itself.

    The liars share their victims out among each other.
    """

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        super().__init__(member, rng, gang)
        self.victim: PeerId | None = None
        self.present = self.member.peer.own.model.alpha.astype(np.float64)

    def image(self, peer: PeerId) -> Array:
        """See `Mirror`."""
        return self.present

    def next_number(self, peer: PeerId) -> int:
        """See `Mirror`."""
        return self.sent

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        if self.victim is None and len(self.models) >= 8:
            self.victim = sorted(self.models)[self.gang.index(self.member.me) * len(self.models) // len(self.gang)]
        self.present = super().image(self.member.me if self.victim is None else self.victim)
        self.sent += 1
        return super().attack()


class Eclipser(Poisoner):
    """One of many identities that fill the view of one victim with each other, and send it poison."""

    def lie(self, message: Message) -> Message:
        """See `Liar`."""
        return super().lie(_with_gang(message, self))

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        victim = min(peer for peer in (*self.member.sampling.view, b"\xff") if peer not in self.gang)
        return [Send(victim, self.lie(messages.ViewRequest(())))]


class Poacher(Liar):
    """Sends trees that are too deep, test unknown features, have leaves beyond 1, or are not those that were signed."""

    def lie(self, message: Message) -> Message:
        """Records with one false tree each."""
        if not isinstance(message, messages.AtomReply):
            return message
        return replace(message, records=tuple(self._falsified(record) for record in message.records))

    def _falsified(self, record: messages.AtomRecord) -> messages.AtomRecord:
        if not record.atoms:
            return record
        first, *others = record.atoms
        false = (first + first[-1:], b"\xff" * 2 + first[2:], first[:-1] + b"\x80", first[:-1] + b"\x07")
        return replace(record, atoms=(false[self.rng.integers(len(false))], *others))


class Grafter(Liar):
    """Sends false boosted trees, false answers to growers, and requests for histograms that no grower sends."""

    def lie(self, message: Message) -> Message:
        """Records with a false tree each, bodies of the lowest or largest bytes, and requests for a deeper tree."""
        if isinstance(message, messages.BoostedReply):
            return replace(message, records=tuple(self._falsified(record) for record in message.records))
        if isinstance(message, messages.GrowthReply):
            lowest, largest = (byte * len(message.body) for byte in (b"\x80", b"\x7f"))
            bodies = (lowest, largest, message.body + b"more")
            return replace(message, body=bodies[self.rng.integers(len(bodies))])
        if isinstance(message, messages.GrowthRequest):
            false = ({"tree": message.tree + bytes(3)}, {"features": b"\xff" * len(message.features)}, {"output": 99})
            return replace(message, **false[self.rng.integers(len(false))])
        return message

    def _falsified(self, record: messages.BoostedRecord) -> messages.BoostedRecord:
        first, *others = record.trees
        if not first.tree:
            return record
        tree, high = first.tree, b"\xff" * 2
        false = (tree + tree[-1:], tree[:2] + high + tree[4:], high + tree[2:], tree[:-1] + b"\x07")
        return replace(record, trees=(replace(first, tree=false[self.rng.integers(len(false))]), *others))


class Exploder(Liar):
    """Answers growers with the largest believed sums; signs trees of the largest leaves, and bytes that are none."""

    def lie(self, message: Message) -> Message:
        """The largest sums, without weight; trees whose leaves all have the largest value, soundly signed."""
        if isinstance(message, messages.GrowthReply) and len(message.body) == self._size_of_sums:
            boosting = self.member.boosting
            n_outputs = 0 if boosting is None else boosting.terms.n_outputs
            exponents, numbers = bytes([33] * n_outputs + [0] * n_outputs), len(message.body) // 2 - n_outputs
            return replace(message, body=exponents + b"\x7f" * numbers + b"\x00" * numbers)
        return message

    @property
    def _size_of_sums(self) -> int:
        boosting = self.member.boosting
        return 0 if boosting is None else 2 * (boosting.terms.n_nodes + 2) * boosting.terms.n_outputs

    def attack(self) -> Sequence[Deed]:
        """Publish the worst tree of this network, as often as a grower may, and as a second one bytes that are none."""
        boosting = self.member.boosting
        if boosting is None or not boosting.records.may_grow:
            return ()
        terms, none = boosting.terms, np.zeros(boosting.terms.n_nodes, np.int64)
        leaf = np.full((terms.n_nodes + 1, terms.n_outputs), 127.0)
        number = 1 + boosting.records.counts[self.member.me]
        # The liar signs both, but its own records do not hold what is no tree.
        false = copy(boosting.records).add(b"\xff" * terms.size)
        record = boosting.records.add(terms.write(number, none, none - 1, leaf))
        return [Send(peer, messages.BoostedReply((one,))) for peer in self.victims(4) for one in (record, false)]


KINDS: tuple[type[Liar], ...] = (
    Exaggerator, Attractor, Poisoner, Chameleon, Claimer, Rewinder, Garbler, Flooder, Gossip, Equivocator, Acknowledger,
    Conspirator,
)  # fmt: skip
# Liars that use what they learn about their victims; a network meets them only by name.
ADAPTIVE_KINDS: tuple[type[Liar], ...] = (Turncoat, Mirror, ForkedMirror, TieredMirror, Shadow, Eclipser)
