"""Settings of a fit: hyper-parameters, the values that replace "auto", and the engine's plan and workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.block_steps import BlockStep
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeFunction, DegreeTarget, LogDegree, Regularizer
from dada.core.losses import Loss
from dada.core.plan import BLOCK_STEP, Plan
from dada.core.problem import Problem
from dada.data import (
    BasePredictors,
    Constant,
    Linear,
    ParquetUsers,
    Population,
    RandomFourier,
    Recipe,
    Stumps,
    Trees,
    Union,
)
from dada.engine.backends import Processes
from dada.engine.shards import Read, Sharded, ThisProcess, Threads, Workers
from dada.fitting.boosting import boosted_of
from dada.fitting.trees import trees_of
from dada.privacy.accounting import Privacy
from dada.task import problem

AUTO = "auto"
ENGINES = ("local", "ray")
GRAPHS = ("auto", "everyone", "learned", "evidence", "evidence-symmetric", "none")
BY_EVIDENCE = ("evidence", "evidence-symmetric")
UNKNOWN_USER = ("error", "average")
COUNTS = ("n_updates", "kappa", "max_neighbours", "n_neighbours", "verbose")
NUMBERS = ("beta", "mu", "lam", "delta", "tau")
POSITIVE = ("graph_every", "half_life", "max_bits", "max_time_s", "tol")
OPTIONAL = ("half_life", "kappa", "max_neighbours", "max_bits", "max_time_s", "tol")
MAY_BE_AUTO = ("beta", "graph_every", "lam", "mu", "n_updates")
ALL_PROCESSORS = -1
# On Moons the objective is then 0.4 % above that without latency, and accuracies are the same.
LATENCY = 0.1
# Families of base predictors, and those given by the caller.
LINEAR, CLIPPED, WIDE, STUMPS, WAVES, TREES = "linear", "clipped", "wide", "stumps", "waves", "trees"
# Trees of users' own rows, and then of neighbourhoods too; and boosted trees with personal leaves.
GROWN, BOOSTED = "grown", "boosted"
GIVEN = "given"
LINEAR_FAMILIES = (LINEAR, CLIPPED, WIDE)
# mu is this multiple of the mean confidence, so that it has the scale of users' losses.
MU_SCALE = {"adaboost": 2.0}
OTHER_MU_SCALE = 0.35
# Linear predictors are few, and their models need less smoothing.
MU_SCALE_OF_LINEAR = 0.5
BETA = 30.0
LEAST_UPDATES, MOST_UPDATES, UPDATES_OF_LINEAR = 200, 600, 2000
LEAST_GRAPH_EVERY, GRAPH_ROUNDS = 10.0, 20.0
GRAPH_EVERY = 50.0
# Block steps: wake-ups per user of a fit; of models with few weights, which converge early, and one more for each
# weight; and by evidence. On a sparse graph of everyone, messages pass on half of what the neighbours sent, so that
# means spread; on evidence that would mix up users of different kinds.
WAKEUPS, WAKEUPS_OF_SMALL, WAKEUPS_BY_EVIDENCE = 80, 40, 50
WITH_EVERYONE = BlockStep(theta=0.5)
BY_EVIDENCE_STEP = BlockStep(momentum=0.0, quantise_bits=6, silence=0.02)
# By evidence, per user: wake-ups alone at first, graph wakeups after them, and wake-ups between two later ones.
WAKEUPS_ALONE, FIRST_GRAPH_WAKEUPS, WAKEUPS_PER_GRAPH_PHASE = 5, 20, 5.0
# Cells of the margins beyond which stumps are left out: a quarter of a gigabyte in single precision.
MOST_CELLS = 1 << 26
MOST_STUMPS = 2000
# Waves in all and per feature that varies, and their width in standard deviations.
MOST_WAVES, WAVES_PER_FEATURE, WAVE_WIDTH = 2000, 100, 0.35
# graph="everyone" is a random graph: users have this many neighbours under block steps, whose messages spread means.
FEW_NEIGHBOURS = 10
# Under other steps it is complete up to FEW_USERS, and has about SOME_USERS neighbours each beyond.
FEW_USERS, SOME_USERS = 300, 50


@dataclass(eq=False, repr=False)
class Parameters:
    """The hyper-parameters that all estimators take; `DadaClassifier` describes each of them."""

    predictors: Recipe | str | None = None
    _: KW_ONLY
    loss: str | Loss = AUTO
    beta: float | str = AUTO
    mu: float | str = AUTO
    lam: float | str = AUTO
    delta: float = 0.01
    regularizer: Regularizer | None = None
    graph: Any = AUTO
    graph_loss: str = "mean"
    step: str = AUTO
    graph_step: str = "exact"
    kappa: int | None = None
    n_updates: int | str = AUTO
    graph_every: float | str = AUTO
    n_neighbours: int = 8
    max_neighbours: int | None = None
    tau: float = 1.0
    restart: str = "zero"
    half_life: float | None = None
    tol: float | None = None
    max_bits: float | None = None
    max_time_s: float | None = None
    unknown_user: str = "error"
    dtype: Any = "float32"
    engine: str = "local"
    latency: float | str = AUTO
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0
    privacy: Privacy | None = None


@dataclass(eq=False)
class Settings(Parameters):
    """Checked hyper-parameters, frozen once made.

    `resolved` replaces "auto" by numbers. The engine takes what `problem`, `plan`, `given_graph` and `workers` make.

    Examples
    --------
    >>> people = Population.from_arrays([[0.0], [1.0]], [0, 1], ["ann", "bob"])
    >>> settings = Settings(mu=0.5).resolved(people, n_weights=2)
    >>> settings.loss, settings.beta, settings.mu, settings.plan(people.n_users).n_updates
    ('logistic', 30.0, 0.5, 160)
    """

    def __post_init__(self) -> None:
        # The problem and the plan check the values that they take themselves.
        for name in COUNTS:
            value, least = getattr(self, name), int(name != "verbose")
            if not self._is_open(name) and (not isinstance(value, Integral) or value < least):
                raise ValueError(f"{name} must be an integer >= {least}{_or_auto(name)}, got {value!r}")
        for name in (*NUMBERS, *POSITIVE):
            value, limit = getattr(self, name), " > 0" * (name in POSITIVE)
            if not self._is_open(name) and (
                not isinstance(value, Real) or not math.isfinite(value) or (limit and value <= 0)
            ):
                raise ValueError(f"{name} must be a finite number{limit}{_or_auto(name)}, got {value!r}")
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise TypeError(f"privacy must be a dada.Privacy or None, got {self.privacy!r}")
        check_unknown_user(self.unknown_user)
        check_workers(self.engine, self.latency, self.n_jobs)
        if isinstance(self.graph, str) and self.graph not in GRAPHS:
            raise ValueError(
                f"graph must be one of {list(GRAPHS)}, a CollaborationGraph, a matrix of weights or a function "
                f"(population, models) -> graph, got {self.graph!r}"
            )
        if callable(self.graph) and self.privacy is not None:
            raise ValueError("a graph rule reads exact rows, which privacy protects: give one of the named graphs")
        if self.privacy is not None and (
            self.predictors in (TREES, GROWN, BOOSTED)
            or trees_of(self.predictors)[0] is not None
            or boosted_of(self.predictors)[0] is not None
        ):
            raise ValueError("trees reveal rows of their owners, which privacy protects: give other predictors")

        self._is_made = True

    # A frozen dataclass cannot inherit from one that is not, and estimators must be able to set their parameters.
    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_is_made", False):
            raise FrozenInstanceError(f"settings are frozen: use dataclasses.replace(settings, {name}=...)")
        super().__setattr__(name, value)

    def _is_open(self, name: str) -> bool:
        value = getattr(self, name)
        return (value is None and name in OPTIONAL) or (_is_auto(value) and name in MAY_BE_AUTO)

    def recipes(self, people: Population | ParquetUsers) -> dict[str, Recipe]:
        """Base predictors to choose from, by family: the given ones only, or the automatic families."""
        if self.predictors is None:
            return {**families(people)}
        if isinstance(self.predictors, str):
            known = families(people) | rich_families(people)
            if self.predictors == BOOSTED:
                return {**families(people)}
            if self.predictors not in known:
                known_names = [*known, BOOSTED]
                raise ValueError(f"predictors must be a recipe or one of {known_names}, got {self.predictors!r}")
            return {self.predictors: known[self.predictors]}
        if not hasattr(self.predictors, "fit"):
            raise TypeError(f"predictors must be a recipe such as dada.Stumps(), got {self.predictors!r}")
        return {GIVEN: boosted_of(self.predictors)[1]}

    def rich_recipes(self, people: Population | ParquetUsers, grows: bool = True) -> dict[str, Recipe]:
        """Families of interactions that compete with the automatic families; none if predictors are given.

        Waves compete if they are enough to cover all pairs of features. Trees reveal rows of their owners, so there are
        none with privacy. Other steps than block steps take too long to try more families.
        """
        if self.predictors is not None or self.privacy is not None or not self.takes_blocks:
            return {}
        wanted = [WAVES] * (people.n_features * WAVES_PER_FEATURE <= MOST_WAVES) + [TREES, GROWN] * grows
        return {name: recipe for name, recipe in rich_families(people).items() if name in wanted}

    @property
    def may_boost(self) -> bool:
        """Whether trees with personal leaves may join the models: of automatic base predictors, without limits.

        Their residuals are those of the automatic losses. They reveal rows, so there are none with privacy. Their leaf
        values do not count towards beta, so there are none either where a bound is asked for.
        """
        is_open = self.predictors == BOOSTED or (self.predictors is None and self.beta == AUTO)
        usual = self.loss in (AUTO, "logistic", "squared") and self.max_bits is None and self.max_time_s is None
        return is_open and usual and self.privacy is None and self.takes_blocks and self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether users learn from each other by one of the named graphs."""
        return self.is_graph(AUTO, "everyone", *BY_EVIDENCE) and self.mu != 0

    def resolved(self, people: Population | ParquetUsers, n_weights: int, family: str = GIVEN) -> Settings:
        """These settings with a value for every "auto" that follows from sizes; graph, lam and graph_every stay."""
        # A row of C classes counts as C - 1 comparisons, whose mean is its loss, and each class has its own weights:
        # so beta, n_updates and mu are those of two classes for each pair.
        n_classes = max(2, people.n_classes)
        loss, beta, mu, n_updates = self.loss, self.beta, self.mu, self.n_updates
        if loss == AUTO:
            loss = "squared" if people.n_classes == 0 else "logistic"
        if beta == AUTO:
            beta = BETA * n_classes / 2
        scale = MU_SCALE.get(loss, OTHER_MU_SCALE) if isinstance(loss, str) else OTHER_MU_SCALE
        scale *= float(people.confidence.mean())
        scale *= MU_SCALE_OF_LINEAR if family in LINEAR_FAMILIES else 1.0
        usual_mu = scale / (n_classes - 1)
        mu = usual_mu if isinstance(mu, str) else mu
        if n_updates == AUTO and self.takes_blocks:
            # A strong coupling takes long to bring users together, however few weights they have.
            among_everyone = WAKEUPS if mu > usual_mu else min(WAKEUPS, WAKEUPS_OF_SMALL + n_weights)
            n_updates = WAKEUPS_BY_EVIDENCE if self.is_graph(*BY_EVIDENCE) else among_everyone
        elif n_updates == AUTO:
            # Linear features are correlated and converge slowly, but their updates are fast.
            least = UPDATES_OF_LINEAR if family in LINEAR_FAMILIES else LEAST_UPDATES
            n_updates = max(least, min(n_weights // 2, MOST_UPDATES * n_classes // 2))
        return replace(self, loss=loss, beta=beta, mu=mu, n_updates=n_updates)

    @property
    def model_settings(self) -> dict[str, Any]:
        """Loss, constraint and regularizers, as `Problem` takes them."""
        return {
            "loss": self.loss,
            "beta": _decided("beta", self.beta),
            "mu1": _decided("mu", self.mu),
            "regularizer": self._regularizer(),
            "graph_loss": self.graph_loss,
        }

    def problem(
        self, population: Population, predictors: BasePredictors, predictions: NDArray[Any] | None = None
    ) -> Problem:
        """The joint problem of a population under these settings."""
        return problem(population, predictors, predictions=predictions, **self.model_settings)

    def _regularizer(self) -> Regularizer:
        if self.regularizer is None:
            return LogDegree(delta=self.delta) if isinstance(self.lam, str) else LogDegree(self.lam, self.delta)
        if not isinstance(self.regularizer, LogDegree | DegreeTarget | DegreeFunction):
            raise TypeError(
                f"regularizer must be a LogDegree, DegreeTarget or DegreeFunction, got {self.regularizer!r}"
            )
        return self.regularizer

    def plan(self, n_users: int) -> Plan:
        """The engine's plan; counts per user become counts of the whole population."""
        n_updates = int(_decided("n_updates", self.n_updates)) * n_users
        learns = self.is_graph("learned", *BY_EVIDENCE) and _decided("mu", self.mu) > 0 and n_users > 1
        by_evidence = learns and self.graph != "learned"
        phases: dict[str, Any] = {}
        if by_evidence and self.takes_blocks:
            phases = {"local_updates": WAKEUPS_ALONE * n_users, "first_graph_wakeups": FIRST_GRAPH_WAKEUPS * n_users}
            phases |= {"graph_wakeups": n_users}
        return Plan(
            n_updates=n_updates,
            learn_graph=learns,
            graph_rule="evidence" if by_evidence else "distance",
            tau=self.tau,
            step=BLOCK_STEP if self.takes_blocks else "pairwise" if self.step == AUTO else self.step,
            block=self.block_step(by_evidence),
            graph_step=self.graph_step,
            kappa=max(1, min(5, n_users - 1)) if self.kappa is None else self.kappa,
            restart=self.restart,
            graph_every=math.ceil(self.updates_per_graph_phase * n_users),
            n_neighbours=self.n_neighbours if self.max_neighbours is None else self.max_neighbours,
            max_neighbours=None if by_evidence else self.max_neighbours,
            latency=self.message_latency,
            max_bits=self.max_bits,
            max_time_s=self.max_time_s,
            gap_tolerance=self.tol,
            trace_every=max(1, n_updates // trace_points(n_users)),
            **phases,
        )

    @property
    def takes_blocks(self) -> bool:
        """Whether users make block steps: by default, except with a graph learned from distances or privacy.

        >>> Settings().takes_blocks, Settings(graph="learned").takes_blocks
        (True, False)
        """
        fits = not self.is_graph("learned") and self.privacy is None
        return self.step == BLOCK_STEP or (self.step == AUTO and fits)

    def block_step(self, by_evidence: bool) -> BlockStep:
        """How users make and share block steps."""
        if by_evidence:
            return BY_EVIDENCE_STEP
        if isinstance(self.graph, CollaborationGraph) and self.graph.directed:
            return BlockStep(momentum=0.0)
        return WITH_EVERYONE if self.is_graph("everyone") else BlockStep()

    def is_graph(self, *names: str) -> bool:
        """Whether the graph is one of these rules; never if a graph is given."""
        return isinstance(self.graph, str) and self.graph in names

    def with_rule_of(self, population: Population) -> Settings:
        """These settings with a graph rule that takes models only; the rule reads the rows of this population."""
        return replace(self, graph=partial(self.graph, population)) if callable(self.graph) else self

    def needs_lam(self, n_users: int) -> bool:
        """Whether lam is "auto" and used: by a graph that is learned from distances.

        >>> Settings(graph="learned", mu=1.0).needs_lam(2), Settings(graph="everyone", mu=1.0).needs_lam(2)
        (True, False)
        """
        learns = self.is_graph("learned") and _decided("mu", self.mu) > 0 and n_users > 1
        return learns and _is_auto(self.lam) and self.regularizer is None

    @property
    def updates_per_graph_phase(self) -> float:
        """Model updates per user between two graph phases."""
        if not isinstance(self.graph_every, str):
            return float(self.graph_every)
        if self.is_graph(*BY_EVIDENCE):
            if self.takes_blocks:
                return WAKEUPS_PER_GRAPH_PHASE
            return max(LEAST_GRAPH_EVERY, _decided("n_updates", self.n_updates) / GRAPH_ROUNDS)
        return GRAPH_EVERY

    @property
    def message_latency(self) -> float:
        """The latency of the run: 0 if one thread makes all updates and none is given, else 0.1.

        >>> Settings(n_jobs=2).message_latency
        0.1
        """
        if not isinstance(self.latency, str):
            return float(self.latency)
        return LATENCY if _are_several(self.engine, self.n_jobs) else 0.0

    def given_graph(self, n_users: int) -> CollaborationGraph | None:
        """The graph of the run, or None if it is learned or not used."""
        if _decided("mu", self.mu) <= 0:
            return None
        if isinstance(self.graph, str):
            # Drawn from its own generator: the run's schedule must not depend on whether there is a graph.
            rng, is_used = np.random.default_rng(n_users), self.graph == "everyone" and n_users > 1
            return everyone(n_users, rng, FEW_NEIGHBOURS if self.takes_blocks else None) if is_used else None
        given = self.graph if isinstance(self.graph, CollaborationGraph) else CollaborationGraph.from_scipy(self.graph)
        if given.n_users != n_users:
            raise ValueError(
                f"graph must have one row per user of the training data ({n_users}, in the order of users_), "
                f"got {given.n_users}"
            )
        return given

    @contextmanager
    def workers(self) -> Iterator[Workers | None]:
        """Workers of the run; None if one thread makes all updates without latency."""
        if self.engine == "ray":
            with self.shards() as workers:
                yield workers
        else:
            yield None if self.message_latency == 0 else Threads(self._n_local)

    def shards(self, read: Read | None = None) -> Sharded:
        """Shards on Ray, or in processes of this machine; with `read`, each reads the rows of its users."""
        if self.engine == "ray":
            from dada.engine.backends import OnRay, cluster_cpus

            n_shards = cluster_cpus() if self.n_jobs in (None, ALL_PROCESSORS) else int(self.n_jobs or 1)
            return Sharded(n_shards, OnRay(), read)
        return Sharded(self._n_local, ThisProcess() if self._n_local == 1 else Processes(), read)

    @property
    def _n_local(self) -> int:
        return (os.cpu_count() or 1) if self.n_jobs == ALL_PROCESSORS else self.n_jobs or 1

    def shown(self) -> dict[str, Any]:
        """The values used, for `settings_`."""
        values = {name: getattr(self, name) for name in ("loss", "beta", "mu", "n_neighbours", "tau", "n_updates")}
        values["lam"] = None if isinstance(self.lam, str) else self.lam
        values["step"] = self.plan(2).step
        values["graph"] = self.graph if isinstance(self.graph, str) else "given"
        return values | {"graph_every": self.updates_per_graph_phase, "latency": self.message_latency}


def check_workers(engine: Any, latency: Any, n_jobs: Any) -> None:
    """Refuse an unknown engine, and parallel workers without latency."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {list(ENGINES)}, got {engine!r}")
    if latency != AUTO and not (isinstance(latency, Real) and 0 <= float(latency) < math.inf):
        raise ValueError(f"latency must be a finite number >= 0 or 'auto', got {latency!r}")
    if n_jobs is not None and not (isinstance(n_jobs, Integral) and (int(n_jobs) > 0 or n_jobs == ALL_PROCESSORS)):
        raise ValueError(f"n_jobs must be an integer >= 1, -1 for all processors, or None, got {n_jobs!r}")
    if latency == 0 and _are_several(engine, n_jobs):
        raise ValueError(
            f"engine={engine!r} with n_jobs={n_jobs} needs latency > 0, within which workers need not wait for each "
            "other, got 0: set latency='auto'"
        )


def check_unknown_user(unknown_user: Any) -> None:
    """Refuse an unknown value of `unknown_user`."""
    if unknown_user not in UNKNOWN_USER:
        raise ValueError(f"unknown_user must be one of {list(UNKNOWN_USER)}, got {unknown_user!r}")


def _are_several(engine: str, n_jobs: Any) -> bool:
    return engine == "ray" or n_jobs not in (None, 1)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def _or_auto(name: str) -> str:
    return " or 'auto'" if name in MAY_BE_AUTO else ""


def _decided(name: str, value: float | str) -> float:
    if isinstance(value, str):
        raise ValueError(f"{name} is still {value!r}: call `resolved` first")
    return value


def generator(random_state: Any) -> np.random.Generator:
    """A generator from what scikit-learn calls a random state: None, a seed, a Generator or a RandomState.

    >>> generator(7).integers(100) == np.random.default_rng(7).integers(100)
    np.True_
    """
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    if random_state is None or isinstance(random_state, int | np.integer | np.random.Generator):
        return np.random.default_rng(random_state)
    raise TypeError(
        "random_state must be None, an integer, a numpy.random.Generator or a numpy.random.RandomState, "
        f"got {random_state!r}"
    )


def families(people: Population | ParquetUsers) -> dict[str, Union]:
    """Automatic families of base predictors by name, the simplest first.

    Linear features are clipped at two standard deviations, at one, or, for numbers, which can follow a feature however
    far, at six. Stumps lie at quantiles, four to ten per feature, next to linear features. All have a weakly coupled
    constant. Stumps are left out if several classes would make the table of margins too large.
    """
    constant = Constant(coupling=0.1)
    linear: tuple[Recipe, ...] = (Linear(clip=2.0), constant)
    per_feature = min(10, max(4, MOST_STUMPS // people.n_features))
    if people.n_classes > 2:
        cells = people.n_rows * (people.n_classes - 1) * people.n_classes
        per_feature = min(per_feature, MOST_CELLS // (cells * people.n_features) - 1)
    found = {LINEAR: Union(*linear), CLIPPED: Union(Linear(), constant)}
    if people.n_classes == 0:
        # A third of the prediction needs three times the weight: a ninth of the coupling then allows equal differences.
        found[WIDE] = Union(Linear(clip=6.0, coupling=1 / 9), constant)
    if per_feature >= 1:
        found[STUMPS] = Union(Stumps(per_feature=per_feature, drop_duplicates=True), *linear)
    return found


def rich_families(people: Population | ParquetUsers) -> dict[str, Union]:
    """Families of interactions by name, next to linear features and a constant: waves of two features, and trees.

    Users grow trees on their own rows; in "grown", neighbourhoods grow more, which takes several times the bits. All
    are smaller for several classes, which multiply the table of margins.
    """
    linear = families(people)[LINEAR if people.n_classes else WIDE]
    cells = people.n_rows * (max(2, people.n_classes) - 1) * (people.n_classes if people.n_classes > 2 else 1)
    most = max(1, MOST_CELLS // cells)
    waves = RandomFourier(n=min(MOST_WAVES, most), per_feature=WAVES_PER_FEATURE, features=2, width=WAVE_WIDTH)
    own, grown = (Trees(most=min(Trees.most, most), rounds=rounds) for rounds in (0, 1))
    recipes: dict[str, Recipe] = {WAVES: waves, TREES: own, GROWN: grown}
    return {name: Union(recipe, *linear.recipes) for name, recipe in recipes.items()}


def everyone(n_users: int, rng: np.random.Generator, n_neighbours: int | None = None) -> CollaborationGraph:
    """A random graph with equal weights; by default complete up to 300 users, with about fifty neighbours beyond.

    >>> everyone(4, np.random.default_rng(0)).mean_neighbours
    3.0
    """
    if n_neighbours is None:
        n_neighbours = SOME_USERS if n_users > FEW_USERS else FEW_USERS
    return CollaborationGraph.background(n_users, rng, n_neighbours)


def trace_points(n_users: int) -> int:
    """Number of trace points of a run: each goes through all users and rows, so large populations get fewer.

    >>> trace_points(100), trace_points(100_000), trace_points(1_000_000)
    (25, 20, 5)
    """
    return max(5, min(25, 2_000_000 // n_users))
