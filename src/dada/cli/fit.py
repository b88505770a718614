"""`dada fit`: a model for every user of a table, and the graph between users."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import (
    AsJson,
    Seed,
    bits,
    mean_of_users,
    number,
    percent,
    print_json,
    print_table,
    progress,
    stdout,
)
from dada.cli.watching import Live, Record, watching

if TYPE_CHECKING:
    import numpy as np

    from dada import DadaClassifier, DadaRegressor, Population
    from dada.cli.console import Watch
    from dada.data import ParquetUsers, TableEncoder, UserTable
    from dada.events import Observer

TableFile = Annotated[
    Path, typer.Argument(help="CSV or Parquet file, or folder of Parquet files; one row per example.")
]
UserColumn = Annotated[str, typer.Option("--user", help="Column with the user of each row.")]
Columns = Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; repeatable.")]


def fit(
    file: TableFile,
    user: UserColumn,
    label: Annotated[str, typer.Option(help="Column to predict: classes, or numbers.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Model file to write.")] = Path("model.dada"),
    drop: Columns = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows without a user or a label; by default refused.")
    ] = False,
    task: Annotated[
        Literal["auto", "classes", "numbers"],
        typer.Option(help="What the label is; auto: numbers if it has more than 20 different ones."),
    ] = "auto",
    graph: Annotated[
        Literal["auto", "everyone", "learned", "evidence", "evidence-symmetric", "none"],
        typer.Option(help="Who learns from whom; auto: everyone, or evidence if that does better on held-out rows."),
    ] = "auto",
    beta: Annotated[float | None, typer.Option(help="Bound on a model's size: larger fits closer.")] = None,
    mu: Annotated[float | None, typer.Option(help="How strongly neighbours pull on a model.")] = None,
    lam: Annotated[float | None, typer.Option(help="Smaller gives fewer neighbours.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Model updates per user.")] = None,
    max_neighbours: Annotated[int | None, typer.Option(min=1, help="Maximum number of neighbours per user.")] = None,
    holdout: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="Share of every user's rows held out for a first trial; 0 to skip."),
    ] = 0.2,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read a Parquet file in parts, like a folder: never as a whole.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File that keeps the state of the fit; if it exists, continue from it.")
    ] = None,
    live: Live = False,
    record: Record = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Make updates here, or on a Ray cluster.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads, or shards on Ray, that share the updates.")] = None,
    latency: Annotated[
        float | None, typer.Option(help="Message delay, in units of a user's mean update interval.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Differential privacy: budget of each user; smaller protects more.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Differential privacy: delta of the budget.")] = 1e-5,
    protects: Annotated[
        Literal["rows", "labels"], typer.Option(help="What epsilon protects: whole rows, or labels only.")
    ] = "rows",
    ranges: Annotated[
        tuple[float, float] | None, typer.Option(help="Public range of all features, to protect rows.")
    ] = None,
    targets: Annotated[
        tuple[float, float] | None, typer.Option(help="Public range of the label if it is a number, to protect rows.")
    ] = None,
    norm: Annotated[float | None, typer.Option(help="Public bound on the norm of a scaled row.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="File that records what was released.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Learn a model for every user of a table, and the graph between them.

    Columns may hold numbers, text, dates and missing values. Columns that hold nothing to learn from, such as row
    numbers, are left out and reported; --epsilon for rows takes numbers only.

    First a share of every user's rows is held out, to compare learning together with learning alone; then the model
    is fitted to all rows. With --epsilon nothing is held out: a trial would need a release of its own. With a folder of
    Parquet files, or --stream, every shard reads the rows of its users and no process holds all of them; nothing is
    held out.

    **Examples**

    - `dada fit visits.parquet --user person --label came -o visits.dada`
    - `dada fit visits.csv --user person --label came --drop note --drop-missing --graph learned`
    - `dada fit visits.csv --user person --label length_of_stay --task numbers`
    - `dada fit visits.csv --user person --label came --holdout 0 --json`
    - `dada fit visits.csv --user person --label came --checkpoint half-way`
    - `dada fit visits.parquet --user person --label came --engine ray --jobs 8`
    - `dada fit visits/ --user person --label came --engine ray`
    - `dada fit visits.parquet --user person --label came --stream`
    - `dada fit visits.csv --user person --label came --live`
    - `dada fit visits.csv --user person --label came --epsilon 4 --protects labels --ledger released`
    - `dada fit visits.csv --user person --label came --epsilon 4 --ranges 0 1 --ledger released`
    """
    from dada import Privacy, population_from_table, save_model
    from dada.core.problem import peak_bytes
    from dada.data import ParquetUsers, UserTable
    from dada.events import fan_out

    in_shards = stream or file.is_dir()
    columns: Any = {"user": user, "label": label, "drop": tuple(drop or ())}
    table = encoder = None
    people: Any
    if in_shards:
        if drop_missing:
            raise ValueError(
                "--drop-missing needs the whole table: leave out --stream, or drop such rows from the files"
            )
        people = ParquetUsers.open(file, **columns)
        encoder = people.encoder
    elif epsilon is not None and protects == "rows":
        # Levels, medians and the choice of columns would reveal rows.
        people = population_from_table(file, task=task, **columns)
    else:
        table = UserTable.read(file, task=task, drop_missing=drop_missing, **columns)
        encoder = table.encoder()
        people = table.people(encoder)
    # Shards support two classes and symmetric graphs.
    graph = "learned" if in_shards and graph == "auto" else graph
    given: dict[str, Any] = {"beta": beta, "mu": mu, "lam": lam, "n_updates": updates, "max_neighbours": max_neighbours}
    given |= {"n_jobs": jobs, "latency": latency, "graph": graph, "engine": engine, "random_state": seed}
    settings = {name: value for name, value in given.items() if value is not None}
    if epsilon is not None:
        bounds: Any = {"ranges": ranges, "targets": targets, "norm": norm, "ledger": ledger}
        settings["privacy"] = Privacy(epsilon, delta, protects, **bounds)
        holdout = 0.0
    with watching(live, record) as page:
        with progress() as watch:
            held_out = None
            if table is not None and holdout > 0:
                held_out = _try_out(table, people, settings, holdout, seed, watch)
            observer = fan_out(watch("all rows"), _titled(page, f"{file.name}: {label}, by {user}"))
            model = _fitted(people, settings, observer, encoder, checkpoint)
        save_model(model, output, note={"user_column": user, "label_column": label})
        result = {
            "users": people.n_users,
            "rows": people.n_rows,
            "features": people.n_features,
            "task": "classes" if people.n_classes else "numbers",
            "graph": model.settings_["graph"],
            "train_accuracy": mean_of_users(model.train_accuracy_ if in_shards else model.trace_[-1].train_accuracy),
            "neighbours": round(model.graph_.mean_neighbours, 6),
            "bits": round(model.bits_),
            "held_out": held_out,
            "privacy": None if epsilon is None else {"sent": model.privacy_.sent, "reason": model.privacy_.reason},
            "peak_gb": round(peak_bytes() / 1e9, 3),
            "status": model.status_.value,
            "model": str(output),
            **_about_columns(table, encoder),
        }
        print_json(result) if as_json else _show(result, people.n_classes)


