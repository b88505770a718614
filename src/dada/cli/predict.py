"""`dada predict`: labels or numbers for the rows of a table, by the models of their users."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dada import atomic
from dada.cli.console import AsJson, print_json, stdout

if TYPE_CHECKING:
    import polars as pl

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


def predictions(model: Path, file: Path, user: str | None, unknown_user: str) -> pl.DataFrame:
    """User, prediction and, for classes, score of every row."""
    import polars as pl

    from dada import DadaClassifier, modelfile
    from dada.data import read_table
    from dada.estimators.files import restored
    from dada.fitting.fit import best_class, class_scores

    stored = modelfile.read(model)
    user = user or stored.note.get("user_column", "user")
    estimator = restored(stored, model).set_params(unknown_user=unknown_user)
    frame = read_table(file)
    names = getattr(estimator, "feature_names_in_", None)
    features = [name for name in frame.columns if name != user] if names is None else list(names)
    absent = [name for name in (user, *features) if name not in frame.columns]
    if absent:
        missing, present = (", ".join(map(repr, names)) for names in (absent[:5], frame.columns[:20]))
        raise ValueError(f"{file} has no column {missing}; it has {present}. Name the column of users with --user")
    owners = frame[user].to_numpy()
    # A model fitted to an array knows its features by position only.
    X = frame.select(features).to_numpy() if names is None else frame.select(features)
    if not isinstance(estimator, DadaClassifier):
        return pl.DataFrame({user: frame[user], "label": estimator.predict(X, users=owners)})
    values = estimator.decision_function(X, users=owners)
    each = class_scores(values)
    scores = each[:, 1] if each.shape[1] == 2 else each.max(axis=1)
    return pl.DataFrame({user: frame[user], "label": estimator.classes_[best_class(values)], "score": scores})


def write_table(frame: pl.DataFrame, output: Path) -> None:
    """Write a CSV or Parquet file by its suffix, atomically."""
    if output.suffix not in (".csv", ".parquet"):
        raise ValueError(f"output must end in .csv or .parquet, got {str(output)!r}")
    with atomic.replacing(output) as file:
        frame.write_csv(file) if output.suffix == ".csv" else frame.write_parquet(file)
