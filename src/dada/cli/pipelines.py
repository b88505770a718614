"""Pipelines in model files: rows of a table pass through their steps to the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from dada import DadaClassifier, DadaRegressor

    Model = DadaClassifier | DadaRegressor


def is_pipeline(loaded: Any) -> bool:
    """Whether a model file held a pipeline."""
    return hasattr(loaded, "steps")


def only_model(loaded: Any, path: Path) -> Model:
    """The estimator of a file; refuses a pipeline, whose model takes columns as its steps have made them."""
    if is_pipeline(loaded):
        raise ValueError(
            f"{path} holds a pipeline, which this command does not take. In Python, dada.load_model reads it; "
            "its model is the last step"
        )
    return loaded


def inspected(loaded: Any) -> tuple[Model, dict[str, Any]]:
    """The model of a file, with names of its features, and the steps and columns of the pipeline that it ends."""
    import numpy as np

    if not is_pipeline(loaded):
        return loaded, {}
    model, steps = loaded[-1], [{"name": name, "type": type(step).__name__} for name, step in loaded.steps[:-1]]
    names = _made(loaded)
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model, {"pipeline": {"steps": steps, "columns": _columns(loaded)}}


def steps_in_words(pipeline: dict[str, Any]) -> str:
    """The steps of a pipeline as a sentence.

    >>> steps_in_words({"steps": [{"name": "scaler", "type": "StandardScaler"}, {"name": "pca", "type": "PCA"}]})
    'Before the models: scaler (StandardScaler), then pca (PCA).'
    """
    return f"Before the models: {', then '.join('{name} ({type})'.format(**step) for step in pipeline['steps'])}."


def rows_through(
    pipeline: Any, frame: pl.DataFrame, user: str | None, note: dict[str, str], file: Path
) -> tuple[dict[str, Any], pl.Series]:
    """X and users as the model of a pipeline takes them, from the columns of a file, and the users to report."""
    import polars as pl

    from dada.cli.model_commands import like_known
    from dada.data.population import as_values, without_column

    model, needed = pipeline[-1], _columns(pipeline)
    if model.user_column is None:
        user = user or note.get("user_column", "user")
        _refuse_absent(frame, [user, *_used(pipeline, needed or [])], file)
        X = _transformed(pipeline, frame, [name for name in frame.columns if name != user], file)
        return {"X": X, "users": like_known(as_values(frame[user], "users"), model.users_)}, frame[user]
    if user is not None:
        raise ValueError("the model takes users from what the steps before it make of the table: leave --user out")
    _refuse_absent(frame, _used(pipeline, needed or []), file)
    X = _transformed(pipeline, frame, frame.columns, file)
    column, made = model.user_column_, _made(pipeline)
    name = column if made is None or isinstance(column, str) else made[column]
    users = as_values(without_column(X, column)[1], "users")
    known = like_known(users, model.users_)
    if known.dtype.kind != users.dtype.kind:
        X = _with_users(X, column, known)
    return {"X": X}, pl.Series(_plain_name(name, needed), users)


def _columns(pipeline: Any) -> list[str] | None:
    """The columns of the table that the pipeline was fitted with; None after a fit to an array."""
    first = next(step for _, step in pipeline.steps if step not in (None, "passthrough"))
    names = getattr(first, "feature_names_in_", None)
    return None if names is None else list(names)


def _made(pipeline: Any) -> list[str] | None:
    """Names of what the steps before the model make, if they have any."""
    model = pipeline[-1]
    if hasattr(model, "feature_names_in_"):
        return list(model.feature_names_in_)
    if len(pipeline) == 1:
        return None
    try:
        names = list(pipeline[:-1].get_feature_names_out())
    # Some transformers do not name what they make.
    except (AttributeError, TypeError, ValueError):
        return None
    return names if len(names) == model.n_features_in_ else None


def _used(pipeline: Any, columns: list[str]) -> list[str]:
    """The columns but for those that the first step drops."""
    from sklearn.compose import ColumnTransformer

    first = pipeline[0]
    if not isinstance(first, ColumnTransformer):
        return columns
    dropped = {name for _, step, at in first.transformers_ if step == "drop" for name in _named(columns, at)}
    kept = {name for _, step, at in first.transformers_ if step != "drop" for name in _named(columns, at)}
    return [name for name in columns if name not in dropped - kept]


def _refuse_absent(frame: pl.DataFrame, needed: list[str], file: Path) -> None:
    from dada.data.population import did_you_mean, shorten

    absent = [name for name in needed if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{file} has no column {shorten(absent)}{did_you_mean(absent, frame.columns)}; it has "
            f"{shorten(frame.columns, 20)}. The pipeline was fitted with columns of these names"
        )


def _transformed(pipeline: Any, frame: pl.DataFrame, others: list[str], file: Path) -> Any:
    """What the steps before the model make of a table; the other columns are used if the pipeline knows no names."""
    import polars as pl

    from dada.data.population import shorten

    columns = _columns(pipeline)
    if columns is None:
        X, read = frame.select(others).to_numpy(), {}
    else:
        dropped = [pl.lit(None).alias(name) for name in columns if name not in frame.columns]
        table, read = frame.with_columns(dropped).select(columns), dict(_levels(pipeline[0], columns))
        levels = {name: known for name, known in read.items() if known is not None}
        for name, known in levels.items():
            expected, found = _kind(known), _kind_of(table[name])
            if expected and found and expected != found:
                raise ValueError(
                    f"column {name!r} of {file} holds {found}, where the pipeline was fitted to {expected}"
                )
        X = _with_missing(table, levels)
    if len(pipeline) == 1:
        return X
    try:
        return pipeline[:-1].transform(X)
    except (AttributeError, TypeError, ValueError) as error:
        given = [name for name in columns or others if name in frame.columns and name not in read]
        words = [name for name in given if _kind_of(frame[name]) == "text"]
        hint = f" (text in {shorten(words)})" if words and "could not convert string" in str(error) else ""
        raise ValueError(f"{file} does not fit the steps before the model: {error}{hint}") from error


def _levels(step: Any, columns: list[str]) -> Iterator[tuple[str, Any]]:
    """The columns that an encoder of levels reads first, and the levels that it knows; None of columns passed on."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, Pipeline

    if isinstance(step, ColumnTransformer):
        for _, part, at in step.transformers_:
            yield from _levels(part, _named(columns, at))
    elif isinstance(step, FeatureUnion):
        for _, part in step.transformer_list:
            yield from _levels(part, columns)
    elif isinstance(step, Pipeline):
        yield from _levels(step[0], columns)
    # A fitted ColumnTransformer passes columns on by a FunctionTransformer without a function.
    elif isinstance(step, str) or getattr(step, "func", step) is None:
        yield from ((name, None) for name in columns)
    elif hasattr(step, "categories_"):
        yield from zip(columns, step.categories_, strict=True)


