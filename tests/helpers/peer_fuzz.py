"""Any messages in any order, to a whole member that restarts from its records now and then.

`make fuzz ARGS=1000000` gives a million messages; tests/peer/test_fuzz.py gives a few thousand.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np
from msgspec import inspect

from dada.core.model_steps import UserRows
from dada.peer.boosted_trees import BoostedRows, BoostedTerms
from dada.peer.boosting import SharedBoosting
from dada.peer.copies import Code, ModelCopy, write_code
from dada.peer.grove import AtomArrays, AtomTerms, Plot, SharedGrove
from dada.peer.inputs import Failed, PeerConfig, Persist, Refused, Send
from dada.peer.member import Member, Planner, RateLimit, Rhythm
from dada.peer.messages import PROTOCOL_VERSION, Descriptor, Message, ModelSnapshot, encode
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling
from dada.peer.signatures import Membership, Unsealed
from tests.helpers.wire_fuzz import MARGINS, check

ME = b"member"
CONFIGS = {
    "distance": PeerConfig(6, beta=2.0, mu1=1.0, vet=True),
    "evidence": PeerConfig(6, beta=2.0, mu1=1.0, vet=True, graph="evidence"),
    "distance, block steps": PeerConfig(6, beta=2.0, mu1=1.0, vet=True, step="block"),
    "evidence, block steps": PeerConfig(6, beta=2.0, mu1=1.0, vet=True, graph="evidence", step="block"),
    "evidence, trees": PeerConfig(6, beta=2.0, mu1=1.0, vet=True, graph="evidence", step="block"),
    "evidence, boosted": PeerConfig(6, beta=2.0, mu1=1.0, vet=True, graph="evidence", step="block"),
}
TERMS = AtomTerms(n_features=2, n_cuts=3, depth=1, per_user=4)
GROWN = tuple(AtomArrays(np.array([[0], [1]]), np.array([[1], [2]]), np.array([[9, -9], [5, 0]])).write())
PLOT = Plot(UserRows(MARGINS), np.ones((3, 1)), np.array([[0, 3], [2, 1], [3, 0]], np.uint8), GROWN)
BOOSTED = BoostedTerms(n_features=2, n_cuts=3, n_classes=2, rounds=20, depth=1)
ROWS = BoostedRows(PLOT.bins, np.array([1.0, -1.0, 1.0]))
KINDS = inspect.type_info(Message).types
EXTREMES = (0, 1, 2, -1, -2, 2**31 - 1, 2**32, 2**48, 2**53, 2**60, 2**61, 2**61 + 1, 2**62, 2**63 - 1, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-300, 1e300, -1e300, float("inf"), -float("inf"), float("nan"))
MOST_SENDERS = 12


class PeerFuzz:
    """One member, its stored records, and senders of random messages.

    Parameters
    ----------
    seed : int
    network : str
        A name of `CONFIGS`.
    """

    def __init__(self, seed: int, network: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.config, self.has_trees = CONFIGS[network], network.endswith("trees")
        self.is_boosted = network.endswith("boosted")
        self.records: dict[bytes, bytes] = {}
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self.names = [b"peer%04d" % k for k in range(MOST_SENDERS)]
        self.start()

    def start(self) -> None:
        """Begin a life with the records of earlier ones; every record must load."""
        self.counts["starts"] += 1
        rng = np.random.default_rng(self.rng.integers(2**32))
        rhythm = Rhythm(local_steps=3, first_graph_steps=3, graph_every=2)
        limit = RateLimit(messages_per_s=1e9, burst=1e9)
        boosting = None
        if self.is_boosted:
            boosting = SharedBoosting(ME, BOOSTED, ROWS, np.arange(2), self.config.digest, Unsealed())
        self.member = Member(
            Peer(ME, UserRows(MARGINS), self.config),
            PeerSampling(ME, rng, view_size=8),
            Planner(rhythm, rng),
            limit=limit,
            membership=Membership(b"", b"founder", Unsealed()),
            grove=SharedGrove(ME, TERMS, PLOT, self.config.digest, Unsealed()) if self.has_trees else None,
            boosting=boosting,
        )
        self.member.restore(dict(self.records))
        self.perform(self.member.start(self.now, [Descriptor(name, 0) for name in self.names[:3]]))

    def run(self, n_messages: int) -> None:
        """Send messages; now and then time passes, a peer is lost, or the member restarts."""
        for number in range(n_messages):
            sender = self.one_of(self.names)
            self.perform(self.member.receive_bytes(sender, self.message(), self.now))
            self.counts["messages"] += 1
            if self.rng.random() < 0.1:
                self.now += float(self.rng.exponential(1.0))
                if self.member.deadline <= self.now:
                    self.perform(self.member.on_timer(self.now))
            if self.rng.random() < 0.003:
                self.perform(self.member.on_unreachable(sender, self.now))
            if self.rng.random() < 0.002:
                self.start()
            if self.member.peer.ignores(sender):
                self.names[self.names.index(sender)] = b"peer%04d" % (MOST_SENDERS + number)
            if number % 50 == 0:
                check(self.member)

    def perform(self, effects: list[Any]) -> None:
        """Keep records; whatever is sent must be encodable, and nothing may fail."""
        for effect in effects:
            if isinstance(effect, Failed):
                raise AssertionError(f"{effect.reason} (after {self.counts['messages']} messages)")
            if isinstance(effect, Persist):
                if effect.value:
                    self.records[effect.key] = effect.value
                else:
                    self.records.pop(effect.key, None)
            elif isinstance(effect, Send):
                encode(effect.message)
            self.counts["refused" if isinstance(effect, Refused) else "effects"] += 1

    # -- messages --------------------------------------------------------------------------------------------------

    def one_of(self, values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def message(self) -> bytes:
        """A message whose fields are plausible or extreme, sometimes with changed bytes."""
        kind = self.one_of(KINDS)
        fields = [self.value(field.type, field.encode_name) for field in kind.fields]
        data = bytearray(bytes([PROTOCOL_VERSION]) + msgspec.msgpack.encode([kind.tag, *fields]))
        if self.rng.random() < 0.05:
            for _ in range(int(self.rng.integers(1, 4))):
                data[self.rng.integers(len(data))] = self.rng.integers(256)
        return bytes(data)

    def value(self, kind: Any, name: str) -> Any:
        if self.rng.random() < 0.02:
            return self.one_of((None, -1, 2**64 - 1, 0.5, b"", "text", [], True))
        if isinstance(kind, inspect.IntType):
            return self.integer(name)
        if isinstance(kind, inspect.FloatType):
            return self.one_of(FLOATS) if self.rng.random() < 0.3 else float(self.rng.random())
        if isinstance(kind, inspect.BoolType):
            return bool(self.rng.integers(2))
        if isinstance(kind, inspect.BytesType):
            return self.octets(name)
        if isinstance(kind, inspect.StrType):
            return self.one_of(("127.0.0.1:4000", "", "x" * 256, "x" * 257))
        if isinstance(kind, inspect.VarTupleType):
            size = int(self.one_of((0, 1, 2, 4, 5, 9, 300) if self.rng.random() < 0.1 else (0, 1, 2, 4)))
            return [self.value(kind.item_type, name) for _ in range(size)]
        if isinstance(kind, inspect.UnionType):
            return self.value(self.one_of(kind.types), name)
        if isinstance(kind, inspect.NoneType):
            return None
        assert isinstance(kind, inspect.StructType)
        if kind.cls is ModelSnapshot and self.rng.random() < 0.7:
            return self.snapshot()
        return [self.value(field.type, field.encode_name) for field in kind.fields]

    def integer(self, name: str) -> int:
        """A number near one that the member holds, or at a bound."""
        peer = self.member.peer
        if self.rng.random() < 0.25:
            return self.one_of(EXTREMES)
        near = {
            "epoch": [peer.own.shared.epoch, *(edge.copy.epoch for edge in peer.edges.values() if edge.copy)],
            "sequence": [peer.own.shared.sequence, *(edge.copy.sequence for edge in peer.edges.values() if edge.copy)],
            "version": [1, *(edge.version for edge in peer.edges.values())],
            "round": [peer.neighbourhood.rounds.count, *self.growing],
            "stage": [1],
            "output": [0],
        }.get(name, [3])
        return max(0, self.one_of(near) + int(self.rng.integers(-1, 2)))

    @property
    def growing(self) -> list[int]:
        """The round of requests for a boosted tree."""
        return [] if self.member.boosting is None else [self.member.boosting.growth_round]

    def octets(self, name: str) -> bytes:
        if name == "problem" and self.rng.random() < 0.8:
            return self.config.digest
        if name == "signature" and self.rng.random() < 0.5:
            return b""
        if name in ("author", "peer", "revoked"):
            return self.one_of((*self.names, ME, b"", b"x" * 64, b"x" * 65))
        if name == "code" and self.rng.random() < 0.7:
            return self.code()
        if name == "atoms" and self.rng.random() < 0.9:
            return bytes(self.rng.integers(0, (2, 1, 4, 128, 129)).tolist())
        if name == "tree" and self.rng.random() < 0.9:
            leaves = self.rng.integers(0, 256, 2).tolist()
            whole = bytes([*self.rng.integers(0, (25, 1, 3, 1, 4)).tolist(), *leaves])
            return self.one_of((b"", whole, whole[2:5]))
        if name == "features" and self.rng.random() < 0.9:
            return bytes(self.rng.integers(0, (3, 1, 3, 1)).tolist())[: int(self.one_of((0, 2, 4)))]
        if name == "body" and self.rng.random() < 0.9:
            return self.rng.bytes(int(self.one_of((2, 21, 32))))
        return self.rng.bytes(int(self.one_of((0, 1, 4, 8, 12, 100))))

    def code(self) -> bytes:
        """A change of a few coordinates by a few units."""
        n = self.member.peer.config.n_predictors
        used = np.sort(self.rng.permutation(n)[: self.rng.integers(1, 6)])
        values = self.rng.integers(1, 100, used.size) * self.rng.choice([-1, 1], used.size)
        entries = Code(used, values, int(self.rng.integers(self.config.finest - 2, 3)))
        return write_code(entries, n, self.config.block.quantise_bits)

    def snapshot(self) -> list[Any]:
        """A sound model, with any number."""
        n = self.member.peer.config.n_predictors
        copy = ModelCopy.zero(n)
        used = self.rng.permutation(n)[: self.rng.integers(1, 6)]
        copy.alpha[used] = 2.0 * self.rng.dirichlet(np.ones(used.size)) * self.rng.choice([-1, 1], used.size)
        if self.config.sends_codes:
            copy.alpha[:], copy.exponent = np.rint(16 * copy.alpha) / 16, -4
            used = np.flatnonzero(copy.alpha)
        copy.support[: used.size], copy.n_support = used, used.size
        found = self.member.peer.own.snapshot_of(copy)
        return [self.integer("epoch"), self.integer("sequence"), found.coordinates, found.values]


def fuzz(n_messages: int, seed: int = 0) -> Counter[str]:
    """Send messages to members of every network, in lives of a few thousand; returns what happened."""
    total: Counter[str] = Counter()
    while total["messages"] < n_messages:
        for network in CONFIGS:
            one = PeerFuzz(seed, network)
            one.run(min(5000, max(1, n_messages // len(CONFIGS))))
            total.update(one.counts)
        seed += 1
    return total


if __name__ == "__main__":
    begun = time.monotonic()
    found = fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(", ".join(f"{count:,} {name}" for name, count in found.items()), f"in {time.monotonic() - begun:.0f} s")
