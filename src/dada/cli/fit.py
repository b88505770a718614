"""The rows of a table that a command was given, and what is to be predicted of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import AsJson, Seed, bits, number, percent, print_json, print_table, progress, stdout
from dada.cli.watch import Live, Record, watching

if TYPE_CHECKING:
    import numpy as np

    from dada import DadaClassifier, DadaRegressor, Population
    from dada.cli.console import Watch
    from dada.data import ParquetUsers
    from dada.events import Observer

# A column of more different numbers than this is taken for numbers rather than classes.
MOST_CLASSES = 20


@dataclass(frozen=True, eq=False)
class Given:
    """The rows of a table, grouped by user, and what is to be predicted of them."""

    people: Population
    targets: Any
    are_numbers: bool

    @classmethod
    def read(cls, file: Path, *, task: str, user: str, label: str, drop: tuple[str, ...]) -> Given:
        """Read a CSV or Parquet file."""
        import numpy as np
        import polars as pl

        from dada.data import population_from_table, read_table

        frame = read_table(file)
        if label not in frame.columns or frame[label].null_count() or frame[label].n_unique() == 2:
            people = population_from_table(frame, user=user, label=label, drop=drop)
            return cls(people, people.classes[(people.y > 0).astype(np.intp)], are_numbers=False)
        is_numeric = frame[label].dtype.is_numeric()
        if task == "numbers" and not is_numeric:
            raise ValueError(f"column {label!r} must hold numbers to be predicted as such, got {frame[label].dtype}")
        are_numbers = task == "numbers" or (task == "auto" and is_numeric and frame[label].n_unique() > MOST_CLASSES)
        # A population is of two classes: its labels stand for nothing here, and the targets go beside it.
        blank = frame.with_columns(pl.Series(label, np.arange(frame.height) % 2))
        people = population_from_table(blank, user=user, label=label, drop=drop)
        owners = np.unique(frame[user].to_numpy(), return_inverse=True)[1]
        return cls(people, frame[label].to_numpy()[np.argsort(owners, kind="stable")], are_numbers)

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.people.n_users

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.people.n_rows

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.people.n_features

    @property
    def users(self) -> Any:
        """Whose each row is."""
        return self.people.user_ids.repeat(self.people.sizes)

    def features(self, rows: Any = slice(None)) -> Any:
        """Some rows, with the names of the columns."""
        import polars as pl

        return pl.DataFrame(self.people.X[rows], schema=list(self.people.feature_names))


Table = Annotated[Path, typer.Argument(help="CSV or Parquet file, or folder of Parquet files; one row per example.")]
UserColumn = Annotated[str, typer.Option("--user", help="Column that says whose row it is.")]
Columns = Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; may be given several times.")]


def fit(
    file: Table,
    user: UserColumn,
    label: Annotated[str, typer.Option(help="Column to predict: classes, or numbers.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Model file to write.")] = Path("model.dada"),
    drop: Columns = None,
    task: Annotated[
        Literal["auto", "classes", "numbers"],
        typer.Option(help="What the label is; auto: numbers where it has more than 20 different ones."),
    ] = "auto",
    graph: Annotated[
        Literal["auto", "everyone", "learned", "evidence", "evidence-symmetric", "none"],
        typer.Option(help="Who learns from whom; auto: everyone from all alike, or by evidence where that is better."),
    ] = "auto",
    beta: Annotated[float | None, typer.Option(help="Bound on a model's size: larger fits closer.")] = None,
    mu: Annotated[float | None, typer.Option(help="How strongly models are drawn to their neighbours'.")] = None,
    lam: Annotated[float | None, typer.Option(help="Smaller gives fewer neighbours.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Model updates per user.")] = None,
    max_neighbours: Annotated[int | None, typer.Option(min=1, help="Most neighbours of a user.")] = None,
    holdout: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="Part of every user's rows on which the fit is first tried; 0 to skip."),
    ] = 0.2,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read a Parquet file as a folder of such files: never as a whole.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File that keeps the state of the fit; where there is one, go on from it.")
    ] = None,
    live: Live = False,
    record: Record = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Make updates here, or on a Ray cluster.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads, or shards on Ray, that share the updates.")] = None,
    latency: Annotated[
        float | None, typer.Option(help="Time an update takes to be known, in times between two of a user.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Learn a model for every user of a table, and the graph between them.

    First a part of every user's rows is held out, to say what learning together brings over learning alone; then the
    model file is made from all rows. Of a folder of Parquet files, or with --stream of one file, every shard reads the
    rows of its own users and no process holds all of them; nothing is held out.

    **Examples**

    - `dada fit visits.parquet --user person --label came -o visits.dada`
    - `dada fit visits.csv --user person --label came --drop date --drop note --graph learned`
    - `dada fit visits.csv --user person --label length_of_stay --task numbers`
    - `dada fit visits.csv --user person --label came --holdout 0 --json`
    - `dada fit visits.csv --user person --label came --checkpoint half-way`
    - `dada fit visits.parquet --user person --label came --engine ray --jobs 8`
    - `dada fit visits/ --user person --label came --engine ray`
    - `dada fit visits.parquet --user person --label came --stream`
    - `dada fit visits.csv --user person --label came --live`
    """
    from dada import modelfile, save_model
    from dada.core.memory import peak_bytes
    from dada.data import ParquetUsers
    from dada.events import everyone

    in_shards = stream or file.is_dir()
    columns: Any = {"user": user, "label": label, "drop": tuple(drop or ())}
    given_rows: Any = ParquetUsers.open(file, **columns) if in_shards else Given.read(file, task=task, **columns)
    # Shards know two classes and the graphs of the paper's kind.
    graph = "learned" if in_shards and graph == "auto" else graph
    given = {"beta": beta, "mu": mu, "lam": lam, "n_updates": updates, "max_neighbours": max_neighbours}
    given |= {"n_jobs": jobs, "latency": latency}
    settings = {name: value for name, value in given.items() if value is not None} | {"graph": graph, "engine": engine}
    with watching(live, record) as page:
        with progress() as watch:
            held_out = _try_out(given_rows, settings, holdout, seed, watch) if holdout > 0 and not in_shards else None
            observer = everyone(watch("all rows"), _titled(page, f"{file.name}: {label}, by {user}"))
            fitted = _fitted_in_shards if in_shards else _fitted
            model = fitted(given_rows, settings, seed, observer, checkpoint)
        save_model(model, output)
        modelfile.annotate(output, user_column=user, label_column=label)
        result = {
            "users": given_rows.n_users,
            "rows": given_rows.n_rows,
            "features": given_rows.n_features,
            "task": "numbers" if not in_shards and given_rows.are_numbers else "classes",
            "graph": model.settings_["graph"],
            "train_accuracy": _mean(model.train_accuracy_ if in_shards else model.trace_[-1].train_accuracy),
            "neighbours": round(model.graph_.mean_neighbours, 6),
            "bits": round(model.bits_),
            "held_out": held_out,
            "peak_gb": round(peak_bytes() / 1e9, 3),
            "status": model.status_.value,
            "model": str(output),
        }
        print_json(result) if as_json else _show(result)


