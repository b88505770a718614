"""Estimate the memory of a run, and compare it with what the machine has before anything large is allocated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# A neighbour's id and weight, twice, because full lists double.
BYTES_PER_NEIGHBOUR = 2 * (4 + 8)
# A user's scalars, its row, its place in the lists, and its candidates and guests.
BYTES_PER_USER = 64 + 24 + 224
UNKNOWN = sys.maxsize


class TooLittleMemoryError(MemoryError, ValueError):
    """A run that does not fit into memory."""


def bytes_of_run(
    n_users: int,
    n_rows: int,
    n_predictors: int,
    *,
    neighbours: float = 20.0,
    cell_bytes: int = 1,
    copies: int = 1,
    weighted: bool = False,
) -> int:
    """Peak memory of a run with this expected number of neighbours per user.

    It holds `copies` tables of margins or predictions at the same time; a cell is 1 byte if all are -1, 0 or 1, else 4.
    """
    # Models, neighbour sums, supports, and the copy in the result.
    state = n_users * (n_predictors * (4 + 4 + 2 + 4) + BYTES_PER_USER + int(neighbours * BYTES_PER_NEIGHBOUR))
    # Current margins and offsets, in single precision, and in double precision for certificates.
    rows = n_rows * (copies * n_predictors * cell_bytes + 2 * 4 + 3 * 8)
    # Row weights as given and normalised.
    rows += n_rows * 2 * 8 if weighted else 0
    return state + rows


def available_bytes() -> int:
    """Memory that this process can still allocate, given the machine, its container and its own limit."""
    return min(_free_on_machine(), _free_in_group(), _free_under_limit())


def peak_bytes() -> int:
    """Peak memory of this process so far; 0 if unknown."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def check_memory(needed: int, what: str, way_out: str, free: int | None = None) -> None:
    """Raise `TooLittleMemoryError` if a run does not fit into the free memory, by default `available_bytes()`."""
    free = available_bytes() if free is None else free
    if needed > free:
        raise TooLittleMemoryError(
            f"{what} needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: {way_out}"
        )


def _free_on_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return UNKNOWN


def _free_in_group() -> int:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        return UNKNOWN if limit == "max" else int(limit) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return UNKNOWN


def _free_under_limit() -> int:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return UNKNOWN
    return UNKNOWN if limit == resource.RLIM_INFINITY else limit - held
