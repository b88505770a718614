"""Events of a simulated network for observers: which peers run, the graph, and accuracies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dada.core.compiled import Array
from dada.events import Observer, PeerStatus, RunInfo, Snapshot, SnapshotOffer, edges_reported, heaviest_predictors
from dada.sim.simulation import SimulatedNetwork
from dada.sim.world import Host


@dataclass(eq=False)
class SimulationOverview:
    """Sends the state of a simulated network to an observer.

    Parameters
    ----------
    network : SimulatedNetwork
    info : RunInfo
        Description of the run.
    accuracy : function of models
        Accuracy of every user, with the models in its rows.
    observer : callable
        Receives the events.
    """

    network: SimulatedNetwork
    info: RunInfo
    accuracy: Callable[[Array], Array]
    observer: Observer
    n_met: int = -1

    def send(self, milestone: bool = False) -> None:
        """Send the present state."""
        hosts = self.network.world.hosts
        # The first snapshot is always taken, even if kernels must be compiled for it.
        milestone = milestone or self.n_met < 0
        n_met = sum(_is_known(host) for host in hosts)
        if n_met != self.n_met:
            # The accuracy of a fallback model is known once its user has joined.
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
        """Whether edges have a direction."""
        return self.network.config.graph == "evidence"

    def _snapshot(self) -> Snapshot:
        hosts = self.network.world.hosts
        k, l, w = self._edges()
        models = self._rows(lambda host: host.member.peer.own.model.alpha)
        predictors, weights = heaviest_predictors(models)
        return Snapshot(
            phase="peers",
            updates=sum(host.member.peer.own.updates for host in hosts if _is_known(host)),
            k=k,
            l=l,
            w=w,
            directed=self._is_directed,
            confidence=self.network.problem.confidence,
            loss=np.array([host.member.peer.own.loss if _is_known(host) else np.nan for host in hosts]),
            accuracy=self._per_user(self.accuracy(models)),
            predictors=predictors,
            predictor_weights=weights,
            messages=np.array([host.sent for host in hosts]),
            bits=np.array([8.0 * host.sent_bytes for host in hosts]),
        )

    def _edges(self) -> tuple[Array, Array, Array]:
        """The edges of running honest members, without those to ids that a liar invented."""
        numbers = self.network.world.numbers
        reported = [
            (host.number, numbers[peer], host.member.peer.edges[peer].weight)
            for host in self.network.world.hosts
            if host.is_up and _is_known(host)
            for peer in host.member.peer.edges.neighbours
            if peer in numbers
        ]
        return edges_reported(reported, self._is_directed)

    def _rows(self, model_of: Callable[[Host], Array]) -> Array:
        problem = self.network.problem
        rows = np.zeros((problem.n_users, problem.n_predictors), np.float32)
        for host in self.network.world.hosts:
            if _is_known(host):
                rows[host.number] = model_of(host)
        return rows

    def _per_user(self, values: Array) -> Array:
        """Values of honest users that have joined; NaN for others."""
        known = np.array([_is_known(host) for host in self.network.world.hosts])
        return np.where(known, values, np.nan)


def _is_known(host: Host) -> bool:
    return host.is_honest and host.life > 0
