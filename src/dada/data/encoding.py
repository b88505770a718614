"""Numbers from real columns: text, categories, booleans, dates and missing values.

scikit-learn's transformers learn levels and medians from the training rows. What they learn is kept as plain values,
which fit into a model file, and NumPy applies it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dada.data.population import NUMERIC_KINDS, as_features, collected, frame_columns, is_missing, shorten

# Levels of a text column, "other" included; rarer ones are pooled in it.
MOST_LEVELS = 20
# A level of its own needs this share of the rows, between two rows and ten.
LEVEL_SHARE, LEAST_LEVEL_ROWS, MOST_LEVEL_ROWS = 0.01, 2, 10
# Text with more different values than this share of its rows looks like ids.
ID_SHARE = 0.9
# A column determines the label if its groups have one label each and this many rows on average.
ROWS_PER_GROUP = 5
LEAST_ROWS_TO_JUDGE = 20
# Columns of row numbers, as writers of CSV files add them.
INDEX_NAMES = ("rownames", "row.names", "row_names")
MAYBE_INDEX_NAMES = ("index", "id", "row", "row_id", "rowid", "obs")

DAY = np.timedelta64(1, "D") / np.timedelta64(1, "us")


class Values(NamedTuple):
    """A column: float64 with NaN, datetime64[us] with NaT, or objects of text with None."""

    kind: Literal["numbers", "dates", "levels", "unusable"]
    of: NDArray[Any]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Mask of the rows without a value."""
        if self.kind == "numbers":
            return np.isnan(self.of)
        return np.isnat(self.of) if self.kind == "dates" else np.array([v is None for v in self.of], bool)

    @property
    def codes(self) -> NDArray[np.intp]:
        """The group of each row: rows with the same value, or without a value."""
        values = self.of if self.kind != "levels" else np.array(["" if v is None else f"={v}" for v in self.of])
        return np.unique(values, return_inverse=True)[1]


def read_column(column: Any) -> Values:
    """A column of a pandas or polars frame, by the kind of its values."""
    return _pandas_values(column) if hasattr(column, "iloc") else _polars_values(column)


def _polars_values(column: Any) -> Values:
    dtype, kind = column.dtype, column.dtype.base_type().__name__
    if dtype.is_numeric() or kind in ("Boolean", "Null"):
        return Values("numbers", np.asarray(column.cast(float).to_numpy(), np.float64))
    if kind == "Duration":
        return Values("numbers", _days(column.cast(int).to_numpy(), dtype.time_unit))
    if kind == "Time":
        return Values("numbers", _days(column.cast(int).to_numpy(), "ns") * 24)
    if kind in ("Date", "Datetime"):
        if getattr(dtype, "time_zone", None) is not None:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return Values("dates", np.asarray(column.to_numpy()).astype("datetime64[us]"))
    if kind in ("String", "Categorical", "Enum"):
        return Values("levels", np.array([None if v is None else str(v) for v in column.to_list()], object))
    return _object_values(column.to_list(), kind) if kind == "Object" else Values("unusable", np.array([kind]))


def _pandas_values(column: Any) -> Values:
    kind = getattr(column.dtype, "kind", "O")
    if kind in NUMERIC_KINDS:
        return Values("numbers", np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan)))
    if kind == "m":
        return Values("numbers", _days(column.to_numpy().astype("timedelta64[us]"), "us"))
    if kind == "M":
        naive = column.dt.tz_convert("UTC").dt.tz_localize(None) if getattr(column.dt, "tz", None) else column
        return Values("dates", naive.to_numpy().astype("datetime64[us]"))
    # Categories are levels, even if they are numbers.
    is_category = hasattr(column.dtype, "categories")
    return _object_values(column.tolist(), str(column.dtype), as_levels=is_category)


