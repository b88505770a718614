"""`dada predict`: labels or numbers for the rows of a table, each by its own user's model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dada.cli.console import AsJson, print_json, stdout

if TYPE_CHECKING:
    import polars as pl

ModelFile = Annotated[Path, typer.Argument(help="Model file, as written by `dada fit`.")]


def predict(
    model: ModelFile,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with the columns of the training table.")],
    user: Annotated[
        str | None, typer.Option("--user", help="Column that says whose row it is; by default as it was at the fit.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="CSV or Parquet file to write; else standard output."),
    ] = None,
    unknown_user: Annotated[
        Literal["error", "average"],
        typer.Option(help="What to do with users the model does not know: refuse, or use the mean of all models."),
    ] = "error",
    as_json: AsJson = False,
) -> None:
    """Predict the label of every row of a table.

    Writes the user and the predicted label, in the order of the rows; of two classes the score of the second, of more
    the score of the predicted one, and of numbers none.

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
    """The user, label and, of classes, score of every row."""
    import polars as pl

    from dada import DadaClassifier, load_model, modelfile
    from dada.data import read_table

    user = user or modelfile.read(model).note.get("user_column", "user")
    estimator = load_model(model).set_params(unknown_user=unknown_user)
    frame = read_table(file)
    names = getattr(estimator, "feature_names_in_", None)
    features = [name for name in frame.columns if name != user] if names is None else list(names)
    absent = [name for name in (user, *features) if name not in frame.columns]
    if absent:
        missing, present = (", ".join(map(repr, names)) for names in (absent[:5], frame.columns[:20]))
        raise ValueError(f"{file} has no column {missing}; it has {present}. Name the column of users with --user")
    owners = frame[user].to_numpy()
    # A model that was fitted on an array knows its features by their places only.
    X = frame.select(features).to_numpy() if names is None else frame.select(features)
    found = pl.DataFrame({user: frame[user], "label": estimator.predict(X, users=owners)})
    if not isinstance(estimator, DadaClassifier):
        return found
    each = estimator.predict_proba(X, users=owners)
    scores = each[:, 1] if each.shape[1] == 2 else each.max(axis=1)
    return found.with_columns(score=pl.Series(scores))


def write_table(frame: pl.DataFrame, output: Path) -> None:
    """Write a table by the ending of the name, whole or not at all."""
    if output.suffix not in (".csv", ".parquet"):
        raise ValueError(f"output must end in .csv or .parquet, got {str(output)!r}")
    temporary = output.with_name(f".{output.name}.part")
    try:
        frame.write_csv(temporary) if output.suffix == ".csv" else frame.write_parquet(temporary)
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
