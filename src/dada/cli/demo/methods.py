"""What the demo compares: four methods, each with settings that were fixed beforehand.

The settings were chosen by cross-validation within the training rows of the Moons users of seeds 101 to 110, method by
method; no test row and none of the seeds one would show had a part in it. `python benchmarks/choose_demo_settings.py`
repeats the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dada.baselines import BoostSettings, Outcome, dada_learned, dada_oracle, global_boost, local_boost
from dada.cli.watch import synthetic_info
from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.core.regularizers import LogDegree
from dada.core.status import Status
from dada.data import Population, Stumps, SyntheticUsers, moons
from dada.data.moons import DataRule
from dada.events import Observer, RunInfo
from dada.plot.theme import name_of
from dada.task import Task

METHODS = ("global-boost", "local-boost", "dada-oracle", "dada-learned")

UPDATES_PER_USER = 200
GRAPH_EVERY_PER_USER = 20
# The one model of Global-boost gets far more updates than it needs to settle.
GLOBAL_UPDATES = 2000

STUMPS = Stumps(n=200, rule="feature-range")


def demo_settings(method: str, n_users: int = 100) -> BoostSettings:
    """The settings of one of the demo's methods.

    >>> demo_settings("dada-learned").plan.n_updates
    20000
    """
    updates = UPDATES_PER_USER * n_users
    if method == "global-boost":
        return BoostSettings(Plan(GLOBAL_UPDATES), beta=30.0)
    if method == "local-boost":
        return BoostSettings(Plan(updates), beta=10.0)
    if method == "dada-oracle":
        return BoostSettings(Plan(updates), beta=10.0, mu=3.0)
    plan = Plan(updates, graph_every=GRAPH_EVERY_PER_USER * n_users, kappa=min(5, n_users - 1))
    return BoostSettings(plan, beta=5.0, mu=2.0, regularizer=LogDegree(lam=0.03, delta=0.1))


def demo_task(train: Population) -> Task:
    """Training data seen through the demo's base predictors."""
    return Task.of(train, STUMPS)


def run_method(
    method: str,
    task: Task,
    test: Population,
    oracle: CollaborationGraph,
    settings: BoostSettings,
    rng: np.random.Generator,
    observer: Observer,
) -> Outcome:
    """Run one method by its name; the oracle's graph serves the method that is given it."""
    arguments: Any = (task, test, settings, rng, observer)
    if method == "global-boost":
        return global_boost(*arguments)
    if method == "local-boost":
        return local_boost(*arguments)
    if method == "dada-oracle":
        return dada_oracle(*arguments, graph=oracle)
    return dada_learned(*arguments)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """The users of a demo and what each method made of them."""

    seed: int
    rule: DataRule
    users: SyntheticUsers
    task: Task
    outcomes: dict[str, Outcome]

    @property
    def dataset(self) -> str:
        """Name of the data: "moons", or "moons-printed" under the rule of the paper's text."""
        return "moons" if self.rule == "run" else f"moons-{self.rule}"


def run_demo(seed: int, n_users: int, rule: DataRule, watch: Callable[[str], Observer]) -> DemoResult:
    """Draw the users and run all methods; `watch` gives an observer for each by its name.

    Raises
    ------
    KeyboardInterrupt
        If a method was interrupted: a comparison of half-finished methods would be misleading.
    """
    rng = np.random.default_rng(seed)
    users = moons(rng, rule=rule, n_users=n_users)
    task = demo_task(users.train)
    oracle = CollaborationGraph.from_scipy(users.oracle_weights())
    outcomes: dict[str, Outcome] = {}
    for method, own_rng in zip(METHODS, rng.spawn(len(METHODS)), strict=True):
        settings, observer = demo_settings(method, n_users), watch(method)
        observer(_info(method, users, task, outcomes))
        outcome = run_method(method, task, users.test, oracle, settings, own_rng, observer)
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        outcomes[method] = outcome
    return DemoResult(seed, rule, users, task, outcomes)


def _info(method: str, users: SyntheticUsers, task: Task, before: dict[str, Outcome]) -> RunInfo:
    """What is known of a method's run before it: the users, and how the methods before it did."""
    known: dict[str, Any] = {
        "baselines": {name_of(name): float(one.test_accuracy.mean()) for name, one in before.items()}
    }
    if "local-boost" in before:
        known["alone"] = before["local-boost"].test_accuracy
    title = f"{name_of(method)}: {users.train.n_users} users, two moons turned by four angles"
    return synthetic_info(title, users, task, **known)
