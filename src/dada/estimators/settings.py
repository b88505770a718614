"""The classifier's hyper-parameters, checked and turned into what the engine takes."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from dada.core.graph import CollaborationGraph
from dada.core.regularizers import DegreeFunction, DegreeTarget, LogDegree, Regularizer
from dada.data import Constant, Recipe, Stumps, Union
from dada.engine import Plan

UNKNOWN_USER = ("error", "average")
# Stumps in all beyond which features get fewer than ten thresholds each.
MANY_STUMPS = 2000


def check_numbers(params: dict[str, Any]) -> None:
    """Refuse counts that are no integers and numbers that are not finite; their users check the rest."""
    for name in ("n_updates", "kappa", "max_neighbours", "verbose"):
        value = params[name]
        if value is not None and (not isinstance(value, Integral) or value < 0):
            raise ValueError(f"{name} must be an integer >= 0, got {value!r}")
    for name in ("beta", "mu", "lam", "delta", "graph_every", "max_bits", "max_time_s", "tol"):
        value = params[name]
        if value is not None and (not isinstance(value, Real) or not math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
    if params["unknown_user"] not in UNKNOWN_USER:
        raise ValueError(f"unknown_user must be one of {list(UNKNOWN_USER)}, got {params['unknown_user']!r}")


def recipe_of(predictors: Recipe | None, n_features: int) -> Recipe:
    """The base predictors to use: those given, or stumps and a constant."""
    if predictors is None:
        per_feature = min(10, max(2, MANY_STUMPS // n_features))
        return Union(Stumps(per_feature=per_feature, drop_duplicates=True), Constant())
    if not hasattr(predictors, "fit"):
        raise TypeError(f"predictors must be a recipe such as dada.Stumps(), got {predictors!r}")
    return predictors


def graph_of(graph: Any, n_users: int) -> CollaborationGraph | None:
    """The graph given, or None where it is to be learned or there is none."""
    if isinstance(graph, str):
        if graph not in ("learned", "none"):
            raise ValueError(
                f"graph must be 'learned', 'none', a CollaborationGraph or a square matrix of weights, got {graph!r}"
            )
        return None
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
        return LogDegree(params["lam"], params["delta"])
    if not isinstance(given, LogDegree | DegreeTarget | DegreeFunction):
        raise TypeError(f"regularizer must be a LogDegree, DegreeTarget or DegreeFunction, got {given!r}")
    return given


def plan_of(params: dict[str, Any], n_users: int) -> Plan:
    """The engine's plan; counts per user become counts of the whole population."""
    learns = isinstance(params["graph"], str) and params["graph"] == "learned" and params["mu"] > 0 and n_users > 1
    kappa = params["kappa"]
    return Plan(
        n_updates=params["n_updates"] * n_users,
        learn_graph=learns,
        step=params["step"],
        graph_step=params["graph_step"],
        kappa=max(1, min(5, n_users - 1)) if kappa is None else kappa,
        restart=params["restart"],
        graph_every=math.ceil(params["graph_every"] * n_users),
        max_neighbours=params["max_neighbours"],
        max_bits=params["max_bits"],
        max_time_s=params["max_time_s"],
        gap_tolerance=params["tol"],
    )
