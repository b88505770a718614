"""Tables, base predictors and summary files of the `dada peer` commands; not loaded by a peer's process."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dada import atomic
from dada.core.compiled import Array
from dada.core.problem import margins_of_labels
from dada.data import (
    BasePredictors,
    Constant,
    FeatureSummary,
    Linear,
    Stumps,
    Union,
    predictors_from_arrays,
    read_table,
)
from dada.data.arrays import as_features
from dada.net.home import Home
from dada.net.network_file import NetworkFile
from dada.peer.member import Rhythm


@dataclass(frozen=True, eq=False)
class Columns:
    """Names and ranges of features, and the two classes: all that a network file contains about data."""

    features: tuple[str, ...]
    low: Array
    high: Array
    classes: tuple[str, str]


def columns_by_hand(features: Sequence[str], classes: str | None) -> Columns:
    """Parse columns of the command line: name:low:high, and two labels separated by a comma.

    >>> columns_by_hand(["age:0:100"], "no,yes").features
    ('age',)
    """
    if not features or classes is None:
        raise ValueError(
            "give --summary FILE, or --like TABLE --label COLUMN, or --feature name:low:high (each) and --classes"
        )
    given = []
    for text in features:
        name, _, limits = text.partition(":")
        try:
            low, high = (float(part) for part in limits.split(":"))
        except ValueError:
            raise ValueError(f"a feature is given as name:low:high with two numbers, got {text!r}") from None
        given.append((name, low, high))
    found = tuple(part.strip() for part in classes.split(","))
    if len(found) != 2 or found[0] == found[1]:
        raise ValueError(f"--classes takes two different labels, as no,yes, got {classes!r}")
    names, lows, highs = zip(*given, strict=True)
    return checked(Columns(names, np.array(lows), np.array(highs), found))


def columns_like(path: Path, label: str | None) -> Columns:
    """Columns of a table: all but the label are features, with the ranges of the table."""
    if label is None:
        raise ValueError("--label is needed with --like: the column with the label")
    names, X, labels = read_columns(path, label)
    return checked(Columns(names, X.min(axis=0), X.max(axis=0), two_classes(labels, f"{path}: column {label!r}")))


def read_columns(path: Path, label: str) -> tuple[tuple[str, ...], Array, list[str]]:
    """Names and values of the features, and the distinct labels."""
    frame = read_table(path)
    _require([label], frame.columns, path)
    names = tuple(name for name in frame.columns if name != label)
    return names, _features(frame, names, path), sorted(set(_labels(frame, label, path)), key=in_order)


def two_classes(labels: Sequence[str], where: str) -> tuple[str, str]:
    """Check that there are two labels."""
    if len(labels) != 2:
        raise ValueError(f"{where} must hold two labels, it holds {len(labels)}: {list(labels[:5])}")
    return labels[0], labels[1]


def in_order(label: str) -> tuple[int, float, str]:
    """Sort key: numbers by value, then text in alphabetical order."""
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)


def predictors_by_range(columns: Columns, stumps_per_feature: int) -> BasePredictors:
    """Base predictors determined by the ranges."""
    # Quantiles of evenly spaced rows divide every range into equal parts.
    rows = np.linspace(columns.low, columns.high, stumps_per_feature + 1)
    return Union(Stumps(per_feature=stumps_per_feature), Constant(coupling=0.1)).fit(rows)


def network_for(
    columns: Columns, predictors: BasePredictors, settings: dict[str, Any], rate: float, private: bool
) -> NetworkFile:
    """The network file for given columns and base predictors."""
    spec, arrays = predictors.to_arrays()
    return NetworkFile(
        settings=settings,
        features=columns.features,
        classes=columns.classes,
        coupling=np.asarray(predictors.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        # A block step makes about ten moves.
        rhythm=Rhythm(local_steps=10 if settings.get("step") == "block" else 100, wakeups_per_s=rate),
        secret=secrets.token_bytes(32) if private else b"",
    )


def read_margins(path: Path, label: str, network: NetworkFile) -> Array:
    """A user's samples as margins of the network's base predictors."""
    frame = read_table(path)
    _require([label], frame.columns, path)
    values = _labels(frame, label, path)
    unknown = sorted(set(values) - set(network.classes))
    if unknown:
        raise ValueError(f"{path}: column {label!r} holds {unknown[:3]}, the network knows {list(network.classes)}")
    y = np.where(np.array(values) == network.classes[1], 1, -1)
    return margins_of_labels(_predictions(frame, path, network), y)


def predict_table(home: Home, path: Path) -> tuple[list[str], list[float]]:
    """Labels and decision values of new samples, by a peer's stored model."""
    _, network = home.read()
    values = _predictions(read_table(path), path, network).astype(np.float64) @ home.read_model()
    return [network.classes[int(value > 0)] for value in values], [float(value) for value in values]


