"""`dada fit`: from a table with a user column to a model file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from dada.cli.console import AsJson, Seed, bits, number, percent, print_json, print_table, progress, stdout
from dada.cli.watch import Live, Record, watching

if TYPE_CHECKING:
    from dada import DadaClassifier, Population
    from dada.cli.console import Watch
    from dada.data import ParquetUsers
    from dada.events import Observer

Table = Annotated[Path, typer.Argument(help="CSV or Parquet file, or folder of Parquet files; one row per example.")]
UserColumn = Annotated[str, typer.Option("--user", help="Column that says whose row it is.")]
Columns = Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; may be given several times.")]


def fit(
    file: Table,
    user: UserColumn,
    label: Annotated[str, typer.Option(help="Column to predict; two distinct values.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Model file to write.")] = Path("model.dada"),
    drop: Columns = None,
    graph: Annotated[
        Literal["learned", "evidence", "none"], typer.Option(help="How to find who learns from whom.")
    ] = "learned",
    beta: Annotated[float | None, typer.Option(help="Bound on a model's size: larger fits closer.")] = None,
    mu: Annotated[float | None, typer.Option(help="How strongly models are drawn to their neighbours'.")] = None,
    lam: Annotated[float | None, typer.Option(help="Smaller gives fewer neighbours.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Model updates per user.")] = None,
    max_neighbours: Annotated[int | None, typer.Option(min=1, help="Most neighbours of a user.")] = None,
    holdout: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="Part of every user's rows on which the fit is first tried; 0 to skip."),
    ] = 0.2,
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
    model file is made from all rows. Of a folder of Parquet files, every shard reads the rows of its own users and no
    process holds all of them; nothing is held out.

    **Examples**

    - `dada fit visits.parquet --user person --label came -o visits.dada`
    - `dada fit visits.csv --user person --label came --drop date --drop note --graph evidence`
    - `dada fit visits.csv --user person --label came --holdout 0 --json`
    - `dada fit visits.csv --user person --label came --checkpoint half-way`
    - `dada fit visits.parquet --user person --label came --engine ray --jobs 8`
    - `dada fit visits/ --user person --label came --engine ray`
    - `dada fit visits.csv --user person --label came --live`
    """
    from dada import modelfile, save_model
    from dada.core.memory import peak_bytes
    from dada.data import ParquetUsers, population_from_table
    from dada.events import everyone

    in_shards = file.is_dir()
    read = ParquetUsers.open if in_shards else population_from_table
    people: Any = read(file, user=user, label=label, drop=tuple(drop or ()))
    given = {"beta": beta, "mu": mu, "lam": lam, "n_updates": updates, "max_neighbours": max_neighbours}
    given |= {"n_jobs": jobs, "latency": latency}
    settings = {name: value for name, value in given.items() if value is not None} | {"graph": graph, "engine": engine}
    with watching(live, record) as page:
        with progress() as watch:
            held_out = _try_out(people, settings, holdout, seed, watch) if holdout > 0 and not in_shards else None
            observer = everyone(watch("all rows"), _titled(page, f"{file.name}: {label}, by {user}"))
            fitted = _fitted_in_shards if in_shards else _fitted
            model = fitted(people, settings, seed, observer, checkpoint)
        save_model(model, output)
        modelfile.annotate(output, user_column=user, label_column=label)
        result = {
            "users": people.n_users,
            "rows": people.n_rows,
            "features": people.n_features,
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
    people: Population, settings: dict[str, Any], seed: int, observer: Any, checkpoint: Path | None = None
) -> DadaClassifier:
    from dada import DadaClassifier

    labels = people.classes[(people.y > 0).astype(np.intp)]
    model = DadaClassifier(**settings, random_state=seed)
    users = people.user_ids.repeat(people.sizes)
    return model.fit(_frame(people), labels, users=users, observer=observer, checkpoint=checkpoint)


def _fitted_in_shards(
    users: ParquetUsers, settings: dict[str, Any], seed: int, observer: Any, checkpoint: Path | None = None
) -> DadaClassifier:
    from dada import DadaClassifier
    from dada.estimators.far import fit_parquet

    return fit_parquet(DadaClassifier(**settings, random_state=seed), users, observer=observer, checkpoint=checkpoint)


def _frame(people: Population) -> Any:
    import polars as pl

    return pl.DataFrame(people.X, schema=list(people.feature_names))


def _try_out(
    people: Population, settings: dict[str, Any], holdout: float, seed: int, watch: Watch
) -> dict[str, Any] | None:
    """Accuracy on held-out rows, together and alone; None where no user has a row to spare."""
    kept = kept_rows(people.sizes, holdout, np.random.default_rng(seed))
    tested = np.flatnonzero(np.diff(np.concatenate([[0], np.cumsum(~kept)])[people.row_start]))
    if tested.size == 0:
        return None
    users = people.user_ids.repeat(people.sizes)
    train = _part(people, users, kept)
    test = _part(people.select(tested), *_rows_of(people, users, ~kept, tested))
    accuracy = {}
    for name, changes in (("together", {}), ("alone", {"graph": "none", "mu": 0.0})):
        model = _fitted(train, settings | changes, seed, watch(f"try {name}"))
        owners = test.user_ids.repeat(test.sizes)
        right = model.predict(_frame(test), users=owners) == test.classes[(test.y > 0).astype(np.intp)]
        accuracy[name] = _mean(np.add.reduceat(right.astype(float), test.row_start[:-1]) / test.sizes)
    return {"rows": int((~kept).sum()), "users": int(tested.size), **accuracy}


def kept_rows(sizes: Any, holdout: float, rng: np.random.Generator) -> Any:
    """Which rows stay for training: of each user all but a part, drawn at random, and never none.

    >>> kept_rows(np.array([10, 1]), 0.2, np.random.default_rng(0)).sum()
    np.int64(9)
    """
    kept = []
    for size in sizes.tolist():
        mask = np.ones(size, bool)
        mask[rng.permutation(size)[: min(int(size * holdout), size - 1)]] = False
        kept.append(mask)
    return np.concatenate(kept)


def _rows_of(people: Population, users: Any, mask: Any, positions: Any) -> tuple[Any, Any]:
    """The users and the mask of those rows alone that belong to users at some positions."""
    belongs = np.isin(users, people.user_ids[positions])
    return users[belongs], mask[belongs]


def _part(people: Population, users: Any, mask: Any) -> Population:
    from dada import Population

    labels = people.classes[(people.y > 0).astype(np.intp)]
    return Population.from_arrays(
        people.X[mask], labels[mask], users[mask], feature_names=people.feature_names, classes=people.classes
    )


def _mean(values: Any) -> float:
    return round(float(np.nanmean(values)), 6)


def _show(result: dict[str, Any]) -> None:
    rows = [
        ["users", str(result["users"])],
        ["rows", str(result["rows"])],
        ["features", str(result["features"])],
        ["neighbours per user", number(result["neighbours"])],
        ["would have been sent", bits(result["bits"])],
        ["peak memory", f"{result['peak_gb']:.2f} GB"],
        ["accuracy on training rows", percent(result["train_accuracy"])],
    ]
    held_out = result["held_out"]
    if held_out is not None:
        rows.append([f"accuracy on {held_out['rows']} held-out rows", percent(held_out["together"])])
        rows.append(["  each user alone", percent(held_out["alone"])])
    print_table(("", ""), rows)
    stdout().print(f"\n{result['status']} Written to [bold]{result['model']}[/bold].", highlight=False, soft_wrap=True)
