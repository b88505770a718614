"""Decision values of many users' models on many rows, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.data import BasePredictors
from dada.data._inputs import as_values
from dada.engine import decision_values
from dada.estimators.rows import Rows

AVERAGE = -1
# Base predictions held at a time: a few megabytes, whatever the number of rows.
BLOCK_CELLS = 1 << 22


def positions_of(user_ids: NDArray[Any], users: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """Where the given users stand in `user_ids`, -1 for those who do not, and the list of those.

    >>> positions_of(np.array(["ann", "bob"]), ["bob", "zoe", "bob"])
    (array([ 1, -1,  1]), ['zoe'])
    """
    ids, row = np.unique(as_values(users, "users"), return_inverse=True)
    known = {user: k for k, user in enumerate(user_ids.tolist())}
    names = ids.tolist()
    where = np.array([known.get(name, AVERAGE) for name in names], dtype=np.int64)
    return where[row], [name for name in names if name not in known]


def average_model(models: NDArray[Any], confidence: NDArray[np.float64]) -> NDArray[Any]:
    """The mean of all models, each weighted by its user's confidence."""
    return (confidence @ models / confidence.sum()).astype(models.dtype)


def blockwise_decisions(
    X: Any, positions: NDArray[np.int64], predictors: BasePredictors, models: NDArray[Any], average: NDArray[Any] | None
) -> NDArray[np.float64]:
    """Decision value of each row of X under the model at its position, `average` where that is -1.

    A model of several blocks of weights, one for each class, gives a row of as many values.
    """
    n_blocks = models.shape[1] // predictors.n
    values = np.empty((len(positions), n_blocks))
    order = np.argsort(positions, kind="stable")
    size = max(1, BLOCK_CELLS // predictors.n)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        present, first = np.unique(positions[rows], return_index=True)
        used = models[present]
        if present[0] == AVERAGE:
            used[0] = average
        block = X[rows].toarray() if hasattr(X, "toarray") else X[rows]
        predictions, row_start = predictors.predict(block), np.append(first, len(rows))
        for c in range(n_blocks):
            own = np.ascontiguousarray(used[:, c * predictors.n : (c + 1) * predictors.n])
            values[rows, c] = decision_values(predictions, row_start, own)
    return values[:, 0] if n_blocks == 1 else values


def decisions_of(rows: Rows, predictors: BasePredictors, models: NDArray[Any]) -> NDArray[np.float64]:
    """Decision values of rows under their users' models."""
    return blockwise_decisions(rows.people.X, rows.owners, predictors, models, None)
