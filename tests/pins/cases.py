"""Every way of running the method, small and seeded, as digests of all that comes out.

A change that is to leave results alone leaves these digests alone. ``python -m tests.pins.cases`` prints them, one line
for each part of each case; names of cases may follow. ``--write`` keeps them in `pins.json`, with which `test_pins`
compares. Write them anew only with a change that is meant to change results, and say so in its message.

Cases use the names in `dada.__all__`, the `dada` command and the files it writes, and nothing else of the package. What
has names in it that may change, such as settings, is a part of its own: a renaming shows apart from numbers.

The digests do not depend on the number of processors, on the clock or on the seed of hashes. Libraries of other
versions and processors of other kinds may round otherwise in the last place. `made_with` tells them apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import dada
from tests.pins.commands import command, still_command
from tests.pins.digests import Parts, digest, numbers, of_fitted, of_journal, of_model_file, of_recording, plain

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PINS = HERE / "pins.json"
LIBRARIES = ("numba", "numpy", "polars", "scikit-learn", "scipy")

CASES: dict[str, Callable[[Path], Parts]] = {}


def case(function: Callable[[Path], Parts]) -> Callable[[Path], Parts]:
    """A case: gets an empty folder, gives the digests of its parts by name."""
    CASES[function.__name__.replace("_", "-")] = function
    return function


def run(name: str) -> Parts:
    """The digests of one case."""
    with tempfile.TemporaryDirectory() as folder:
        return CASES[name](Path(folder))


def made_with() -> dict[str, Any]:
    """What may decide about the last place of a number, beside the code of the package."""
    from threadpoolctl import threadpool_info

    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{library: version(library) for library in LIBRARIES},
        "system": f"{platform.system()} {platform.machine()}",
        "SIMD": sorted(np.show_config(mode="dicts")["SIMD Extensions"]["found"]),
        "BLAS": sorted({str(pool.get("architecture")) for pool in threadpool_info() if pool["user_api"] == "blas"}),
    }


def moons(seed: int, n_users: int, draw: str = "moons", **how: Any) -> tuple[Any, Any, Any, Any, Any]:
    """X, y and users to learn from, X and users to predict."""
    people = getattr(dada, draw)(seed, n_users=n_users, n_test=4, **how)
    train, test = people.train, people.test
    return train.X, train.y, train.user_ids.repeat(train.sizes), test.X, test.user_ids.repeat(test.sizes)


def slopes(seed: int, n_users: int = 8) -> tuple[Any, Any, Any]:
    """X, numbers and users: a line for each of two kinds of users."""
    rng = np.random.default_rng(seed)
    users = np.repeat([f"u{k}" for k in range(n_users)], rng.integers(6, 14, n_users))
    X = rng.normal(size=(len(users), 3))
    kind = np.unique(users, return_inverse=True)[1] % 2
    return X, 5 + (1 - 2 * kind) * X[:, 0] + 0.5 * X[:, 1] + 0.1 * rng.standard_t(2, len(users)), users


def fitted(seed: int, n_users: int, how: dict[str, Any] | None = None, **settings: Any) -> Parts:
    """Users of two moons, learned with the given settings."""
    X, y, users, X_new, users_new = moons(seed, n_users, **(how or {}))
    model = dada.DadaClassifier(**{"random_state": seed, **settings}).fit(X, y, users=users)
    return of_fitted(model, X_new, users_new)


def write_table(path: Path, seed: int = 3, n_users: int = 12) -> None:
    """A table as people have it; numbers are written with all their digits."""
    X, y, users, _, _ = moons(seed, n_users)
    came = np.where(y > 0, "yes", "no").tolist()
    columns = zip(X[:, 0].tolist(), X[:, 1].tolist(), users.tolist(), came, strict=True)
    rows = [f"{east!r},{north!r},u{user},{label}" for east, north, user, label in columns]
    path.write_text("\n".join(["east,north,person,came", *rows]) + "\n")


# Estimators


@case
def classifier_default(folder: Path) -> Parts:
    return fitted(1, 25)


@case
def classifier_evidence(folder: Path) -> Parts:
    one = fitted(2, 25, graph="evidence", n_updates=60, tau=0.7, n_neighbours=5)
    both = fitted(2, 12, graph="evidence-symmetric", n_updates=40)
    return one | {f"symmetric-{name}": part for name, part in both.items()}


@case
def classifier_as_in_the_paper(folder: Path) -> Parts:
    """AdaBoost's loss, Frank-Wolfe steps, proximal steps of the graph, sums of losses."""
    return fitted(
        3, 25, predictors=dada.Stumps(n=60, rule="feature-range"), loss="adaboost", beta=10.0, mu=1.0, lam=0.1,
        delta=0.1, graph="learned", graph_loss="paper", step="paper", graph_step="lipschitz", n_updates=80,
        graph_every=20, restart="local",
    )  # fmt: skip


