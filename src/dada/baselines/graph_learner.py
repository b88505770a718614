"""Graph learning on its own, with the engine's kernel: for models that are not boosted, and to study the graph step."""

from __future__ import annotations

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import GRAPH_STEPS
from dada.core.losses import ALL_ALIKE
from dada.core.neighbours import lists_from_csr, lists_to_csr, nobody_met, uniform_mix
from dada.core.plan import GRAPH_STREAM, Schedule
from dada.core.regularizers import Regularizer
from dada.engine import Ledger
from dada.engine.graph_loops import roomier
from dada.engine.model_loops import Batch, GraphSettings, Users, run_graph, side_by_side


class GraphLearner:
    """Learns who should collaborate from everybody's model and loss.

    Parameters
    ----------
    models : float32 array of shape (n_users, n)
        Read at every wake-up, so the owner may change them in between.
    schedule : Schedule
        Who wakes and whom it asks.
    mu : float
        Weight of the distance between two models, and of the regularizer.
    regularizer : Regularizer
        g(w).
    ledger : Ledger
        Counts what is sent: the nonzero entries of a model and their indices, or, where its `n_predictors` is 1, every
        entry of a dense model and no index.
    step : {"exact", "lipschitz"}
        Rule of the graph step.
    graph : CollaborationGraph, optional
        Where to start; by default from no edge.

    Examples
    --------
    >>> from dada.core.regularizers import LogDegree
    >>> models = np.array([[0.0], [0.1], [5.0], [5.1]], np.float32)
    >>> schedule = Schedule.draw(np.random.default_rng(0), n_users=4, kappa=3)
    >>> learner = GraphLearner(models, schedule, mu=1.0, regularizer=LogDegree(lam=0.1), ledger=Ledger(1))
    >>> learner.wake(40, losses=np.zeros(4))
    >>> learner.graph.neighbours(0)[0].tolist()
    [1]
    """

    def __init__(
        self,
        models: Array,
        schedule: Schedule,
        *,
        mu: float,
        regularizer: Regularizer,
        ledger: Ledger,
        step: str = "exact",
        graph: CollaborationGraph | None = None,
    ) -> None:
        start = CollaborationGraph.empty(len(models)) if graph is None else graph
        self.schedule, self.ledger = schedule, ledger
        self.users = _users(models, start.degree)
        self.lists = lists_from_csr(start.indptr, start.indices, start.weights)
        mix = uniform_mix(schedule.kappa)
        self.settings = GraphSettings(GRAPH_STEPS[step], regularizer.compiled, mu, mu, 0, mix, False)
        self.wakeups = 0
        self._coupling = np.ones(models.shape[1], models.dtype)
        self._nearest = nobody_met(len(models), 0, 0)
        asked, peers = np.empty(mix.size, np.int32), np.empty(mix.size, np.int32)
        self._batch = Batch(asked, peers, *(np.empty(mix.size) for _ in range(4)))

    @property
    def graph(self) -> CollaborationGraph:
        """The graph as it stands."""
        return CollaborationGraph(*lists_to_csr(self.lists))

    def wake(self, count: int, losses: Array) -> None:
        """Carry out the next `count` graph wake-ups; `losses` are weighted by confidence."""
        self._note_supports()
        counts = np.zeros(3, np.int64)
        awake = self.schedule.users(GRAPH_STREAM, self.wakeups, self.wakeups + count)
        batches = self.schedule.batches(self.wakeups, self.wakeups + count)
        words = self.schedule.words(self.wakeups, self.wakeups + count, self.settings.mix.n_words)
        done = 0
        while done < count:
            done += run_graph(
                self.settings, self._coupling, losses, self.users, self.lists,
                awake[done:], batches[done:], words[done:], self._nearest, self._batch, counts,
            )  # fmt: skip
            if done < count:
                self.lists = roomier(self.lists, self.settings.mix.size)
        self.wakeups += count
        if self.ledger.n_predictors == 1:
            n_models = count * self.schedule.kappa
            counts[1:] = n_models * (3 + self.users.alpha.shape[1]), 0
        self.ledger.graph += counts

    def _note_supports(self) -> None:
        models, support = self.users.alpha, self.users.support
        self.users.n_support[:] = np.count_nonzero(models, axis=1)
        for k, model in enumerate(models):
            support[k, : self.users.n_support[k]] = np.flatnonzero(model)


def _users(models: Array, degree: Array) -> Users:
    """Models as the graph kernel reads them; what only model steps read is left empty."""
    K, n = models.shape
    return side_by_side(
        Users(
            A=np.empty((0, n), np.int8),
            row_start=np.zeros(K + 1, np.int64),
            confidence=np.ones(K),
            margins=np.empty(0, models.dtype),
            alpha=models,
            neighbour_sum=np.empty((K, 0), models.dtype),
            support=np.zeros((K, n), np.int16 if n < 2**15 else np.int32),
            n_support=np.zeros(K, np.int32),
            own_updates=np.zeros(K, np.int32),
            degree=np.asarray(degree, np.float64).copy(),
            stale=np.ones(K, np.uint8),
            offset=np.empty(0, models.dtype),
            sample_weight=ALL_ALIKE,
            sent=np.zeros((K, 3), np.int64),
        )
    )
