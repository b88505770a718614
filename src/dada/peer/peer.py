"""One user of the network, as a state machine, and the journal that replays it.

Theory of operation
-------------------
A peer holds its samples (as margins of the base predictors), its model, and an edge to every neighbour: a weight and a
copy of the neighbour's model. A driver hands it facts (see `dada.peer.inputs`), each with its time: the peer's planner
decided on a step, a message arrived, the deadline passed, another peer is unreachable, the samples changed.
`Peer.handle` returns effects in the order in which they must be carried out. Nothing else happens: the same facts give
the same effects and the same state.

*Journal.* A journal of all facts that a peer was given replays it into a new peer, bit for bit. It is a sequence of
frames, each a length and a MessagePack record: first the peer's id, its settings and its samples, then the facts in
order, and at intervals a digest of the state they led to. A peer that starts again appends a new birth to the same
journal. A journal contains the samples (as margins of the base predictors), so it is as private as they are.

*Models.* A step changes the model by one move, or by many (block steps). The change goes to all followers with the next
sequence number. A receiver that has missed one asks for a snapshot; repeated and late changes are ignored. Each start
of a peer has a new epoch, so numbers never repeat.

*Samples.* They may change at any time. The peer then continues from its model and reports its new number of samples.

*Lives.* A peer that returns with an old epoch learns the highest one from its neighbours and takes a larger one. Two
processes with one identity are noticed in the same way, by themselves and by their neighbours.

*Edges.* The neighbourhood decides on weights, and on who must agree to them: the paper's graph or a background graph of
random edges, or the evidence graph (`dada.peer.neighbourhoods`).

*Strangers and liars.* Implausible messages are refused and counted; a peer that keeps sending them is ignored. An error
while one message is handled costs that message and counts as an offence of its sender: `Peer.handle` never raises for a
`Received`. A peer that sends its followers different models is found by witnesses (`dada.peer.signatures`). Members
that the founder of the network excludes are dropped (`dada.peer.signatures`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from dada.core.block_steps import BlockStep
from dada.core.graph_steps import DegreeTarget, LogDegree
from dada.core.model_steps import UserRows
from dada.peer import inputs, messages
from dada.peer.edges import put_last
from dada.peer.inputs import (
    Effect,
    Fact,
    Failed,
    PeerConfig,
    Persist,
    Refused,
    Send,
    StoredRows,
    Warned,
    as_bytes,
    as_numbers,
)
from dada.peer.messages import (
    Hello,
    ImplausibleError,
    Message,
    OtherDictionaryError,
    PeerId,
    Revocation,
    epoch_of,
)
from dada.peer.model import OwnModel
from dada.peer.neighbourhoods import DistanceGraph, EveryoneGraph, EvidenceGraph
from dada.peer.signatures import EXPOSED_KEY, MOST_EXPOSED, ContradictionError

# Ten years of the epochs that a lost clock can cost, one every ten seconds; and peers whose reports of a higher epoch
# count in one life.
MOST_EPOCHS_AHEAD, MOST_REPORTERS = 2**25, 8
# Implausible messages after which a peer is ignored.
PATIENCE = 20
# Peers whose offences are remembered, and peers whose epochs are.
MOST_OFFENDERS, MOST_EPOCHS = 1024, 4096
REVOKED_KEY = b"revoked"


# The rule by which a peer chooses its neighbours.
Neighbourhood = DistanceGraph | EvidenceGraph | EveryoneGraph
NEIGHBOURHOODS: dict[str, type[Neighbourhood]] = {
    "distance": DistanceGraph,
    "evidence": EvidenceGraph,
    "everyone": EveryoneGraph,
}


class Offences:
    """Number of implausible messages of each peer; those whose last one is oldest are forgotten first.

    >>> offences = Offences(patience=2, most_peers=10)
    >>> [offences.add(b"liar") for _ in range(2)]
    [False, True]
    """

    def __init__(self, patience: int, most_peers: int) -> None:
        self.patience, self.most_peers = patience, most_peers
        self._counts: OrderedDict[PeerId, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, peer: PeerId) -> bool:
        """Count one more; returns whether the peer is ignored from now on."""
        put_last(self._counts, peer, self._counts.get(peer, 0) + 1, self.most_peers)
        return self.is_ignored(peer)

    def condemn(self, peer: PeerId) -> None:
        """Ignore a peer at once."""
        put_last(self._counts, peer, self.patience, self.most_peers)

    def is_ignored(self, peer: PeerId) -> bool:
        """Whether messages of a peer are ignored."""
        return self._counts.get(peer, 0) >= self.patience


class Lives:
    """The highest epoch of each other peer, and the lives that neighbours report of this one.

    A peer whose folder was restored, or whose clock was set back, returns with an old epoch. Its neighbours report the
    highest one they have seen, and it takes a larger one. If they report again, another process did the same.

    >>> lives = Lives(most_peers=10)
    >>> lives.older(b"ann", 7, b""), lives.older(b"ann", 6, b""), lives.older(b"ann", 6, b"")
    (None, 7, 7)
    >>> lives.is_rollback(b"bob", epoch=9, own=4), lives.is_rollback(b"bob", epoch=12, own=10)
    (True, False)
    """

    def __init__(self, most_peers: int) -> None:
        self.life = b""
        self.most_peers = most_peers
        self._seen: OrderedDict[PeerId, tuple[int, bytes]] = OrderedDict()
        self._reporters: list[PeerId] = []

    def __len__(self) -> int:
        return len(self._seen)

    def begin(self, life: bytes) -> None:
        """Start a life of this peer."""
        self.life, self._reporters = life, []

    def older(self, peer: PeerId, epoch: int, life: bytes) -> int | None:
        """The highest epoch seen of a peer, if this one is lower or belongs to another life; else None."""
        seen, known = self._seen.get(peer, (0, b""))
        if epoch < seen or (epoch == seen and life and known and life != known):
            return seen
        put_last(self._seen, peer, (epoch, life or (known if epoch == seen else b"")), self.most_peers)
        return None

    def life_of(self, peer: PeerId) -> bytes:
        """The life that has the highest epoch seen of a peer."""
        return self._seen.get(peer, (0, b""))[1]

    def is_rollback(self, reporter: PeerId, epoch: int, own: int) -> bool:
        """Whether to take an epoch above the reported one; False if another process must have the same identity.

        One reporter can ask for that once per life, and only a few can at all.
        """
        if epoch > min(own + MOST_EPOCHS_AHEAD, messages.LARGEST_EPOCH // 2):
            raise ImplausibleError(f"reports epoch {epoch} of this peer, which has {own}")
        if reporter in self._reporters or len(self._reporters) >= MOST_REPORTERS:
            return False
        self._reporters.append(reporter)
        return True


class Peer:
    """The state machine of one user; see the top of this file.

    Parameters
    ----------
    me : bytes
        This peer's id. Ids are ordered: neighbours' models are summed in ascending order of ids.
    rows : UserRows
        The user's own samples as margins of the base predictors, with offsets for numbers and with weights if any.
    config : PeerConfig
        Settings that all peers of the network share.

    Examples
    --------
    >>> import numpy as np
    >>> rows = UserRows(np.array([[1, -1], [1, 1]], np.int8))
    >>> peer = Peer(b"me", rows, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> [type(effect).__name__ for effect in peer.handle(inputs.GraphStep(0.0, batch=(b"you",)))]
    ['Send']
    >>> peer.deadline
    2.0
    """

    def __init__(self, me: PeerId, rows: UserRows, config: PeerConfig) -> None:
        self.me, self.config = me, config
        self.own = OwnModel(rows, config)
        self.neighbourhood = NEIGHBOURHOODS[config.graph](me, self.own)
        self.edges = self.neighbourhood.edges
        self.offences = Offences(PATIENCE, MOST_OFFENDERS)
        self.lives = Lives(MOST_EPOCHS)
        self.exposed: OrderedDict[PeerId, None] = OrderedDict()
        self.revocation = Revocation(0, (), b"")
        self.revoked: dict[PeerId, None] = {}

    @property
    def deadline(self) -> float:
        """When `TimerFired` is due; infinity if nothing waits."""
        return min(self.edges.deadline, self.neighbourhood.rounds.deadline)

    def hello(self) -> Hello:
        """The first message on a connection."""
        return Hello(self.config.digest, self.own.shared.epoch, self.lives.life)

    def handle(self, fact: Fact) -> list[Effect]:
        """Respond to a fact."""
        if isinstance(fact, inputs.Received):
            return self.guarded(fact.sender, fact.message, lambda: self._answer(fact.sender, fact.message, fact.now))
        if isinstance(fact, inputs.ModelStep):
            return self._step_model(fact.gamma)
        if isinstance(fact, inputs.GraphStep):
            return self._begin_round(fact.batch, fact.now)
        if isinstance(fact, inputs.TimerFired):
            return self._on_timer(fact.now)
        if isinstance(fact, inputs.Started):
            self.lives.begin(fact.life)
            return [self.own.begin_epoch(), *self.neighbourhood.start(fact.now)]
        if isinstance(fact, inputs.Restored):
            self.own.restore(fact.records)
            self.neighbourhood.restore(fact.records)
            liars = (key.removeprefix(EXPOSED_KEY) for key in fact.records if key.startswith(EXPOSED_KEY))
            self.exposed.update(dict.fromkeys(liars))
            if REVOKED_KEY in fact.records:
                self._hold(msgspec.msgpack.decode(fact.records[REVOKED_KEY], type=Revocation))
            return []
        if isinstance(fact, inputs.ResetModel):
            self.own.reset()
            return [self.own.record(), *self._to_followers(messages.SnapshotReply(self.own.snapshot()))]
        if isinstance(fact, inputs.RowsChanged):
            self.own.take_rows(fact.stored.rows)
            self.neighbourhood.sizes.own = self.own.size
            return self.neighbourhood.report_size()
        if isinstance(fact, inputs.SettingsAgreed):
            self.own.couple(fact.mu)
            self.neighbourhood.sizes.known_largest = fact.largest
            return []
        if isinstance(fact, inputs.DictionaryChanged):
            return self._rebase(fact)
        if isinstance(fact, inputs.Leave):
            linked = sorted({*self.edges.neighbours, *self.neighbourhood.followers})
            return [Send(peer, messages.Goodbye()) for peer in linked]
        return self.neighbourhood.on_unreachable(fact.peer)

    def _step_model(self, gamma: float) -> list[Effect]:
        if self.own.is_refresh_due:
            self.edges.sum_degree()
            self.own.refresh(self.edges.models())
        change = self.own.step(gamma, self.neighbourhood.sizes.confidence)
        if change is None:
            # A block step may change the model without a message.
            return [self.own.record()] if self.config.sends_codes else []
        sends = self._to_followers(change)
        self.own.count_change(self.neighbourhood.ledger, change, len(sends))
        return [self.own.record(), *sends]

    def _rebase(self, fact: inputs.DictionaryChanged) -> list[Effect]:
        """Continue over another dictionary, in a new epoch: no number then belongs to models over two dictionaries."""
        origin = np.frombuffer(fact.origin, "<i4")
        self.config = self.config.with_trees(fact.dictionary, origin)
        self.own.rebase(fact.stored.rows, self.config, origin)
        self.neighbourhood.config, self.neighbourhood.rounds.current = self.config, None
        self.neighbourhood.ledger.n_predictors = self.config.n_predictors
        self.edges.rebase(origin)
        effects = [self.own.begin_epoch(), self.own.record(), *self.neighbourhood.start(fact.now)]
        return [*effects, *self._to_followers(messages.SnapshotReply(self.own.snapshot()))]

    def _begin_round(self, batch: tuple[PeerId, ...], now: float) -> list[Effect]:
        waiting = self.neighbourhood.rounds.current
        if isinstance(self.neighbourhood, EveryoneGraph) and waiting is not None and now < waiting.deadline:
            # Any peer of the view would do: those that were asked need time to answer, as links may have to be opened.
            return []
        others = [peer for peer in dict.fromkeys(batch) if peer != self.me and not self.ignores(peer)]
        effects = self.neighbourhood.end_round(now) if self.neighbourhood.rounds.current is not None else []
        effects += self.neighbourhood.begin_round(tuple(others), now)
        begun = self.neighbourhood.rounds.current
        return effects if begun is not None and begun.batch else [*effects, *self.neighbourhood.end_round(now)]

    def _on_timer(self, now: float) -> list[Effect]:
        """End a graph step that waited long enough, and repeat what was not acknowledged."""
        effects = self.neighbourhood.end_round(now) if self.neighbourhood.rounds.deadline <= now else []
        for peer in self.edges.due(now):
            effects += self.edges.repeat(peer, now) or self.neighbourhood.on_unreachable(peer)
        return effects

    def _to_followers(self, message: Message) -> list[Effect]:
        return [Send(peer, message) for peer in self.neighbourhood.followers]

    # -- messages --------------------------------------------------------------------------------------------------

    def guarded(self, sender: PeerId, message: Message, answer: Callable[[], list[Effect] | None]) -> list[Effect]:
        """The answer to a message. An implausible one is refused, and an error costs this message only."""
        if self.ignores(sender) or sender == self.me:
            reason = "too many implausible messages, two models with one number, or a revoked membership"
            return [Refused(sender, f"ignored: {reason}")]
        try:
            effects = answer()
        except ContradictionError as error:
            return [Refused(error.owner, str(error)), *self._on_contradiction(error)]
        except OtherDictionaryError as error:
            return [Refused(sender, str(error))]
        except ImplausibleError as error:
            return [Refused(sender, str(error)), *self.offend(sender)]
        except Exception as error:
            reason = f"{type(message).__name__} raised {type(error).__name__}: {error}"
            return [Failed(sender, reason), *self.offend(sender)]
        if effects is None:
            return [Refused(sender, f"no peer of this network answers a {type(message).__name__}")]
        return effects

    def offend(self, sender: PeerId) -> list[Effect]:
        """Count an offence of a peer; after too many, its edge ends and it is ignored."""
        return self.neighbourhood.on_unreachable(sender) if self.offences.add(sender) else []

    def ignores(self, peer: PeerId) -> bool:
        """Whether messages of a peer are refused."""
        return peer in self.revoked or peer in self.exposed or self.offences.is_ignored(peer)

    def _on_contradiction(self, error: ContradictionError) -> list[Effect]:
        """Ignore a peer that sent two models with one number; with two signatures, that is proven to others too."""
        if error.first.signature and error.second.signature:
            return self.expose(messages.Equivocation(error.owner, error.first, error.second))
        self.offences.condemn(error.owner)
        return self.neighbourhood.on_unreachable(error.owner)

    def expose(self, proof: messages.Equivocation) -> list[Effect]:
        """Drop a proven liar for good, and pass the proof on; its signatures have been verified."""
        first, second = proof.first, proof.second
        is_one_number = (first.epoch, first.sequence) == (second.epoch, second.sequence)
        if not (is_one_number and first.digest != second.digest and first.signature and second.signature):
            raise ImplausibleError("statements that do not contradict each other")
        if proof.owner in self.exposed or proof.owner == self.me:
            return []
        dropped = self.neighbourhood.on_unreachable(proof.owner)
        stored = [Persist(EXPOSED_KEY + proof.owner, msgspec.msgpack.encode(proof))]
        if len(self.exposed) >= MOST_EXPOSED:
            stored.append(Persist(EXPOSED_KEY + self.exposed.popitem(last=False)[0], b""))
        self.exposed[proof.owner] = None
        linked = sorted({*self.edges.neighbours, *self.neighbourhood.followers})
        return [*dropped, *stored, *(Send(peer, proof) for peer in linked)]

    def revoke(self, revocation: Revocation) -> list[Effect]:
        """Store a newer list of revoked members, and drop them for good; its signature has been verified."""
        if revocation.counter <= self.revocation.counter:
            return []
        effects: list[Effect] = []
        for peer in revocation.revoked:
            self.neighbourhood.rounds.ignore(peer)
            effects += self.neighbourhood.on_unreachable(peer)
        # Edges end first: a crash in between then leaves no edge to a revoked member.
        effects.append(Persist(REVOKED_KEY, msgspec.msgpack.encode(revocation)))
        self._hold(revocation)
        if self.me in self.revoked:
            effects.append(Warned("the founder has revoked the membership of this peer: only a new key can join"))
        return effects

    def _hold(self, revocation: Revocation) -> None:
        self.revocation, self.revoked = revocation, dict.fromkeys(revocation.revoked)

    def _answer(self, sender: PeerId, message: Message, now: float) -> list[Effect] | None:
        epoch = epoch_of(message)
        if epoch is not None:
            seen = self.lives.older(sender, epoch, message.life if isinstance(message, Hello) else b"")
            if seen is not None:
                reason = f"epoch {epoch} after epoch {seen}: an old state, or two processes with one identity"
                return [Refused(sender, reason), Send(sender, messages.EpochSeen(seen, self.lives.life_of(sender)))]
        if isinstance(message, messages.EpochSeen):
            return self._on_epoch(sender, message, now)
        if isinstance(message, messages.ModelChange) and self.edges.has_neighbour(sender):
            return [*self.edges.apply_change(sender, message, now), *self._drop_harmful(sender, now)]
        if isinstance(message, messages.SnapshotRequest):
            return [Send(sender, messages.SnapshotReply(self.own.snapshot()))]
        if isinstance(message, messages.SnapshotReply):
            return [*self.edges.receive_snapshot(sender, message), *self._drop_harmful(sender, now)]
        if isinstance(message, messages.Equivocation):
            return self.expose(message)
        if isinstance(message, Revocation):
            return self.revoke(message)
        if isinstance(message, messages.Goodbye):
            return self.neighbourhood.on_unreachable(sender)
        if isinstance(message, Hello):
            if message.problem != self.config.digest:
                raise ImplausibleError("works on another learning problem")
            return self.neighbourhood.on_hello(sender, now)
        return self.neighbourhood.receive(sender, message, now)

    def _drop_harmful(self, sender: PeerId, now: float) -> list[Effect]:
        return self.neighbourhood.drop_harmful(sender, now) if isinstance(self.neighbourhood, EvidenceGraph) else []

    def _on_epoch(self, sender: PeerId, seen: messages.EpochSeen, now: float) -> list[Effect]:
        """Another life of this peer was seen with a higher epoch, or with the same one."""
        own = self.own.shared.epoch
        is_other_life = seen.epoch == own and seen.life and seen.life != self.lives.life
        if seen.epoch < own:
            # Sent before this peer took its epoch: what the reporter refused is greeted again.
            return [Send(sender, self.hello())]
        if not (seen.epoch > own or is_other_life):
            return []
        report = f"epoch {seen.epoch} of this peer was seen"
        if not self.lives.is_rollback(sender, seen.epoch, own):
            return [Warned(f"{report}, it has {own}: another process uses its identity. Stop one.")]
        reason = f"{report}, it had {own}: an old state was restored, or another process uses its identity"
        effects = [Warned(reason), self.own.begin_epoch(seen.epoch), *self.neighbourhood.start(now)]
        # The reporter refused the last greeting: a new one makes it report an edge that this peer has lost.
        greetings = [Send(sender, self.hello()), *self._to_followers(messages.SnapshotReply(self.own.snapshot()))]
        return [*effects, *greetings]


LENGTH = struct.Struct("<I")
LARGEST_FRAME = 1 << 30
# Facts between two digests: a difference is then found near the place where it began.
DIGEST_EVERY = 1000

REGULARIZERS = {"LogDegree": LogDegree, "DegreeTarget": DegreeTarget}


class JournalError(ValueError):
    """A file that is not a journal, or a journal whose facts no longer lead to the recorded state."""


class Birth(msgspec.Struct, array_like=True, tag=100):
    """A new peer: `Peer(me, stored.rows, config)`."""

    me: bytes
    stored: StoredRows
    settings: dict[str, Any]
    regularizer: str
    regularizer_settings: dict[str, float]
    coupling: bytes


class Digest(msgspec.Struct, array_like=True, tag=101):
    """The state that all facts so far led to."""

    digest: bytes


Record = Birth | Fact | Digest

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class PeerJournal:
    """Writes the journal of one peer.

    Parameters
    ----------
    file : binary file
        Frames are appended to it.
    peer : Peer
        The peer, before its first fact.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from dada.core.model_steps import UserRows
    >>> from dada.peer.inputs import ModelStep, Started
    >>> file, rows = io.BytesIO(), UserRows(np.ones((1, 2), np.int8))
    >>> peer = Peer(b"me", rows, PeerConfig(n_predictors=2, beta=1.0, mu1=1.0))
    >>> journal = PeerJournal(file, peer)
    >>> for fact in (Started(0.0), ModelStep(0.5)):
    ...     journal.write(fact)
    ...     effects = peer.handle(fact)
    >>> journal.close()
    >>> replay(io.BytesIO(file.getvalue()))
    Replay(births=1, facts=2, digests=1, is_whole=True)
    """

    def __init__(self, file: BinaryIO, peer: Peer) -> None:
        self._file, self._peer = file, peer
        self._facts = 0
        self._append(_birth(peer))

    def write(self, fact: Fact) -> None:
        """Record the fact that the peer is given next."""
        if self._facts and self._facts % DIGEST_EVERY == 0:
            self._append(Digest(digest_of(self._peer)))
        self._facts += 1
        self._append(fact)

    def close(self) -> None:
        """Record the final state."""
        self._append(Digest(digest_of(self._peer)))
        self._file.flush()

    def _append(self, record: Record) -> None:
        data = _encoder.encode(record)
        self._file.write(LENGTH.pack(len(data)) + data)


class Replay(NamedTuple):
    """Contents of a replayed journal; `is_whole` unless it was cut off."""

    births: int
    facts: int
    digests: int
    is_whole: bool


def replay(file: BinaryIO) -> Replay:
    """Give a new peer all facts of a journal; raise `JournalError` if its state differs from the recorded one."""
    peer: Peer | None = None
    births = facts = digests = 0
    record: Record | None = None
    for record in read(file):
        if isinstance(record, Birth):
            peer, births = _born(record), births + 1
        elif peer is None:
            raise JournalError("this is not a journal: it does not begin with a birth")
        elif isinstance(record, Digest):
            digests += 1
            if digest_of(peer) != record.digest:
                raise JournalError(f"after {facts} facts the state differs from the recorded one")
        else:
            peer.handle(record)
            facts += 1
    if record is None:
        raise JournalError("this is not a journal: it is empty")
    return Replay(births, facts, digests, isinstance(record, Digest))


def read(file: BinaryIO) -> Iterator[Record]:
    """The records of a journal, without a last one that was cut off."""
    while len(header := file.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(header)
        if length > LARGEST_FRAME:
            raise JournalError(f"this is not a journal: it has a frame of {length} bytes, at most {LARGEST_FRAME}")
        data = file.read(length)
        if len(data) < length:
            return
        try:
            yield _decoder.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise JournalError(f"this is not a journal: {error}") from error


def digest_of(peer: Peer) -> bytes:
    """Digest of a peer's state: equal digests mean equal models, edges, copies and timers."""
    state = hashlib.sha256()
    own, edges, neighbourhood = peer.own, peer.edges, peer.neighbourhood
    model, shared, waiting = own.model, own.shared, sorted(edges.waiting.items())
    counts = (own.updates, edges.degree, neighbourhood.sizes.confidence, neighbourhood.rounds.count)
    state.update(repr((shared.number, counts, waiting, neighbourhood.followers)).encode())
    state.update(model.alpha.tobytes() + model.support[: model.n_support].tobytes() + own.user.margins.tobytes())
    if shared is not model:
        state.update(shared.alpha.tobytes() + shared.support[: shared.n_support].tobytes())
    for name, edge in sorted(edges.items()):
        state.update(repr((name, edge.weight, edge.rank, edge.acknowledged, edge.repeats)).encode())
        if edge.copy is not None:
            state.update(repr(edge.copy.number).encode() + edge.copy.alpha.tobytes())
    return state.digest()


def _birth(peer: Peer) -> Birth:
    config = peer.config
    kind = type(config.regularizer).__name__
    if kind not in REGULARIZERS:
        raise JournalError(f"a journal can keep the regularizers {', '.join(REGULARIZERS)}, not a custom one")
    # A peer is born without trees: they come as a fact.
    trees = ("dictionary", "agreed")
    unused = (() if config.sends_codes else ("block", "dtype")) + (() if config.most_samples else ("most_samples",))
    apart = ("regularizer", "coupling", *trees, *unused)
    others = [field.name for field in dataclasses.fields(config) if field.name not in apart]
    return Birth(
        me=peer.me,
        stored=StoredRows.of(peer.own.rows),
        settings={name: getattr(config, name) for name in others},
        regularizer=kind,
        regularizer_settings=dataclasses.asdict(config.regularizer),
        coupling=as_bytes(config.coupling),
    )


def _born(birth: Birth) -> Peer:
    try:
        regularizer = REGULARIZERS[birth.regularizer](**birth.regularizer_settings)
        settings = dict(birth.settings)
        if "block" in settings:
            settings["block"] = BlockStep(*settings["block"])
        config = PeerConfig(**settings, regularizer=regularizer, coupling=as_numbers(birth.coupling))
        return Peer(birth.me, birth.stored.rows, config)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalError(f"the peer of this journal cannot be made: {error}") from error
