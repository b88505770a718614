"""The compiled loop of the evidence graph: who follows whom, one wake-up after the other."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from dada.core.compiled import Array, lean_kernel
from dada.core.graph_steps import GRAPH_STEPS, NEGLIGIBLE, keep_best, log_evidence
from dada.core.losses import GRAPH_LOSSES, LossCode
from dada.core.neighbours import (
    FIRST_ROOM,
    BatchMix,
    Nearest,
    NeighbourLists,
    free_cells,
    gather_peers,
    grow,
    is_neighbour,
    nobody_met,
    position,
    set_one_side,
)
from dada.core.plan import Plan
from dada.core.problem import Problem, losses_for_graph
from dada.engine.model_loops import Batch, GraphSettings, Users, count_sent, run_graph, user_model
from dada.engine.state import State


class EvidenceSettings(NamedTuple):
    """How sharply evidence decides, and how many models a user follows at most."""

    tau: float
    loss: LossCode
    n_neighbours: int
    mix: BatchMix


class Candidates(NamedTuple):
    """Working memory of a wake-up: who is asked; the followed and the newly met, their scores and weights.

    Nobody is remembered beside them: whoever's model is best on one's samples is followed.
    """

    asked: Array
    peers: Array
    scores: Array
    weights: Array
    remembered: Nearest


@lean_kernel
def run_evidence(
    settings: EvidenceSettings,
    users: Users,
    lists: NeighbourLists,
    followers: NeighbourLists,
    awake: Array,
    batches: Array,
    words: Array,
    candidates: Candidates,
    counts: Array,
) -> int:
    """Wake-ups in turn: each user judges the models it follows, which it holds already, and those of a batch of peers.

    A peer that is not followed yet sends its model and its number of samples; who is followed, or no longer, is told.
    """
    for e in range(awake.size):
        k = awake[e]
        asked = gather_peers(settings.mix, lists, candidates.remembered, k, batches[e], words[e], candidates.asked)
        cells = 4 * (lists.room[k] + asked + FIRST_ROOM)
        if free_cells(lists) < cells:
            return e
        for b in range(asked):
            cells += 2 * (followers.room[candidates.asked[b]] + FIRST_ROOM)
        if free_cells(followers) < cells:
            return e
        size = 0
        for p in range(lists.start[k], lists.start[k] + lists.length[k]):
            candidates.peers[size] = lists.ids[p]
            size += 1
        for b in range(asked):
            l = candidates.asked[b]
            if is_neighbour(lists, k, l, position(lists, k, l)):
                continue
            count_sent(users, counts, l, 1, 1 + users.n_support[l], users.n_support[l])
            if users.n_support[l] > 0:
                candidates.peers[size] = l
                size += 1
        if size == 0:
            continue
        judge = user_model(users, k)
        for c in range(size):
            l = candidates.peers[c]
            n_samples = users.row_start[l + 1] - users.row_start[l]
            candidates.scores[c] = log_evidence(
                settings.tau, settings.loss, judge, users.alpha[l], users.support[l], users.n_support[l], n_samples
            )
        keep_best(candidates.scores[:size], settings.n_neighbours, candidates.weights)
        for c in range(size):
            l = candidates.peers[c]
            weight = candidates.weights[c] if candidates.weights[c] > NEGLIGIBLE else 0.0
            if (weight > 0.0) != is_neighbour(lists, k, l, position(lists, k, l)):
                count_sent(users, counts, k, 1, 0, 0)
            set_one_side(lists, k, l, weight)
            set_one_side(followers, l, k, weight)
        users.stale[k] = 1
    return awake.size


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
        values = losses_for_graph(kind, self.problem.loss_code, users.margins, users.sample_weight, users.row_start)
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