def _titled(page: Observer, title: str) -> Observer:
    """The fit of all rows, as a page shows it: under the name of the table."""
    from dada.events import RunInfo

    return lambda event: page(replace(event, title=title) if isinstance(event, RunInfo) else event)


def _fitted(
    given: Given,
    settings: dict[str, Any],
    seed: int,
    observer: Any,
    checkpoint: Path | None = None,
    rows: Any = slice(None),
) -> DadaClassifier | DadaRegressor:
    from dada import DadaClassifier, DadaRegressor

    model = (DadaRegressor if given.are_numbers else DadaClassifier)(**settings, random_state=seed)
    targets, users = given.targets[rows], given.users[rows]
    model.fit(given.features(rows), targets, users=users, observer=observer, checkpoint=checkpoint)
    return model


def _fitted_in_shards(
    users: ParquetUsers, settings: dict[str, Any], seed: int, observer: Any, checkpoint: Path | None = None
) -> DadaClassifier:
    from dada import DadaClassifier
    from dada.estimators.stream import fit_parquet

    return fit_parquet(DadaClassifier(**settings, random_state=seed), users, observer=observer, checkpoint=checkpoint)


def _try_out(given: Given, settings: dict[str, Any], holdout: float, seed: int, watch: Watch) -> dict[str, Any] | None:
    """How good models are on held-out rows, together and alone; None where no user has a row to spare."""
    import numpy as np

    kept = kept_rows(given.people.sizes, holdout, np.random.default_rng(seed))
    if kept.all():
        return None
    owners, truth = given.users[~kept], given.targets[~kept]
    quality = {}
    for name, changes in (("together", {}), ("alone", {"graph": "none"})):
        model = _fitted(given, settings | changes, seed, watch(f"try {name}"), rows=kept)
        predicted = model.predict(given.features(~kept), users=owners)
        quality[name] = _explained(predicted, truth) if given.are_numbers else _right(predicted == truth, owners)
    return {"rows": int((~kept).sum()), "users": len(np.unique(owners)), **quality}


def _right(right: Any, owners: Any) -> float:
    """Mean over users of the share of their rows that are right."""
    import numpy as np

    codes = np.unique(owners, return_inverse=True)[1]
    return _mean(np.bincount(codes, weights=right) / np.bincount(codes)) or 0.0


def _explained(predicted: Any, truth: Any) -> float:
    """The part of the variance that predictions explain."""
    import numpy as np

    spread = float(np.var(truth))
    return round(1.0 - float(np.mean((predicted - truth) ** 2)) / spread, 6) if spread > 0 else 0.0


def kept_rows(sizes: Any, holdout: float, rng: np.random.Generator) -> Any:
    """Which rows stay for training: of each user all but a part, drawn at random, and never none.

    >>> import numpy as np
    >>> kept_rows(np.array([10, 1]), 0.2, np.random.default_rng(0)).sum()
    np.int64(9)
    """
    import numpy as np

    kept = []
    for size in sizes.tolist():
        mask = np.ones(size, bool)
        mask[rng.permutation(size)[: min(int(size * holdout), size - 1)]] = False
        kept.append(mask)
    return np.concatenate(kept)


def _mean(values: Any) -> float | None:
    """Of all users; None where the trace tells no accuracy, as of numbers and of several classes."""
    import numpy as np

    return None if np.isnan(values).all() else round(float(np.nanmean(values)), 6)


def _show(result: dict[str, Any]) -> None:
    rows = [
        ["users", str(result["users"])],
        ["rows", str(result["rows"])],
        ["features", str(result["features"])],
        ["neighbours per user", number(result["neighbours"])],
        ["would have been sent", bits(result["bits"])],
        ["peak memory", f"{result['peak_gb']:.2f} GB"],
    ]
    if result["train_accuracy"] is not None:
        rows.append(["accuracy on training rows", percent(result["train_accuracy"])])
    held_out = result["held_out"]
    if held_out is not None:
        what = "explained variance" if result["task"] == "numbers" else "accuracy"
        rows.append([f"{what} on {held_out['rows']} held-out rows", percent(held_out["together"])])
        rows.append(["  each user alone", percent(held_out["alone"])])
    print_table(("", ""), rows)
    stdout().print(f"\n{result['status']} Written to [bold]{result['model']}[/bold].", highlight=False, soft_wrap=True)
