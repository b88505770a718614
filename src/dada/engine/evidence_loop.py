"""The compiled loop of the evidence graph: who follows whom, one wake-up after the other."""

from __future__ import annotations

from typing import NamedTuple

from dada.core.compiled import Array, lean_kernel
from dada.core.evidence import keep_best, log_evidence
from dada.core.gossip import BatchMix, Nearest, gather_peers
from dada.core.graph_steps import NEGLIGIBLE
from dada.core.losses import LossCode
from dada.core.neighbour_lists import (
    FIRST_ROOM,
    NeighbourLists,
    free_cells,
    is_neighbour,
    position,
    set_one_side,
)
from dada.engine.loops import Users, count_sent, user_model


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