def _object_values(values: list[Any], dtype: str, as_levels: bool = False) -> Values:
    """Python values of any type: all numbers, all dates, or levels."""
    present = [value for value in values if not is_missing(value)]
    if any(isinstance(value, list | tuple | dict | set | bytes | np.ndarray) for value in present):
        return Values("unusable", np.array([dtype]))
    if not as_levels and all(isinstance(value, Real | np.bool_ | Decimal) for value in present):
        return Values("numbers", np.array([np.nan if is_missing(value) else value for value in values], np.float64))
    if not as_levels and all(isinstance(value, timedelta) for value in present):
        durations = [np.timedelta64("NaT") if is_missing(value) else np.timedelta64(value, "us") for value in values]
        return Values("numbers", _days(np.array(durations, "timedelta64[us]"), "us"))
    if not as_levels and all(isinstance(value, date) for value in present):
        dates = [np.datetime64("NaT") if is_missing(value) else np.datetime64(value, "us") for value in values]
        return Values("dates", np.array(dates, "datetime64[us]"))
    return Values("levels", np.array([None if is_missing(value) else str(value) for value in values], object))


def _days(durations: NDArray[Any], unit: str) -> NDArray[np.float64]:
    """Durations in days; missing ones, which NumPy holds as NaN or NaT, are NaN."""
    if durations.dtype.kind == "m":
        return np.where(np.isnat(durations), np.nan, durations.astype(np.int64) / DAY)
    return np.asarray(durations, np.float64) / (DAY * {"ms": 1e-3, "us": 1.0, "ns": 1e3}[unit])


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: missing ones are filled in, and marked in a second column if the training rows miss any."""

    kind: ClassVar[str] = "numbers"
    name: str
    fill: float
    marks_missing: bool

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [*self._own_names, *([f"{self.name} missing"] if self.marks_missing else [])]

    def encoded(self, values: Values) -> list[NDArray[np.float64]]:
        """The encoded columns of a column."""
        numbers = self._numbers(values)
        missing = np.isnan(numbers)
        own = self._own_columns(np.where(missing, self.fill, numbers))
        return [*own, *([missing.astype(np.float64)] if self.marks_missing else [])]

    @property
    def _own_names(self) -> list[str]:
        return [self.name]

    def _own_columns(self, numbers: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return [numbers]

    def _numbers(self, values: Values) -> NDArray[np.float64]:
        return values.of if values.kind == "numbers" else np.array(_parsed(self, values, float), np.float64)


@dataclass(frozen=True)
class Dates(Numbers):
    """A column of dates: days since 1970 and, if they vary, month (1 to 12), weekday (Monday is 0) and hour."""

    kind: ClassVar[str] = "dates"
    parts: tuple[str, ...]

    @property
    def _own_names(self) -> list[str]:
        return [f"{part} of {self.name}" for part in self.parts]

    def _own_columns(self, numbers: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return [PARTS[part](numbers) for part in self.parts]

    def _numbers(self, values: Values) -> NDArray[np.float64]:
        dates = (
            values.of if values.kind == "dates" else np.array(_parsed(self, values, np.datetime64), "datetime64[us]")
        )
        return _days_of(dates)


@dataclass(frozen=True)
class Levels:
    """A column of text: a column for each frequent level, for missing values (None) and for all other levels."""

    kind: ClassVar[str] = "levels"
    name: str
    levels: tuple[str | None, ...]
    has_other: bool

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        of_levels = [f"{self.name} missing" if each is None else f'{self.name} = "{each}"' for each in self.levels]
        return [*of_levels, *([f"{self.name} = other"] if self.has_other else [])]

    def encoded(self, values: Values) -> list[NDArray[np.float64]]:
        """The encoded columns of a column; an unknown level is "other", or zero everywhere."""
        if values.kind == "numbers":
            values = Values("levels", np.array([_as_text(v) for v in values.of.tolist()], object))
        position = {level: j for j, level in enumerate(self.levels)}
        codes = np.array([position.get(value, len(self.levels)) for value in values.of.tolist()], np.intp)
        return [(codes == j).astype(np.float64) for j in range(len(self.names))]


Column = Numbers | Levels
KINDS: dict[str, type[Column]] = {"numbers": Numbers, "dates": Dates, "levels": Levels}


def _days_of(dates: NDArray[Any]) -> NDArray[np.float64]:
    return np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / DAY)


def _months(days: NDArray[np.float64]) -> NDArray[np.float64]:
    whole = np.floor(days).astype(np.int64).astype("datetime64[D]")
    return (whole.astype("datetime64[M]").astype(np.int64) % 12 + 1).astype(np.float64)


PARTS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "day": lambda days: days,
    "month": _months,
    "weekday": lambda days: (np.floor(days) + 3) % 7,
    "hour": lambda days: np.round((days - np.floor(days)) * 24, 6),
}


def _as_text(number: float) -> str | None:
    """A number as it is written in a column of text that holds it."""
    return None if math.isnan(number) else str(int(number)) if number.is_integer() else str(number)


def _parsed(column: Column, values: Values, parse: Callable[[str], Any]) -> list[Any]:
    """Text as the numbers or dates that the column held at the fit."""
    found = values.of[~values.missing].tolist()
    try:
        if values.kind == "levels" or not found:
            return [parse("nan" if parse is float else "NaT") if v is None else parse(v) for v in _texts(values)]
    except ValueError:
        pass
    raise ValueError(
        f"column {column.name!r} must hold {column.kind}, as at the fit, got {values.kind} such as {shorten(found, 3)}"
    )


def _texts(values: Values) -> list[str | None]:
    return values.of.tolist() if values.kind == "levels" else [None] * len(values.of)


@dataclass(frozen=True)
class TableEncoder:
    """How the columns of a table become numbers, learned from its training rows.

    Numbers and booleans stay; missing ones become the median, marked in a column of their own. Text and categories
    become a column for each frequent level. Dates become days and, where these vary, month, weekday and hour.

    Attributes
    ----------
    columns : tuple of Numbers, Dates or Levels
        The encoded columns, in the order of the training table.
    left_out : dict of str to str
        Columns that are not used, and why.

    Examples
    --------
    >>> import polars as pl
    >>> visits = pl.DataFrame({"age": [31, None, 64, 40], "town": ["Rome", "Rome", "Oslo", "Oslo"], "year": [2024] * 4})
    >>> encoder = TableEncoder.fit(visits)
    >>> encoder.feature_names
    ('age', 'age missing', 'town = "Oslo"', 'town = "Rome"')
    >>> encoder.transform(pl.DataFrame({"town": ["Oslo", "Bonn"], "age": [50, None]})).tolist()
    [[50.0, 0.0, 1.0, 0.0], [40.0, 1.0, 0.0, 0.0]]
    >>> encoder.source_column[3], encoder.left_out
    ('town', {'year': 'the same value in every row'})
    """

    columns: tuple[Column, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def fit(cls, frame: Any, *, users: Any = None, keep_all: bool = False) -> Self:
        """Learn levels, medians and parts of dates from the rows of a pandas or polars frame.

        A text column that names the given `users` is left out. With `keep_all`, no column is left out, even if it
        holds nothing to learn from.
        """
        values = {name: read_column(column) for name, column in frame_columns(collected(frame)).items()}
        left_out = {} if keep_all else useless_columns(values) | _user_columns(values, users)
        used = {name: column for name, column in values.items() if name not in left_out}
        if not used:
            raise ValueError(f"no column is left to learn from: {_reasons(left_out)}")
        fills = _fills(used)
        return cls(tuple(_learned(name, column, fills.get(name)) for name, column in used.items()), left_out)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that `transform` needs."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """A readable name for each encoded column."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def source_column(self) -> tuple[str, ...]:
        """The column of the table that each encoded column comes from."""
        return tuple(column.name for column in self.columns for _ in column.names)

    @property
    def features_of(self) -> dict[str, int]:
        """The columns that `transform` needs, and the number of features that each becomes."""
        return {column.name: len(column.names) for column in self.columns}

    def transform(self, frame: Any) -> NDArray[np.float64]:
        """The encoded rows of a frame, whose columns may have any order, and others beside them."""
        given = frame_columns(collected(frame))
        absent = [name for name in self.inputs if name not in given]
        if absent:
            raise ValueError(
                f"X has no column {shorten(absent)}, which the model needs; it has {shorten(list(given), 20)}"
            )
        parts = [part for column in self.columns for part in column.encoded(_usable(column, given[column.name]))]
        return as_features(np.column_stack(parts), self.feature_names)[0]

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can express it."""
        return {
            "columns": [{"kind": column.kind, **asdict(column)} for column in self.columns],
            "left_out": self.left_out,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The encoder of `to_json`; refuses content that makes no sense."""
        return cls(
            tuple(_from_json(column) for column in content["columns"]),
            {str(name): str(reason) for name, reason in content["left_out"].items()},
        )


