"""Who carries out the updates of a fit: one thread, several threads of this process, or shards on Ray."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np

from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.core.regularizers import DegreeFunction, DegreeTarget, LogDegree, Regularizer
from dada.data import Recipe
from dada.engine.backends import Processes
from dada.engine.shards import Read, Sharded, ThisProcess, Threads, Workers
from dada.fitting.lam import AUTO, GIVEN, everyone, families, graph_every
from dada.fitting.rows import Rows

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
def workers_of(params: dict[str, Any]) -> Iterator[Workers | None]:
    """Workers for the runs of a fit; None where updates are known at once and one thread makes them."""
    n_jobs = params["n_jobs"]
    if params["engine"] == "ray":
        with shards_of(params) as workers:
            yield workers
    elif latency_of(params) == 0:
        yield None
    else:
        yield Threads((os.cpu_count() or 1) if n_jobs == ALL else n_jobs or 1)


def shards_of(params: dict[str, Any], read: Read | None = None) -> Sharded:
    """Shards for a fit, on Ray or in processes of this machine, which read their own rows where `read` is given."""
    n_jobs = params["n_jobs"]
    if params["engine"] == "ray":
        from dada.engine.backends import OnRay, cluster_cpus

        return Sharded(cluster_cpus() if n_jobs in (None, ALL) else n_jobs, OnRay(), read)
    n_shards = (os.cpu_count() or 1) if n_jobs == ALL else n_jobs or 1
    return Sharded(n_shards, ThisProcess() if n_shards == 1 else Processes(), read)


def _are_several(engine: str, n_jobs: Any) -> bool:
    return engine == "ray" or n_jobs not in (None, 1)


def generator(random_state: Any) -> np.random.Generator:
    """A generator from what scikit-learn calls a random state: None, a seed, a Generator or a RandomState.

    >>> generator(7).integers(100) == np.random.default_rng(7).integers(100)
    np.True_
    """
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    if random_state is None or isinstance(random_state, int | np.integer | np.random.Generator):
        return np.random.default_rng(random_state)
    raise TypeError(
        "random_state must be None, an integer, a numpy.random.Generator or a numpy.random.RandomState, "
        f"got {random_state!r}"
    )


UNKNOWN_USER = ("error", "average")
GRAPHS = ("auto", "everyone", "learned", "evidence", "evidence-symmetric", "none")
LEARNED = ("learned", "evidence", "evidence-symmetric")
OPTIONAL = ("half_life", "kappa", "max_neighbours", "max_bits", "max_time_s", "tol")
POSITIVE = ("graph_every", "half_life", "max_bits", "max_time_s", "tol")
MAY_BE_AUTO = ("beta", "graph_every", "lam", "mu", "n_updates")


def check_settings(params: dict[str, Any]) -> None:
    """Refuse what is of the wrong kind; the problem and the plan check the values that they name themselves."""
    for name in ("n_updates", "kappa", "max_neighbours", "n_neighbours", "verbose"):
        value, least = params[name], int(name != "verbose")
        if _is_open(name, value):
            continue
        if not isinstance(value, Integral) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}{_or_auto(name)}, got {value!r}")
    for name in ("beta", "mu", "lam", "delta", "tau", *POSITIVE):
        value = params[name]
        if _is_open(name, value):
            continue
        if not isinstance(value, Real) or not math.isfinite(value) or (name in POSITIVE and value <= 0):
            limit = " > 0" * (name in POSITIVE)
            raise ValueError(f"{name} must be a finite number{limit}{_or_auto(name)}, got {value!r}")
    check_unknown_user(params["unknown_user"])
    check_workers(params["engine"], params["latency"], params["n_jobs"])
    graph = params["graph"]
    if isinstance(graph, str) and graph not in GRAPHS:
        raise ValueError(
            f"graph must be one of {list(GRAPHS)}, a CollaborationGraph or a matrix of weights, got {graph!r}"
        )


def _is_open(name: str, value: Any) -> bool:
    return (value is None and name in OPTIONAL) or (isinstance(value, str) and value == AUTO and name in MAY_BE_AUTO)


def _or_auto(name: str) -> str:
    return " or 'auto'" if name in MAY_BE_AUTO else ""


def check_unknown_user(unknown_user: Any) -> None:
    """Refuse a way to treat unknown users that does not exist."""
    if unknown_user not in UNKNOWN_USER:
        raise ValueError(f"unknown_user must be one of {list(UNKNOWN_USER)}, got {unknown_user!r}")


def recipes_of(predictors: Recipe | None, rows: Rows) -> dict[str, Recipe]:
    """The base predictors to choose from, by name: those given and no others, or the automatic families."""
    if predictors is None:
        return families(rows)
    if not hasattr(predictors, "fit"):
        raise TypeError(f"predictors must be a recipe such as dada.Stumps(), got {predictors!r}")
    return {GIVEN: predictors}


def graph_of(graph: Any, n_users: int, rng: np.random.Generator) -> CollaborationGraph | None:
    """The graph given, or None where it is to be learned or there is none."""
    if isinstance(graph, str):
        return everyone(n_users, rng) if graph == "everyone" and n_users > 1 else None
    given = graph if isinstance(graph, CollaborationGraph) else CollaborationGraph.from_scipy(graph)
    if given.n_users != n_users:
        raise ValueError(
            f"graph must have one row per user of the training data ({n_users}, in the order of users_), "
            f"got {given.n_users}"
        )
    return given


def regularizer_of(params: dict[str, Any]) -> Regularizer:
    """The regularizer given, or the log-degree one with the given lam and delta."""
    given = params["regularizer"]
    if given is None:
        return (
            LogDegree(delta=params["delta"])
            if params["lam"] in (None, AUTO)
            else LogDegree(params["lam"], params["delta"])
        )
    if not isinstance(given, LogDegree | DegreeTarget | DegreeFunction):
        raise TypeError(f"regularizer must be a LogDegree, DegreeTarget or DegreeFunction, got {given!r}")
    return given


def plan_of(params: dict[str, Any], n_users: int) -> Plan:
    """The engine's plan; counts per user become counts of the whole population."""
    graph, kappa, most = params["graph"], params["kappa"], params["max_neighbours"]
    n_updates = params["n_updates"] * n_users
    learns = isinstance(graph, str) and graph in LEARNED and params["mu"] > 0 and n_users > 1
    by_evidence = learns and graph != "learned"
    return Plan(
        n_updates=n_updates,
        learn_graph=learns,
        graph_rule="evidence" if by_evidence else "distance",
        tau=params["tau"],
        step=params["step"],
        graph_step=params["graph_step"],
        kappa=max(1, min(5, n_users - 1)) if kappa is None else kappa,
        restart=params["restart"],
        graph_every=math.ceil(graph_every(params) * n_users),
        n_neighbours=params["n_neighbours"] if most is None else most,
        max_neighbours=None if by_evidence else most,
        latency=latency_of(params),
        max_bits=params["max_bits"],
        max_time_s=params["max_time_s"],
        gap_tolerance=params["tol"],
        trace_every=max(1, n_updates // _trace_points(n_users)),
    )


def _trace_points(n_users: int) -> int:
    """How often a fit looks at itself: each look goes through all users and rows, and many users take long.

    >>> _trace_points(100), _trace_points(100_000), _trace_points(1_000_000)
    (50, 20, 5)
    """
    return max(5, min(50, 2_000_000 // n_users))
