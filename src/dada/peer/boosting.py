"""Boosted trees with personal leaves, which the peers of a network grow with each other, without a server.

Theory of operation
-------------------
*Growing.* At some of its wake-ups a peer leads the growing of a tree. It draws a pool of peers from its view, and for
each node the features that it may test. It asks the pool level by level: for votes, each by its own rows; for
histograms of the features with most votes, rounded to three bits per number; at the end for the sums of residuals and
weights in each leaf, which give the pool's values of the leaves. A request contains the upper levels of the tree, so
the members of a pool keep no state. Whoever does not answer is asked once more, and then left out of this tree. The
numbers are those of `dada.core.boosting`: by the answers of all, the tree is that of a fit with the same pool, tested
features and rows, unless the sums of a member are bounded (see below).

*Pace.* About `GROWN_AT_ONCE` trees are growing at any time: a peer begins one at a wake-up with this number, divided by
that of peers that it knows, as probability; with less, if its last tree took longer than the time between two wake-ups.
Trees that grow at once lack each other on their residuals, so there must be few. A peer stops when the network has its
trees. Of one grower, no more than twice a fair share are used.

*Records.* A grower signs each tree. Trees are compared at each greeting and each exchange of views, and only become
more (see `dada.peer.signed_trees`). A peer that receives a new tree also passes it on at once, to a few linked peers.
All peers with equal records have the same trees.

*Order.* All apply trees in one order: by round, which is one more than the last round that the grower knew, then by
name. So what a peer computes depends on the records that it holds, not on how they came: after a crash it is computed
again. A tree that arrives late takes its place among the others, and all later values are computed again.

*Values.* A peer moves the pool's leaf values towards its own rows; its own values are never sent. Its decision values
are the weighted mean of those of the coupled model and of the leaves.

*Bounds.* A grower has a fifth of the network's trees at most. Trees are checked before they are kept: size, round,
features, thresholds. A peer answers four times as many requests of a grower as its trees need. Sums of a member of a
pool count no more than `MOST_WEIGHT` times the median of all members. Beyond 256 peers, those whose ids have the lowest
hashes grow the trees of all.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.boosting import MOST_KEPT, ROWS_OF_POOL, ROWS_TO_SPLIT, SHRINKAGE, best_split, most_voted, pool_values
from dada.core.compiled import Array
from dada.peer.boosted_trees import (
    HISTOGRAMS,
    SUMS,
    VOTES,
    BoostedRows,
    BoostedTerms,
    Histograms,
    OwnLeaves,
    answer,
    draw_tested,
    pool_size,
    read_histograms,
    read_sums,
    read_votes,
    write_nodes,
)
from dada.peer.edges import put_last
from dada.peer.inputs import Effect, Refused, Send
from dada.peer.messages import (
    SIGNATURE_SIZE,
    BoostedMessage,
    BoostedRecord,
    BoostedReply,
    BoostedRequest,
    GrowthReply,
    GrowthRequest,
    ImplausibleError,
    PeerId,
)
from dada.peer.sampling import draw
from dada.peer.signatures import Seal
from dada.peer.signed_trees import SignedTrees

# Trees that are growing at once.
GROWN_AT_ONCE = 3.0
# Sums of a member of a pool count up to this multiple of the median.
MOST_WEIGHT = 2.0
# Requests of one grower that are answered, in those that its trees need: some are lost, and some trees given up.
MOST_REQUESTS = 4
# Peers to which a record with new trees is passed on at once.
PASSED_ON = 3
# Bytes of records in one reply, replies to one peer between two exchanges, and peers whose requests are counted.
MOST_SENT, MOST_ANSWERS, MOST_ASKERS = 1 << 17, 8, 1024


class Growth:
    """A tree that a pool of peers is growing, at its grower, who is the first of the pool.

    Parameters
    ----------
    terms : BoostedTerms
    number : int
        The round of the tree.
    tested : array of shape (nodes, features)
        Features that each node may test; of those with equally many votes, the first are kept.
    pool : sequence of bytes
        Ids of the members; their histograms and sums are added in this order.

    Attributes
    ----------
    answers : dict
        The answers in this stage.
    """

    def __init__(self, terms: BoostedTerms, number: int, tested: NDArray[np.int64], pool: Sequence[PeerId]) -> None:
        self.terms, self.number, self.tested, self.pool = terms, number, tested, list(pool)
        self.output = (number - 1) % terms.n_outputs
        self.feature, self.cut = np.zeros(terms.n_nodes, np.int64), np.full(terms.n_nodes, -1)
        self.level = 0
        self.is_repeated = False
        self.answers: dict[PeerId, Any] = {}
        self.kept = self.tested
        self.stage = self._first_stage

    @property
    def _first_stage(self) -> int:
        """Few features need no votes."""
        return VOTES if self.tested.shape[1] > MOST_KEPT else HISTOGRAMS

    @property
    def _nodes(self) -> slice:
        """The nodes of the level."""
        return slice(2**self.level - 1, 2 ** (self.level + 1) - 1)

    @property
    def is_first(self) -> bool:
        """Whether this is the first stage."""
        return self.level == 0 and self.stage == self._first_stage

    @property
    def is_answered(self) -> bool:
        """Whether all members have answered."""
        return len(self.answers) == len(self.pool)

    def request(self, number: int) -> GrowthRequest:
        """The request of this stage."""
        above = slice(0, 2**self.level - 1)
        tree = write_nodes(self.feature[above], self.cut[above])
        features = {VOTES: self.tested, HISTOGRAMS: self.kept, SUMS: self.tested[:0]}[self.stage][self._nodes]
        return GrowthRequest(number, self.stage, self.output, tree, features.astype("<u2").tobytes())

    def offer(self, member: PeerId, body: bytes) -> None:
        """Take the answer of a member, or leave it out if its answer is none."""
        if member not in self.pool or member in self.answers:
            return
        n_nodes, terms = 2**self.level, self.terms
        try:
            if self.stage == VOTES:
                self.answers[member] = read_votes(body, n_nodes, self.tested.shape[1])
            elif self.stage == HISTOGRAMS:
                self.answers[member] = read_histograms(body, n_nodes, self.kept.shape[1], terms.n_cuts + 1)
            else:
                self.answers[member] = read_sums(body, terms)
        except ImplausibleError:
            self.pool.remove(member)
            raise

    def advance(self) -> bytes | None:
        """End a stage, without the members that have not answered; after the last, the tree."""
        self.pool = [member for member in self.pool if member in self.answers]
        answers = [self.answers[member] for member in self.pool]
        self.answers, self.is_repeated = {}, False
        if self.stage == VOTES:
            self._count_votes(answers)
            self.stage = HISTOGRAMS
        elif self.stage == HISTOGRAMS:
            self._split(answers)
            self.level += 1
            self.stage = SUMS if self.level == self.terms.depth else self._first_stage
        else:
            G, W = sum(bounded(answers), np.zeros_like(answers[0]))
            return self.terms.write(self.number, self.feature, self.cut, pool_values(G, W))
        return None

    def _count_votes(self, answers: Sequence[Array]) -> None:
        self.kept = np.zeros((self.terms.n_nodes, MOST_KEPT), np.int64)
        for node, of_node in enumerate(np.stack(answers, axis=1), self._nodes.start):
            votes = np.bincount(of_node[of_node >= 0], minlength=self.tested.shape[1])
            most_voted(votes, self.tested[node], self.kept[node])

    def _split(self, answers: Sequence[Histograms]) -> None:
        """Split each node of the level where the pool has enough rows."""
        counts, numbers = (np.stack(parts, axis=1) for parts in zip(*answers, strict=True))
        for node, (of_node, in_node) in enumerate(zip(counts, numbers, strict=True), self._nodes.start):
            best = 0.0
            for p in range(self.kept.shape[1] if of_node.sum(dtype=np.int64) >= ROWS_TO_SPLIT else 0):
                G, W = (np.ascontiguousarray(in_node[:, p, part]) for part in range(2))
                gain, where = best_split(G, W, SHRINKAGE, self.terms.own)
                if gain > best:
                    best, self.feature[node], self.cut[node] = gain, self.kept[node, p], where


def bounded(sums: Sequence[Array]) -> list[Array]:
    """Sums of residuals and weights of the members of a pool, those of each at most a multiple of the median.

    So nobody decides on the values of leaves alone, whatever it sends.

    >>> of_all = [np.full((2, 1, 1), size) for size in (1.0, 2.0, 3.0, 1e9)]
    >>> [one.ravel().tolist() for one in bounded(of_all)]
    [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [5.0, 5.0]]
    """
    sizes = np.array([np.abs(one).sum(axis=(1, 2)) for one in sums])
    most = MOST_WEIGHT * np.median(sizes, axis=0)
    shares = [(most[size > most] / size[size > most]).min(initial=1.0) for size in sizes]
    return [one if share == 1.0 else share * one for one, share in zip(sums, shares, strict=True)]


class SharedBoosting:
    """The records of boosted trees that one peer holds, its own leaves, and the tree that it is growing.

    Parameters
    ----------
    me : bytes
        This peer's id.
    terms : BoostedTerms
        What all trees of the network have in common.
    rows : BoostedRows
        The user's samples.
    varying : array
        The features that vary.
    problem : bytes
        Digest of the network's settings.
    seal : Seal
        Signs the record of this peer, and verifies others.
    patience_s : float
        How long a pool has time for its first answers, for which links may have to be opened; for later ones half as
        long.

    Attributes
    ----------
    deadline : float
        When `on_timer` is due.
    growth_round : int
        Number of the last request to a pool.
    sent_bits : int
        Bits of all trees, requests and answers that this peer has sent.

    Examples
    --------
    >>> from dada.peer.signatures import Unsealed
    >>> terms = BoostedTerms(n_features=1, n_cuts=1, n_classes=2, rounds=5, depth=1)
    >>> rows = BoostedRows(np.array([[0], [1]] * 3, np.uint8), np.array([1.0, -1.0] * 3))
    >>> ann, bob = (SharedBoosting(me, terms, rows, np.arange(1), b"", Unsealed()) for me in (b"ann", b"bob"))
    >>> _ = ann.start(), bob.start()
    >>> queue = ann.begin([b"bob"], np.zeros((1, 1), np.int64), now=0.0)
    >>> none = lambda n: []
    >>> while queue:
    ...     send = queue.pop(0)
    ...     if isinstance(send, Send):
    ...         there, sender = (bob, b"ann") if send.to == b"bob" else (ann, b"bob")
    ...         queue += there.receive(sender, send.message, 0.0, none)
    >>> len(ann.trees), ann.trees == bob.trees, ann.leaves().values[0].round(2).ravel().tolist()
    (1, True, [0.19, -0.19])
    """

    def __init__(
        self,
        me: PeerId,
        terms: BoostedTerms,
        rows: BoostedRows,
        varying: Array,
        problem: bytes,
        seal: Seal,
        patience_s: float = 2.0,
    ) -> None:
        self.me, self.terms, self.rows, self.varying, self.patience_s = me, terms, rows, varying, patience_s
        self.records = SignedTrees(me, terms, problem, seal)
        self.deadline = math.inf
        self.sent_bits = 0
        self.growth: Growth | None = None
        self.growth_round = 0
        # When the last tree was begun, how long the last one took, and the last wake-up.
        self._began, self._took, self._woke = 0.0, 0.0, 0.0
        self._leaves = OwnLeaves(terms, rows)
        self._taken = b""
        self._replies: Counter[PeerId] = Counter()
        self._answered: OrderedDict[PeerId, int] = OrderedDict()

    # -- trees -----------------------------------------------------------------------------------------------------

    @property
    def trees(self) -> list[bytes]:
        """The trees in use, in the order in which all peers apply them."""
        return self.leaves().trees

    def leaves(self) -> OwnLeaves:
        """The user's own values of the leaves of all trees."""
        if self._taken != self.records.digest:
            self._leaves.take(self.records.trees)
            self._taken = self.records.digest
        return self._leaves

    @property
    def is_finished(self) -> bool:
        """Whether the network has its trees."""
        return len(self.trees) >= self.terms.rounds

    def start(self) -> list[Effect]:
        """State once that this peer takes part, so that all know how many do."""
        if self.records.record_of(self.me).trees:
            return []
        self.records.add(b"")
        return [*self.records.stored([self.me])]

    # -- growing ---------------------------------------------------------------------------------------------------

    def wake(self, view: Sequence[PeerId], now: float, rng: np.random.Generator) -> list[Effect]:
        """Begin a tree at some wake-ups, with a pool from the view."""
        n_peers = max(len(self.records), len(view) + 1)
        since, self._woke = now - self._woke, now
        wanted = GROWN_AT_ONCE * (since / self._took if self._took > since else 1.0)
        if self.growth is not None or not view or rng.random() * n_peers >= wanted:
            return []
        if not self.records.may_grow or self.is_finished:
            return []
        pool = draw(rng, list(view), pool_size(len(self.rows.y), ROWS_OF_POOL) - 1)
        return self.begin(pool, draw_tested(self.terms, self.varying, rng), now)

    def begin(self, others: Sequence[PeerId], tested: NDArray[np.int64], now: float) -> list[Effect]:
        """Begin a tree with these members of its pool and features to test."""
        self._began = now
        number = self.terms.next_round(self.trees)
        self.growth = Growth(self.terms, number, tested, (self.me, *others))
        return self._ask_pool(self.growth, now)

    def on_timer(self, now: float, draw_linked: Callable[[int], Sequence[PeerId]]) -> list[Effect]:
        """Ask the members of the pool that have not answered once more, then leave them out."""
        growth = self.growth
        if growth is None:
            return []
        if growth.is_repeated:
            return self._advance(growth, now, draw_linked)
        growth.is_repeated = True
        return self._send_request(growth, now)

    def _ask_pool(self, growth: Growth, now: float) -> list[Effect]:
        self.growth_round += 1
        growth.offer(self.me, answer(self.leaves(), growth.request(self.growth_round)))
        return self._send_request(growth, now)

    def _send_request(self, growth: Growth, now: float) -> list[Effect]:
        """Ask all members of the pool that have not answered."""
        self.deadline = now + self.patience_s * (0.5 if growth.is_first else 0.25)
        request = growth.request(self.growth_round)
        sends: list[Effect] = [Send(member, request) for member in growth.pool if member not in growth.answers]
        self.sent_bits += 8 * len(sends) * (len(request.tree) + len(request.features))
        return sends

    def _advance(self, growth: Growth, now: float, draw_linked: Callable[[int], Sequence[PeerId]]) -> list[Effect]:
        if growth.answers.keys() <= {self.me}:
            # A tree of one user would be learned by heart.
            self._end(now)
            return []
        tree = growth.advance()
        if tree is None:
            return self._ask_pool(growth, now)
        self._end(now)
        record = self.records.add(tree)
        to = list(dict.fromkeys((*growth.pool[1:], *draw_linked(PASSED_ON))))
        return [*self.records.stored([self.me]), *self._send_records([record], to)]

    def rest(self) -> None:
        """Give up the tree that is growing."""
        self.growth, self.deadline = None, math.inf

    def _end(self, now: float) -> None:
        self.rest()
        self._took = now - self._began

    def _send_records(
        self, records: Sequence[BoostedRecord], to: Sequence[PeerId], checks: bytes = b""
    ) -> list[Effect]:
        n_trees = sum(bool(one.tree) for record in records for one in record.trees)
        self.sent_bits += 8 * len(to) * self.terms.size * n_trees
        return [Send(peer, BoostedReply(tuple(records), checks)) for peer in to]

    # -- messages --------------------------------------------------------------------------------------------------

    def request(self, with_checks: bool = False) -> BoostedRequest:
        """The first message of an exchange; with checks, the answer to it."""
        return BoostedRequest(self.records.digest, self.records.checks if with_checks else b"")

    def ask(self, partner: PeerId) -> list[Effect]:
        """Compare records with a peer."""
        self._replies.clear()
        return [Send(partner, self.request())]

    def receive(
        self, sender: PeerId, message: BoostedMessage, now: float, draw_linked: Callable[[int], Sequence[PeerId]]
    ) -> list[Effect]:
        """Answer a message; `draw_linked` draws peers to which news are passed on."""
        if isinstance(message, GrowthRequest):
            return self._answer(sender, message)
        if isinstance(message, GrowthReply):
            return self._on_answer(sender, message, now, draw_linked)
        if isinstance(message, BoostedReply):
            return self._on_records(sender, message, draw_linked)
        if message.digest == self.records.digest:
            return []
        if not message.checks:
            return [Send(sender, self.request(with_checks=True))]
        self._replies[sender] += 1
        if self._replies[sender] > MOST_ANSWERS:
            return [Refused(sender, f"requests for boosted trees beyond {MOST_ANSWERS} between two exchanges")]
        return self._reply(sender, message.checks, with_checks=True)

    def _answer(self, sender: PeerId, request: GrowthRequest) -> list[Effect]:
        most = MOST_REQUESTS * self.terms.per_grower * (2 * self.terms.depth + 1)
        answered = self._answered.get(sender, 0)
        if answered >= most:
            return [Refused(sender, f"requests to grow trees beyond {most}, which nobody needs")]
        put_last(self._answered, sender, answered + 1, MOST_ASKERS)
        body = answer(self.leaves(), request)
        self.sent_bits += 8 * len(body)
        return [Send(sender, GrowthReply(request.round, body))]

    def _on_answer(
        self, sender: PeerId, reply: GrowthReply, now: float, draw_linked: Callable[[int], Sequence[PeerId]]
    ) -> list[Effect]:
        growth = self.growth
        if growth is None or reply.round != self.growth_round:
            return []
        growth.offer(sender, reply.body)
        return self._advance(growth, now, draw_linked) if growth.is_answered else []

    def _on_records(
        self, sender: PeerId, reply: BoostedReply, draw_linked: Callable[[int], Sequence[PeerId]]
    ) -> list[Effect]:
        before = list(self.records.counts)
        new = self.records.merge(reply.records)
        gone = [peer for peer in before if peer not in self.records.counts]
        effects: list[Effect] = [*self.records.stored([*(record.peer for record in new), *gone])]
        news = [record for record in new if any(one.tree for one in record.trees)]
        if news:
            effects += self._send_records(news, [peer for peer in draw_linked(PASSED_ON) if peer != sender])
        if reply.checks and self.records.lacking(reply.checks):
            effects += self._reply(sender, reply.checks)
        return effects

    def _reply(self, sender: PeerId, checks: bytes, with_checks: bool = False) -> list[Effect]:
        most = max(1, MOST_SENT // (self.terms.per_grower * (self.terms.size + SIGNATURE_SIZE)))
        records = self.records.lacking(checks)[:most]
        return self._send_records(records, [sender], self.records.checks if with_checks else b"")

    def rehearse(self) -> None:
        """Grow a tree with oneself, which loads every kernel; it is forgotten."""
        growth = Growth(self.terms, 1, draw_tested(self.terms, self.varying, np.random.default_rng(0)), (self.me,))
        tree = None
        while tree is None:
            growth.offer(self.me, answer(self.leaves(), growth.request(0)))
            tree = growth.advance()
        OwnLeaves(self.terms, self.rows).take([tree])

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Take over stored records; values of leaves follow from them."""
        self.records.restore(records)
