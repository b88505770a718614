"""Summary files: what users tell of their features, so that a network can have base predictors that fit the data.

A summary holds moments and a few quantiles of every feature, and no sample. Files merge in any order: they can be
collected, or one file can go from user to user, each adding its own rows before it passes it on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dada.cli.peer.tables import Columns, checked, in_order, read_columns, two_classes
from dada.data import BasePredictors, Constant, FeatureSummary, Linear, Stumps, Union

FORMAT, VERSION = "dada-summary", 1
# A quantile that is told stands for at least so many rows; of fewer, the mean would say too much about each.
LEAST_ROWS = 5


@dataclass(frozen=True, eq=False)
class Told:
    """What users have told of their rows."""

    features: tuple[str, ...]
    labels: tuple[str, ...]
    users: int
    summary: FeatureSummary

    @classmethod
    def of(cls, path: Path, label: str, points: int) -> Told:
        """One user's table, by at most so many values per feature."""
        names, X, labels = read_columns(path, label)
        if len(X) < LEAST_ROWS:
            raise ValueError(
                f"{path}: a summary needs at least {LEAST_ROWS} rows, or it would tell them, got {len(X)}: "
                "others can make the network file, and this user can still join"
            )
        return cls(names, tuple(labels), 1, FeatureSummary.of(X).coarse(min(points, len(X) // LEAST_ROWS)))

    def merged(self, other: Told) -> Told:
        """What both sides have told."""
        if self.features != other.features:
            odd = sorted(set(self.features) ^ set(other.features)) or list(other.features)
            raise ValueError(f"summaries must be of the same features in the same order, these differ in {odd[:5]}")
        labels = tuple(sorted({*self.labels, *other.labels}, key=in_order))
        return Told(self.features, labels, self.users + other.users, self.summary.merged(other.summary))

    @property
    def columns(self) -> Columns:
        """Names, ranges and classes, as a network takes them."""
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
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_all(paths: list[Path]) -> Told:
    """The files of several users, merged."""
    return reduce(Told.merged, (read_summary(path) for path in paths))


def read_summary(path: Path) -> Told:
    """Read a summary file, and check all of it."""
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        detail = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: not a summary file, or damaged ({detail})") from error


def _from_json(content: Any) -> Told:
    if not isinstance(content, dict) or content["format"] != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']}, this dada reads {VERSION}: update the older of the two")
    features = tuple(str(name) for name in content["features"])
    count, users = int(content["rows"]), int(content["users"])
    mean, squares, low, high = (np.array(content[name], np.float64) for name in ("mean", "squares", "low", "high"))
    points = tuple((np.array(values, float), np.array(weights, float)) for values, weights in content["points"])
    if not features or any(array.shape != (len(features),) for array in (mean, squares, low, high)):
        raise ValueError(f"{len(features)} features, and not as many numbers about them")
    if len(points) != len(features) or not all(_are_quantiles(*own, count) for own in points):
        raise ValueError("values of a feature must ascend, and their weights add up to the number of rows")
    if users < 1 or count < users * LEAST_ROWS:
        raise ValueError(f"{count} rows of {users} users, each has at least {LEAST_ROWS}")
    if not (np.isfinite([mean, squares, low, high]).all() and (squares >= 0).all() and (low <= high).all()):
        raise ValueError("means, squares and ranges must be finite, squares >= 0 and ranges not upside down")
    return Told(
        features,
        tuple(str(label) for label in content["labels"]),
        users,
        FeatureSummary(count, mean, squares, low, high, points, is_exact=False),
    )


def _are_quantiles(values: np.ndarray, weights: np.ndarray, count: int) -> bool:
    return (
        values.ndim == 1
        and values.size > 0
        and values.shape == weights.shape
        and bool(np.isfinite(values).all() and (np.diff(values) > 0).all() and (weights > 0).all())
        and bool(np.isclose(weights.sum(), count))
    )
