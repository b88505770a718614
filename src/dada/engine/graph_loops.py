"""Compiled loops of graph wake-ups over a whole population, and the learners that run them.

`run_graph` solves the paper's graph problem, `run_evidence` chooses the models that fit a user's own samples best.
Both return how many of the given wake-ups they made: they stop early if the pool of neighbour lists might overflow.
While models are frozen, an evidence wake-up reads only the user's own rows and writes only its own list, so several
workers can share a round of them: `make_round`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dada.core.bits import evidence_reply_cost, follow_cost, graph_reply_cost, weight_cost
from dada.core.compiled import Array, lean_kernel
from dada.core.graph import (
    FIRST_ROOM,
    BatchMix,
    Nearest,
    NeighbourLists,
    free_cells,
    gather_peers,
    grow,
    has_neighbour,
    lightest,
    lists_from_csr,
    lists_to_csr,
    no_nearest,
    remember_nearest,
    set_one_side,
    set_weight,
    weight_of,
)
from dada.core.graph_steps import (
    EXACT,
    GRAPH_STEPS,
    NEGLIGIBLE,
    RegularizerCode,
    exact_step,
    keep_best,
    lipschitz_step,
    log_evidence,
    pair_cost,
)
from dada.core.losses import LossCode
from dada.core.model_steps import UserModel, squared_distance
from dada.core.plan import Plan
from dada.core.problem import Problem
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
            count_sent(users.sent, counts, x, weight_cost(), 1)
    return True


@lean_kernel
def count_reply(mix: BatchMix, users: UserArrays, counts: Array, k: int, l: int, weight: float) -> None:
    """Count the messages between user k and peer l: l's reply, and the new weight from k.

    A gossip search asks current neighbours again and again; they reply with their degree only.
    """
    count_sent(users.sent, counts, k, weight_cost(), 1)
    if mix.n_gossip > 0 and weight > 0.0:
        count_sent(users.sent, counts, l, weight_cost(), 1)
    else:
        count_sent(users.sent, counts, l, graph_reply_cost(users.n_support[l], mix.n_gossip > 0), 1)


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


class KnownModels(NamedTuple):
    """The models that peers send, and the number of samples behind each."""

    alpha: Array
    support: Array
    n_support: Array
    n_samples: Array


class JudgeRows(NamedTuple):
    """The rows of some users, which judge models."""

    A: Array
    row_start: Array
    offset: Array
    sample_weight: Array


@lean_kernel
def has_room(lists: NeighbourLists, at: int, n_asked: int) -> bool:
    """Whether list `at` can take all peers asked."""
    return free_cells(lists) >= 4 * (lists.room[at] + n_asked + FIRST_ROOM)


@lean_kernel
def weigh_evidence(
    settings: EvidenceSettings, judge: UserModel, known: KnownModels, lists: NeighbourLists, at: int, k: int,
    n_asked: int, batch: EvidenceBatch, sent: Array, counts: Array,
) -> int:  # fmt: skip
    """One wake-up of user k, whose neighbours are list `at`: it scores their models, which it has, and those asked.

    A peer that is not yet a neighbour sends its model and its number of samples. Every peer that becomes a neighbour,
    or stops being one, receives a notice. Returns the number of candidates, which the batch lists with their weights.
    """
    size = 0
    for p in range(lists.start[at], lists.start[at] + lists.length[at]):
        batch.peers[size] = lists.ids[p]
        size += 1
    for b in range(n_asked):
        l = batch.asked[b]
        if has_neighbour(lists, at, l):
            continue
        count_sent(sent, counts, l, evidence_reply_cost(known.n_support[l]), 1)
        if known.n_support[l] > 0:
            batch.peers[size] = l
            size += 1
    if size == 0:
        return 0
    for c in range(size):
        l = batch.peers[c]
        batch.scores[c] = log_evidence(
            settings.tau, settings.loss, judge, known.alpha[l], known.support[l], known.n_support[l],
            known.n_samples[l],
        )  # fmt: skip
    keep_best(batch.scores[:size], settings.n_neighbours, batch.weights)
    for c in range(size):
        l = batch.peers[c]
        if not batch.weights[c] > NEGLIGIBLE:
            batch.weights[c] = 0.0
        if (batch.weights[c] > 0.0) != has_neighbour(lists, at, l):
            count_sent(sent, counts, k, follow_cost(), 1)
        set_one_side(lists, at, l, batch.weights[c])
    return size


@lean_kernel
def run_evidence(
    settings: EvidenceSettings, users: UserArrays, known: KnownModels, lists: NeighbourLists,
    followers: NeighbourLists, awake: Array, batches: Array, random_bits: Array, batch: EvidenceBatch, counts: Array,
) -> int:  # fmt: skip
    """Evidence wake-ups of the given users in turn, each with its batch of peers."""
    for e in range(awake.size):
        k = awake[e]
        n_asked = gather_peers(settings.mix, lists, batch.nearest, k, batches[e], random_bits[e], batch.asked)
        cells = 4 * (lists.room[k] + n_asked + FIRST_ROOM)
        for b in range(n_asked):
            cells += 2 * (followers.room[batch.asked[b]] + FIRST_ROOM)
        if not has_room(lists, k, n_asked) or free_cells(followers) < cells:
            return e
        judge = user_model(users, k)
        size = weigh_evidence(settings, judge, known, lists, k, k, n_asked, batch, users.sent, counts)
        for c in range(size):
            set_one_side(followers, batch.peers[c], k, batch.weights[c])
        if size > 0:
            users.stale[k] = 1
    return awake.size


@lean_kernel
def gather_batches(
    mix: BatchMix, lists: NeighbourLists, nearest: Nearest, awake: Array, batches: Array, random_bits: Array,
    asked: Array,
) -> None:  # fmt: skip
    """The peers that each wake-up of a round asks, given the lists at its start; -1 fills the rest of a row."""
    for e in range(awake.size):
        size = gather_peers(mix, lists, nearest, awake[e], batches[e], random_bits[e], asked[e])
        for b in range(size, asked.shape[1]):
            asked[e, b] = -1


@lean_kernel
def run_round(
    settings: EvidenceSettings, rows: JudgeRows, known: KnownModels, lists: NeighbourLists, first: int,
    awake: Array, asked: Array, begin: int, batch: EvidenceBatch, stale: Array, sent: Array, counts: Array,
) -> int:  # fmt: skip
    """Evidence wake-ups from number `begin` on, of the users from `first` on who have these rows and lists."""
    for e in range(begin, awake.size):
        k = awake[e]
        at = k - first
        if at < 0 or at >= stale.size:
            continue
        n_asked = 0
        while n_asked < asked.shape[1] and asked[e, n_asked] >= 0:
            batch.asked[n_asked] = asked[e, n_asked]
            n_asked += 1
        if not has_room(lists, at, n_asked):
            return e
        own = slice(rows.row_start[at], rows.row_start[at + 1])
        judge = UserModel(
            rows.A[own], rows.offset[own], known.alpha[k], known.alpha[k], known.support[k],
            rows.offset[own], rows.sample_weight[own], 1.0, 0.0,
        )  # fmt: skip
        if weigh_evidence(settings, judge, known, lists, at, k, n_asked, batch, sent, counts) > 0:
            stale[at] = 1
    return awake.size


class EvidenceRound(NamedTuple):
    """Evidence wake-ups while all models are frozen: the users, the peers that each asks, and the models of all."""

    settings: EvidenceSettings
    known: KnownModels
    awake: Array
    asked: Array


class RoundResult(NamedTuple):
    """New neighbours of some users (compressed rows), who must refresh its sum, and what each user sent, and all."""

    indptr: Array
    indices: Array
    weights: Array
    stale: Array
    sent: Array
    counts: Array


def make_round(events: EvidenceRound, rows: JudgeRows, first: int, csr: tuple[Array, Array, Array]) -> RoundResult:
    """Make the wake-ups of the users with these rows, the first of whom is number `first`, from their neighbours."""
    size, n_asked = rows.row_start.size - 1, events.asked.shape[1]
    n_users, lists = events.known.n_support.size, lists_from_csr(*csr)
    stale, sent, counts = np.zeros(size, np.uint8), np.zeros((n_users, 3), np.int64), np.zeros(3, np.int64)
    batch = evidence_batch(events.settings, n_users)
    done = 0
    while done < events.awake.size:
        lists = roomier(lists, n_asked)
        done = run_round(
            events.settings, rows, events.known, lists, first, events.awake, events.asked, done,
            batch, stale, sent, counts,
        )  # fmt: skip
    return RoundResult(*lists_to_csr(lists), stale, sent, counts)


def evidence_batch(settings: EvidenceSettings, n_users: int) -> EvidenceBatch:
    """Working memory of evidence wake-ups."""
    most = settings.n_neighbours + settings.mix.size
    asked, peers = np.empty(settings.mix.size, np.int32), np.empty(most, np.int32)
    return EvidenceBatch(asked, peers, np.empty(most), np.empty(most), no_nearest(n_users, 0, 0))


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
        self.batch = evidence_batch(self.settings, problem.n_users)

    def begin(self, state: State) -> None:
        """Nothing to prepare: each wake-up computes its evidence."""

    def wake(self, state: State, awake: Array, batches: Array, random_bits: Array) -> int:
        """Make wake-ups in turn; returns how many, fewer than given if lists had to grow first."""
        done = run_evidence(
            self.settings, state.users, known_models(state), state.lists, state.followers,
            awake, batches, random_bits, self.batch, state.ledger.graph,
        )  # fmt: skip
        if done < len(awake):
            state.lists = roomier(state.lists, self.mix.size)
            state.followers = roomier(state.followers, self.mix.size)
        return int(done)

    def round(self, state: State, awake: Array, batches: Array, random_bits: Array) -> EvidenceRound:
        """Wake-ups that choose their peers by the current lists, for workers to make."""
        asked = np.empty((len(awake), self.mix.size), np.int32)
        gather_batches(self.mix, state.lists, self.batch.nearest, awake, batches, random_bits, asked)
        return EvidenceRound(self.settings, known_models(state), awake, asked)


def known_models(state: State) -> KnownModels:
    """The models of all users as their peers receive them."""
    known = state.known
    return KnownModels(known.alpha, known.support, known.n_support.copy(), np.diff(known.row_start))


def graph_rule(problem: Problem, plan: Plan, dtype: np.dtype[np.floating]) -> DistanceRule | EvidenceRule:
    """The graph rule of a plan."""
    return EvidenceRule(problem, plan) if plan.graph_rule == "evidence" else DistanceRule(problem, plan, dtype)
