"""Status files of peers, turned into events for observers such as the dashboard.

Only the status that each running peer writes for its owner is read; samples are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.events import TOP_PREDICTORS, Observer, PeerStatus, RunInfo, Snapshot, SnapshotOffer, edges_reported

# Counters of a status that start at zero in each process of a peer.
COUNTS = (
    "messages_sent", "messages_received", "payload_bytes", "wire_bytes", "messages_refused",
    "paper_messages", "paper_floats", "paper_indices", "coded_bits", "model_bytes",
)  # fmt: skip


@dataclass(eq=False)
class StatusHistory:
    """The last status of one peer, and its counters summed over restarts.

    Examples
    --------
    >>> history = StatusHistory()
    >>> for epoch, sent in ((1, 5), (1, 7), (2, 1)):
    ...     history.update({"id": "ab", "running": True, "epoch": epoch, "messages_sent": sent})
    >>> history.restarts, history.counts["messages_sent"]
    (1, 8)
    """

    status: Mapping[str, Any] = field(default_factory=dict)
    is_up: bool = False
    restarts: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def update(self, status: Mapping[str, Any]) -> None:
        """Add a status; one without `id` only reports whether the peer is running."""
        self.is_up = bool(status.get("running"))
        if "id" not in status:
            return
        is_restarted = bool(self.status) and status["epoch"] > self.status["epoch"]
        self.restarts += is_restarted
        for name in COUNTS:
            before = 0 if is_restarted else self.status.get(name, 0)
            self.counts[name] += int(status.get(name, 0) - before)
        self.status = status


class PeerOverview:
    """Sends events about a group of peers to an observer.

    Parameters
    ----------
    observer : callable
        Receives the events.
    info : RunInfo
        Description of the run; its users are the observed peers, in the order of their statuses. Other peers that are
        neighbours of some of them are added after them, named by the first digits of their ids.
    directed : bool
        Whether each peer chooses its neighbours alone, as in the evidence graph; otherwise both ends share an edge.

    Examples
    --------
    >>> received = []
    >>> overview = PeerOverview(received.append, RunInfo(users=("ann", "bob")))
    >>> overview.update([{"running": False}, {"running": False}])
    >>> [type(event).__name__ for event in received], received[1].up.tolist()
    (['RunInfo', 'PeerStatus', 'SnapshotOffer'], [False, False])
    """

    def __init__(self, observer: Observer, info: RunInfo, directed: bool = False) -> None:
        self._observer, self._info, self._directed = observer, info, directed
        self._observed = [StatusHistory() for _ in info.users]
        self._places: dict[str, int] = {}
        self._others: list[str] = []
        self._reported_others = -1

    def update(
        self,
        statuses: Sequence[Mapping[str, Any]],
        accuracy: Callable[[], Array] | None = None,
        milestone: bool = False,
    ) -> None:
        """Send events for the last status of each peer (`Node.status`), with whether it is `running`.

        `accuracy` returns the accuracy of each peer's model; by default it is that on its own samples. A milestone is a
        snapshot that the observer must keep.
        """
        for k, (seen, status) in enumerate(zip(self._observed, statuses, strict=True)):
            seen.update(status)
            if "id" in status:
                self._places[status["id"]] = k
        for seen in self._observed:
            for peer in seen.status.get("neighbours", ()):
                if peer not in self._places:
                    self._places[peer] = len(self._observed) + len(self._others)
                    self._others.append(peer)
        # The first snapshot is always kept, even if it has to wait for the compiler.
        milestone = milestone or self._reported_others < 0
        if len(self._others) != self._reported_others:
            self._reported_others = len(self._others)
            self._observer(self._extended_info())
        self._observer(self._peer_status())
        self._observer(SnapshotOffer(lambda: self._snapshot(accuracy), milestone))

    def total(self, count: str) -> int:
        """A counter of the statuses (one of `COUNTS`), summed over all peers and their restarts."""
        return sum(seen.counts[count] for seen in self._observed)

    def _column(self, value_of: Callable[[StatusHistory], Any], filler: Any) -> Array:
        """A value of each observed peer, and the filler for all others."""
        return np.array([*map(value_of, self._observed), *[filler] * len(self._others)])

    def _extended_info(self) -> RunInfo:
        info, more = self._info, len(self._others)
        return replace(
            info,
            users=(*info.users, *(peer[:8] for peer in self._others)),
            groups=np.pad(info.groups, (0, more), constant_values=-1) if info.groups.size else info.groups,
            alone=np.pad(info.alone, (0, more), constant_values=np.nan) if info.alone.size else info.alone,
        )

    def _peer_status(self) -> PeerStatus:
        trips: dict[str, list[float]] = {}
        for seen in self._observed:
            if seen.is_up:
                for peer, took_ms in seen.status.get("round_trips_ms", {}).items():
                    trips.setdefault(peer, []).extend([] if took_ms is None else [took_ms])
        rtt_ms = self._column(lambda seen: np.nan, np.nan)
        for peer, found in trips.items():
            if peer in self._places and found:
                rtt_ms[self._places[peer]] = np.median(found)

        def refused(seen: StatusHistory) -> int:
            return seen.counts["messages_refused"] + sum(seen.status.get("links_refused", {}).values())

        return PeerStatus(
            up=np.array([*(seen.is_up for seen in self._observed), *(peer in trips for peer in self._others)], bool),
            restarts=self._column(lambda seen: seen.restarts, 0),
            rtt_ms=rtt_ms,
            refused=self._column(refused, 0),
        )

    def _snapshot(self, accuracy: Callable[[], Array] | None) -> Snapshot:
        k, l, w = self._edges()
        samples = self._column(lambda seen: seen.status.get("samples", 0), 0)
        predictors, weights = (np.full((samples.size, TOP_PREDICTORS), filler) for filler in (-1, 0.0))
        for row, seen in enumerate(self._observed):
            for place, (j, weight) in enumerate(seen.status.get("heaviest", ())):
                predictors[row, place], weights[row, place] = j, weight
        right = self._column(lambda seen: seen.status.get("accuracy", np.nan), np.nan)
        if accuracy is not None:
            right[: len(self._observed)] = accuracy()
        return Snapshot(
            phase="peers",
            updates=sum(seen.status.get("model_updates", 0) for seen in self._observed),
            k=k,
            l=l,
            w=w,
            directed=self._directed,
            confidence=samples / max(samples.max(initial=0), 1),
            loss=self._column(lambda seen: seen.status.get("loss", np.nan), np.nan),
            accuracy=right,
            predictors=predictors,
            predictor_weights=weights,
            messages=self._column(lambda seen: seen.counts["messages_sent"], 0),
            bits=8.0 * self._column(lambda seen: seen.counts["wire_bytes"], 0),
        )

    def _edges(self) -> tuple[Array, Array, Array]:
        """Edges reported by the peers that are up."""
        reported = [
            (place, self._places[peer], weight)
            for place, seen in enumerate(self._observed)
            if seen.is_up
            for peer, weight in seen.status.get("neighbours", {}).items()
        ]
        return edges_reported(reported, self._directed)
