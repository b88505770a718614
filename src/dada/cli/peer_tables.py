"""Tables and base predictors of the `dada peer` commands; not loaded by a peer's process."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dada.core.compiled import Array
from dada.core.model_steps import UserRows, rows_per_sample
from dada.data import (
    BasePredictors,
    Constant,
    Population,
    Stumps,
    Trees,
    Union,
    predictors_from_arrays,
    read_table,
)
from dada.data.encoding import TableEncoder, needs_encoding
from dada.data.population import as_features
from dada.data.predictors.families import FittedUnion
from dada.data.predictors.thresholds import FittedStumps
from dada.data.tables import kind_of
from dada.fitting.atoms import fitted_trees, grow_atoms, plot_of
from dada.fitting.boosted_peers import PEER_TREES, boosted_rows, fitted_leaves, with_boosted
from dada.fitting.models import best_class, decisions
from dada.fitting.private import public_predictors
from dada.fitting.settings import BETA, MU_SCALE, OTHER_MU_SCALE
from dada.net.home import Home
from dada.net.network_file import NetworkBoosting, NetworkFile, NetworkTrees, Target
from dada.peer.grove import Plot
from dada.peer.member import Rhythm
from dada.peer.releases import ExactRows, outputs
from dada.privacy.noise import Bits
from dada.task import user_rows

Task = Literal["auto", "classes", "numbers"]


@dataclass(frozen=True, eq=False)
class Columns:
    """Names and ranges of features, and the target: all that a network file contains about data."""

    features: tuple[str, ...]
    low: Array
    high: Array
    target: Target
    encoder: TableEncoder | None = None


def columns_by_hand(features: Sequence[str], classes: str | None, numbers: str | None = None) -> Columns:
    """Parse columns of the command line: name:low:high, and labels separated by commas or a range of numbers.

    >>> columns_by_hand(["age:0:100"], "no,yes").features
    ('age',)
    >>> columns_by_hand(["age:0:100"], None, "10:20").target.mean
    15.0
    """
    if not features or (classes is None) == (numbers is None):
        raise ValueError(
            "give --model FILE, or --summary FILE, or --like TABLE --label COLUMN, "
            "or --feature name:low:high (each) and --classes or --numbers"
        )
    given = (_with_range(text, "a feature is given as name:low:high") for text in features)
    names, lows, highs = zip(*given, strict=True)
    if numbers is not None:
        _, low, high = _with_range(f":{numbers}", "--numbers takes a range as low:high")
        target = Target(mean=(low + high) / 2, scale=(high - low) / 2)
    else:
        target = Target(tuple(part.strip() for part in (classes or "").split(",")))
    return checked(Columns(names, np.array(lows), np.array(highs), target))


def _with_range(text: str, wanted: str) -> tuple[str, float, float]:
    name, _, limits = text.partition(":")
    try:
        low, high = (float(part) for part in limits.split(":"))
    except ValueError:
        raise ValueError(f"{wanted} with two numbers, got {text.removeprefix(':')!r}") from None
    if not low < high:
        raise ValueError(f"{wanted} with low < high, got {text.removeprefix(':')!r}")
    return name, low, high


def columns_like(path: Path, label: str | None, task: Task = "auto") -> Columns:
    """Columns of a table: all but the label are features, with the ranges of the table."""
    if label is None:
        raise ValueError("--label is needed with --like: the column with the label")
    frame = read_table(path)
    targets = read_targets(frame, label, path, task)
    rest = frame.drop(label)
    encoder = TableEncoder.fit(rest) if needs_encoding(rest) else None
    names = tuple(rest.columns) if encoder is None else encoder.feature_names
    X = read_features(frame, names, path) if encoder is None else encoder.transform(rest)
    return checked(Columns(names, X.min(axis=0), X.max(axis=0), target_of(targets), encoder))


def target_of(targets: list[str] | Array) -> Target:
    """The target that a table's labels or numbers need."""
    if isinstance(targets, list):
        return Target(distinct(targets))
    scale = float(targets.std())
    return Target(mean=float(targets.mean()), scale=scale if scale > 0 else 1.0)


def distinct(labels: list[str]) -> tuple[str, ...]:
    """The different labels, in order."""
    return tuple(sorted(set(labels), key=in_order))


def in_order(label: str) -> tuple[int, float, str]:
    """Sort key: numbers by value, then text in alphabetical order."""
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)


