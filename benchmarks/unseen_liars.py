"""Liars that no rule was made with: looked at once, after every rule against liars is settled.

They have the interface of `dada.sim.liars` and are none of its kinds.

    python benchmarks/liars.py --liars unseen_liars --seeds 5
"""

from collections.abc import Sequence

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.peer import messages
from dada.peer.inputs import Send
from dada.peer.member import Member
from dada.peer.messages import Message, ModelSnapshot, PeerId
from dada.peer.model import Fallback
from dada.peer.sampling import signed_card
from dada.peer.signatures import content_of, statement_of
from dada.sim.liars import Deed, Liar
from dada.sim.virtual import VirtualSeal


class ModelLiar(Liar):
    """Sends one false model at a time to all peers, signed and with the numbers of the honest model."""

    def model(self) -> Array:
        """The false model."""
        raise NotImplementedError

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """See `Liar`."""
        return self.with_model(message, self.model())

    def with_model(self, message: Message, model: Array) -> Message:
        """The message with another model, in the ball and signed."""
        if not isinstance(
            message,
            messages.ModelChange
            | messages.SnapshotReply
            | messages.StateReply
            | messages.ModelOffer
            | messages.EdgeState
            | messages.FollowAck,
        ):
            return message
        own = self.member.peer.own
        norm = float(np.abs(model).sum())
        snapshot = self.as_snapshot(0.99 * model * min(1.0, self.beta / max(norm, 1e-9)), *own.shared.number)
        statement = statement_of(own.copy_of(snapshot))
        signature = self.member.seal.sign(content_of(statement))
        return _replaced(message, snapshot, statement.digest, signature)


def _replaced(message: Message, snapshot: ModelSnapshot, digest: bytes, signature: bytes) -> Message:
    if isinstance(message, messages.ModelChange | messages.SnapshotReply):
        return messages.SnapshotReply(snapshot, signature)
    if isinstance(message, messages.FollowAck):
        return (
            messages.FollowAck(message.version, message.follows, message.epoch, message.sequence, digest, signature)
            if message.digest
            else message
        )
    if isinstance(message, messages.StateReply):
        return messages.StateReply(message.round, snapshot, message.loss, message.degree, message.size)
    if isinstance(message, messages.ModelOffer):
        return messages.ModelOffer(message.round, snapshot, message.size)
    if isinstance(message, messages.EdgeState) and message.snapshot:
        return messages.EdgeState(message.version, message.author, message.weight, snapshot)
    return message


class _FlippedLearner(ModelLiar):
    """Learns alone from its rows, of which a share has the other label."""

    SHARE = 1.0

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        super().__init__(member, rng, gang)
        rows = member.peer.own.rows
        signs = np.where(rng.random(len(rows.A)) < self.SHARE, -1, 1).astype(rows.A.dtype)
        flipped = UserRows(rows.A * signs[:, None], rows.offset, rows.weights)
        self._learned = Fallback(flipped, member.peer.config).alpha.astype(np.float64)

    def model(self) -> Array:
        """See `ModelLiar`."""
        return self._learned


class LateFlipper(_FlippedLearner):
    """Honest for a hundred wake-ups, two thirds of a usual run; then it sends a model of flipped labels."""

    HONEST_WAKEUPS = 100

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """See `Liar`."""
        if self.member.planner.wakeups < self.HONEST_WAKEUPS:
            return message
        return super().lie_to(peer, message)


class CarelessLearner(_FlippedLearner):
    """Learns from its rows with one label in ten flipped."""

    SHARE = 0.1


class Couple(ModelLiar):
    """Liars in pairs that name each other as friends and in views, and send the negative of an honest model."""

    def model(self) -> Array:
        """See `ModelLiar`."""
        return -self.member.peer.own.model.alpha.astype(np.float64)

    @property
    def partner(self) -> PeerId:
        """The other of the pair; the last one without a partner is its own."""
        place = self.gang.index(self.member.me) ^ 1
        return self.gang[place] if place < len(self.gang) else self.member.me

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """See `Liar`."""
        named = (signed_card(self.partner, 1, (), VirtualSeal(self.partner)),)
        if isinstance(message, messages.FriendsReply):
            return messages.FriendsReply(named)
        if isinstance(message, messages.ViewRequest | messages.ViewReply):
            others = (known for known in message.view if known.peer != self.partner)
            return type(message)((*named, *others)[:15])
        return super().lie_to(peer, message)

    def attack(self) -> Sequence[Deed]:
        """See `Liar`."""
        return [Send(peer, messages.StateRequest(1)) for peer in self.victims(1)]


class HalfTruth(ModelLiar):
    """Sends a model between its honest one and the negative of the mean of its neighbours."""

    TRUTH = 0.6

    def model(self) -> Array:
        """See `ModelLiar`."""
        own = self.member.peer.own.model.alpha.astype(np.float64)
        weight, total = self.member.peer.edges.neighbour_sum()
        mean = total / weight if weight > 0.0 else own
        return self.TRUTH * own - (1.0 - self.TRUTH) * mean


class RandomSupport(ModelLiar):
    """Sends a model of full norm with random coordinates, drawn once."""

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        super().__init__(member, rng, gang)
        used = rng.choice(self.n_predictors, size=min(10, self.n_predictors), replace=False)
        self._model = np.zeros(self.n_predictors)
        self._model[used] = self.beta * rng.dirichlet(np.ones(used.size)) * rng.choice([-1.0, 1.0], used.size)

    def model(self) -> Array:
        """See `ModelLiar`."""
        return self._model


class Favouritist(ModelLiar):
    """Honest to half of all peers; the other half gets the model with noise of half its norm, all the same noise."""

    def __init__(self, member: Member, rng: np.random.Generator, gang: Sequence[PeerId] = ()) -> None:
        super().__init__(member, rng, gang)
        noise = rng.standard_normal(self.n_predictors)
        self._noise = 0.5 * self.beta * noise / np.abs(noise).sum()

    def model(self) -> Array:
        """See `ModelLiar`."""
        return self.member.peer.own.shared.alpha.astype(np.float64) + self._noise

    def lie_to(self, peer: PeerId, message: Message) -> Message:
        """See `Liar`."""
        return super().lie_to(peer, message) if sum(peer) % 2 else message


KINDS: tuple[type[Liar], ...] = (LateFlipper, CarelessLearner, Couple, HalfTruth, RandomSupport, Favouritist)
