"""Tables and base predictors of a peer's commands; the peer's own process needs none of this."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dada.core.compiled import Array
from dada.data import BasePredictors, Constant, Stumps, Union, predictors_from_arrays, read_table
from dada.data._inputs import as_features
from dada.net.home import Home
from dada.net.network import Network
from dada.peer.planner import Rhythm


@dataclass(frozen=True, eq=False)
class Columns:
    """Names and ranges of features, and the two classes: all that a network tells about data."""

    features: tuple[str, ...]
    low: Array
    high: Array
    classes: tuple[str, str]


def columns_by_hand(features: Sequence[str], classes: str | None) -> Columns:
    """Columns as the command line gives them: name:low:high, and two labels with a comma between.

    >>> columns_by_hand(["age:0:100"], "no,yes").features
    ('age',)
    """
    if not features or classes is None:
        raise ValueError(
            "give --summary FILE, or --like TABLE --label COLUMN, or --feature name:low:high (each) and --classes"
        )
    names, low, high = [], [], []
    for text in features:
        name, _, limits = text.partition(":")
        try:
            least, most = (float(part) for part in limits.split(":"))
        except ValueError:
            raise ValueError(f"a feature is given as name:low:high with two numbers, got {text!r}") from None
        names.append(name)
        low.append(least)
        high.append(most)
    found = tuple(part.strip() for part in classes.split(","))
    if len(found) != 2 or found[0] == found[1]:
        raise ValueError(f"--classes takes two different labels, as no,yes, got {classes!r}")
    return checked(Columns(tuple(names), np.array(low), np.array(high), found))


def columns_like(path: Path, label: str | None) -> Columns:
    """Columns of a table: every other column is a feature, its range that of the table."""
    if label is None:
        raise ValueError("--label is needed with --like: the column with the label")
    names, X, labels = read_columns(path, label)
    return checked(Columns(names, X.min(axis=0), X.max(axis=0), two_classes(labels, f"{path}: column {label!r}")))


def read_columns(path: Path, label: str) -> tuple[tuple[str, ...], Array, list[str]]:
    """Names and values of all columns but the label's, and the different labels."""
    frame = read_table(path)
    _require([label], frame.columns, path)
    names = tuple(name for name in frame.columns if name != label)
    return names, _features(frame, names, path), sorted(set(_labels(frame, label, path)), key=in_order)


def two_classes(labels: Sequence[str], where: str) -> tuple[str, str]:
    """The labels, of which there must be two."""
    if len(labels) != 2:
        raise ValueError(f"{where} must hold two labels, it holds {len(labels)}: {list(labels[:5])}")
    return labels[0], labels[1]


def in_order(label: str) -> tuple[int, float, str]:
    """Numbers by size, then text by the alphabet."""
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)


def predictors_by_range(columns: Columns, stumps_per_feature: int) -> BasePredictors:
    """Base predictors that follow from the ranges alone."""
    # Evenly spaced rows: the quantiles between them divide every range into equal parts.
    rows = np.linspace(columns.low, columns.high, stumps_per_feature + 1)
    return Union(Stumps(per_feature=stumps_per_feature), Constant(coupling=0.1)).fit(rows)


def network_for(
    columns: Columns, predictors: BasePredictors, settings: dict[str, Any], rate: float, private: bool
) -> Network:
    """A network with these columns and base predictors."""
    spec, arrays = predictors.to_arrays()
    return Network(
        settings=settings,
        features=columns.features,
        classes=columns.classes,
        coupling=np.asarray(predictors.coupling, np.float64),
        predictors=spec,
        arrays=arrays,
        rhythm=Rhythm(wakeups_per_s=rate),
        secret=secrets.token_bytes(32) if private else b"",
    )


def read_margins(path: Path, label: str, network: Network) -> Array:
    """A user's samples as margins of the network's base predictors."""
    frame = read_table(path)
    _require([label], frame.columns, path)
    values = _labels(frame, label, path)
    unknown = sorted(set(values) - set(network.classes))
    if unknown:
        raise ValueError(f"{path}: column {label!r} holds {unknown[:3]}, the network knows {list(network.classes)}")
    y = np.where(np.array(values) == network.classes[1], 1, -1)
    predictions = _predictions(frame, path, network)
    return predictions * y[:, None].astype(predictions.dtype)


def predict_table(home: Home, path: Path) -> tuple[list[str], list[float]]:
    """Labels and decision values of new samples, by the model that a peer has stored."""
    _, network = home.read()
    values = _predictions(read_table(path), path, network).astype(np.float64) @ home.read_model()
    return [network.classes[int(value > 0)] for value in values], [float(value) for value in values]


def _predictions(frame: Any, path: Path, network: Network) -> Array:
    predictors = predictors_from_arrays(network.predictors, network.arrays)
    return predictors.predict(_features(frame, network.features, path))


def _features(frame: Any, names: Sequence[str], path: Path) -> Array:
    _require(names, frame.columns, path)
    try:
        return as_features(frame.select(names))[0]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _labels(frame: Any, label: str, path: Path) -> list[str]:
    """Labels as text, a whole number always written the same way."""
    values = frame[label].to_list()
    if any(value is None for value in values):
        raise ValueError(f"{path}: column {label!r} has missing labels: fill them or drop these rows")
    return [str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in values]


def _require(names: Sequence[str], columns: Sequence[str], path: Path) -> None:
    absent = [name for name in names if name not in columns]
    if absent:
        raise ValueError(f"{path}: no column {', '.join(map(repr, absent))}; it has {', '.join(columns[:20])}")


def checked(columns: Columns) -> Columns:
    """The columns, unless a range is none or a name stands twice."""
    for name, low, high in zip(columns.features, columns.low, columns.high, strict=True):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"feature {name!r} must have a range with low < high, got {low:g} to {high:g}")
    if len(set(columns.features)) != len(columns.features):
        raise ValueError("every feature must be given once")
    return columns
