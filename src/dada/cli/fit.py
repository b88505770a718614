"""`dada fit`: a model for every user of a table, and the graph between users."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import (
    OUTPUT,
    AsJson,
    Seed,
    bits,
    mean_of_users,
    number,
    percent,
    print_json,
    print_table,
    progress,
    short,
    stderr,
    stdout,
    write,
)
from dada.cli.explained import GIVEN_GRAPH, WHO_LEARNS
from dada.cli.private_fits import about_privacy, benefit, benefit_line, budget_lines, noting, public_groups, show_result
from dada.cli.watching import Ending, Live, Record, watching

if TYPE_CHECKING:
    import numpy as np

    from dada import Population
    from dada.cli.console import Watch
    from dada.cli.model_commands import Model
    from dada.data import ParquetUsers, TableEncoder, UserTable
    from dada.events import Observer
    from dada.fitting.models import Decided

TableFile = Annotated[
    Path, typer.Argument(help="CSV or Parquet file, or folder of Parquet files; one row per example.")
]
UserColumn = Annotated[str, typer.Option("--user", help="Column with the user of each row.")]
Columns = Annotated[list[str] | None, typer.Option("--drop", help="Column to leave out; repeatable.")]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows without a user or a label; by default refused.")
]
Task = Annotated[
    Literal["auto", "classes", "numbers"],
    typer.Option(help="What the label is; auto: numbers if it has more than 20 different ones."),
]
Predictors = Annotated[
    Literal["auto", "linear", "stumps", "waves", "trees", "grown", "boosted"],
    typer.Option("--predictors", help="Base predictors; auto: those that do best on held-out rows."),
]
Graph = Annotated[
    Literal["auto", "everyone", "learned", "evidence", "evidence-symmetric", "none"],
    typer.Option(help="Who learns from whom; auto: everyone, or evidence if that does better on held-out rows."),
]
Holdout = Annotated[
    float,
    typer.Option(min=0.0, max=0.9, help="Share of every user's rows held out for a first trial; 0 to skip."),
]
Stream = Annotated[
    bool, typer.Option("--stream", help="Read a Parquet file in parts, like a folder: never as a whole.")
]
CheckpointFile = Annotated[
    Path | None, typer.Option(help="File that keeps the state of the fit; if it exists, continue from it.")
]
Latency = Annotated[float | None, typer.Option(help="Message delay, in units of a user's mean update interval.")]
Epsilon = Annotated[
    float | None, typer.Option(help="Differential privacy: budget of each user; smaller protects more.")
]
Protects = Annotated[Literal["rows", "labels"], typer.Option(help="What epsilon protects: whole rows, or labels only.")]
FeatureRange = Annotated[
    tuple[float, float] | None, typer.Option(help="Public range of all features, to protect rows.")
]
TargetRange = Annotated[
    tuple[float, float] | None, typer.Option(help="Public range of the label if it is a number, to protect rows.")
]
SecureSum = Annotated[
    bool, typer.Option("--secure-sum", help="To protect rows: only sums of users' statistics are seen.")
]
GroupColumn = Annotated[
    str | None, typer.Option(help="Column with a user's public group, no feature: one secure sum for each.")
]

ALONE = {"graph": "none", "mu": 0.0}
# Stages of a fit, and their usual shares of the work: choices are made in the first.
ALL_ROWS = "all rows"
STAGES = {"together": 0.7, "alone": 0.1, "one model": 0.05, ALL_ROWS: 0.15}
# What Ctrl-C leaves.
NO_MODEL = "interrupted before the first model was learned: there is nothing to write"
OF_SOME_ROWS = "The fit was interrupted; kept is the model of all rows but those held out."
WORKERS = ("engine", "n_jobs", "latency")
TITLES = {
    "together": "learning together",
    "alone": "each user alone",
    "one_model": "one model for all",
    "commonest": "always the commonest label",
    "mean": "always the mean",
}
COLUMNS = {
    "accuracy_over_rows": "accuracy over rows",
    "accuracy_over_users": "over users",
    "log_loss": "log-loss",
    "r2": "R2",
    "error_over_rows": "mean absolute error over rows",
    "error_over_users": "over users",
}


def fit(
    file: TableFile,
    user: UserColumn,
    label: Annotated[str, typer.Option(help="Column to predict: classes, or numbers.")],
    output: Annotated[Path, typer.Option(*OUTPUT, help="Model file to write.")] = Path("model.dada"),
    drop: Columns = None,
    drop_missing: DropMissing = False,
    task: Task = "auto",
    predictors: Predictors = "auto",
    graph: Graph = "auto",
    beta: Annotated[float | None, typer.Option(help="Bound on a model's size: larger fits closer.")] = None,
    mu: Annotated[float | None, typer.Option(help="How strongly neighbours pull on a model.")] = None,
    lam: Annotated[float | None, typer.Option(help="Smaller gives fewer neighbours.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Model updates per user.")] = None,
    max_neighbours: Annotated[int | None, typer.Option(min=1, help="Maximum number of neighbours per user.")] = None,
    holdout: Holdout = 0.2,
    stream: Stream = False,
    checkpoint: CheckpointFile = None,
    live: Live = False,
    record: Record = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Make updates here, or on a Ray cluster.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads, or shards on Ray, that share the updates.")] = None,
    latency: Latency = None,
    epsilon: Epsilon = None,
    delta: Annotated[float, typer.Option(help="Differential privacy: delta of the budget.")] = 1e-5,
    protects: Protects = "rows",
    ranges: FeatureRange = None,
    targets: TargetRange = None,
    norm: Annotated[float | None, typer.Option(help="Public bound on the norm of a scaled row.")] = None,
    secure_sum: SecureSum = False,
    group: GroupColumn = None,
    ledger: Annotated[Path | None, typer.Option(help="File that records what was released.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Learn a model for every user of a table, and the graph between them.

    Columns may hold numbers, text, dates and missing values. Columns that hold nothing to learn from, such as row
    numbers, are left out and reported; --epsilon for rows takes numbers only.

    First a share of every user's rows is held out, to compare learning together with each user alone, one model for all
    and a constant prediction. What is open (base predictors, graph, mu) is chosen once, on the other rows; then the
    model is fitted to all rows with the same choices. With a folder of Parquet files, or --stream, every shard reads
    the rows of its users and no process holds all of them; choices are made on a sample of the users, and nothing is
    held out for a first trial.

    With --epsilon such a trial would need a release of its own. Instead rows are held out at home, to compare this
    budget with sending nothing and with no privacy; --holdout 0 skips that.

    **Examples**

    - `dada fit visits.parquet --user person --label came -o visits.dada`
    - `dada fit visits.csv --user person --label came --drop note --drop-missing --graph learned`
    - `dada fit visits.csv --user person --label length_of_stay --task numbers`
    - `dada fit visits.csv --user person --label came --predictors linear --out visits.dada`
    - `dada fit visits.csv --user person --label came --holdout 0 --json`
    - `dada fit visits.csv --user person --label came --checkpoint half-way`
    - `dada fit visits.parquet --user person --label came --engine ray --jobs 8`
    - `dada fit visits/ --user person --label came --engine ray`
    - `dada fit visits.parquet --user person --label came --stream`
    - `dada fit visits.csv --user person --label came --live`
    - `dada fit visits.csv --user person --label came --epsilon 4 --protects labels --ledger released`
    - `dada fit visits.csv --user person --label came --epsilon 4 --ranges 0 1 --ledger released`
    - `dada fit visits.csv --user person --label came --epsilon 1 --ranges 0 1 --secure-sum --group city`
    """
    from dada import Privacy, population_from_table, save_model
    from dada.core.problem import peak_bytes
    from dada.data import ParquetUsers, UserTable
    from dada.events import fan_out, silent

    in_shards = stream or file.is_dir()
    columns: Any = {"user": user, "label": label, "drop": (*(drop or ()), *([] if group is None else [group]))}
    table = encoder = None
    people: Any
    if in_shards:
        if drop_missing:
            raise ValueError(
                "--drop-missing needs the whole table: leave out --stream, or drop such rows from the files"
            )
        people = ParquetUsers.open(file, task=task, **columns)
        encoder = people.encoder
    elif epsilon is not None and protects == "rows":
        # Levels, medians and the choice of columns would reveal rows.
        people = population_from_table(file, task=task, **columns)
    else:
        table = UserTable.read(file, task=task, drop_missing=drop_missing, **columns)
        encoder = table.encoder()
        people = table.people(encoder)
    given: dict[str, Any] = {"beta": beta, "mu": mu, "lam": lam, "n_updates": updates, "max_neighbours": max_neighbours}
    given |= {"n_jobs": jobs, "latency": latency, "graph": graph, "engine": engine, "random_state": seed}
    given["predictors"] = None if predictors == "auto" else predictors
    settings = {name: value for name, value in given.items() if value is not None}
    if epsilon is not None:
        bounds: Any = {"ranges": ranges, "targets": targets, "norm": norm, "ledger": ledger}
        bounds |= {"secure_sum": secure_sum, "groups": None if group is None else public_groups(file, user, group)}
        settings["privacy"] = Privacy(epsilon, delta, protects, **bounds)
        is_compared, holdout = holdout > 0, 0.0
    with watching(live, record) as page:
        with progress(STAGES if table is not None and holdout > 0 else {ALL_ROWS: 1.0}, usual_time_s(people)) as watch:
            held_out = like = None
            title = f"{file.name}: {label}, by {user}"
            noted = page if epsilon is None else noting(page, settings["privacy"])
            try:
                if table is not None and holdout > 0:
                    held_out, like = _compared(table, people, settings, holdout, seed, watch)
                is_cut = like is not None and held_out is None
                ending = Ending(_titled(noted, title))
                observer = fan_out(watch(ALL_ROWS), silent if page is silent else ending)
                if like is None or not is_cut:
                    model = _fitted(people, settings, observer, encoder, like, checkpoint)
                    ending.finish(model)
                else:
                    model = like
            except KeyboardInterrupt:
                if like is None:
                    raise KeyboardInterrupt(NO_MODEL) from None
                model, is_cut = like, True
            if epsilon is not None and protects == "rows":
                show_result(page, model, people, title)
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
            "nothing_held_out": table is not None and holdout > 0 and like is None,
            "chosen": _chosen(model),
            "calibration": _calibration(model),
            "privacy": None if epsilon is None else about_privacy(model),
            "peak_gb": round(peak_bytes() / 1e9, 3),
            "status": OF_SOME_ROWS if is_cut else model.status_.value,
            "model": str(output),
            **_about_columns(table, encoder),
        }
        if epsilon is not None and is_compared:
            result["privacy"] |= benefit(model, people, seed)
        print_json(result) if as_json else _show(result, people.n_classes)