def predictors_by_range(columns: Columns, stumps_per_feature: int) -> BasePredictors:
    """Base predictors determined by the ranges: stumps, or the features themselves without any."""
    if stumps_per_feature == 0:
        return public_predictors(None, (columns.low, columns.high), len(columns.features))
    # Quantiles of evenly spaced rows divide every range into equal parts.
    rows = np.linspace(columns.low, columns.high, stumps_per_feature + 1)
    found = Union(Stumps(per_feature=stumps_per_feature), Constant(coupling=0.1)).fit(rows)
    return without_constants(found, columns.low, columns.high)


def without_constants(union: FittedUnion, low: Array, high: Array) -> FittedUnion:
    """The predictors without those stumps, in the first part, that a constant feature leaves constant."""
    stumps, *others = union.parts
    assert isinstance(stumps, FittedStumps)
    kept = low[stumps.feature] < high[stumps.feature]
    fewer = {name: getattr(stumps, name)[kept] for name in ("feature", "threshold", "coupling")}
    return replace(union, parts=(replace(stumps, **fewer), *others))


def trees_by_range(columns: Columns) -> NetworkTrees:
    """Trees whose thresholds divide every range into equal parts."""
    return NetworkTrees(
        np.linspace(columns.low, columns.high, Trees.cuts + 2)[1:-1].T.copy(), Trees.depth, Trees.per_user
    )


def boosting_by_range(columns: Columns) -> NetworkBoosting:
    """Boosted trees whose thresholds divide every range into equal parts."""
    return network_boosting(np.linspace(columns.low, columns.high, PEER_TREES.cuts + 2)[1:-1].T.copy())


def network_boosting(cuts: Array) -> NetworkBoosting:
    """Boosted trees of peers with these thresholds."""
    return NetworkBoosting(cuts, PEER_TREES.rounds, PEER_TREES.depth, PEER_TREES.own, PEER_TREES.rate, PEER_TREES.share)


