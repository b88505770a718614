"""Networks whose peers learn as a fitted model did: its base predictors, target and settings."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from dada.cli.console import GraphRule, StepRule
from dada.cli.peer_tables import label_text
from dada.core.graph_steps import LogDegree
from dada.core.losses import BUILT_IN
from dada.core.model_steps import rows_per_sample
from dada.estimators import DadaClassifier, DadaRegressor
from dada.fitting.settings import FIRST_GRAPH_WAKEUPS, WAKEUPS_ALONE
from dada.net.network_file import NetworkFile, Target
from dada.peer.config import usual_settings
from dada.peer.member import Rhythm

# The graph of peers for each graph of an estimator.
GRAPHS: dict[str, GraphRule] = {
    "everyone": "everyone", "evidence": "evidence", "evidence-symmetric": "evidence", "learned": "distance",
}  # fmt: skip
# Moves alone before the first graph step, if a step is one move.
MOVES_ALONE = 100
# Graph steps before the others, and model steps between two later ones, where the graph is not chosen by evidence.
FIRST_GRAPH_STEPS, GRAPH_EVERY = 5, 5


def network_of_model(
    model: DadaClassifier | DadaRegressor,
    rate: float,
    graph: GraphRule | None = None,
    step: StepRule | None = None,
    *,
    kappa: int = 5,
    private: bool = False,
    **changes: Any,
) -> NetworkFile:
    """The network file with which peers learn as a model was fitted.

    Parameters
    ----------
    model : DadaClassifier or DadaRegressor
        Fitted, or loaded from a file.
    rate : float
        Wake-ups per peer and second.
    graph : {"evidence", "distance", "everyone"}, optional
    step : {"block", "pairwise"}, optional
        In place of the model's.
    kappa : int
        Peers asked at a graph step.
    private : bool
        Put a new secret into the file.
    **changes
        Settings of `PeerConfig` in place of the model's.

    Examples
    --------
    >>> X, y, users = [[0.0], [1.0], [0.2], [0.9]], ["no", "yes", "no", "yes"], ["ann", "ann", "bob", "bob"]
    >>> network = network_of_model(DadaClassifier(random_state=0).fit(X, y, users=users), rate=1.0)
    >>> network.target.classes, network.config.loss, network.config.known_largest
    (('no', 'yes'), 'logistic', 2)
    """
    settings = settings_of_model(model, graph, step) | changes
    spec, arrays = model.predictors_.to_arrays()
    lam = model.settings_.get("lam")
    regularizer = LogDegree(delta=model.delta) if lam is None else LogDegree(lam, model.delta)
    return NetworkFile(
        settings=settings,
        features=tuple(map(str, model.used_features_ or [f"x{d}" for d in range(model.predictors_.n_features)])),
        target=target_of_model(model),
        coupling=np.asarray(model.predictors_.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        rhythm=rhythm_of_model(model, settings, rate, kappa),
        regularizer=model.regularizer or regularizer,
        secret=secrets.token_bytes(32) if private else b"",
        encoder=None if model.encoder_ is None else model.encoder_.to_json(),
    )


def target_of_model(model: DadaClassifier | DadaRegressor) -> Target:
    """What a fitted model predicts."""
    if isinstance(model, DadaRegressor):
        return Target(mean=model.target_mean_, scale=model.target_scale_)
    labels, weights = model.classes_.tolist(), model.class_weight
    if isinstance(weights, str):
        raise ValueError(
            f"class_weight={weights!r} depends on all users' labels, which peers do not know: "
            "fit with a weight for each class, as class_weight={'no': 1.0, 'yes': 3.0}"
        )
    of_class = tuple(float(weights.get(label, 1.0)) for label in labels) if weights else ()
    return Target(tuple(map(label_text, labels)), of_class)


def graph_of_model(model: DadaClassifier | DadaRegressor) -> GraphRule | None:
    """The graph by which peers choose neighbours as the users of a model did; None if they cannot."""
    return GRAPHS.get(model.settings_["graph"])


def settings_of_model(
    model: DadaClassifier | DadaRegressor, graph: GraphRule | None = None, step: StepRule | None = None
) -> dict[str, Any]:
    """Settings of `PeerConfig` with which peers learn as the model was fitted; `graph` and `step` replace its own."""
    used: Mapping[str, Any] = model.settings_
    rule = graph_of_model(model) if graph is None else graph
    if rule is None:
        raise ValueError(
            f"peers have no graph {used['graph']!r}: name one of theirs with --graph, evidence, distance or everyone"
        )
    if not isinstance(used["loss"], str) or used["loss"] not in BUILT_IN:
        raise ValueError(f"peers know the losses {', '.join(BUILT_IN)}, the model was fitted with {used['loss']!r}")
    # Moves are sent in single precision, and peers know no global count of updates.
    step = step or ("block" if used["step"] == "block" else "pairwise")
    settings = {name: used[name] for name in ("loss", "beta")} | {"mu1": used["mu"]} | usual_settings(rule, step)
    if rule == "evidence":
        settings |= {name: used[name] for name in ("n_neighbours", "tau")}
    n_classes = 0 if isinstance(model, DadaRegressor) else len(model.classes_)
    return settings | {"known_largest": int(used["most_rows"]) * rows_per_sample(n_classes)}


def rhythm_of_model(
    model: DadaClassifier | DadaRegressor, settings: Mapping[str, Any], rate: float, kappa: int = 5
) -> Rhythm:
    """The rhythm of a fit: steps alone, then graph steps, then model steps with a graph step after some of them."""
    by_evidence = settings["graph"] == "evidence"
    return Rhythm(
        local_steps=WAKEUPS_ALONE if settings.get("step") == "block" else MOVES_ALONE,
        first_graph_steps=FIRST_GRAPH_WAKEUPS if by_evidence else FIRST_GRAPH_STEPS,
        graph_every=math.ceil(model.settings_["graph_every"]) if by_evidence else GRAPH_EVERY,
        kappa=kappa,
        wakeups_per_s=rate,
    )
