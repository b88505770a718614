"""Many users, each with a few rows: from input of any kind to the checked table that the whole package works on.

Lists, numpy, pandas, polars and scipy.sparse are converted to arrays. Neither pandas nor polars is imported: a frame is
recognised by its own attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from html import escape
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

NUMERIC_KINDS = "biuf"


def shorten(names: Sequence[Any] | np.ndarray, limit: int = 5) -> str:
    """The first few names, and the number of the others."""
    shown = ", ".join(repr(v.item() if isinstance(v, np.generic) else v) for v in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def did_you_mean(absent: Sequence[str], known: Sequence[str]) -> str:
    """A question about names that look like misspellings of known ones; empty if none does.

    >>> did_you_mean(["persn"], ["person", "came"]), did_you_mean(["zzz"], ["person"])
    (" (did you mean 'person'?)", '')
    """
    likely = [match for name in absent for match in get_close_matches(name, known, n=1)]
    return f" (did you mean {shorten(likely)}?)" if likely else ""


def collected(frame: Any) -> Any:
    """Run the query of a polars LazyFrame; return anything else unchanged."""
    return frame.collect() if hasattr(frame, "collect_schema") and hasattr(frame, "collect") else frame


def is_frame(X: Any) -> bool:
    """Whether X is a pandas or polars frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def frame_columns(frame: Any) -> dict[str, Any]:
    """The columns of a pandas or polars frame by their names, as text."""
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        raise ValueError(f"column names must differ, got {shorten(twice)} more than once: rename these columns")
    series = [frame.iloc[:, j] for j in range(len(names))] if hasattr(frame, "iloc") else frame.get_columns()
    return dict(zip(names, series, strict=True))


def without_column(X: Any, column: Any) -> tuple[Any, np.ndarray]:
    """X without one of its columns, and that column: by its name in a frame, or by its position.

    >>> rest, users = without_column([["ann", 1.5], ["bob", 2.5]], 0)
    >>> rest.tolist(), users.tolist()
    ([[1.5], [2.5]], ['ann', 'bob'])
    """
    if is_frame(X):
        names = list(X.columns)
        if column not in names and not _is_position(column, len(names)):
            raise ValueError(f"X has no column {column!r}, the user_column; it has {shorten(names, 20)}")
        name = column if column in names else names[column]
        return X.drop(columns=name) if hasattr(X, "iloc") else X.drop(name), X[name]
    if hasattr(X, "toarray"):
        raise ValueError("a sparse X cannot hold the user_column: give users=, the user of each row")
    # NumPy would turn the numbers of a list that also holds text into text.
    array = np.asarray(X, dtype=None if isinstance(X, np.ndarray) else object)
    if array.ndim != 2 or not _is_position(column, array.shape[1]):
        raise ValueError(
            f"user_column must be the position of a column of an array X of shape {array.shape}, got {column!r}: "
            "give a data frame to name columns"
        )
    users = array[:, column]
    if users.dtype.kind == "f" and np.isfinite(users).all() and (users == np.round(users)).all():
        users = users.astype(np.int64)
    return np.delete(array, column, axis=1), users


def _is_position(column: Any, n_columns: int) -> bool:
    return isinstance(column, int | np.integer) and -n_columns <= int(column) < n_columns