def _titled(page: Observer, title: str) -> Observer:
    """The page, with a title for the run."""
    from dada.events import RunInfo

    return lambda event: page(replace(event, title=title) if isinstance(event, RunInfo) else event)


def _about_columns(table: UserTable | None, encoder: TableEncoder | None) -> dict[str, Any]:
    """What became of the columns and rows of a table; nothing for a table of numbers that is used as it is."""
    about: dict[str, Any] = {
        "encoded": {} if encoder is None else encoder.features_of,
        "left_out": {} if encoder is None else encoder.left_out,
    }
    if table is not None:
        about |= {"left_out": table.left_out, "dropped_rows": table.n_dropped, "determines_label": table.telling}
    return {name: found for name, found in about.items() if found}


def _fitted(
    people: Population | ParquetUsers,
    settings: dict[str, Any],
    observer: Any,
    encoder: TableEncoder | None = None,
    checkpoint: Path | None = None,
) -> DadaClassifier | DadaRegressor:
    from dada import DadaClassifier, DadaRegressor, Population
    from dada.estimators.stream import fit_parquet

    if not isinstance(people, Population):
        return fit_parquet(DadaClassifier(**settings), people, observer=observer, checkpoint=checkpoint)
    model = DadaClassifier(**settings) if people.n_classes else DadaRegressor(**settings)
    return model.fit_population(people, encoder=encoder, observer=observer, checkpoint=checkpoint)


