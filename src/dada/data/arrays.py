"""Convert input (lists, numpy, pandas, polars, scipy.sparse) to checked arrays.

Neither pandas nor polars is imported: a frame is recognised by its own attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

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
