"""A simulated network as those who watch see it: who is up, who learns from whom, and how well each does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dada.core.compiled import Array
from dada.events import Observer, PeerStatus, RunInfo, Snapshot, SnapshotOffer, edges_said, heaviest_predictors
from dada.sim.simulation import Network
from dada.sim.world import Host


@dataclass(eq=False)
class Overview:
    """Tells an observer of a network, whenever it is called.

    Parameters
    ----------
    network : Network
        The network.
    info : RunInfo
        What is known beforehand.
    accuracy : function of models
        Gives every user's accuracy with the models in its rows.
    observer : callable
        Gets the events.
    """

    network: Network
    info: RunInfo
    accuracy: Callable[[Array], Array]
    observer: Observer
    n_met: int = -1

    def tell(self, milestone: bool = False) -> None:
        """Tell how the network is now."""
        hosts = self.network.world.hosts
        # The first look is kept whatever it costs: kernels may have to be compiled for it.
        milestone = milestone or self.n_met < 0
        n_met = sum(_is_known(host) for host in hosts)
        if n_met != self.n_met:
            # What a user reaches alone is known when it has joined.
            self.n_met = n_met
            alone = self._per_user(self.accuracy(self._rows(lambda host: host.member.fallback.alpha)))
            self.observer(replace(self.info, alone=alone))
        self.observer(
            PeerStatus(
                up=np.array([host.is_up for host in hosts]),
                restarts=np.array([max(host.life - 1, 0) for host in hosts]),
                rtt_ms=np.full(len(hosts), np.nan),
                refused=np.array([host.refused for host in hosts]),
            )
        )
        self.observer(SnapshotOffer(self._snapshot, milestone))

    @property
    def _is_directed(self) -> bool:
        """By evidence each peer follows whom it likes; otherwise the two ends of an edge agree on it."""
        return self.network.config.graph == "evidence"

    def _snapshot(self) -> Snapshot:
        hosts = self.network.world.hosts
        k, l, w = self._edges()
        models = self._rows(lambda host: host.member.peer.model.alpha)
        predictors, weights = heaviest_predictors(models)
        return Snapshot(
            phase="peers",
            updates=sum(host.member.peer.own_updates for host in hosts if _is_known(host)),
            k=k,
            l=l,
            w=w,
            directed=self._is_directed,
            confidence=self.network.problem.confidence,
            loss=np.array([host.member.peer.loss if _is_known(host) else np.nan for host in hosts]),
            accuracy=self._per_user(self.accuracy(models)),
            predictors=predictors,
            predictor_weights=weights,
            messages=np.array([host.sent for host in hosts]),
            bits=np.array([8.0 * host.sent_bytes for host in hosts]),
        )

    def _edges(self) -> tuple[Array, Array, Array]:
        """What the honest who are up say of their neighbours; ids that a liar made up belong to nobody."""
        numbers = self.network.world.numbers
        said = [
            (host.number, numbers[peer], host.member.peer.edges[peer].weight)
            for host in self.network.world.hosts
            if host.is_up and _is_known(host)
            for peer in host.member.peer.neighbours
            if peer in numbers
        ]
        return edges_said(said, self._is_directed)

    def _rows(self, model_of: Callable[[Host], Array]) -> Array:
        problem = self.network.problem
        rows = np.zeros((problem.n_users, problem.n_predictors), np.float32)
        for host in self.network.world.hosts:
            if _is_known(host):
                rows[host.number] = model_of(host)
        return rows

    def _per_user(self, values: Array) -> Array:
        """Values of those who have joined and do not lie; of others nothing is known."""
        known = np.array([_is_known(host) for host in self.network.world.hosts])
        return np.where(known, values, np.nan)


def _is_known(host: Host) -> bool:
    return host.is_honest and host.life > 0