def _usable(column: Column, given: Any) -> Values:
    values = read_column(given)
    if values.kind == "unusable":
        raise ValueError(f"column {column.name!r} must hold {column.kind}, as at the fit, got {values.of[0]}")
    return values


def _from_json(content: dict[str, Any]) -> Column:
    own = dict(content)
    kind = KINDS[own.pop("kind")]
    values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    column = kind(**values)
    if isinstance(column, Levels):
        sound = all(level is None or isinstance(level, str) for level in column.levels) and bool(column.names)
    else:
        sound = math.isfinite(column.fill)
        sound = sound and (not isinstance(column, Dates) or set(column.parts) <= set(PARTS))
    if not sound:
        raise ValueError(f"the encoding of column {column.name!r} makes no sense")
    return column


def needs_encoding(frame: Any) -> bool:
    """Whether a frame has a column that is not numeric, or a missing value.

    >>> import polars as pl
    >>> needs_encoding(pl.DataFrame({"age": [31, 64]})), needs_encoding(pl.DataFrame({"age": [31, None]}))
    (False, True)
    """
    columns = map(read_column, frame_columns(frame).values())
    return any(column.kind != "numbers" or bool(np.isnan(column.of).any()) for column in columns)


def useless_columns(values: dict[str, Values]) -> dict[str, str]:
    """Columns that hold nothing to learn from, and why."""
    found = {name: _useless(name, column) for name, column in values.items()}
    return {name: reason for name, reason in found.items() if reason}


