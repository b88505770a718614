"""The evidence graph between real peers: everybody follows those whose models do best on its own samples.

Nobody reports a loss or a degree, and nobody has a say in another's weights. A peer that is asked sends its model and
its number of samples; the asker judges it on its own samples (see `dada.core.graph_steps`), keeps the best and follows
them: it tells them so once, and from then on hears of their moves. Weights are nobody else's business.

*Words.* `Follow` says whether its sender follows the receiver. Only its sender decides that, so the highest version it
has given counts, and versions go on rising from life to life. It is repeated until acknowledged. The acknowledgement
also says what the receiver holds and the number of its model, so it is what a peer says to a listener that comes back:
a listener that knows nothing of following answers that it does not.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from dada.core.graph_steps import NEGLIGIBLE, keep_best
from dada.peer.edges import LARGEST_VERSION, MOST_ENDED_EDGES, Edge, Neighbourhood
from dada.peer.inputs import Effect, Persist, Send
from dada.peer.messages import Follow, FollowAck, Message, ModelOffer, PeerId
from dada.peer.model import ImplausibleError, ModelCopy, OwnModel

# Peers that may follow one: each of its moves goes to all of them.
MOST_LISTENERS = 1024
LISTENER_KEY = b"listener:"


@dataclass(eq=False)
class Listener:
    """What this end holds of another's following; `is_sure` unless a crash or a silence came between."""

    version: int
    listens: bool
    is_sure: bool = True