@case
def classifier_learned(folder: Path) -> Parts:
    """The paper's graph with exact steps, lam found, few neighbours allowed, in double precision."""
    return fitted(4, 25, graph="learned", max_neighbours=6, n_updates=60, graph_every=15, dtype="float64")


@case
def classifier_everyone(folder: Path) -> Parts:
    """Everybody from everybody, by line search; a family of base predictors next to another."""
    both = dada.Union(dada.Linear(), dada.RandomFourier(n=12), dada.Constant())
    return fitted(
        5, 20, {"rule": "printed", "dimensions": 5}, graph="everyone", step="line-search", predictors=both,
        n_updates=60, loss="squared-hinge",
    )  # fmt: skip


@case
def classifier_graph_given(folder: Path) -> Parts:
    """A graph that is given, and one by a target of degrees; stops by the gap, and by bits."""
    line = dada.CollaborationGraph.from_edges(20, range(19), range(1, 20), np.linspace(0.5, 2.0, 19))
    given = fitted(6, 20, {"draw": "moons100"}, graph=line, tol=0.2, n_updates=400, step="local")
    settings: Any = dict(regularizer=dada.DegreeTarget(target=60.0, lam=0.01), graph_loss="logistic", kappa=3)
    found = fitted(6, 20, graph="learned", max_bits=9e5, graph_every=40, **settings)
    return given | {f"target-{name}": part for name, part in found.items()}


@case
def classifier_many_users(folder: Path) -> Parts:
    """Beyond 300 users: graph steps ask along lists, and everyone is fifty."""
    found = fitted(7, 320, graph="learned", lam=0.3, n_updates=20, graph_every=5)
    alike = fitted(7, 320, graph="everyone", n_updates=10, predictors=dada.Stumps(n=40))
    return found | {f"everyone-{name}": part for name, part in alike.items()}


@case
def classifier_several_classes(folder: Path) -> Parts:
    X, y, users, X_new, users_new = moons(8, 16)
    kinds = np.where(X[:, 0] > 0.8, "far", np.where(y > 0, "upper", "lower"))
    model = dada.DadaClassifier(random_state=8, n_updates=80).fit(X, kinds, users=users)
    return of_fitted(model, X_new, users_new) | {"chances": digest(model.predict_proba(X_new, users_new))}


@case
def classifier_weights(folder: Path) -> Parts:
    X, y, users, X_new, users_new = moons(9, 16)
    weights = np.random.default_rng(9).uniform(0.2, 2.0, len(y))
    model = dada.DadaClassifier(class_weight="balanced", graph="everyone", n_updates=60, random_state=9)
    return of_fitted(model.fit(X, y, users=users, sample_weight=weights), X_new, users_new)


@case
def classifier_threads(folder: Path) -> Parts:
    """Two threads and one give the same, as messages take their time."""
    settings: Any = dict(graph="learned", lam=0.3, latency=0.2, n_updates=60)
    two, one = fitted(10, 40, n_jobs=2, **settings), fitted(10, 40, n_jobs=1, **settings)
    assert all(two[part] == one[part] for part in two if part != "settings")
    return two


@case
def classifier_checkpoint(folder: Path) -> Parts:
    """A fit that is stopped and goes on ends where one that is not stopped ends."""
    X, y, users, X_new, users_new = moons(11, 20)
    settings: Any = dict(graph="learned", lam=0.3, n_updates=120, graph_every=30, random_state=11)

    def stop(event: Any) -> None:
        if getattr(event, "updates", 0) >= 800 and hasattr(event, "objective"):
            signal.raise_signal(signal.SIGINT)

    def fit(**watched: Any) -> Any:
        return dada.DadaClassifier(**settings).fit(X, y, users=users, **watched)

    path = folder / "half-way"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stopped = fit(checkpoint=path, observer=stop)
    resumed = fit(checkpoint=path)
    assert 800 <= stopped.n_iter_ < resumed.n_iter_ == 2400
    parts = of_fitted(resumed, X_new, users_new)
    assert parts == of_fitted(fit(), X_new, users_new)
    return parts | {"stopped": digest(stopped.models_, stopped.n_iter_)}


