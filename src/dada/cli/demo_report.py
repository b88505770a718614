"""The methods that the demo compares, and its report.

`DadaClassifier()` has its defaults. The settings of the others were chosen per method by cross-validation on the
training rows of the Moons users of seeds 101 to 110; test rows were not used. `python
benchmarks/choose_demo_settings.py` repeats the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dada import __version__
from dada.baselines import BoostSettings, MethodResult, boost
from dada.cli.console import bits, number, percent
from dada.cli.watching import Ending, synthetic_info
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.plan import Plan, Status
from dada.data import BasePredictors, Population, Stumps, SyntheticUsers, moons
from dada.data.synthetic import GROUP_ANGLES_DEG, DataRule
from dada.estimators import DadaClassifier
from dada.events import Observer, RunInfo
from dada.fitting.models import decisions
from dada.plot import DARK, GraphPanel, Picture, accuracy_picture, drawn, graph_picture, weight_picture
from dada.plot.panels import Section, figure, page, paragraph, table
from dada.plot.theme import name_of

#: The paper's methods, and the graph of each as of `boost`; None is the oracle graph.
METHODS = {"global-boost": "pooled", "local-boost": "none", "dada-oracle": None, "dada-learned": "learned"}
OURS = "dada-classifier"

UPDATES_PER_USER = 200
GRAPH_EVERY_PER_USER = 20
# Far more updates than the one model of Global-boost needs to converge.
GLOBAL_UPDATES = 2000

STUMPS = Stumps(n=200, rule="feature-range")


def demo_settings(method: str, n_users: int = 100) -> BoostSettings:
    """The settings of one of the demo's methods."""
    plan = Plan(UPDATES_PER_USER * n_users, graph_every=GRAPH_EVERY_PER_USER * n_users, kappa=min(5, n_users - 1))
    return {
        "global-boost": BoostSettings(Plan(GLOBAL_UPDATES), beta=30.0),
        "local-boost": BoostSettings(plan, beta=10.0),
        "dada-oracle": BoostSettings(plan, beta=10.0, mu=3.0),
        "dada-learned": BoostSettings(plan, beta=5.0, mu=2.0, regularizer=LogDegree(lam=0.03, delta=0.1)),
    }[method]


def run_method(
    method: str,
    train: Population,
    test: Population,
    oracle: CollaborationGraph,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer,
) -> MethodResult:
    """Run one method by its name; only Dada-Oracle uses the oracle graph."""
    graph = METHODS[method] or oracle
    return boost(train, STUMPS.fit(train.X), test, settings, rng, observer, graph=graph)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """The users of a demo and the outcome of each method."""

    seed: int
    rule: DataRule
    users: SyntheticUsers
    outcomes: dict[str, MethodResult]

    @property
    def dataset(self) -> str:
        """Name of the data: "moons", or "moons-printed" under the rule of the paper's text."""
        return "moons" if self.rule == "run" else f"moons-{self.rule}"


def run_demo(seed: int, n_users: int, rule: DataRule, watch: Callable[[str], Observer]) -> DemoResult:
    """Draw the users and run all methods, ours last; `watch` gives an observer for each by its name.

    Raises
    ------
    KeyboardInterrupt
        If a method was interrupted: a comparison of half-finished methods would be misleading.
    """
    rng = np.random.default_rng(seed)
    users = moons(rng, rule=rule, n_users=n_users)
    predictors = STUMPS.fit(users.train.X)
    oracle = CollaborationGraph.from_scipy(users.oracle_weights())
    outcomes: dict[str, MethodResult] = {}
    for method, own_rng in zip((*METHODS, OURS), rng.spawn(len(METHODS) + 1), strict=True):
        observer, known = watch(method), _info(method, users, predictors, outcomes)
        if method == OURS:
            outcome = _fitted(users, own_rng, observer, known)
        else:
            observer(known)
            settings = demo_settings(method, n_users)
            outcome = run_method(method, users.train, users.test, oracle, settings, own_rng, observer)
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        outcomes[method] = outcome
    # The most interesting comes first.
    return DemoResult(seed, rule, users, dict(reversed(outcomes.items())))


def _fitted(users: SyntheticUsers, rng: np.random.Generator, observer: Observer, known: RunInfo) -> MethodResult:
    """The outcome of `DadaClassifier()`; observers receive the facts known about its users."""
    ending = Ending(observer)

    def watch(event: Any) -> None:
        ending(replace(known, predictors=event.predictors) if isinstance(event, RunInfo) else event)

    model = DadaClassifier(random_state=rng).fit_population(users.train, test=users.test, observer=watch)
    ending.finish(model)
    both = users.train, users.test
    values = [decisions(model.predictors_.predict(people.X), people.row_start, model.models_) for people in both]
    rest: Any = {"trace": model.trace_, "graph": model.graph_, "bits": model.bits_, "status": model.status_}
    return MethodResult.of(*both, values, model.models_, **rest)


def _info(method: str, users: SyntheticUsers, predictors: BasePredictors, before: dict[str, MethodResult]) -> RunInfo:
    """Facts for the page of a method's run: the users, and the accuracies of earlier methods."""
    known: dict[str, Any] = {
        "baselines": {name_of(name): float(one.test_accuracy.mean()) for name, one in before.items()}
    }
    if "local-boost" in before:
        known["alone"] = before["local-boost"].test_accuracy
    title = f"{name_of(method)}: {users.train.n_users} users, two moons turned by four angles"
    return synthetic_info(title, users, predictors, **known)


