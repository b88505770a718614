"""Compiled loops of graph wake-ups over a whole population, and the learners that run them.

`run_graph` solves the paper's graph problem, `run_evidence` chooses the models that fit a user's own samples best.
Both return how many of the given wake-ups they made: they stop early if the pool of neighbour lists might overflow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dada.core.bits import evidence_reply_cost, follow_cost, graph_reply_cost, weight_cost
from dada.core.compiled import Array, lean_kernel
from dada.core.graph_steps import (
    EXACT,
    GRAPH_STEPS,
    NEGLIGIBLE,
    exact_step,
    keep_best,
    lipschitz_step,
    log_evidence,
    pair_cost,
)
from dada.core.losses import LossCode
from dada.core.model_steps import squared_distance
from dada.core.neighbours import (
    FIRST_ROOM,
    BatchMix,
    Nearest,
    NeighbourLists,
    free_cells,
    gather_peers,
    grow,
    has_neighbour,
    lightest,
    no_nearest,
    remember_nearest,
    set_one_side,
    set_weight,
    weight_of,
)
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.core.regularizers import RegularizerCode
from dada.engine.model_loops import UserArrays, count_sent, user_model
from dada.engine.state import State, graph_losses


class GraphSettings(NamedTuple):
    """Settings of graph updates, shared by all users. `max_neighbours` = 0 sets no bound."""

    step: int
    regularizer: RegularizerCode
    mu1: float
    mu2: float
    max_neighbours: int
    mix: BatchMix
    coupling: Array


class PeerBatch(NamedTuple):
    """Working memory of a graph wake-up, one entry per peer asked."""

    peers: Array
    cost: Array
    w: Array
    degree: Array
    new: Array


@lean_kernel
def change_weight(users: UserArrays, lists: NeighbourLists, k: int, l: int, old: float, new: float) -> None:
    """Store w_kl at both ends and update both degrees."""
    set_weight(lists, k, l, new)
    users.degree[k] = users.degree[k] + (new - old) if lists.length[k] > 0 else 0.0
    users.degree[l] = users.degree[l] + (new - old) if lists.length[l] > 0 else 0.0
    users.stale[k] = 1
    users.stale[l] = 1


@lean_kernel
def make_room(users: UserArrays, lists: NeighbourLists, k: int, l: int, w: float, most: int, counts: Array) -> bool:
    """Whether a new edge of weight w fits bounded lists: a full end drops its lightest edge, unless w is lighter.

    Dropping an edge costs one more message: the new weight goes to the other end.
    """
    for x in (k, l):
        if lists.length[x] >= most and lists.weights[lightest(lists, x)] >= w:
            return False
    for x in (k, l):
        if lists.length[x] >= most:
            p = lightest(lists, x)
            change_weight(users, lists, x, lists.ids[p], lists.weights[p], 0.0)
            count_sent(users, counts, x, weight_cost(), 1)
    return True


@lean_kernel
def count_reply(mix: BatchMix, users: UserArrays, counts: Array, k: int, l: int, weight: float) -> None:
    """Count the messages between user k and peer l: l's reply, and the new weight from k.

    A gossip search asks current neighbours again and again; they reply with their degree only.
    """
    count_sent(users, counts, k, weight_cost(), 1)
    if mix.n_gossip > 0 and weight > 0.0:
        count_sent(users, counts, l, weight_cost(), 1)
    else:
        count_sent(users, counts, l, graph_reply_cost(users.n_support[l], mix.n_gossip > 0), 1)


@lean_kernel
def run_graph(
    settings: GraphSettings, losses: Array, users: UserArrays, lists: NeighbourLists,
    awake: Array, batches: Array, random_bits: Array, nearest: Nearest, batch: PeerBatch, counts: Array,
) -> int:  # fmt: skip
    """Graph wake-ups of the given users in turn, each with its batch of peers; models are frozen."""
    for e in range(awake.size):
        k = awake[e]
        size = gather_peers(settings.mix, lists, nearest, k, batches[e], random_bits[e], batch.peers)
        cells = 4 * (lists.room[k] + size + FIRST_ROOM)
        for b in range(size):
            cells += 2 * (lists.room[batch.peers[b]] + FIRST_ROOM)
        if free_cells(lists) < cells:
            return e
        cost, w, degree, new = batch.cost[:size], batch.w[:size], batch.degree[:size], batch.new[:size]
        for b in range(size):
            l = batch.peers[b]
            w[b], degree[b] = weight_of(lists, k, l), users.degree[l]
            count_reply(settings.mix, users, counts, k, l, w[b])
            dist2 = squared_distance(
                settings.coupling, users.alpha[k], users.support[k], users.n_support[k],
                users.alpha[l], users.support[l], users.n_support[l],
            )  # fmt: skip
            remember_nearest(nearest, k, l, dist2)
            cost[b] = pair_cost(losses[k], losses[l], settings.mu1, dist2)
        if settings.step == EXACT:
            exact_step(settings.regularizer, settings.mu2, cost, w, degree, users.degree[k], new)
        else:
            lipschitz_step(settings.regularizer, settings.mu2, cost, w, degree, users.degree[k], new)
        for b in range(size):
            l = batch.peers[b]
            if settings.max_neighbours > 0:
                # An eviction for an earlier peer of this batch may have removed this edge.
                w[b] = weight_of(lists, k, l)
                is_new = w[b] == 0.0 and new[b] > 0.0
                if is_new and not make_room(users, lists, k, l, new[b], settings.max_neighbours, counts):
                    continue
            if new[b] != w[b]:
                change_weight(users, lists, k, l, w[b], new[b])
    return awake.size


class EvidenceSettings(NamedTuple):
    """Settings of the evidence rule: temperature, loss, neighbours per user at most, and the peers asked."""

    tau: float
    loss: LossCode
    n_neighbours: int
    mix: BatchMix


class EvidenceBatch(NamedTuple):
    """Working memory of an evidence wake-up: the peers asked; then all candidates, their scores and weights."""

    asked: Array
    peers: Array
    scores: Array
    weights: Array
    nearest: Nearest


@lean_kernel
def run_evidence(
    settings: EvidenceSettings, users: UserArrays, lists: NeighbourLists, followers: NeighbourLists,
    awake: Array, batches: Array, random_bits: Array, batch: EvidenceBatch, counts: Array,
) -> int:  # fmt: skip
    """Wake-ups in turn: each user scores its neighbours' models, which it has, and those of a batch of peers.

    A peer that is not yet a neighbour sends its model and its number of samples. Every peer that becomes a neighbour,
    or stops being one, receives a notice.
    """
    for e in range(awake.size):
        k = awake[e]
        n_asked = gather_peers(settings.mix, lists, batch.nearest, k, batches[e], random_bits[e], batch.asked)
        cells = 4 * (lists.room[k] + n_asked + FIRST_ROOM)
        if free_cells(lists) < cells:
            return e
        for b in range(n_asked):
            cells += 2 * (followers.room[batch.asked[b]] + FIRST_ROOM)
        if free_cells(followers) < cells:
            return e
        size = 0
        for p in range(lists.start[k], lists.start[k] + lists.length[k]):
            batch.peers[size] = lists.ids[p]
            size += 1
        for b in range(n_asked):
            l = batch.asked[b]
            if has_neighbour(lists, k, l):
                continue
            count_sent(users, counts, l, evidence_reply_cost(users.n_support[l]), 1)
            if users.n_support[l] > 0:
                batch.peers[size] = l
                size += 1
        if size == 0:
            continue
        judge = user_model(users, k)
        for c in range(size):
            l = batch.peers[c]
            n_samples = users.row_start[l + 1] - users.row_start[l]
            batch.scores[c] = log_evidence(
                settings.tau, settings.loss, judge, users.alpha[l], users.support[l], users.n_support[l], n_samples
            )
        keep_best(batch.scores[:size], settings.n_neighbours, batch.weights)
        for c in range(size):
            l = batch.peers[c]
            weight = batch.weights[c] if batch.weights[c] > NEGLIGIBLE else 0.0
            if (weight > 0.0) != has_neighbour(lists, k, l):
                count_sent(users, counts, k, follow_cost(), 1)
            set_one_side(lists, k, l, weight)
            set_one_side(followers, l, k, weight)
        users.stale[k] = 1
    return awake.size


def roomier(lists: NeighbourLists, asked: int) -> NeighbourLists:
    """The lists with room for several more wake-ups that ask `asked` peers each."""
    return grow(lists, spare=8 * (asked + 1) * (int(lists.room.max()) + asked + FIRST_ROOM))


class DistanceRule:
    """The paper's graph problem: weights from losses, degrees and distances between models.

    `mix` are the peers that a wake-up asks, `floats_per_peer` is the most that one of them costs besides its model.
    """

    def __init__(self, problem: Problem, plan: Plan, dtype: np.dtype[np.floating]) -> None:
        self.problem, self.mix = problem, plan.batch_mix(problem.n_users)
        # In bounded lists, a new edge may evict one edge at either end; each eviction is a message of one float.
        self.floats_per_peer = (4 if self.mix.n_gossip else 3) + (0 if plan.max_neighbours is None else 2)
        self.batch = PeerBatch(np.empty(self.mix.size, np.int32), *(np.empty(self.mix.size) for _ in range(4)))
        self.settings = GraphSettings(
            GRAPH_STEPS[plan.graph_step], problem.regularizer_code, float(problem.mu1), problem.graph_mu,
            plan.max_neighbours or 0, self.mix, problem.settings(dtype).coupling,
        )  # fmt: skip
        self.losses = np.zeros(problem.n_users)

    def begin(self, state: State) -> None:
        """Begin or resume a graph phase: compute every user's loss, which is constant while models are frozen."""
        self.losses = self.problem.confidence * graph_losses(self.problem, state.users, self.problem.graph_loss)

    def wake(self, state: State, awake: Array, batches: Array, random_bits: Array) -> int:
        """Make wake-ups in turn; returns how many, fewer than given if lists had to grow first."""
        done = run_graph(
            self.settings, self.losses, state.known, state.lists,
            awake, batches, random_bits, state.nearest, self.batch, state.ledger.graph,
        )  # fmt: skip
        if done < len(awake):
            state.lists = state.followers = roomier(state.lists, self.mix.size)
        return int(done)