class Following(Neighbourhood):
    """Edges that only this end decides on, and those who follow it; see the top of this file."""

    def __init__(self, me: PeerId, own: OwnModel, largest_size: int) -> None:
        super().__init__(me, own, largest_size)
        self.heard: OrderedDict[PeerId, Listener] = OrderedDict()

    @property
    def listeners(self) -> list[PeerId]:
        """See `Neighbourhood`."""
        return sorted(peer for peer, listener in self.heard.items() if listener.listens)

    # -- life ------------------------------------------------------------------------------------------------------

    def restore(self, records: dict[bytes, bytes]) -> None:
        """See `Neighbourhood`."""
        super().restore(records)
        for key, value in records.items():
            if key.startswith(LISTENER_KEY):
                version = int.from_bytes(value, "big")
                self.heard[key.removeprefix(LISTENER_KEY)] = Listener(version, listens=True, is_sure=False)

    def start(self, now: float) -> list[Effect]:
        """See `Neighbourhood`; what was said before a power cut may have been later than what is stored."""
        self._versions.begin(self.own.model.epoch)
        for peer in self.neighbours:
            self.edges[peer].version = self._versions.after(self.edges[peer].version)
        return super().start(now)

    def on_unreachable(self, peer: PeerId, now: float) -> list[Effect]:
        """See `Neighbourhood`."""
        effects = super().on_unreachable(peer, now)
        listener = self.heard.get(peer)
        if listener is not None and listener.listens:
            effects.append(self._hold(peer, Listener(listener.version, listens=False, is_sure=False)))
        return effects

    def on_hello(self, sender: PeerId, now: float) -> list[Effect]:
        """See `Neighbourhood`."""
        listener = self.heard.get(sender)
        answer = [self._ack(sender, listener)] if listener is not None and listener.listens else []
        return [*super().on_hello(sender, now), *answer]

    def hear(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        """See `Neighbourhood`."""
        if isinstance(message, ModelOffer):
            return self._on_reply(sender, message, now)
        if isinstance(message, Follow):
            return self._on_follow(sender, message)
        if isinstance(message, FollowAck):
            return self._on_ack(sender, message, now)
        return None

    # -- who follows this peer -------------------------------------------------------------------------------------

    def _on_follow(self, sender: PeerId, follow: Follow) -> list[Effect]:
        if not 0 < follow.version <= LARGEST_VERSION:
            raise ImplausibleError(f"follows at version {follow.version}")
        held = self.heard.get(sender)
        effects: list[Effect] = []
        if held is None or follow.version > held.version or (follow.version == held.version and not held.is_sure):
            if follow.follows and len(self.listeners) >= MOST_LISTENERS:
                return [self._ack(sender, Listener(follow.version, listens=False))]
            held = Listener(follow.version, follow.follows)
            effects.append(self._hold(sender, held))
        return [*effects, self._ack(sender, held)]

    def _hold(self, peer: PeerId, listener: Listener) -> Persist:
        self.heard[peer] = listener
        self.heard.move_to_end(peer)
        ended = [other for other, held in self.heard.items() if not held.listens]
        for other in ended[: max(0, len(ended) - MOST_ENDED_EDGES)]:
            del self.heard[other]
        return Persist(LISTENER_KEY + peer, listener.version.to_bytes(8, "big") if listener.listens else b"")

    def _ack(self, peer: PeerId, listener: Listener) -> Send:
        return Send(peer, FollowAck(listener.version, listener.listens, *self.own.model.number))

    # -- whom this peer follows ------------------------------------------------------------------------------------

    def _on_ack(self, sender: PeerId, ack: FollowAck, now: float) -> list[Effect]:
        edge = self.edges.get(sender)
        if edge is None or edge.weight == 0.0:
            return self._on_ack_of_end(sender, edge, ack)
        if ack.version != edge.version:
            if ack.version < edge.version and not edge.acknowledged:
                return []
            # One of the two ends has lost its last records: say again what holds, above all that was said.
            edge.version = self._versions.after(max(edge.version, ack.version))
            return [self._stored_edge(sender), *self._announce(sender, edge, now)]
        self._settled(sender, edge)
        if not ack.follows:
            return [*self._set_edge(sender, edge, 0.0, edge.version, self.me), self._forget_edge(sender)]
        if edge.copy is None or edge.copy.number < (ack.epoch, ack.sequence):
            return self._ask_snapshot(sender, edge, now)
        return []

    def _on_ack_of_end(self, sender: PeerId, edge: Edge | None, ack: FollowAck) -> list[Effect]:
        """An answer from a peer that is not followed."""
        if ack.follows:
            return self._disown(sender, ack.version)
        return [self._forget_edge(sender)] if edge is not None and ack.version >= edge.version else []

    def _disown(self, sender: PeerId, above: int = 0) -> list[Effect]:
        edge = self.edges.get(sender)
        is_known = edge is not None and edge.version > above
        return [Send(sender, Follow(edge.version if edge and is_known else self._versions.after(above), follows=False))]

    def _word(self, peer: PeerId, edge: Edge, with_model: bool = True) -> Send:
        return Send(peer, Follow(edge.version, edge.weight > 0.0))

    def _reminder(self, peer: PeerId, edge: Edge) -> Send:
        return self._word(peer, edge)

    # -- graph steps -----------------------------------------------------------------------------------------------

    def state(self, number: int) -> ModelOffer:
        """See `Neighbourhood`: a model and a number of samples, and nothing else."""
        return ModelOffer(number, self.own.model.snapshot(), self.own.size)

    def _must_ask(self, peer: PeerId) -> bool:
        """Models of those who are followed are known."""
        edge = self.edges.get(peer)
        return edge is None or edge.weight == 0.0 or edge.copy is None

    def _finish_round(self, now: float) -> list[Effect]:
        """Judge the models that are followed and those that have come; follow the best."""
        candidates: list[tuple[PeerId, int, ModelCopy]] = []
        effects: list[Effect] = []
        for peer in self.neighbours:
            edge = self.edges[peer]
            if edge.copy is not None and self.own.accepts(edge.copy):
                candidates.append((peer, edge.size, edge.copy))
        for peer, reply, copy in self._end_round():
            self.bits_counted += np.array([1, 1 + copy.n_support, copy.n_support])
            if copy.n_support > 0 and self.own.accepts(copy):
                candidates.append((peer, reply.size, copy))
        # Whoever does harm by now is let go, and whose model has not come although it was asked for.
        for peer in sorted(set(self.neighbours) - {peer for peer, _, _ in candidates}):
            effects += self._weigh(peer, self.edges[peer].size, None, 0.0, now)
        if not candidates:
            return effects
        most = self.reference_size
        scores = [self.own.evidence(copy, self.config.tau, min(size, most)) for _, size, copy in candidates]
        weights = np.empty(len(candidates))
        keep_best(np.array(scores), self.config.n_neighbours, weights)
        for (peer, size, copy), weight in zip(candidates, weights.tolist(), strict=True):
            effects += self._weigh(peer, size, copy, weight if weight > NEGLIGIBLE else 0.0, now)
        return effects

    def _weigh(self, peer: PeerId, size: int, copy: ModelCopy | None, weight: float, now: float) -> list[Effect]:
        """Set the weight to a peer, and tell it if it is now followed, or no longer."""
        edge = self.edges.get(peer, Edge())
        is_change = (weight > 0.0) != (edge.weight > 0.0)
        if weight == edge.weight:
            return []
        self.edges[peer] = edge
        edge.size = size
        version = self._versions.after(edge.version) if is_change else edge.version
        effects = self._set_edge(peer, edge, weight, version, self.me)
        if copy is not None and weight > 0.0:
            self._take_copy(edge, copy)
        if is_change:
            self.bits_counted[0] += 1
            effects += self._announce(peer, edge, now)
        return effects