def as_features(X: Any, feature_names: Sequence[str] | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return X as a finite (R, D) float64 C-contiguous array, and the D names of its columns."""
    X = collected(X)
    if is_frame(X):
        values, names = _from_frame(X), tuple(str(name) for name in X.columns)
    else:
        values, names = _from_array(X, feature_names), None
    if values.size == 0:
        raise ValueError(f"X is empty (shape {values.shape}): at least one row and one feature are needed")
    if values.ndim != 2:
        raise ValueError(
            f"X must be two-dimensional (rows, features), got shape {values.shape}: "
            "reshape one feature with X.reshape(-1, 1), one row with X.reshape(1, -1)"
        )
    if feature_names is not None:
        names = tuple(str(name) for name in feature_names)
    elif names is None:
        names = _default_names(values.shape[1])
    if len(names) != values.shape[1]:
        raise ValueError(f"feature_names must have one name per column of X ({values.shape[1]}), got {len(names)}")
    _refuse_non_finite(values, names)
    return values, names


def as_values(values: Any, name: str) -> np.ndarray:
    """Return labels or user ids as a one-dimensional array without missing entries.

    Python strings and numbers get the matching numpy type, so that ids from different containers compare equal.
    """
    missing = _missing_in_series(values)
    # A list becomes an array of objects first: numpy would turn the NaN of ["a", nan] into the text "nan".
    as_objects = np.object_ if isinstance(values, list | tuple) else None
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values, dtype=as_objects)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional (one value per row), got shape {array.shape}")
    if missing is None:
        missing = _missing_in_array(array)
    if missing.any():
        i = int(np.argmax(missing))
        raise ValueError(
            f"{name} has {int(missing.sum())} missing values, the first at row {i}: drop these rows or fill them in"
        )
    if array.dtype.kind == "O" and array.size:
        array = _narrow_objects(array, name)
    if array.dtype.kind not in "biufUSMmO" or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        raise ValueError(f"{name} must hold finite numbers or strings, got an array of type {array.dtype}")
    return array


def _default_names(n_features: int) -> tuple[str, ...]:
    return tuple(f"x{j}" for j in range(n_features))


def _from_array(X: Any, feature_names: Sequence[str] | None) -> np.ndarray:
    array = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported: X must be real, split real and imaginary parts into two features")
    if array.dtype.kind in NUMERIC_KINDS:
        return np.ascontiguousarray(array, dtype=np.float64)
    if array.ndim != 2:
        return array
    names = tuple(feature_names) if feature_names is not None else _default_names(array.shape[1])
    return _stack_columns([array[:, j] for j in range(array.shape[1])], names)


def _from_frame(frame: Any) -> np.ndarray:
    names = tuple(str(name) for name in frame.columns)
    if hasattr(frame, "iloc"):
        columns = [_pandas_column(frame.iloc[:, j]) for j in range(len(names))]
    else:
        columns = [_polars_column(series) for series in frame.get_columns()]
    return _stack_columns(columns, names) if columns else np.empty((len(frame), 0))


def _pandas_column(series: Any) -> np.ndarray:
    # Nullable integers and booleans become object arrays unless the missing value is chosen here.
    if getattr(series.dtype, "kind", "O") in NUMERIC_KINDS:
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series.to_numpy())


def _polars_column(series: Any) -> np.ndarray:
    if series.dtype.is_numeric() or str(series.dtype) == "Boolean":
        return np.asarray(series.cast(float).to_numpy())
    return np.asarray(series.to_numpy())


def _stack_columns(columns: list[np.ndarray], names: Sequence[str]) -> np.ndarray:
    refused = [name for name, column in zip(names, columns, strict=True) if not _is_numeric(column)]
    if refused:
        raise ValueError(
            f"{len(refused)} of {len(columns)} feature columns are not numeric: {shorten(refused)}. "
            "Encode them as numbers, or drop them (--drop on the command line)"
        )
    values = np.empty((len(columns[0]), len(columns)))
    for j, column in enumerate(columns):
        is_object = column.dtype.kind == "O"
        values[:, j] = [np.nan if is_missing(v) else v for v in column] if is_object else column
    return values


def _is_numeric(column: np.ndarray) -> bool:
    if column.dtype.kind == "O":
        return all(is_missing(v) or isinstance(v, Real) for v in column)
    return column.dtype.kind in NUMERIC_KINDS


def _refuse_non_finite(values: np.ndarray, names: Sequence[str]) -> None:
    # The sum is finite for almost all valid input and costs one pass without an (R, D) mask.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    finite = np.isfinite(values)
    if finite.all():
        return
    i, j = (int(v) for v in np.unravel_index(np.argmin(finite), finite.shape))
    what = "NaN" if np.isnan(values[i, j]) else "infinity"
    count = int(finite.size - finite.sum())
    raise ValueError(
        f"X contains {what} at row {i}, column {j} ({names[j]!r}); "
        f"{count} values are NaN or infinite in all: drop these rows or impute them"
    )


def _missing_in_series(values: Any) -> np.ndarray | None:
    """Missing values by pandas and polars: the conversion to numpy would hide some."""
    if hasattr(values, "isna"):
        return np.asarray(values.isna(), dtype=bool).reshape(-1)
    if hasattr(values, "is_null"):
        nulls = np.asarray(values.is_null().to_numpy(), dtype=bool)
        return nulls if nulls.any() else None
    return None


def _missing_in_array(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.isnan(array)
    if array.dtype.kind in "mM":
        return np.isnat(array)
    if array.dtype.kind == "O":
        return np.fromiter((is_missing(v) for v in array), dtype=bool, count=array.size)
    return np.zeros(array.shape, dtype=bool)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or pandas.NA."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA refuses to be true or false
        return True


def _narrow_objects(array: np.ndarray, name: str) -> np.ndarray:
    kinds = {type(v) for v in array}
    if all(issubclass(kind, str) for kind in kinds):
        return array.astype(np.str_)
    if all(issubclass(kind, Real | np.bool_) for kind in kinds):
        return np.array(array.tolist())
    if len(kinds) > 1:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{name} mixes values that cannot be compared ({found}): use one type, for example all strings")
    return array


class Users:
    """Counts of users and their rows, from ids, sizes, names of features and classes."""

    if TYPE_CHECKING:
        user_ids: np.ndarray
        feature_names: tuple[str, ...]
        classes: np.ndarray | None

        @property
        def sizes(self) -> np.ndarray:
            """Number of rows of each user, m_k."""
            ...

    @property
    def n_users(self) -> int:
        """Number of users, K."""
        return len(self.user_ids)

    @property
    def n_features(self) -> int:
        """Number of features, D."""
        return len(self.feature_names)

    @property
    def n_rows(self) -> int:
        """Number of rows of all users together, R."""
        return int(self.sizes.sum())

    @property
    def n_classes(self) -> int:
        """Number of classes, C; 0 if the targets are numbers."""
        return 0 if self.classes is None else len(self.classes)

    @property
    def confidence(self) -> np.ndarray:
        """Confidence of each user, c_k = m_k / max_l m_l."""
        return self.sizes / self.sizes.max()


@dataclass(frozen=True, eq=False)
class Population(Users):
    """Rows with a target each, grouped by the user they belong to.

    Build one with :meth:`from_arrays`, which checks everything; the constructor checks nothing.

    Attributes
    ----------
    X : (R, D) float64 array
        Features, rows grouped by user in the order of `user_ids`, in the caller's order within a user.
    y : (R,) array
        Targets. Two classes: -1 for ``classes[0]`` and +1 for ``classes[1]`` (int8). More classes: positions in
        `classes`. Numbers: the numbers (float64).
    row_start : (K + 1,) int64 array
        The rows of user k are ``row_start[k]:row_start[k + 1]``.
    user_ids : (K,) array
        The caller's user ids, sorted, each once.
    classes : (C,) array or None
        The caller's labels; None if the targets are numbers.
    feature_names : tuple of str
        One name per column of X.
    weights : (R,) float64 array or None
        Weight of each row in its user's loss; None if all rows count the same.

    Examples
    --------
    >>> people = Population.from_arrays([[0.1], [0.2], [0.9]], ["no", "yes", "no"], ["ann", "bob", "ann"])
    >>> people
    Population(2 users, 3 rows, 1 features, 2 classes)
    >>> people.user_ids.tolist(), people.sizes.tolist(), people.y.tolist()
    (['ann', 'bob'], [2, 1], [-1, -1, 1])
    """

    X: np.ndarray
    y: np.ndarray
    row_start: np.ndarray
    user_ids: np.ndarray
    classes: np.ndarray | None
    feature_names: tuple[str, ...]
    weights: np.ndarray | None = None

    def __repr__(self) -> str:
        target = f"{self.n_classes} classes" if self.n_classes else "numbers"
        return f"Population({self.n_users} users, {self.n_rows} rows, {self.n_features} features, {target})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: numbers of users, rows, features and labels."""
        sizes = self.sizes
        facts = {
            "users": f"{self.n_users:,}",
            "rows": f"{self.n_rows:,}",
            "rows per user": f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):g}",
            "features": f"{self.n_features:,}: {shorten(self.feature_names)}",
        }
        if self.classes is None:
            facts["targets"] = f"numbers from {self.y.min():.6g} to {self.y.max():.6g}, mean {self.y.mean():.6g}"
        else:
            counts = np.bincount(self.codes, minlength=self.n_classes)
            shares = [f"{label} ({count / self.n_rows:.0%})" for label, count in zip(self.classes, counts, strict=True)]
            facts["labels"] = f"{', '.join(shares[:10])}{' ...' if len(shares) > 10 else ''}"
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        return f"<strong>Population</strong><table>{rows}</table>"

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        users: Any,
        *,
        task: Literal["classes", "numbers"] = "classes",
        feature_names: Sequence[str] | None = None,
        classes: Any = None,
        user_ids: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Group rows by user, after checking all of the input.

        Parameters
        ----------
        X : array, pandas or polars frame, or scipy.sparse matrix of shape (R, D)
            Finite numbers. A sparse matrix is made dense: it must fit in memory at 8 bytes per cell. An array
            that is already float64, C-contiguous and grouped by user is used as it is, without a copy.
        y : array of shape (R,)
            Targets: labels (strings, numbers or booleans) of two classes or more, or numbers.
        users : array of shape (R,)
            The user of each row: strings, numbers or dates.
        task : {"classes", "numbers"}
            What the targets are.
        feature_names : sequence of str, optional
            Names of the columns; taken from a frame, else ``x0, x1, ...``.
        classes : sequence of labels, optional
            All labels, in order; with two, those that mean -1 and +1. By default the labels found in `y`, sorted. With
            `classes` given, rows of a single class are accepted, as a small test set may hold.
        user_ids : array, optional
            The users expected. A user without a row, or a row of another user, is then an error.
        sample_weight : array of shape (R,), optional
            Weight of each row in its user's loss, 0 or more.

        Returns
        -------
        Population

        Examples
        --------
        >>> Population.from_arrays([[1.0], [2.0]], [True, False], [7, 7]).confidence.tolist()
        [1.0]
        >>> Population.from_arrays([[1.0], [2.0]], [0.5, 1.5], [7, 7], task="numbers").n_classes
        0
        """
        features, names = as_features(X, feature_names)
        targets, owners = as_values(y, "y"), as_values(users, "users")
        if not len(features) == len(targets) == len(owners):
            raise ValueError(
                "X, y and users must have one entry per row, "
                f"got {len(features)} rows in X, {len(targets)} in y and {len(owners)} in users"
            )
        coded, labels = _coded(targets, classes) if task == "classes" else (_numbers(targets), None)
        weights = None if sample_weight is None else _weights(sample_weight, len(features))
        ids, codes = np.unique(owners, return_inverse=True)
        if user_ids is not None:
            _refuse_other_users(ids, np.unique(as_values(user_ids, "user_ids")))
        row_start = np.concatenate(([0], np.cumsum(np.bincount(codes)))).astype(np.int64)
        if np.any(codes[1:] < codes[:-1]):
            order = np.argsort(codes, kind="stable")
            features, coded = features[order], coded[order]
            weights = None if weights is None else weights[order]
        return cls(features, coded, row_start, ids, labels, names, weights)

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each user, m_k."""
        return np.diff(self.row_start)

    @property
    def users(self) -> np.ndarray:
        """The user id of each row.

        >>> Population.from_arrays([[0.1], [0.2], [0.9]], [0, 1, 0], ["ann", "bob", "ann"]).users.tolist()
        ['ann', 'ann', 'bob']
        """
        return np.repeat(self.user_ids, self.sizes)

    @property
    def owners(self) -> np.ndarray:
        """The position of each row's user in `user_ids`."""
        return np.repeat(np.arange(self.n_users), self.sizes)

    @property
    def targets(self) -> np.ndarray:
        """The target of each row as the caller gave it: a label, or a number.

        >>> Population.from_arrays([[0.1], [0.2]], ["no", "yes"], ["bob", "ann"]).targets.tolist()
        ['yes', 'no']
        """
        if self.classes is None:
            return self.y
        return self.classes[self.codes]

    @property
    def codes(self) -> np.ndarray:
        """The number of each row's class, its position in `classes`.

        >>> Population.from_arrays([[0.1], [0.2]], ["no", "yes"], ["bob", "ann"]).codes.tolist()
        [1, 0]
        """
        if self.classes is None:
            raise ValueError("targets are numbers, which have no classes")
        return (self.y > 0).astype(np.intp) if len(self.classes) == 2 else self.y.astype(np.intp)

    def user_rows(self, k: int) -> slice:
        """Rows of X and y that belong to the user at position k."""
        if not 0 <= k < self.n_users:
            raise IndexError(f"k must be in 0..{self.n_users - 1} (n_users - 1), got {k}")
        return slice(int(self.row_start[k]), int(self.row_start[k + 1]))

    def pooled(self) -> Population:
        """All rows as the data of one user, named ``"all"``."""
        return replace(self, row_start=np.array([0, self.n_rows], dtype=np.int64), user_ids=np.array(["all"]))

    def take(self, rows: Any) -> Population:
        """The rows at these positions, or under this mask, in their order here; all users stay, some without rows.

        Examples
        --------
        >>> people = Population.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], ["ann", "ann", "bob"])
        >>> people.take([0, 1]).sizes.tolist()
        [2, 0]
        """
        kept = np.zeros(self.n_rows, dtype=bool)
        kept[rows] = True
        before = np.concatenate(([0], np.cumsum(kept)))
        weights = None if self.weights is None else self.weights[kept]
        return replace(self, X=self.X[kept], y=self.y[kept], row_start=before[self.row_start], weights=weights)

    def select(self, users_positions: Any) -> Population:
        """The users at these positions, which must increase so that users stay sorted.

        Examples
        --------
        >>> people = Population.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], ["ann", "bob", "eve"])
        >>> people.select([0, 2]).user_ids.tolist()
        ['ann', 'eve']
        """
        positions = np.asarray(users_positions)
        integers = positions.ndim == 1 and positions.size > 0 and positions.dtype.kind in "iu"
        increasing = integers and bool(np.all(np.diff(positions) > 0))
        if not increasing or positions[0] < 0 or positions[-1] >= self.n_users:
            raise ValueError(
                f"users_positions must be increasing integers in 0..{self.n_users - 1} (n_users - 1), "
                f"got {shorten(np.atleast_1d(positions))}"
            )
        chosen = np.zeros(self.n_users, dtype=bool)
        chosen[positions] = True
        row_start = np.concatenate(([0], np.cumsum(self.sizes[positions]))).astype(np.int64)
        return replace(self.take(np.repeat(chosen, self.sizes)), row_start=row_start, user_ids=self.user_ids[positions])

    def joined(self, newer: Population) -> Population:
        """The rows of both, each user's older rows first. If only one has weights, the other's rows weigh 1.

        Examples
        --------
        >>> old = Population.from_arrays([[0.1], [0.2]], [0, 1], ["ann", "eve"])
        >>> new = Population.from_arrays([[0.3], [0.4]], [0, 1], ["ann", "bob"])
        >>> both = old.joined(new)
        >>> both.users.tolist(), both.X[:, 0].tolist()
        (['ann', 'ann', 'bob', 'eve'], [0.1, 0.3, 0.4, 0.2])
        """
        parts = (self, newer)
        ids, codes = np.unique(np.concatenate([part.users for part in parts]), return_inverse=True)
        order = np.argsort(codes, kind="stable")
        weights = None
        if self.weights is not None or newer.weights is not None:
            each = [np.ones(part.n_rows) if part.weights is None else part.weights for part in parts]
            weights = np.concatenate(each)[order]
        return replace(
            self,
            X=np.concatenate([part.X for part in parts])[order],
            y=np.concatenate([part.y for part in parts])[order],
            row_start=np.concatenate(([0], np.cumsum(np.bincount(codes)))).astype(np.int64),
            user_ids=ids,
            weights=weights,
        )