class EvidenceRule:
    """Weights from how well other users' models fit a user's own samples."""

    floats_per_peer = 1

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.mix = plan.batch_mix(problem.n_users)
        self.settings = EvidenceSettings(float(plan.tau), problem.loss_code, plan.n_neighbours, self.mix)
        most = plan.n_neighbours + self.mix.size
        asked, peers = np.empty(self.mix.size, np.int32), np.empty(most, np.int32)
        self.batch = EvidenceBatch(asked, peers, np.empty(most), np.empty(most), no_nearest(problem.n_users, 0, 0))

    def begin(self, state: State) -> None:
        """Nothing to prepare: each wake-up computes its evidence."""

    def wake(self, state: State, awake: Array, batches: Array, random_bits: Array) -> int:
        """Make wake-ups in turn; returns how many, fewer than given if lists had to grow first."""
        done = run_evidence(
            self.settings, state.known, state.lists, state.followers,
            awake, batches, random_bits, self.batch, state.ledger.graph,
        )  # fmt: skip
        if done < len(awake):
            state.lists = roomier(state.lists, self.mix.size)
            state.followers = roomier(state.followers, self.mix.size)
        return int(done)


def graph_rule(problem: Problem, plan: Plan, dtype: np.dtype[np.floating]) -> DistanceRule | EvidenceRule:
    """The graph rule of a plan."""
    return EvidenceRule(problem, plan) if plan.graph_rule == "evidence" else DistanceRule(problem, plan, dtype)
