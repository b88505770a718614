"""`DadaRegressor`: personal models of numbers, and the graph between users."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import column_or_1d

from dada.data.arrays import as_values
from dada.estimators.online import GrowingEstimator


class DadaRegressor(RegressorMixin, GrowingEstimator):
    """Regressor with a model for each user, learned along a graph of who resembles whom.

    Targets are standardised over all users; a constant among the base predictors is the intercept. Parameters and
    attributes are those of `DadaClassifier`, but for the loss and what belongs to classes.

    Parameters
    ----------
    loss : {"auto", "squared", "huber"}
        Loss of the residuals. "auto" is squared; Huber's grows linearly beyond one standard deviation of the targets.

    Attributes
    ----------
    target_mean_, target_scale_ : float
        Mean and standard deviation of the targets at the fit.

    Examples
    --------
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> users = np.repeat(["ann", "bob"], 20)
    >>> model = DadaRegressor(random_state=0).fit(X, 3 * X[:, 0] + 1, users=users)
    >>> model.score(X, 3 * X[:, 0] + 1, users=users) > 0.9
    True
    """

    def predict(self, X: Any, users: Any = None) -> NDArray[np.float64]:
        """Predicted number for each row under its user's model.

        Parameters
        ----------
        X : array, scipy.sparse matrix, pandas or polars frame of shape (rows, features)
            As at `fit`.
        users : array of shape (rows,) or one user id, optional
            Whose model to use for each row, or for all rows.
        """
        values = self._decisions(X, users)
        return self.target_mean_ + self.target_scale_ * values

    def score(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination over all rows; other parameters as of `predict`."""
        return float(r2_score(y, self.predict(X, users), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _targets(self, y: Any, fresh: bool) -> tuple[NDArray[Any], int]:
        values = as_values(column_or_1d(y, warn=True) if getattr(y, "ndim", 1) > 1 else y, "y")
        if values.dtype.kind not in "biuf":
            raise ValueError(f"y must hold numbers, got an array of type {values.dtype}")
        values = values.astype(np.float64)
        if fresh and values.size == 1:
            raise ValueError("y must hold two numbers or more to learn from, got n_samples = 1")
        if fresh:
            self.target_mean_, spread = float(values.mean()), float(values.std())
            self.target_scale_ = spread if spread > 0 else 1.0
        return (values - self.target_mean_) / self.target_scale_, 0
