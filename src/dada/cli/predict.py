"""`dada predict`: labels or numbers for the rows of a table; `dada add-user`: models of new users from their rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada import atomic
from dada.cli.console import AsJson, print_json, stdout

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from dada import DadaClassifier, DadaRegressor

    Model = DadaClassifier | DadaRegressor

ModelFile = Annotated[Path, typer.Argument(help="Model file, as written by `dada fit`.")]


def predict(
    model: ModelFile,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with the columns of the training table.")],
    user: Annotated[
        str | None, typer.Option("--user", help="Column with the user of each row; by default as in the fit.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="CSV or Parquet file to write; by default standard output."),
    ] = None,
    unknown_user: Annotated[
        Literal["error", "average"],
        typer.Option(help="For unknown users: refuse, or use the mean of all models."),
    ] = "error",
    as_json: AsJson = False,
) -> None:
    """Predict the target of every row of a table.

    Writes the user, the prediction and, for classes, a score: of the second of two classes, or of the predicted one of
    several.

    **Examples**

    - `dada predict visits.dada new.parquet -o predicted.csv`
    - `dada predict visits.dada new.csv --user name --unknown-user average`
    """
    frame = predictions(model, file, user, unknown_user)
    if output is not None:
        write_table(frame, output)
        result = {"rows": frame.height, "output": str(output)}
        message = f"{frame.height} rows written to [bold]{output}[/bold]."
        print_json(result) if as_json else stdout().print(message, highlight=False, soft_wrap=True)
    elif as_json:
        print_json(frame.to_dicts())
    else:
        sys.stdout.write(frame.write_csv())


def add_user(
    model: ModelFile,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with rows of new users, and their labels.")],
    user: Annotated[str | None, typer.Option("--user", help="The new user; by default all users of the file.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Model file to write; by default the given one is replaced.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn models for new users next to those of a model file; no other model changes.

    The table has the columns of the training table. Its user column may be absent if --user names the only user.

    **Examples**

    - `dada add-user visits.dada newcomers.csv`
    - `dada add-user visits.dada rows-of-eve.csv --user eve -o with-eve.dada`
    """
    from dada import modelfile, save_model
    from dada.data import read_table
    from dada.estimators.files import restored

    stored = modelfile.read(model)
    estimator, frame = restored(stored, model), read_table(file)
    added = _joined(estimator, frame, user, stored.note, file)
    save_model(estimator, output or model, note=stored.note)
    followed = {str(name): len(estimator.neighbours_of(name)) for name in added}
    result = {"added": followed, "users": estimator.n_users_, "model": str(output or model)}
    if as_json:
        print_json(result)
        return
    for name, n_neighbours in followed.items():
        stdout().print(f"{name} learns from {n_neighbours} users.", highlight=False, markup=False)
    message = f"{estimator.n_users_} users written to [bold]{output or model}[/bold]."
    stdout().print(message, highlight=False, soft_wrap=True)


def _joined(estimator: Model, frame: pl.DataFrame, user: str | None, note: dict[str, str], file: Path) -> list[Any]:
    """Add the user, or all users of a frame, to a model; the ids that were added."""
    from dada.data.population import as_values, did_you_mean, shorten

    named = estimator.user_column_ if isinstance(estimator.user_column_, str) else "user"
    of_users, label = note.get("user_column", named), note.get("label_column", "label")
    features = estimator.input_columns_ or [name for name in frame.columns if name not in (of_users, label)]
    absent = [name for name in (*features, label) if name not in frame.columns]
    if absent or (user is None and of_users not in frame.columns):
        absent = absent or [of_users]
        raise ValueError(
            f"{file} has no column {shorten(absent)}{did_you_mean(absent, frame.columns)}; it has "
            f"{shorten(frame.columns, 20)}. --user names the user if no column does"
        )
    given = frame[of_users].cast(str).to_list() if of_users in frame.columns else [user] * frame.height
    owners = like_known(as_values(given, "users"), estimator.users_)
    wanted = owners[[name == user for name in given]] if user is not None else owners
    if not len(wanted):
        raise ValueError(f"{file} has no row of user {user!r}; it has rows of {shorten(sorted(set(given)))}")
    ids = sorted(set(wanted.tolist()))
    for one in ids:
        rows = frame.filter(owners == one)
        X = _with_users(estimator, rows.select(features), owners[owners == one])["X"]
        estimator.add_user(X, rows[label], one)
    return ids


