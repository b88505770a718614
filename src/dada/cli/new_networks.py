"""What the peers of a new network learn with: base predictors from summaries of tables, or all that a fitted model had.

A summary is what base predictors are made of, without a sample. A network made from a model has its base predictors
but for boosted trees, its target and its settings.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dada import atomic
from dada.cli.console import GraphRule, StepRule
from dada.cli.peer_tables import (
    Columns,
    Task,
    checked,
    distinct,
    in_order,
    label_text,
    network_boosting,
    read_features,
    read_targets,
    without_constants,
)
from dada.core.graph_steps import LogDegree
from dada.core.losses import BUILT_IN
from dada.core.model_steps import rows_per_sample
from dada.data import BasePredictors, Constant, FeatureSummary, Linear, Stumps, Trees, Union, read_table
from dada.data.predictors.families import FittedUnion
from dada.data.predictors.thresholds import FittedLeaves
from dada.estimators import DadaClassifier, DadaRegressor
from dada.fitting.atoms import agreed_cuts
from dada.fitting.boosted_peers import PEER_TREES
from dada.fitting.settings import BETA, FIRST_GRAPH_WAKEUPS, WAKEUPS_ALONE
from dada.net.network_file import NetworkBoosting, NetworkFile, NetworkTrees, Target
from dada.peer.inputs import usual_settings
from dada.peer.member import Rhythm

FORMAT, VERSION = "dada-summary", 1
# Fewest rows per published quantile; fewer would reveal too much about each row.
LEAST_ROWS = 5


@dataclass(frozen=True, eq=False)
class SummaryFile:
    """Summary of the rows of one or more users."""

    features: tuple[str, ...]
    labels: tuple[str, ...]
    users: int
    summary: FeatureSummary
    # Mean and sum of squared deviations of numbers to predict; None for labels.
    numbers: tuple[float, float] | None = None

    @classmethod
    def of(cls, path: Path, label: str, points: int, task: Task = "auto") -> SummaryFile:
        """Summary of one user's table, with at most `points` quantiles per feature."""
        frame = read_table(path)
        targets = read_targets(frame, label, path, task)
        names = tuple(name for name in frame.columns if name != label)
        X = read_features(frame, names, path)
        if len(X) < LEAST_ROWS:
            raise ValueError(
                f"{path}: a summary needs at least {LEAST_ROWS} rows, fewer would be revealed, got {len(X)}: "
                "let other users create the network file; this user can still join"
            )
        summary = FeatureSummary.of(X).coarse(min(points, len(X) // LEAST_ROWS))
        if isinstance(targets, list):
            return cls(names, distinct(targets), 1, summary)
        moments = float(targets.mean()), float(((targets - targets.mean()) ** 2).sum())
        return cls(names, (), 1, summary, moments)

    def merged(self, other: SummaryFile) -> SummaryFile:
        """Summary of the rows of both."""
        if self.features != other.features:
            odd = sorted(set(self.features) ^ set(other.features)) or list(other.features)
            raise ValueError(f"summaries must be of the same features in the same order, these differ in {odd[:5]}")
        if (self.numbers is None) != (other.numbers is None):
            raise ValueError("summaries must be all of labels or all of numbers: summarise with --task")
        labels = tuple(sorted({*self.labels, *other.labels}, key=in_order))
        summary = self.summary.merged(other.summary)
        return SummaryFile(self.features, labels, self.users + other.users, summary, self._merged_numbers(other))

    def _merged_numbers(self, other: SummaryFile) -> tuple[float, float] | None:
        if self.numbers is None or other.numbers is None:
            return None
        here, there = self.summary.count, other.summary.count
        (mean, squares), (mean_there, squares_there) = self.numbers, other.numbers
        apart = mean_there - mean
        total = here + there
        return mean + apart * there / total, squares + squares_there + apart**2 * here * there / total

    @property
    def columns(self) -> Columns:
        """Names, ranges and target for a network file."""
        if self.numbers is None:
            target = Target(self.labels)
        else:
            mean, squares = self.numbers
            target = Target(mean=mean, scale=math.sqrt(squares / self.summary.count) or 1.0)
        return checked(Columns(self.features, self.summary.low, self.summary.high, target))

    @property
    def trees(self) -> NetworkTrees:
        """Trees whose thresholds are quantiles."""
        return NetworkTrees(agreed_cuts(Trees(), self.summary), Trees.depth, Trees.per_user)

    @property
    def boosting(self) -> NetworkBoosting:
        """Boosted trees whose thresholds are quantiles."""
        return network_boosting(agreed_cuts(Trees(cuts=PEER_TREES.cuts), self.summary))

    def predictors(self, stumps_per_feature: int) -> BasePredictors:
        """Stumps at quantiles, clipped linear predictors, and a weakly coupled constant."""
        if stumps_per_feature == 0:
            return Union(Linear(), Constant(coupling=0.1)).fit_summary(self.summary, marks=lambda stumps: np.zeros(0))
        recipe = Union(Stumps(per_feature=stumps_per_feature), Linear(), Constant(coupling=0.1))
        found = recipe.fit_summary(self.summary, marks=lambda stumps: np.zeros(0))
        return without_constants(found, self.summary.low, self.summary.high)

    def write(self, path: Path) -> None:
        """Write the file."""
        own = self.summary
        content = {
            "format": FORMAT,
            "version": VERSION,
            "features": list(self.features),
            "labels": list(self.labels),
            "numbers": self.numbers,
            "users": self.users,
            "rows": own.count,
            **{name: getattr(own, name).tolist() for name in ("mean", "squares", "low", "high")},
            "points": [[values.tolist(), weights.tolist()] for values, weights in own.points],
        }
        atomic.write_bytes(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def read_all(paths: list[Path]) -> SummaryFile:
    """Read and merge several summary files."""
    return reduce(SummaryFile.merged, (read_summary(path) for path in paths))


def read_summary(path: Path) -> SummaryFile:
    """Read and validate a summary file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}, this dada reads {VERSION}: update the older of the two")
        return _from_json(content)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        detail = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: not a summary file, or damaged ({detail})") from error


def _from_json(content: dict[str, Any]) -> SummaryFile:
    features = tuple(str(name) for name in content["features"])
    count, users = int(content["rows"]), int(content["users"])
    mean, squares, low, high = (np.array(content[name], np.float64) for name in ("mean", "squares", "low", "high"))
    points = tuple((np.array(values, float), np.array(weights, float)) for values, weights in content["points"])
    if not features or any(array.shape != (len(features),) for array in (mean, squares, low, high)):
        raise ValueError(f"every array must have one entry for each of the {len(features)} features")
    if len(points) != len(features) or not all(_are_quantiles(*own, count) for own in points):
        raise ValueError("values of a feature must ascend, and their weights add up to the number of rows")
    if users < 1 or count < users * LEAST_ROWS:
        raise ValueError(f"{count} rows of {users} users, each has at least {LEAST_ROWS}")
    if not (np.isfinite([mean, squares, low, high]).all() and (squares >= 0).all() and (low <= high).all()):
        raise ValueError("means, squares and ranges must be finite, squares >= 0 and low <= high")
    numbers = content.get("numbers")
    if numbers is not None:
        numbers = float(numbers[0]), float(numbers[1])
        if not (math.isfinite(numbers[0]) and 0 <= numbers[1] < math.inf):
            raise ValueError(f"numbers must have a finite mean and squares >= 0, got {numbers}")
    summary = FeatureSummary(count, mean, squares, low, high, points, is_exact=False)
    return SummaryFile(features, tuple(map(str, content["labels"])), users, summary, numbers)


def _are_quantiles(values: np.ndarray, weights: np.ndarray, count: int) -> bool:
    if values.ndim != 1 or values.size == 0 or values.shape != weights.shape:
        return False
    is_ascending = np.isfinite(values).all() and (np.diff(values) > 0).all()
    return bool(is_ascending and (weights > 0).all() and np.isclose(weights.sum(), count))


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
    predictors = coupled_predictors(model)
    spec, arrays = predictors.to_arrays()
    lam = model.settings_.get("lam")
    regularizer = LogDegree(delta=model.delta) if lam is None else LogDegree(lam, model.delta)
    return NetworkFile(
        settings=settings,
        features=tuple(map(str, model.used_features_ or [f"x{d}" for d in range(predictors.n_features)])),
        target=target_of_model(model),
        coupling=np.asarray(predictors.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        rhythm=rhythm_of_model(model, settings, rate, kappa),
        regularizer=model.regularizer or regularizer,
        secret=secrets.token_bytes(32) if private else b"",
        encoder=None if model.encoder_ is None else model.encoder_.to_json(),
    )


def is_coupled(model: DadaClassifier | DadaRegressor) -> bool:
    """Whether all base predictors of a model are coupled: it has no boosted trees, whose leaves are not."""
    predictors: BasePredictors = model.predictors_
    return not any(isinstance(part, FittedLeaves) for part in getattr(predictors, "parts", ()))


def coupled_predictors(model: DadaClassifier | DadaRegressor) -> BasePredictors:
    """The base predictors of a model without the leaves of boosted trees."""
    predictors: BasePredictors = model.predictors_
    if not isinstance(predictors, FittedUnion) or is_coupled(model):
        return predictors
    parts = tuple(part for part in predictors.parts if not isinstance(part, FittedLeaves))
    return parts[0] if len(parts) == 1 else FittedUnion(parts)


def usual_beta(n_classes: int) -> float:
    """The bound that a fit uses by default, by the number of classes; 0 stands for numbers."""
    return BETA * max(2, n_classes) / 2


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
    n_classes = 0 if isinstance(model, DadaRegressor) else len(model.classes_)
    # The bound that a model has used includes the values of its boosted leaves.
    beta = used["beta"] if is_coupled(model) else usual_beta(n_classes)
    settings = {"loss": used["loss"], "beta": beta, "mu1": used["mu"]} | usual_settings(rule, step)
    if rule == "evidence":
        settings |= {name: used[name] for name in ("n_neighbours", "tau")}
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