def _coded(labels: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels as -1 and +1, or as class numbers, and the classes."""
    found = np.unique(labels)
    if classes is not None:
        known = as_values(classes, "classes")
        if len(known) < 2 or len(np.unique(known)) < len(known):
            raise ValueError(f"classes must be two or more different labels, got {shorten(known)}")
        outside = found[~np.isin(found, known)] if _comparable(known, found) else found
        if len(outside):
            raise ValueError(f"y has labels that are not in classes ({shorten(known)}): {shorten(outside)}")
    elif len(found) == 1:
        raise ValueError(
            f"y holds one class only, {shorten(found)}, in all {len(labels)} rows: "
            "learning needs two. A single user may have one class, all users together may not"
        )
    else:
        known = found
    if len(known) == 2:
        return np.where(labels == known[1], 1, -1).astype(np.int8), known
    order = np.argsort(known)
    return order[np.searchsorted(known[order], labels)], known


def _numbers(targets: np.ndarray) -> np.ndarray:
    if targets.dtype.kind not in NUMERIC_KINDS:
        raise ValueError(f"y must hold numbers, got an array of type {targets.dtype}")
    return targets.astype(np.float64)


def _weights(sample_weight: Any, n_rows: int) -> np.ndarray:
    weights = np.asarray(as_values(sample_weight, "sample_weight"), np.float64)
    if len(weights) != n_rows or not (weights >= 0).all() or not weights.any():
        raise ValueError(
            f"sample_weight must be {n_rows} numbers >= 0, one per row, not all zero, got {shorten(weights)}"
        )
    return weights


def _comparable(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether values of both arrays can be equal; NumPy would compare 1 with "1" as text."""
    families = {"b": "number", "i": "number", "u": "number", "f": "number", "U": "text"}
    return families.get(a.dtype.kind, a.dtype.kind) == families.get(b.dtype.kind, b.dtype.kind)


def _refuse_other_users(found: np.ndarray, expected: np.ndarray) -> None:
    comparable = _comparable(found, expected)
    empty = expected[~np.isin(expected, found)] if comparable else expected
    if len(empty):
        raise ValueError(
            f"{len(empty)} users in user_ids have no row: {shorten(empty)}. "
            "Every user needs at least one row: add rows, or leave these users out of user_ids"
        )
    extra = found[~np.isin(found, expected)]
    if len(extra):
        raise ValueError(f"users holds {len(extra)} users that are not in user_ids: {shorten(extra)}")