def predictions(model: Path, file: Path, user: str | None, unknown_user: str) -> pl.DataFrame:
    """User, prediction and, for classes, score of every row."""
    import polars as pl

    from dada import DadaClassifier, modelfile
    from dada.data import read_table
    from dada.data.population import as_values, did_you_mean, shorten
    from dada.estimators.files import restored

    stored = modelfile.read(model)
    estimator = restored(stored, model).set_params(unknown_user=unknown_user)
    named = estimator.user_column_ if isinstance(estimator.user_column_, str) else "user"
    user = user or stored.note.get("user_column", named)
    frame = read_table(file)
    needed = estimator.input_columns_
    features = [name for name in frame.columns if name != user] if needed is None else needed
    absent = [name for name in (user, *features) if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{file} has no column {shorten(absent)}{did_you_mean(absent, frame.columns)}; it has "
            f"{shorten(frame.columns, 20)}. Name the column of users with --user"
        )
    owners = like_known(as_values(frame[user], "users"), estimator.users_)
    rows = _with_users(estimator, frame.select(features), owners)
    if not isinstance(estimator, DadaClassifier):
        return pl.DataFrame({user: frame[user], "label": estimator.predict(**rows)})
    each = estimator.predict_proba(**rows)
    scores = each[:, 1] if each.shape[1] == 2 else each.max(axis=1)
    # Of two equally probable classes, the first is predicted.
    return pl.DataFrame({user: frame[user], "label": estimator.classes_[each.argmax(axis=1)], "score": scores})


def _with_users(estimator: Model, features: pl.DataFrame, owners: np.ndarray) -> dict[str, Any]:
    """X and users as the estimator takes them: users apart, or in a column of X."""
    import numpy as np
    import polars as pl

    # A model fitted to an array knows its features by position only.
    by_position = estimator.input_columns_ is None
    X: Any = features.to_numpy() if by_position else features
    if estimator.user_column is None:
        return {"X": X, "users": owners}
    if not by_position:
        return {"X": X.with_columns(pl.Series(estimator.user_column_, owners))}
    return {"X": np.insert(X.astype(object), estimator.user_column % estimator.n_features_in_, owners, axis=1)}


def like_known(users: np.ndarray, known: np.ndarray) -> np.ndarray:
    """User ids as numbers or text, whichever the known ones are: a file may write 7 where another writes "7".

    >>> import numpy as np
    >>> like_known(np.array([7, 12]), np.array(["7", "x"])), like_known(np.array(["7"]), np.array([7, 8]))
    (array(['7', '12'], dtype='<U21'), array([7.]))
    """
    import numpy as np

    if known.dtype.kind == "U" and users.dtype.kind in "iuf":
        is_whole = users.dtype.kind == "f" and bool((users == np.round(users)).all())
        return (users.astype(np.int64) if is_whole else users).astype(str)
    if known.dtype.kind in "iuf" and users.dtype.kind == "U":
        try:
            return users.astype(np.float64)
        except ValueError:
            return users
    return users


def write_table(frame: pl.DataFrame, output: Path) -> None:
    """Write a CSV or Parquet file by its suffix, atomically."""
    if output.suffix not in (".csv", ".parquet"):
        raise ValueError(f"output must end in .csv or .parquet, got {str(output)!r}")
    with atomic.replacing(output) as file:
        frame.write_csv(file) if output.suffix == ".csv" else frame.write_parquet(file)