def network_for(
    columns: Columns,
    predictors: BasePredictors,
    settings: dict[str, Any],
    rhythm: Rhythm,
    private: bool = False,
    trees: NetworkTrees | None = None,
    boosting: NetworkBoosting | None = None,
) -> NetworkFile:
    """The network file for given columns and base predictors."""
    spec, arrays = predictors.to_arrays()
    return NetworkFile(
        settings=settings,
        features=columns.features,
        target=columns.target,
        coupling=np.asarray(predictors.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        rhythm=rhythm,
        secret=secrets.token_bytes(32) if private else b"",
        encoder=None if columns.encoder is None else columns.encoder.to_json(),
        trees=trees,
        boosting=boosting,
    )


def with_class_weights(network: NetworkFile, weights: str) -> NetworkFile:
    """A network whose classes have the given weights, numbers separated by commas."""
    try:
        of_class = tuple(float(part) for part in weights.split(","))
    except ValueError:
        raise ValueError(f"--class-weights takes a number for each class, as 1,3, got {weights!r}") from None
    return replace(network, target=replace(network.target, class_weights=of_class))


def with_most_rows(network: NetworkFile, most_rows: int) -> NetworkFile:
    """A network in which no user counts as having more rows than this."""
    most_samples = most_rows * rows_per_sample(network.target.n_classes)
    if most_samples < network.config.known_largest:
        known = network.config.known_largest // rows_per_sample(network.target.n_classes)
        raise ValueError(f"--most-rows is {most_rows}, but a user of the model has {known} rows: give that or more")
    return replace(network, settings={**network.settings, "most_samples": most_samples})


def rhythm_of(settings: Mapping[str, Any], rate: float) -> Rhythm:
    """The rhythm of a new network; a block step makes about ten moves."""
    return Rhythm(local_steps=10 if settings.get("step") == "block" else 100, wakeups_per_s=rate)


def default_loss(target: Target) -> str:
    """The loss of a new network: the paper's for two classes.

    >>> default_loss(Target(("no", "yes"))), default_loss(Target(("a", "b", "c"))), default_loss(Target())
    ('adaboost', 'logistic', 'squared')
    """
    return {0: "squared", 2: "adaboost"}.get(target.n_classes, "logistic")


def default_strength(target: Target, loss: str) -> dict[str, float]:
    """beta and mu for a target and a loss, as estimators choose them; mu1 is that of a mean confidence of a half.

    >>> default_strength(Target(("no", "yes")), "adaboost")
    {'beta': 10.0, 'mu1': 1.0, 'mu_per_confidence': 2.0}
    """
    n_classes = max(2, target.n_classes)
    scale = MU_SCALE.get(loss, OTHER_MU_SCALE) / (n_classes - 1)
    return {
        "beta": 10.0 if loss == "adaboost" else BETA * n_classes / 2,
        "mu1": 0.5 * scale,
        "mu_per_confidence": scale,
    }


class OwnSamples(NamedTuple):
    """A user's samples: base predictions, labels or numbers, and weights if any."""

    predictions: Array
    values: list[str] | Array
    weights: Array | None

    def rows(self, target: Target) -> UserRows:
        """The samples as margins."""
        return rows_of(self.predictions, self.values, target, self.weights)


def read_samples(path: Path, label: str, network: NetworkFile, weight: str | None = None) -> OwnSamples:
    """A user's samples, with the weights in a column."""
    frame = read_table(path)
    _require([label] if weight is None else [label, weight], frame.columns, path)
    values = _labels(frame, label, path) if network.target.classes else _numbers(frame, label, path)
    weights = None if weight is None else _numbers(frame, weight, path)
    return OwnSamples(_predictions(frame, path, network), values, weights)


def read_rows(path: Path, label: str, network: NetworkFile, weight: str | None = None) -> UserRows:
    """A user's samples as margins of the network's base predictors, with the weights in a column."""
    try:
        return read_samples(path, label, network, weight).rows(network.target)
    except ValueError as error:
        raise ValueError(f"{path}: column {label!r} holds {error}") from error


def store_samples(home: Home, path: Path, label: str, weight: str | None = None, append: bool = False) -> None:
    """Store the samples of a table in a peer's folder; a private peer releases its labels."""
    _, network = home.read()
    if network.has_trees and append:
        raise ValueError("--append: trees are grown on all rows, give all of them again without it")
    if network.trees is not None:
        home.write_plot(read_plot(path, label, network, network.trees, weight))
        return
    if network.boosting is not None:
        rows, user = read_user(path, label, network, weight)
        home.write_boosted(rows, boosted_rows(user, network.boosting.cuts))
        return
    if home.has_statistics and weight is not None:
        raise ValueError("--weight: samples of protected rows have equal weights")
    rows = read_rows(path, label, network, weight)
    if append:
        home.add_rows(rows)
        return
    if not home.is_private:
        home.write_samples(rows)
        return
    samples = read_samples(path, label, network, weight)
    if home.has_statistics:
        home.write_exact(exact_rows(samples, network.target), rows)
    else:
        home.write_samples(rows, released_rows(home, samples, network.target, Bits()))


def read_plot(path: Path, label: str, network: NetworkFile, trees: NetworkTrees, weight: str | None = None) -> Plot:
    """A user's samples in a network with trees, and the trees that grow on them."""
    _, user = read_user(path, label, network, weight)
    fixed = predictors_from_arrays(network.predictors, network.arrays)
    recipe = Trees(per_user=trees.per_user, depth=trees.depth, cuts=trees.cuts.shape[1], rounds=0)
    grown = grow_atoms(recipe, user, trees.cuts, np.random.default_rng())
    return plot_of(user, fixed, trees.cuts, grown)


def read_user(path: Path, label: str, network: NetworkFile, weight: str | None = None) -> tuple[UserRows, Population]:
    """A user's samples as margins of the network's base predictors, and with all features."""
    rows, values = read_rows(path, label, network, weight), read_samples(path, label, network).values
    X, target = _features(read_table(path), path, network), network.target
    classes = np.array(target.classes) if target.classes else None
    weights = None if rows.weights is None else rows.weights[:: len(rows.A) // len(X)]
    row_start, me = np.array([0, len(X)]), np.array(["me"])
    return rows, Population(X, target.coded(values), row_start, me, classes, network.features, weights)


def released_rows(home: Home, samples: OwnSamples, target: Target, source: Bits) -> UserRows:
    """The samples of a private peer with released labels; its ledger has them before they are returned."""
    codes = np.array([target.classes.index(label) for label in samples.values])
    given = home.release_labels(codes, target.n_classes, samples.predictions.tobytes(), source)
    # Weights of classes follow released labels: those of true ones would reveal them.
    return samples._replace(values=[target.classes[c] for c in given.tolist()]).rows(target)


def exact_rows(samples: OwnSamples, target: Target) -> ExactRows:
    """Base predictions and outputs of protected rows."""
    y = outputs(target.coded(samples.values), target.n_classes)
    return ExactRows(np.ascontiguousarray(samples.predictions, np.float64), y)


def rows_of(
    predictions: Array, values: Sequence[Any] | Array, target: Target, weights: Array | None = None
) -> UserRows:
    """Base predictions and labels as margins; the weights of classes multiply those of samples."""
    y = target.coded(values)
    if target.class_weights:
        of_class = np.array(target.class_weights)[[target.classes.index(label) for label in values]]
        weights = of_class if weights is None else weights * of_class
    return user_rows(predictions, y, target.n_classes, weights)


def predict_table(home: Home, path: Path) -> dict[str, list[Any]]:
    """Predictions for new samples by a peer's stored model, as columns.

    Classes have a label and a value: the decision value, or the lead of the label's score. Numbers have a value.
    """
    _, network = home.read()
    frame, (model, atoms) = read_table(path), home.read_model_and_trees()
    predictions = _predictions(frame, path, network)
    if network.trees is not None:
        trees = fitted_trees(network.trees.terms, network.trees.cuts, atoms)
        predictions = np.column_stack([predictions, trees.predict(_features(frame, path, network))])
    models, own = model[None, :], home.read_leaves()
    if network.boosting is not None and own is not None and own.trees:
        fixed, target = predictors_from_arrays(network.predictors, network.arrays), network.target
        terms, cuts = network.boosting.terms(target.n_classes), network.boosting.cuts
        _, models = with_boosted(fixed, models, terms, cuts, {0: own})
        leaves = fitted_leaves(terms, cuts, own.trees)
        predictions = np.column_stack([predictions, leaves.predict(_features(frame, path, network))])
    values = decisions(predictions, np.array([0, len(predictions)]), models)
    target = network.target
    if not target.classes:
        return {"value": (target.mean + target.scale * values).tolist()}
    labels = [target.classes[c] for c in best_class(values).tolist()]
    if values.ndim > 1:
        second, first = np.sort(values, axis=1)[:, -2:].T
        values = first - second
    return {"label": labels, "value": values.tolist()}


def _predictions(frame: Any, path: Path, network: NetworkFile) -> Array:
    return predictors_from_arrays(network.predictors, network.arrays).predict(_features(frame, path, network))


def _features(frame: Any, path: Path, network: NetworkFile) -> Array:
    if network.encoder is None:
        return read_features(frame, network.features, path)
    encoder = TableEncoder.from_json(dict(network.encoder))
    _require(encoder.inputs, frame.columns, path)
    return encoder.transform(frame)


def read_features(frame: Any, names: Sequence[str], path: Path) -> Array:
    """The named columns as numbers."""
    _require(names, frame.columns, path)
    try:
        return as_features(frame.select(names))[0]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def read_targets(frame: Any, label: str, path: Path, task: Task) -> list[str] | Array:
    """The label column: labels as text, or numbers as an array."""
    _require([label], frame.columns, path)
    if kind_of(frame[label].to_numpy(), task, label) == "numbers":
        return _numbers(frame, label, path)
    return _labels(frame, label, path)


def _labels(frame: Any, label: str, path: Path) -> list[str]:
    """Labels as text."""
    values = frame[label].to_list()
    if any(value is None for value in values):
        raise ValueError(f"{path}: column {label!r} has missing labels: fill them or drop these rows")
    return [label_text(value) for value in values]


def label_text(value: Any) -> str:
    """A label as text; integral floats are written as integers.

    >>> label_text(2.0), label_text("no")
    ('2', 'no')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _numbers(frame: Any, name: str, path: Path) -> Array:
    try:
        values = np.asarray(frame[name].cast(float).to_numpy(), np.float64)
    except Exception as error:
        raise ValueError(f"{path}: column {name!r} must hold numbers ({error})") from error
    if not np.isfinite(values).all():
        raise ValueError(f"{path}: column {name!r} has missing or infinite numbers: fill them or drop these rows")
    return values


def _require(names: Sequence[str], columns: Sequence[str], path: Path) -> None:
    absent = [name for name in names if name not in columns]
    if absent:
        raise ValueError(f"{path}: no column {', '.join(map(repr, absent))}; it has {', '.join(columns[:20])}")


def checked(columns: Columns) -> Columns:
    """Check ranges and names of columns."""
    for name, low, high in zip(columns.features, columns.low, columns.high, strict=True):
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"feature {name!r} must have a finite range, got {low:g} to {high:g}")
    if not (columns.low < columns.high).any():
        raise ValueError(f"none of the {len(columns.features)} features varies: a network needs one that does")
    if len(set(columns.features)) != len(columns.features):
        raise ValueError(f"every feature must be given once, got {', '.join(columns.features)}")
    return columns
