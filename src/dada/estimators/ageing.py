"""Rows that are kept between calls, and how they grow old."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.estimators.rows import Rows


def of_users(rows: Rows, positions: NDArray[np.intp]) -> Rows:
    """The rows of the users at increasing positions."""
    mine = np.isin(rows.owners, positions)
    weights = None if rows.weights is None else rows.weights[mine]
    return replace(rows, people=rows.people.select(positions), weights=weights)


def both(old: Rows, new: Rows) -> Rows:
    """Old and new rows together, grouped by user, the older first. Where some have weights, the others weigh 1."""
    X, y = np.concatenate([old.people.X, new.people.X]), np.concatenate([old.people.y, new.people.y])
    owners = np.concatenate([part.people.user_ids[part.owners] for part in (old, new)])
    weights = None
    if old.weights is not None or new.weights is not None:
        each = [np.ones(part.people.n_rows) if part.weights is None else part.weights for part in (old, new)]
        weights = np.concatenate(each)
    return _grouped(old, X, y, owners, weights)


def aged(rows: Rows, older: NDArray[np.bool_], half_life: float | None, rng: np.random.Generator) -> Rows | None:
    """The rows left when some users have come once more: each of theirs stays with chance 0.5 ** (1 / half_life)."""
    if half_life is None:
        return rows
    kept = ~older[rows.owners] | (rng.random(rows.people.n_rows) < 0.5 ** (1.0 / half_life))
    if not kept.any():
        return None
    owners = rows.people.user_ids[rows.owners]
    weights = None if rows.weights is None else rows.weights[kept]
    return _grouped(rows, rows.people.X[kept], rows.people.y[kept], owners[kept], weights)


def _grouped(
    like: Rows, X: NDArray[Any], y: NDArray[Any], owners: NDArray[Any], weights: NDArray[np.float64] | None
) -> Rows:
    ids, codes = np.unique(owners, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    row_start = np.concatenate(([0], np.cumsum(np.bincount(codes)))).astype(np.int64)
    people = replace(like.people, X=X[order], y=y[order], row_start=row_start, user_ids=ids)
    return replace(like, people=people, weights=None if weights is None else weights[order])