CAPTIONS = {
    "accuracy": (
        "Left: mean accuracy over the users while they collaborate; straight lines are the methods that do not, at "
        "convergence. Right: the test accuracy of each user, sorted for each method."
    ),
    "graph": (
        "The graphs that the users learned, next to the graph of their true angles. Numbers are rotation angles in "
        "degrees. A larger node has more data, a greener one a higher test accuracy, a darker edge more weight. "
        "No user knew an angle."
    ),
    "weights": "The same graphs as matrices, users sorted by their true group. A darker cell is a larger weight.",
}


def write_report(result: DemoResult, folder: Path) -> list[Path]:
    """Write report.html and one PNG file per picture; returns their paths, the report first."""
    files, figures = [folder / "report.html"], {}
    for name, picture in pictures_of(result).items():
        light = drawn(picture)
        files.append(folder / f"{name}.png")
        files[-1].write_bytes(light)
        figures[name] = figure(light, drawn(picture, DARK), CAPTIONS[name])
    files[0].write_text(report_page(result, figures), encoding="utf-8")
    return files


def pictures_of(result: DemoResult) -> dict[str, Picture]:
    """The demo's pictures, by name."""
    collaborating = {name: outcome for name, outcome in result.outcomes.items() if outcome.graph is not None}
    others = {name: outcome for name, outcome in result.outcomes.items() if outcome.graph is None}
    panels = [
        _panel(result, f"{title}: {number(outcome.neighbours)} neighbours per user", outcome)
        for title, outcome in (
            ("DadaClassifier()", result.outcomes[OURS]),
            ("Paper's method", result.outcomes["dada-learned"]),
            ("True graph", result.outcomes["dada-oracle"]),
        )
    ]
    angles = [f"{angle:.0f}°" for angle in GROUP_ANGLES_DEG]
    return {
        "accuracy": partial(
            accuracy_picture,
            traces={name: outcome.trace for name, outcome in collaborating.items()},
            levels={name: (o.train_accuracy.mean(), o.test_accuracy.mean()) for name, o in others.items()},
            by_user={name: outcome.test_accuracy for name, outcome in result.outcomes.items()},
        ),
        "graph": partial(graph_picture, panels=panels, measure="test error"),
        "weights": partial(weight_picture, panels=panels, groups=result.users.groups, group_names=angles),
    }


def _panel(result: DemoResult, title: str, outcome: MethodResult) -> GraphPanel:
    assert outcome.graph is not None
    degrees = np.mod(np.rad2deg(result.users.angles), 360)
    labels, confidence = [f"{angle:.0f}" for angle in degrees], result.users.train.confidence
    return GraphPanel(title, outcome.graph, confidence, 1 - outcome.test_accuracy, labels)


HEADER = ("method", "test\naccuracy", "worst tenth\nof users", "worst\nuser", "all rows\nalike", "neighbours",
          "sent per\nuser")  # fmt: skip


def row_of(method: str, outcome: MethodResult) -> list[str]:
    """The cells of one method in the result table."""
    accuracy = outcome.test_accuracy
    per_user = None if outcome.bits is None else outcome.bits / accuracy.size
    return [
        name_of(method),
        percent(accuracy.mean()),
        percent(np.sort(accuracy)[: max(1, accuracy.size // 10)].mean()),
        percent(accuracy.min()),
        percent(outcome.test_accuracy_pooled),
        number(outcome.neighbours),
        bits(per_user),
    ]


def report_page(result: DemoResult, figures: dict[str, str]) -> str:
    """The report page of the demo, with its figures."""
    rows = [row_of(*outcome) for outcome in result.outcomes.items()]
    header = [name.replace("\n", " ") for name in HEADER]
    ours, local = (result.outcomes[name].test_accuracy.mean() for name in (OURS, "local-boost"))
    repeat = f"dada demo --seed {result.seed} --users {result.users.train.n_users} --rule {result.rule}"
    sections = [
        Section("Result", [table(header, rows, best=0), *map(paragraph, _reading(result))]),
        Section("Accuracy", [figures["accuracy"]]),
        Section("Who learns from whom", [figures["graph"], figures["weights"]]),
        Section("Repeat it", [paragraph(f"`{repeat}` with dada {__version__} gives these numbers again.")]),
    ]
    lead = (
        f"{result.users.train.n_users} users with a handful of labelled points each. Alone they reach "
        f"{percent(local)} of test points right; learning from each other, over a graph they find by themselves, "
        f"{percent(ours)}."
    )
    return page("Learning together, without sharing data", lead, sections)


STEP = (
    " At the end small trees join its models, whose leaves have values of each user's own: its curve ends with a step."
)


def _ends_with_a_step(outcome: MethodResult) -> bool:
    """Whether the last point of the trace is that of models with boosted trees."""
    *_, before, last = outcome.trace
    return before.updates == last.updates


def _reading(result: DemoResult) -> list[str]:
    flipped = "5 % of the test labels are flipped on purpose, so no method can exceed 95 %. "
    return [
        "DadaClassifier() chooses everything from the training rows. The others are methods of the paper: Dada-Learned "
        "is collaboration over a graph that is learned along with the models, Dada-Oracle over the graph of the true "
        "angles; Local-boost is a model for each user from its own data, Global-boost one model from all data in one "
        "place." + (STEP if _ends_with_a_step(result.outcomes[OURS]) else ""),
        (flipped if result.rule == "run" else "")
        + "Accuracies are means over the users, over the tenth of them with the lowest, and over all test rows alike. "
        "Users send each other model updates and a few statistics, never data.",
    ]
