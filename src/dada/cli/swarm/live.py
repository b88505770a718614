"""What a swarm shows while it runs, and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table

from dada.cli.console import percent
from dada.cli.swarm.population import Reference
from dada.core.compiled import Array
from dada.engine import Samples
from dada.net.home import Home
from dada.net.network import Network
from dada.net.overview import Overview

FLOAT_BITS = 32


class Live:
    """Follows a swarm on the terminal and on a page, where there are such; otherwise it only collects."""

    def __init__(
        self, console: Console, test: Samples, network: Network, reference: Reference, page: Overview | None = None
    ) -> None:
        self._test, self._network, self._reference, self._page = test, network, reference, page
        self._screen = RichLive(console=console, refresh_per_second=2, transient=True)
        self._is_shown = console.is_terminal
        self._statuses: Sequence[Mapping[str, Any]] = ()
        self._last = (time.monotonic(), 0)
        self.restarts = self.errors = 0

    def __enter__(self) -> Live:
        if self._is_shown:
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.stop()

    def show(self, homes: Sequence[Home], statuses: Sequence[Mapping[str, Any]], left_s: float) -> None:
        """Take up what the peers say now."""
        self._statuses = statuses
        if self._page is not None:
            self._page.tell(statuses, lambda: accuracies(homes, self._network, self._test), milestone=left_s <= 0)
        if self._is_shown:
            self._screen.update(self._table(self._accuracy(homes), left_s))

    def result(self, homes: Sequence[Home]) -> dict[str, Any]:
        """The swarm's result, as JSON gives it; accuracies are fractions."""
        index_bits = math.log2(self._network.coupling.size)
        return {
            "peers": sum(bool(status.get("running")) for status in self._statuses),
            "test_accuracy": self._accuracy(homes),
            "local_accuracy": self._reference.local,
            "engine_accuracy": self._reference.engine,
            "oracle_accuracy": self._reference.oracle,
            "edges": self.n_edges,
            "messages": self._sum("messages_sent"),
            "wire_bytes": self._sum("wire_bytes"),
            "paper_bits": round(self._sum("paper_floats") * FLOAT_BITS + self._sum("paper_indices") * index_bits),
            "restarts": self.restarts,
            "errors": self.errors,
        }

    @property
    def n_edges(self) -> int:
        """Pairs of peers of which at least one counts the other as its neighbour."""
        return len({frozenset((status["id"], l)) for status in self._statuses for l in status.get("neighbours", ())})

    @property
    def mean_neighbours(self) -> float:
        """Neighbours per peer."""
        return float(np.mean([len(status.get("neighbours", ())) for status in self._statuses]))

    def _accuracy(self, homes: Sequence[Home]) -> float:
        return float(accuracies(homes, self._network, self._test).mean())

    def _sum(self, name: str) -> int:
        return int(sum(status.get(name, 0) for status in self._statuses))

    def _table(self, test_accuracy: float, left_s: float) -> Table:
        now, sent = time.monotonic(), self._sum("messages_sent")
        per_s = (sent - self._last[1]) / max(now - self._last[0], 1e-9)
        self._last = (now, sent)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right")
        table.add_column(style="bold")
        up = sum(bool(status.get("running")) for status in self._statuses)
        rows = {
            "peers up": f"{up} of {len(self._statuses)}",
            "links": f"{self._sum('links') // 2}",
            "edges": f"{self.n_edges} ({self.mean_neighbours:.1f} neighbours per peer)",
            "messages": f"{sent} ({per_s:.0f} per second)",
            "on the wire": f"{self._sum('wire_bytes') / 1e6:.1f} MB",
            "test accuracy": f"{percent(test_accuracy)} (alone {percent(self._reference.local)})",
            "restarts": f"{self.restarts}",
            "seconds left": f"{left_s:.0f}",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return table


def accuracies(homes: Sequence[Home], network: Network, test: Samples) -> Array:
    """Each user's test accuracy with the model that its peer has stored."""
    found = []
    for k, home in enumerate(homes):
        rows = slice(int(test.row_start[k]), int(test.row_start[k + 1]))
        values = test.predictions[rows].astype(np.float64) @ _model(home, network)
        found.append(np.mean(np.where(values > 0, 1, -1) == test.y[rows]))
    return np.array(found)


def _model(home: Home, network: Network) -> Array:
    return home.read_model() if home.state.exists() else np.zeros(network.coupling.size, np.float32)