def _predictions(frame: Any, path: Path, network: NetworkFile) -> Array:
    predictors = predictors_from_arrays(network.predictors, network.arrays)
    return predictors.predict(_features(frame, network.features, path))


def _features(frame: Any, names: Sequence[str], path: Path) -> Array:
    _require(names, frame.columns, path)
    try:
        return as_features(frame.select(names))[0]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _labels(frame: Any, label: str, path: Path) -> list[str]:
    """Labels as text; integral floats are written as integers."""
    values = frame[label].to_list()
    if any(value is None for value in values):
        raise ValueError(f"{path}: column {label!r} has missing labels: fill them or drop these rows")
    return [str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in values]


def _require(names: Sequence[str], columns: Sequence[str], path: Path) -> None:
    absent = [name for name in names if name not in columns]
    if absent:
        raise ValueError(f"{path}: no column {', '.join(map(repr, absent))}; it has {', '.join(columns[:20])}")


def checked(columns: Columns) -> Columns:
    """Check ranges and names of columns."""
    for name, low, high in zip(columns.features, columns.low, columns.high, strict=True):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"feature {name!r} must have a range with low < high, got {low:g} to {high:g}")
    if len(set(columns.features)) != len(columns.features):
        raise ValueError(f"every feature must be given once, got {', '.join(columns.features)}")
    return columns


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

    @classmethod
    def of(cls, path: Path, label: str, points: int) -> SummaryFile:
        """Summary of one user's table, with at most `points` quantiles per feature."""
        names, X, labels = read_columns(path, label)
        if len(X) < LEAST_ROWS:
            raise ValueError(
                f"{path}: a summary needs at least {LEAST_ROWS} rows, fewer would be revealed, got {len(X)}: "
                "let other users create the network file; this user can still join"
            )
        return cls(names, tuple(labels), 1, FeatureSummary.of(X).coarse(min(points, len(X) // LEAST_ROWS)))

    def merged(self, other: SummaryFile) -> SummaryFile:
        """Summary of the rows of both."""
        if self.features != other.features:
            odd = sorted(set(self.features) ^ set(other.features)) or list(other.features)
            raise ValueError(f"summaries must be of the same features in the same order, these differ in {odd[:5]}")
        labels = tuple(sorted({*self.labels, *other.labels}, key=in_order))
        return SummaryFile(self.features, labels, self.users + other.users, self.summary.merged(other.summary))

    @property
    def columns(self) -> Columns:
        """Names, ranges and classes for a network file."""
        classes = two_classes(self.labels, "the summaries' labels")
        return checked(Columns(self.features, self.summary.low, self.summary.high, classes))

    def predictors(self, stumps_per_feature: int) -> BasePredictors:
        """Stumps at quantiles, clipped linear predictors, and a weakly coupled constant."""
        recipe = Union(Stumps(per_feature=stumps_per_feature), Linear(), Constant(coupling=0.1))
        return recipe.fit_summary(self.summary, marks=lambda stumps: np.zeros(0))

    def write(self, path: Path) -> None:
        """Write the file."""
        own = self.summary
        content = {
            "format": FORMAT,
            "version": VERSION,
            "features": list(self.features),
            "labels": list(self.labels),
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
    summary = FeatureSummary(count, mean, squares, low, high, points, is_exact=False)
    return SummaryFile(features, tuple(map(str, content["labels"])), users, summary)


def _are_quantiles(values: np.ndarray, weights: np.ndarray, count: int) -> bool:
    if values.ndim != 1 or values.size == 0 or values.shape != weights.shape:
        return False
    is_ascending = np.isfinite(values).all() and (np.diff(values) > 0).all()
    return bool(is_ascending and (weights > 0).all() and np.isclose(weights.sum(), count))