def _try_out(
    table: UserTable, people: Population, settings: dict[str, Any], holdout: float, seed: int, watch: Watch
) -> dict[str, Any] | None:
    """Scores on held-out rows, together and alone; None if no user has a row to spare."""
    import numpy as np

    kept = kept_rows(people.sizes, holdout, np.random.default_rng(seed))
    if kept.all():
        return None
    encoder = table.encoder(kept)
    people = people if encoder is None else table.people(encoder)
    learned, held_out = people.take(kept), people.take(~kept)
    features, truth = table.rows(~kept), held_out.targets
    scores = {}
    for name, changes in (("together", {}), ("alone", {"graph": "none"})):
        model = _fitted(learned, settings | changes, watch(f"try {name}"), encoder)
        predicted = model.predict(features, users=held_out.users)
        scores[name] = _right(predicted == truth, held_out) if people.n_classes else _explained(predicted, truth)
    return {"rows": held_out.n_rows, "users": int((held_out.sizes > 0).sum()), **scores}


def _right(right: Any, held_out: Population) -> float:
    """Share of right rows, mean over users with held-out rows."""
    from dada.core.accuracy import mean_per_user

    return mean_of_users(mean_per_user(right, held_out.row_start)[held_out.sizes > 0]) or 0.0


def _explained(predicted: Any, truth: Any) -> float:
    """Share of the variance that predictions explain."""
    import numpy as np

    spread = float(np.var(truth))
    return round(1.0 - float(np.mean((predicted - truth) ** 2)) / spread, 6) if spread > 0 else 0.0


def kept_rows(sizes: Any, holdout: float, rng: np.random.Generator) -> Any:
    """Mask of the training rows: all but a random share of each user's rows, and at least one.

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


def _show(result: dict[str, Any], n_classes: int) -> None:
    rows = [
        ["users", str(result["users"])],
        ["rows", str(result["rows"])],
        ["features", str(result["features"])],
        ["label", f"{n_classes} classes" if n_classes else "numbers"],
        ["neighbours per user", number(result["neighbours"])],
        ["simulated communication", bits(result["bits"])],
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
    _show_columns(result)
    if result["privacy"] is not None:
        stdout().print(f"\n{result['privacy']['reason']}", highlight=False, soft_wrap=True)
    stdout().print(f"\n{result['status']} Written to [bold]{result['model']}[/bold].", highlight=False, soft_wrap=True)


def _show_columns(result: dict[str, Any]) -> None:
    """What became of columns and rows that are not used as they are."""
    encoded, left_out, telling = (result.get(name, {}) for name in ("encoded", "left_out", "determines_label"))
    lines = [f"{len(encoded)} columns became {result['features']} features."] if encoded else []
    lines += [f"Left out {name!r}: {reason}." for name, reason in left_out.items()]
    if "dropped_rows" in result:
        lines.append(f"Dropped {result['dropped_rows']} rows without a user or a label.")
    for line in lines:
        stdout().print(line, highlight=False, markup=False, soft_wrap=True)
    if telling:
        names = ", ".join(map(repr, telling))
        warning = f"The label follows exactly from {names}: --drop what is not known before the label."
        stdout().print(warning, style="yellow", highlight=False, markup=False, soft_wrap=True)