def _user_columns(values: dict[str, Values], users: Any) -> dict[str, str]:
    ids = None if users is None else np.asarray(users).astype(str).tolist()
    texts = {name: column.of.tolist() for name, column in values.items() if column.kind == "levels"}
    return {name: "the users" for name, text in texts.items() if text == ids}


def _useless(name: str, column: Values) -> str:
    if column.kind == "unusable":
        return f"of type {column.of[0]}, which is neither numbers, text nor dates"
    missing = column.missing
    if missing.all():
        return "all values are missing"
    if is_index(name, column):
        return "row numbers"
    n_values, n_rows = len(np.unique(column.codes[~missing])), int((~missing).sum())
    if n_values == 1 and not missing.any():
        return "the same value in every row"
    if column.kind != "levels":
        return ""
    counts = np.bincount(column.codes[~missing])
    if n_values > max(1.0, ID_SHARE * n_rows) or (counts.max() < least_level_rows(len(missing)) and not missing.any()):
        return f"text with {n_values} different values in {n_rows} rows, like ids"
    return ""


def is_index(name: str, column: Values) -> bool:
    """Whether a column has the name and the values of row numbers.

    >>> numbers = Values("numbers", np.array([4.0, 2.0]))
    >>> is_index("Unnamed: 0", numbers), is_index("age", numbers)
    (True, False)
    """
    plain = name.strip().lower()
    is_unnamed = plain.startswith("unnamed: ") or plain in ("", "_duplicated_0")
    if column.kind != "numbers" or not (is_unnamed or plain in INDEX_NAMES + MAYBE_INDEX_NAMES):
        return False
    numbers = column.of
    if np.isnan(numbers).any() or (numbers != np.round(numbers)).any() or len(np.unique(numbers)) < len(numbers):
        return False
    # Rows that were drawn or sorted keep their numbers, so a telling name is enough.
    is_running = len(numbers) > 1 and bool((np.diff(numbers) == 1).all())
    return is_unnamed or plain in INDEX_NAMES or is_running


def least_level_rows(n_rows: int) -> int:
    """Rows that a level of its own needs in a table of this size."""
    return int(np.clip(LEVEL_SHARE * n_rows, LEAST_LEVEL_ROWS, MOST_LEVEL_ROWS))