@case
def classifier_cross_validated(folder: Path) -> Parts:
    X, y, users, X_new, users_new = moons(12, 14)
    base = dada.DadaClassifier(n_updates=25)
    search = dada.DadaClassifierCV(base, betas=(10.0,), mu_scales=(2.0, 0.5), n_splits=2, n_repeats=1, random_state=12)
    search.fit(X, y, users=users)
    tried = plain(search.cv_results_)
    return of_fitted(search.best_estimator_, X_new, users_new) | {
        "alone": digest(search.alone_),
        "tried": digest(tried),
        "tried-numbers": digest(numbers(tried)),
    }


@case
def classifier_goes_on(folder: Path) -> Parts:
    """New rows, older ones that are forgotten, users who come later."""
    X, y, users, X_new, users_new = moons(13, 20)
    first, second = np.arange(len(y)) % 2 == 0, np.arange(len(y)) % 2 == 1
    first &= users < 16
    model = dada.DadaClassifier(half_life=1.0, graph="evidence", n_updates=40, random_state=13)
    model.partial_fit(X[first], y[first], users=users[first])
    model.partial_fit(X[second & (users < 18)], y[second & (users < 18)], users=users[second & (users < 18)])
    for late in (18, 19):
        model.add_user(X[users == late], y[users == late], late)
    return of_fitted(model, X_new, users_new)


@case
def regressor_squared(folder: Path) -> Parts:
    X, y, users = slopes(14)
    model = dada.DadaRegressor(random_state=14, n_updates=150).fit(X, y, users=users)
    return of_fitted(model, X, users) | {"target": digest(model.target_mean_, model.target_scale_)}


@case
def regressor_huber(folder: Path) -> Parts:
    X, y, users = slopes(15)
    model = dada.DadaRegressor(loss="huber", graph="evidence", random_state=15, n_updates=100).fit(X, y, users=users)
    return of_fitted(model.add_user(X[:5], -y[:5], "late"), X, users)


# Commands


@case
def command_fit(folder: Path) -> Parts:
    """A table to a model file, and what is made of that."""
    write_table(folder / "rows.csv")
    write_table(folder / "new.csv", seed=4)
    options = ("--user", "person", "--label", "came", "--updates", 60, "--json")
    told = json.loads(command(folder, "fit", "rows.csv", *options, "-o", "all.dada"))
    assert told.pop("peak_gb") > 0
    command(folder, "inspect", "all.dada", "-o", "graph.graphml")
    return of_model_file(folder / "all.dada") | {
        "told": digest(told),
        "predicted": digest(command(folder, "predict", "all.dada", "new.csv")),
        "inspected": digest(command(folder, "inspect", "all.dada", "--json")),
        "user": digest(command(folder, "inspect", "all.dada", "--user", "u3", "--json")),
        "graphml": digest((folder / "graph.graphml").read_bytes()),
    }


@case
def command_fit_recorded(folder: Path) -> Parts:
    write_table(folder / "rows.csv")
    options = ("--user", "person", "--label", "came", "--updates", 20, "--holdout", 0, "--graph", "evidence")
    still_command(folder, "fit", "rows.csv", *options, "--record", "run.dadalog", "-o", "all.dada")
    return of_model_file(folder / "all.dada") | {"recording": of_recording(folder / "run.dadalog")}


@case
def command_fit_in_shards(folder: Path) -> Parts:
    """One Parquet file and a folder of them, by one process and by two, each with its own users."""
    import polars as pl

    command(folder, "datasets", "generate", "rows.parquet", "--users", 30, "--test", "new.parquet", "--seed", 2)
    made = [pl.read_parquet(folder / name) for name in ("rows.parquet", "new.parquet")]
    (folder / "rows").mkdir()
    for number, part in enumerate((made[0][:100], made[0][100:])):
        part.write_parquet(folder / "rows" / f"{number}.parquet")
    options = ("--user", "user", "--label", "label", "--drop", "group", "--updates", 20)
    command(folder, "fit", "rows.parquet", "--stream", *options, "-o", "streamed.dada")
    command(folder, "fit", "rows", *options, "-o", "folder.dada")
    command(folder, "fit", "rows", *options, "--jobs", 2, "-o", "two.dada")
    one, two = of_model_file(folder / "folder.dada"), of_model_file(folder / "two.dada")
    assert one["arrays"] == two["arrays"]
    return one | {
        "generated": digest(*(frame[name].to_numpy() for frame in made for name in frame.columns)),
        "streamed": of_model_file(folder / "streamed.dada")["arrays"],
    }


