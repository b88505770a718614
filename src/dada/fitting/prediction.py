"""Decision values of rows under users' models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dada.data import BasePredictors
from dada.data.arrays import as_values
from dada.engine import decision_values

AVERAGE = -1
# Base predictions held at a time: a few megabytes, whatever the number of rows.
BLOCK_CELLS = 1 << 22


def positions_of(user_ids: NDArray[Any], users: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """Positions of users in `user_ids`, -1 for unknown ones, and the list of unknown users.

    >>> positions_of(np.array(["ann", "bob"]), ["bob", "zoe", "bob"])
    (array([ 1, -1,  1]), ['zoe'])
    """
    ids, row = np.unique(as_values(users, "users"), return_inverse=True)
    known = {user: k for k, user in enumerate(user_ids.tolist())}
    names = ids.tolist()
    where = np.array([known.get(name, AVERAGE) for name in names], dtype=np.int64)
    return where[row], [name for name in names if name not in known]


def average_model(models: NDArray[Any], confidence: NDArray[np.float64]) -> NDArray[Any]:
    """The mean of all models, weighted by confidence."""
    return (confidence @ models / confidence.sum()).astype(models.dtype)


def decisions(predictions: NDArray[Any], row_start: NDArray[np.int64], models: NDArray[Any]) -> NDArray[np.float64]:
    """Decision values of rows grouped by user; models with a block of weights per class give a column per class."""
    n = predictions.shape[1]
    n_blocks = models.shape[1] // n
    if n_blocks == 1:
        return np.asarray(decision_values(predictions, row_start, np.ascontiguousarray(models)))
    blocks = (np.ascontiguousarray(models[:, c * n : (c + 1) * n]) for c in range(n_blocks))
    return np.column_stack([decision_values(predictions, row_start, own) for own in blocks])


def blockwise_decisions(
    X: Any,
    positions: NDArray[np.int64],
    predictors: BasePredictors,
    models: NDArray[Any],
    average: NDArray[Any] | None,
    block_cells: int = BLOCK_CELLS,
) -> NDArray[np.float64]:
    """Decision value of each row of X under the model at its position; position -1 means the `average` model."""
    n_blocks = models.shape[1] // predictors.n
    values = np.empty((len(positions), n_blocks))
    order = np.argsort(positions, kind="stable")
    size = max(1, block_cells // predictors.n)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        present, first = np.unique(positions[rows], return_index=True)
        used = models[present]
        if present[0] == AVERAGE:
            used[0] = average
        block = X[rows].toarray() if hasattr(X, "toarray") else X[rows]
        found = decisions(predictors.predict(block), np.append(first, len(rows)), used)
        values[rows] = found[:, None] if n_blocks == 1 else found
    return values[:, 0] if n_blocks == 1 else values


def best_class(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Number of the class with the largest decision value; of two classes, 1 if the value is positive."""
    return values.argmax(axis=1) if values.ndim > 1 else (values > 0).astype(np.intp)


def class_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores of all classes that add up to 1: the logistic function of a decision value, or the softmax of several."""
    if values.ndim > 1:
        return np.asarray(softmax(values, axis=1))
    positive = expit(values)
    return np.column_stack((1 - positive, positive))
