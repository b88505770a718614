"""Who carries out the updates of a fit: one thread, several threads of this process, or shards on Ray."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

from dada.engine.crews import Crew, Threads
from dada.engine.processes import Processes
from dada.engine.sharded import Read, Sharded, ThisProcess

ENGINES = ("local", "ray")
ALL = -1
# On Moons the objective is then 0.4 % above that without latency, and accuracies are the same.
LATENCY = 0.1


def check_workers(engine: Any, latency: Any, n_jobs: Any) -> None:
    """Refuse an engine that does not exist, and workers that would have to wait for each other all the time."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {list(ENGINES)}, got {engine!r}")
    if latency != "auto" and not (isinstance(latency, Real) and 0 <= float(latency) < math.inf):
        raise ValueError(f"latency must be a finite number >= 0 or 'auto', got {latency!r}")
    if n_jobs is not None and not (isinstance(n_jobs, Integral) and (int(n_jobs) > 0 or n_jobs == ALL)):
        raise ValueError(f"n_jobs must be an integer >= 1, -1 for all processors, or None, got {n_jobs!r}")
    if latency == 0 and _are_several(engine, n_jobs):
        raise ValueError(
            f"engine={engine!r} with n_jobs={n_jobs} needs latency > 0, within which workers need not wait for each "
            "other, got 0: set latency='auto'"
        )


def latency_of(params: dict[str, Any]) -> float:
    """The latency of a fit: 0 where one thread does all updates and none is given, else 0.1.

    >>> latency_of({"engine": "local", "latency": "auto", "n_jobs": 2})
    0.1
    """
    if params["latency"] != "auto":
        return float(params["latency"])
    return LATENCY if _are_several(params["engine"], params["n_jobs"]) else 0.0


@contextmanager
def crew_of(params: dict[str, Any]) -> Iterator[Crew | None]:
    """Workers for the runs of a fit; None where updates are known at once and one thread makes them."""
    n_jobs = params["n_jobs"]
    if params["engine"] == "ray":
        with shards_of(params) as crew:
            yield crew
    elif latency_of(params) == 0:
        yield None
    else:
        yield Threads((os.cpu_count() or 1) if n_jobs == ALL else n_jobs or 1)


def shards_of(params: dict[str, Any], read: Read | None = None) -> Sharded:
    """Shards for a fit, on Ray or in processes of this machine, which read their own rows where `read` is given."""
    n_jobs = params["n_jobs"]
    if params["engine"] == "ray":
        from dada.engine.ray import OnRay, cluster_cpus

        return Sharded(cluster_cpus() if n_jobs in (None, ALL) else n_jobs, OnRay(), read)
    n_shards = (os.cpu_count() or 1) if n_jobs == ALL else n_jobs or 1
    return Sharded(n_shards, ThisProcess() if n_shards == 1 else Processes(), read)


def _are_several(engine: str, n_jobs: Any) -> bool:
    return engine == "ray" or n_jobs not in (None, 1)
