"""How a run learns its graph: the paper's problem, or evidence. Both carry out wake-ups on a state."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dada.core.compiled import Array
from dada.core.gossip import BatchMix, nobody_met
from dada.core.graph_steps import GRAPH_STEPS
from dada.core.losses import GRAPH_LOSSES
from dada.core.neighbour_lists import FIRST_ROOM, NeighbourLists, grow
from dada.core.plan import Plan
from dada.core.problem import Problem, losses_for_graph
from dada.engine.evidence_loop import Candidates, EvidenceSettings, run_evidence
from dada.engine.loops import Batch, GraphSettings, run_graph
from dada.engine.state import State


class GraphLearner(Protocol):
    """Learns a graph, one wake-up after the other."""

    #: Whom a wake-up asks.
    mix: BatchMix
    #: Floats that one peer of a batch costs at most, beside the entries of its model.
    floats_per_peer: int

    def begin(self, state: State) -> None:
        """A graph phase begins, or goes on after a pause: models stand still until it is over."""

    def wake(self, state: State, awake: Array, batches: Array, words: Array) -> int:
        """Carry out wake-ups in turn; returns how many, fewer than given where lists had to be enlarged first."""


def roomier(lists: NeighbourLists, asked: int) -> NeighbourLists:
    """The lists with room for some more wake-ups that ask so many peers each."""
    return grow(lists, spare=8 * (asked + 1) * (int(lists.room.max()) + asked + FIRST_ROOM))


class DistanceLearner:
    """The paper's graph problem: weights from losses, degrees and the distance of models."""

    def __init__(self, problem: Problem, plan: Plan, dtype: np.dtype[np.floating]) -> None:
        self.problem, self.mix = problem, plan.batch_mix(problem.n_users)
        # In bounded lists, a new edge may push out one at either end; each is told in a message of one float.
        self.floats_per_peer = (4 if self.mix.n_gossip else 3) + (0 if plan.max_neighbours is None else 2)
        asked, peers = np.empty(self.mix.size, np.int32), np.empty(self.mix.size, np.int32)
        self.batch = Batch(asked, peers, *(np.empty(self.mix.size) for _ in range(4)))
        self.coupling = problem.settings(dtype).coupling
        step, most = GRAPH_STEPS[plan.graph_step], plan.max_neighbours or 0
        self.settings = GraphSettings(
            step, problem.regularizer_code, float(problem.mu1), problem.graph_mu, most, self.mix,
            plan.keep_nearest is not None,
        )  # fmt: skip
        self.losses = np.zeros(problem.n_users)

    def begin(self, state: State) -> None:
        """Take every user's loss, which stays as it is while models stand still."""
        kind, users = GRAPH_LOSSES[self.problem.graph_loss], state.users
        values = losses_for_graph(kind, self.problem.loss_code, users.margins, users.emphasis, users.row_start)
        self.losses = self.problem.confidence * values

    def wake(self, state: State, awake: Array, batches: Array, words: Array) -> int:
        """Carry out graph steps in turn."""
        done = run_graph(
            self.settings, self.coupling, self.losses, state.users, state.lists,
            awake, batches, words, state.nearest, self.batch, state.ledger.graph,
        )  # fmt: skip
        if done < len(awake):
            state.lists = state.followers = roomier(state.lists, self.mix.size)
        return int(done)


class EvidenceLearner:
    """Weights from how well other users' models do on one's own samples."""

    floats_per_peer = 1

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.mix = plan.batch_mix(problem.n_users)
        self.settings = EvidenceSettings(float(plan.tau), problem.loss_code, plan.n_neighbours, self.mix)
        most = plan.n_neighbours + self.mix.size
        asked, peers = np.empty(self.mix.size, np.int32), np.empty(most, np.int32)
        self.candidates = Candidates(asked, peers, np.empty(most), np.empty(most), nobody_met(problem.n_users, 0, 0))

    def begin(self, state: State) -> None:
        """Nothing: evidence is gathered at each wake-up."""

    def wake(self, state: State, awake: Array, batches: Array, words: Array) -> int:
        """Let users judge models in turn."""
        done = run_evidence(
            self.settings, state.users, state.lists, state.followers,
            awake, batches, words, self.candidates, state.ledger.graph,
        )  # fmt: skip
        if done < len(awake):
            state.lists = roomier(state.lists, self.mix.size)
            state.followers = roomier(state.followers, self.mix.size)
        return int(done)


def graph_learner(problem: Problem, plan: Plan, dtype: np.dtype[np.floating]) -> GraphLearner:
    """The learner that a plan asks for."""
    return EvidenceLearner(problem, plan) if plan.graph_rule == "evidence" else DistanceLearner(problem, plan, dtype)