def _fills(used: dict[str, Values]) -> dict[str, tuple[float, bool]]:
    """The median of each column of numbers or dates, and whether it misses any."""
    from sklearn.impute import SimpleImputer

    dense = {name: column for name, column in used.items() if column.kind != "levels"}
    if not dense:
        return {}
    table = np.column_stack([_days_of(c.of) if c.kind == "dates" else c.of for c in dense.values()])
    # Infinity is refused later, with its place.
    finite = np.where(np.isinf(table), 0.0, table)
    imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True).fit(finite)
    marked = np.isin(np.arange(len(dense)), imputer.indicator_.features_)
    return dict(zip(dense, zip(imputer.statistics_.tolist(), marked.tolist(), strict=True), strict=True))


def _learned(name: str, column: Values, fill: tuple[float, bool] | None) -> Column:
    if column.kind == "numbers" and fill is not None:
        return Numbers(name, *fill)
    if column.kind == "dates" and fill is not None:
        days = _days_of(column.of[~column.missing])
        return Dates(name, *fill, parts=("day", *(_useful_parts(days) if days.size else ())))
    return _learned_levels(name, column)


def _useful_parts(days: NDArray[np.float64]) -> Sequence[str]:
    """Parts of dates that vary; within a year the month says nothing beyond the day."""
    years = days.astype(np.int64).astype("datetime64[D]").astype("datetime64[Y]")
    parts = [part for part in ("weekday", "hour") if np.ptp(PARTS[part](days)) > 0]
    has_months = len(np.unique(years)) > 1 and np.ptp(_months(days)) > 0
    return ["month", *parts] if has_months else parts


def _learned_levels(name: str, column: Values) -> Levels:
    from sklearn.preprocessing import OneHotEncoder

    values = column.of[:, None]
    encoder = OneHotEncoder(
        min_frequency=least_level_rows(len(values)), max_categories=MOST_LEVELS, handle_unknown="infrequent_if_exist"
    ).fit(values)
    rare = encoder.infrequent_categories_[0]
    pooled = [] if rare is None else rare.tolist()
    return Levels(name, tuple(v for v in encoder.categories_[0].tolist() if v not in pooled), bool(pooled))


def telling_columns(frame: Any, targets: NDArray[Any], used: Sequence[str] | None = None) -> list[str]:
    """Columns that determine the target exactly, which often means that they were recorded after it.

    Examples
    --------
    >>> import polars as pl
    >>> left = np.array([0, 1] * 20)
    >>> telling_columns(pl.DataFrame({"reason": np.where(left, "moved", "-"), "age": np.arange(40) % 7}), left)
    ['reason']
    """
    codes = np.unique(targets, return_inverse=True)[1]
    columns = frame_columns(collected(frame))
    return [
        name
        for name, column in columns.items()
        if (used is None or name in used) and _is_telling(read_column(column), targets, codes)
    ]


def _is_telling(column: Values, targets: NDArray[Any], labels: NDArray[np.intp]) -> bool:
    n_rows, n_labels = len(labels), int(labels.max()) + 1
    if column.kind == "unusable" or n_rows < LEAST_ROWS_TO_JUDGE or n_labels < 2:
        return False
    groups = column.codes
    n_groups = int(groups.max()) + 1
    if len(np.unique(groups * n_labels + labels)) > n_groups or n_groups == 1:
        return False
    if n_groups * ROWS_PER_GROUP <= n_rows:
        return True
    # Numbers may determine the label by thresholds, or be the target in another unit.
    if column.kind != "numbers" or np.isnan(column.of).any():
        return False
    if n_labels * ROWS_PER_GROUP <= n_rows:
        return int((np.diff(labels[np.argsort(column.of)]) != 0).sum()) == n_labels - 1
    if targets.dtype.kind not in NUMERIC_KINDS:
        return False
    return bool(abs(np.corrcoef(column.of, targets.astype(np.float64))[0, 1]) > 1 - 1e-9)


def _reasons(left_out: dict[str, str]) -> str:
    names = list(left_out)
    shown = "; ".join(f"{name!r}: {left_out[name]}" for name in names[:5])
    return shown if len(names) <= 5 else f"{shown}; and {len(names) - 5} more"