def usual_time_s(people: Population | ParquetUsers) -> float:
    """A guess at the seconds of a fit, for the first moments of the progress bar. Choices are made on a sample."""
    return 2.0 + min(people.n_rows, 20_000) * max(1, people.n_classes) / 1000


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
    print_table(("", ""), rows)
    if result["held_out"] is not None:
        _show_comparison(result["held_out"])
    if result["nothing_held_out"]:
        write("\nNo user has two rows: none was held out, so nothing says how good the predictions are.\n")
    for reason in (result["chosen"] or {}).get("reasons", ()):
        stdout().print(reason, highlight=False, markup=False, soft_wrap=True)
    if result["calibration"] is not None:
        stdout().print(_calibrated(result["calibration"]), highlight=False, soft_wrap=True)
    _show_columns(result)
    if result["privacy"] is not None:
        lines = ["", *budget_lines(result["privacy"])]
        if "held_out" in result["privacy"]:
            lines.append(benefit_line(result["privacy"], _shown))
        for line in lines:
            stdout().print(line, highlight=False, markup=False, soft_wrap=True)
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


def _fitted(
    people: Population | ParquetUsers,
    settings: dict[str, Any],
    observer: Any,
    encoder: TableEncoder | None = None,
    like: Model | None = None,
    checkpoint: Path | None = None,
) -> Model:
    """A model of these people, with the choices of another if given."""
    from sklearn.exceptions import ConvergenceWarning

    from dada import DadaClassifier, DadaRegressor, Population
    from dada.estimators.stream import fit_parquet

    model = DadaClassifier(**settings) if people.n_classes else DadaRegressor(**settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if isinstance(people, Population):
            model.fit_population(people, encoder=encoder, like=like, observer=observer, checkpoint=checkpoint)
        else:
            model = fit_parquet(model, people, observer=observer, checkpoint=checkpoint)
    for each in caught:
        if not issubclass(each.category, ConvergenceWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        elif str(each.message) != model.status_.value:
            # The status is part of the result.
            stderr().print(f"{each.message}.", style="yellow", highlight=False, markup=False, soft_wrap=True)
    return model


def _compared(
    table: UserTable, people: Population, settings: dict[str, Any], holdout: float, seed: int, watch: Watch
) -> tuple[dict[str, Any] | None, Model | None]:
    """Scores on held-out rows, and the model that learned together from the others.

    Both are None if no user can spare a row, the scores alone if Ctrl-C has ended the comparison.
    """
    import numpy as np

    from dada.core.plan import Status

    kept = kept_rows(people.sizes, holdout, np.random.default_rng(seed))
    if kept.all():
        return None, None
    encoder = table.encoder(kept)
    people = people if encoder is None else table.people(encoder)
    learned, held_out = people.take(kept), people.take(~kept)
    features = table.rows(~kept)
    together = _fitted(learned, settings, watch("together"), encoder)
    runs = [together]
    try:
        if together.status_ is not Status.INTERRUPTED:
            runs.append(_fitted(learned, settings | ALONE, watch("alone"), encoder, together))
        if runs[-1].status_ is not Status.INTERRUPTED:
            # One user needs no parallel workers.
            pooled = {name: value for name, value in settings.items() if name not in WORKERS} | ALONE
            runs.append(_fitted(learned.pooled(), pooled, watch("one model"), encoder, together))
    except KeyboardInterrupt:
        return None, together
    # A comparison with half-finished models would mislead.
    if any(model.status_ is Status.INTERRUPTED for model in runs):
        return None, together
    users = (held_out.users, held_out.users, "all")
    names = ("together", "alone", "one_model")
    scores = {
        name: _scores(model, features, owners, held_out) for name, model, owners in zip(names, runs, users, strict=True)
    }
    scores["commonest" if people.n_classes else "mean"] = _trivial_scores(learned, held_out)
    return {"rows": held_out.n_rows, "users": int((held_out.sizes > 0).sum()), **scores}, together


def kept_rows(sizes: Any, holdout: float, rng: np.random.Generator) -> Any:
    """Mask of the training rows: all but a random share of each user's rows, and at least one.

    If all users have too few rows for that, random users hold out one row each.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> kept_rows(np.array([10, 1]), 0.2, rng).sum(), kept_rows(np.array([3, 3, 3, 3, 1]), 0.2, rng).sum()
    (np.int64(9), np.int64(10))
    """
    import numpy as np

    held_out = np.minimum((sizes * holdout).astype(np.int64), sizes - 1)
    if holdout > 0 and not held_out.any():
        able = np.flatnonzero(sizes > 1)
        held_out[rng.permutation(able)[: round(holdout * sizes.sum())]] = 1
    kept = []
    for size, spared in zip(sizes.tolist(), held_out.tolist(), strict=True):
        mask = np.ones(size, bool)
        mask[rng.permutation(size)[:spared]] = False
        kept.append(mask)
    return np.concatenate(kept)


def _scores(model: Model, features: Any, users: Any, held_out: Population) -> dict[str, Any]:
    from dada import DadaClassifier
    from dada.fitting.models import best_class, class_scores

    if not isinstance(model, DadaClassifier):
        return _scores_of_numbers(model.predict(features, users=users), held_out)
    values = model.decision_function(features, users=users)
    return _scores_of_classes(best_class(values), class_scores(values), held_out)


def _trivial_scores(learned: Population, held_out: Population) -> dict[str, Any]:
    """Scores of the commonest training label, with the shares of the labels as probabilities, or of the mean number."""
    import numpy as np

    if not learned.n_classes:
        return _scores_of_numbers(np.full(held_out.n_rows, learned.y.mean()), held_out)
    shares = np.bincount(learned.codes, minlength=learned.n_classes) / learned.n_rows
    each = np.tile(shares, (held_out.n_rows, 1))
    return _scores_of_classes(each.argmax(axis=1), each, held_out)


def _scores_of_classes(predicted: np.ndarray, probabilities: np.ndarray, held_out: Population) -> dict[str, Any]:
    """Share of right rows, over all rows and as a mean over users, and the mean negative log-probability of labels."""
    from sklearn.metrics import log_loss

    classes: Any = held_out.classes
    right = classes[predicted] == held_out.targets
    of_labels = float(log_loss(held_out.targets, probabilities, labels=classes))
    over_rows, over_users = _means(right, held_out)
    return {"accuracy_over_rows": over_rows, "accuracy_over_users": over_users, "log_loss": round(of_labels, 6)}


def _scores_of_numbers(predicted: np.ndarray, held_out: Population) -> dict[str, Any]:
    """Coefficient of determination over all rows, and the mean absolute error over rows and as a mean over users."""
    import numpy as np
    from sklearn.metrics import r2_score

    truth = held_out.targets
    r2 = round(float(r2_score(truth, predicted)), 6) if len(truth) > 1 else None
    over_rows, over_users = _means(np.abs(predicted - truth), held_out)
    return {"r2": r2, "error_over_rows": over_rows, "error_over_users": over_users}


def _means(values: np.ndarray, held_out: Population) -> tuple[float, float]:
    """Mean over rows, and mean over users with held-out rows of their means."""
    from dada.core.losses import mean_per_user

    of_users = mean_per_user(values, held_out.row_start)[held_out.sizes > 0]
    return round(float(values.mean()), 6), round(float(of_users.mean()), 6)


def _show_comparison(held_out: dict[str, Any]) -> None:
    """Write the scores on held-out rows as a table; the best row is highlighted."""
    methods = [name for name in TITLES if name in held_out]
    scores = list(held_out[methods[0]])
    rows = [[TITLES[name], *(_shown(score, held_out[name][score]) for score in scores)] for name in methods]
    if "accuracy_over_rows" in scores:
        best = max(range(len(methods)), key=lambda i: held_out[methods[i]]["accuracy_over_rows"])
    else:
        best = min(range(len(methods)), key=lambda i: held_out[methods[i]]["error_over_rows"])
    stdout().print()
    title = f"On {held_out['rows']} held-out rows of {held_out['users']} users"
    print_table((title, *(COLUMNS[score] for score in scores)), rows, best=best)
    stdout().print()


def _shown(score: str, value: float | None) -> str:
    if value is None:
        return "-"
    if score.startswith("accuracy"):
        return percent(value)
    return f"{value:.3f}" if score in ("log_loss", "r2") else short(value)


def _chosen(model: Model) -> dict[str, Any] | None:
    """What trials on held-out training rows chose, and why; None if nothing was tried, as in a private fit."""
    decided = getattr(model, "decision_", None)
    if decided is None:
        return None
    about = {"predictors": decided.family, "graph": model.settings_["graph"], "mu": round(model.settings_["mu"], 6)}
    trials = {name: round(score, 6) for name, score in decided.held_out.items()}
    return about | {"reasons": _reasons(model, decided), "trials": trials}


def _calibration(model: Model) -> dict[str, float] | None:
    """How reliable probabilities of held-out rows are before and after calibration, if there is one."""
    found = getattr(model, "calibration_", None)
    if found is None:
        return None
    each = {"before": found.before, "after": found.after}
    errors = {f"error_{when}": round(one.error, 6) for when, one in each.items()}
    return errors | {f"log_loss_{when}": round(one.log_loss, 6) for when, one in each.items()}


def _calibrated(found: dict[str, float]) -> str:
    before, after = (100 * found[f"error_{when}"] for when in ("before", "after"))
    if found["log_loss_before"] == found["log_loss_after"]:
        return f"Probabilities are off by {before:.1f} points on held-out rows; temperatures did no better."
    calibrated = "Probabilities are calibrated"
    if f"{after:.1f}" < f"{before:.1f}":
        return f"{calibrated}: on held-out rows they are off by {after:.1f} points instead of {before:.1f}."
    losses = f"{found['log_loss_after']:.3f} instead of {found['log_loss_before']:.3f}"
    return f"{calibrated}: held-out labels are likelier (log-loss {losses}); off by {after:.1f} points."


def _reasons(model: Model, decided: Decided) -> list[str]:
    """A sentence for each choice, with the scores that decided it."""
    families = [*_reason_of_family(decided), *_reason_of_trees(decided)]
    return [_reason_of_graph(model, decided), *families, *_reason_of_mu(model, decided)]


def _reason_of_graph(model: Model, decided: Decided) -> str:
    graph = model.settings_["graph"]
    who = WHO_LEARNS.get(graph, GIVEN_GRAPH)
    if isinstance(model.graph, str) and model.graph != "auto":
        return f"{who}, as asked for."
    compared = _compared_graphs(decided)
    if compared is None:
        return f"{who}: there was no comparison of graphs, for want of users or rows, or because of mu."
    everyone, evidence = compared
    if graph == "evidence":
        return f"{who}: this {_ahead(evidence, everyone)} everyone alike on held-out rows."
    return f"{who}: a graph by evidence {_not_ahead(evidence, everyone)} on held-out rows."


def _compared_graphs(decided: Decided) -> tuple[float, float] | None:
    """Scores of everyone and of evidence, from the trials that compared them; None without such trials.

    Graphs are compared by short trials before mu is chosen; interactions after it, and many features by long trials.
    Where evidence was chosen with simple models, those with interactions keep it.
    """
    from dada.fitting.held_out import Choice
    from dada.fitting.settings import LINEAR_FAMILIES, STUMPS

    families = dict.fromkeys((decided.family, *LINEAR_FAMILIES, STUMPS))
    for family, mu_scale, whole in product(families, (1.0, decided.mu_scale), (False, True)):
        trials = (str(Choice(family, name, mu_scale, whole)) for name in ("everyone", "evidence"))
        everyone, evidence = (decided.held_out.get(trial) for trial in trials)
        if everyone is not None and evidence is not None:
            return everyone, evidence
    return None


def _reason_of_family(decided: Decided) -> list[str]:
    from dada.fitting.held_out import Choice
    from dada.fitting.settings import GROWN, LINEAR_FAMILIES, STUMPS, TREES, WAVES

    names = (*LINEAR_FAMILIES, STUMPS)
    what = {WAVES: "waves of two features", TREES: "trees that users grow", GROWN: "trees of users and neighbourhoods"}
    if decided.family in what:
        usual = Choice(decided.family, str(decided.settings.graph), decided.mu_scale, whole=True)
        rich, *simple = (decided.held_out.get(str(usual._replace(family=name))) for name in (decided.family, *names))
        best = max((score for score in simple if score is not None), default=None)
        ahead = f": these {_ahead(rich, best)} functions of one feature" if rich and best else ""
        return [f"Models use {what[decided.family]}{ahead}."]
    for graph in ("everyone", "evidence", "none"):
        found = {name: decided.held_out.get(str(Choice(name, graph, whole=True))) for name in names}
        linear, stumps = found.get(decided.family), found[STUMPS]
        if decided.family == STUMPS:
            linear = max((score for name, score in found.items() if name != STUMPS and score is not None), default=None)
        if linear is not None and stumps is not None:
            if decided.family == STUMPS:
                return [f"Models use thresholds of features (stumps): these {_ahead(stumps, linear)} linear ones."]
            return [f"Models are linear: thresholds of features (stumps) {_not_ahead(stumps, linear)}."]
    return []


def _reason_of_trees(decided: Decided) -> list[str]:
    from dada.fitting.boosting import boosted_of
    from dada.fitting.held_out import Choice

    trees, _ = boosted_of(decided.recipe)
    if trees is None:
        return []
    usual = Choice(decided.family, str(decided.settings.graph), decided.mu_scale, whole=True)
    scores = [decided.held_out.get(str(usual._replace(boosted=boosted))) for boosted in (trees, None)]
    what = (
        f"{trees.rounds} small trees, whose leaves have values of each user's own, make {trees.share:.0%} of decisions"
    )
    if scores[0] is None or scores[1] is None:
        return [f"{what}."]
    return [f"{what}: with them models {_ahead(scores[0], scores[1])} without."]


def _reason_of_mu(model: Model, decided: Decided) -> list[str]:
    from dada.fitting.held_out import WEAKER, Choice

    trials = (str(Choice(decided.family, model.settings_["graph"], WEAKER[0], whole)) for whole in (False, True))
    if not any(trial in decided.held_out for trial in trials):
        return []
    mu = model.settings_["mu"]
    if decided.mu_scale == 1.0:
        return [
            f"Neighbours pull with the usual strength (mu {mu:.3g}): held-out labels were no likelier with another."
        ]
    share = f"{decided.mu_scale:g} times the usual strength"
    return [f"Neighbours pull with {share} (mu {mu:.3g}): held-out labels were likelier then."]


def _ahead(better: float, usual: float) -> str:
    """That a choice was clearly ahead. Rows decide, while scores are means over users: the two may disagree."""
    if better > usual:
        return f"did better ({_pair(better, usual)}) than"
    return f"did better over all rows, if not as a mean over users ({_pair(better, usual)}), than"


def _not_ahead(other: float, usual: float) -> str:
    how = "did not do clearly better" if other > usual else "did no better"
    return f"{how} ({_pair(other, usual)})"


def _pair(one: float, other: float) -> str:
    """Two shares of right rows; or two squared errors, whose scores are negative, relative to the label's variance."""
    if min(one, other) < 0:
        return f"squared error {-one:.3f} against {-other:.3f} of the variance"
    return f"{100 * one:.1f} against {100 * other:.1f} %"