@case
def simulation(folder: Path) -> Parts:
    """A perfect network, with one-move steps and either way to choose neighbours, and with block steps."""
    parts = {}
    for name in ("evidence", "distance", "evidence-block", "everyone-block"):
        graph, _, step = name.partition("-")
        options = ("--users", 8, "--steps", 20, "--seed", 3, "--faults", "none", "--graph", graph, "--json")
        options += ("--step", step or "pairwise")
        parts[name] = digest(json.loads(command(folder, "sim", *options, "--journal", f"{name}.journal")))
        parts |= {f"{name}-{part}": value for part, value in of_journal(folder / f"{name}.journal").items()}
        parts[f"{name}-replay"] = digest(command(folder, "replay", f"{name}.journal"))
    return parts


@case
def simulation_with_faults(folder: Path) -> Parts:
    """Losses, crashes and liars."""
    parts = {}
    for step in ("pairwise", "block"):
        options = ("--users", 12, "--steps", 25, "--seed", 5, "--faults", "all", "--step", step, "--json")
        files = ("--record", f"{step}.dadalog", "--journal", f"{step}.journal")
        found = {"told": digest(json.loads(still_command(folder, "sim", *options, *files)))}
        found |= {"recording": of_recording(folder / f"{step}.dadalog"), **of_journal(folder / f"{step}.journal")}
        parts |= found if step == "pairwise" else {f"block-{name}": value for name, value in found.items()}
    return parts


@case
def demo(folder: Path) -> Parts:
    told = json.loads(still_command(folder, "demo", "--users", 12, "--json", "--record", "run.dadalog"))
    return {"told": digest(told), "recording": of_recording(folder / "run.dadalog")}


@case
def reproduction(folder: Path) -> Parts:
    """Settings chosen and final runs made of every method of the paper, on two moons."""
    with patch.dict(os.environ, {"DADA_DATA": str(folder)}):
        command(folder, "reproduce", "moons", "--quick", "--jobs", 1, "--out", "pages")
    page = json.loads((folder / "pages" / "moons.json").read_text())
    # Versions and commit, and in the journal a digest of the code, are of no interest here.
    page.pop("made_with")
    lines = (folder / "pages" / "journal" / "journal.jsonl").read_text().splitlines()
    results = [entry["result"] for entry in map(json.loads, lines) if "result" in entry]
    assert len(results) > 200
    return {"page": digest(page), "numbers": digest(sorted(numbers(page))), "results": digest(results)}


@case
def network_files(folder: Path) -> Parts:
    """What users tell before there is a network, and the file that all its peers need."""
    for name, seed in (("ann", 3), ("bob", 4)):
        write_table(folder / f"{name}.csv", seed)
        rows = [line.split(",") for line in (folder / f"{name}.csv").read_text().splitlines()]
        (folder / f"{name}.csv").write_text("".join(f"{east},{north},{came}\n" for east, north, _, came in rows))
        command(folder, "peer", "summarise", f"{name}.csv", "--label", "came", "-o", f"{name}.json")
    ways: dict[str, tuple[Any, ...]] = {
        "by-hand": ("--feature", "age:0:100", "--feature", "income:0:2e5", "--classes", "no,yes"),
        "like": ("--like", "ann.csv", "--label", "came", "--graph", "distance", "--step", "pairwise"),
        "summaries": ("--summary", "ann.json", "--summary", "bob.json", "--stumps", 4),
    }
    for name, options in ways.items():
        command(folder, "peer", "new-network", f"{name}.net", *options)
    return {name: digest((folder / f"{name}.net").read_bytes()) for name in ways} | {
        "summary": digest((folder / "ann.json").read_bytes())
    }


def kernel_cache() -> Path:
    """A folder for kernels compiled from the present sources; Numba does not see a change in a kernel's callees."""
    sources = sorted((ROOT / "src").rglob("*.py"))
    found = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    return ROOT / ".pytest_cache" / "pins" / found.hexdigest()[:16]


def main(arguments: list[str]) -> None:
    """Print the digests of the cases that are named, or of all; keep them where wanted."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(kernel_cache()))
    os.environ.setdefault("MPLBACKEND", "Agg")
    names = [name for name in arguments if name != "--write"] or list(CASES)
    found = {}
    for name in names:
        began = time.monotonic()
        found[name] = run(name)
        for part, value in found[name].items():
            print(f"{f'{name}.{part}':56}  {value}")
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    if "--write" in arguments:
        kept = json.loads(PINS.read_text())["cases"] if PINS.exists() else {}
        cases = {name: found.get(name, kept.get(name)) for name in CASES}
        PINS.write_text(json.dumps({"made_with": made_with(), "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