def _named(columns: list[str], at: Any) -> list[str]:
    """Names of the columns of a transformer, which may be positions, a mask or a slice."""
    import numpy as np

    chosen = [at] if isinstance(at, str | int) else at
    if isinstance(chosen, slice):
        # A slice of names includes its end.
        start = columns.index(chosen.start) if isinstance(chosen.start, str) else chosen.start
        stop = columns.index(chosen.stop) + 1 if isinstance(chosen.stop, str) else chosen.stop
        return columns[start : stop : chosen.step]
    if len(chosen) and isinstance(chosen[0], str):
        return list(chosen)
    return np.array(columns, dtype=object)[np.asarray(chosen, dtype=None if len(chosen) else np.intp)].tolist()


def _kind(levels: np.ndarray) -> str | None:
    if levels.dtype.kind != "O":
        return {"U": "text", "T": "text", "i": "numbers", "u": "numbers", "f": "numbers", "b": "numbers"}.get(
            levels.dtype.kind
        )
    # A missing level may be None or NaN.
    kinds = {type(level) for level in levels.tolist() if level is not None and level == level}
    return "text" if kinds == {str} else "numbers" if kinds and kinds <= {bool, int, float} else None


def _kind_of(column: pl.Series) -> str | None:
    import polars as pl

    if column.null_count() == len(column):
        return None
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return "text"
    return "numbers" if column.dtype.is_numeric() or column.dtype == pl.Boolean else None


def _with_missing(table: pl.DataFrame, levels: dict[str, Any]) -> Any:
    """The table with missing text as the encoders know it: a pandas frame where it is NaN."""
    import numpy as np

    by_nan = [
        name
        for name, known in levels.items()
        if table[name].null_count()
        and _kind_of(table[name]) != "numbers"
        and any(isinstance(level, float) and np.isnan(level) for level in known[-1:])
    ]
    if not by_nan:
        return table
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('missing text that the model knows as NaN needs pandas: pip install "pandas"') from error
    columns = {name: table[name].to_numpy() for name in table.columns}
    for name in by_nan:
        values = table[name].to_list()
        columns[name] = pd.Series([np.nan if value is None else value for value in values], dtype=object)
    return pd.DataFrame(columns)


def _with_users(X: Any, column: Any, users: np.ndarray) -> Any:
    """X with other values of the user column."""
    import polars as pl

    if isinstance(X, pl.DataFrame):
        return X.with_columns(pl.Series(column, users))
    if hasattr(X, "assign"):
        return X.assign(**{column: users})
    if hasattr(X, "toarray"):
        return X
    X = X.astype(object)
    X[:, column] = users
    return X


def _plain_name(column: Any, columns: list[str] | None) -> str:
    """The name of the user column in the table; a ColumnTransformer puts the name of its part in front."""
    if not isinstance(column, str):
        return "user"
    plain = column.rpartition("__")[2]
    return plain if plain in (columns or ()) else column
