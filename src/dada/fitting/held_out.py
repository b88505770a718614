"""How right models are about held-out rows, and when one is clearly better than another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dada.core.plan import Status
from dada.data import BasePredictors, Recipe
from dada.events import Observer, TrialStarted, silent
from dada.fitting.execution import carry_out
from dada.fitting.folds import PerUserKFold
from dada.fitting.lam import AUTO, LEAST_UPDATES, LINEAR, UPDATES_OF_LINEAR, numbers
from dada.fitting.rows import Floats, Rows, agreed, decisions_of, of_users
from dada.fitting.settings import latency_of, recipes_of


class HeldOutScores(NamedTuple):
    """Rows, one by one, by both measures of `Rows`.

    Between kinds of models only `right` tells which is better: some are bolder than others, and `log_score` would take
    that for knowledge or for folly. Within one kind it tells more, since it is no matter of yes or no.
    """

    right: NDArray[np.float32]
    log_score: NDArray[np.float32]

    @classmethod
    def none_yet(cls, n_rows: int) -> Self:
        """What to add to."""
        return cls(*np.zeros((2, n_rows), np.float32))

    @classmethod
    def of(cls, rows: Rows, values: Floats) -> Self:
        """Decision values of rows."""
        return cls(rows.right(values).astype(np.float32), rows.log_score(values).astype(np.float32))

    def add(self, places: NDArray[np.intp], found: HeldOutScores, share: float = 1.0) -> None:
        """Add what was found about the rows at these places."""
        for mine, theirs in zip(self, found, strict=True):
            mine[places] += np.float32(share) * theirs

    @property
    def likelihood(self) -> float:
        """Sum of the log scores."""
        return float(self.log_score.sum(dtype=np.float64))


def share_right(rows: Rows, judged: HeldOutScores) -> float:
    """Share of right rows, or minus the squared error: the mean over users who had rows to hold out."""
    sizes = rows.people.sizes
    return float((rows.per_user(judged.right) / sizes)[sizes > 1].mean())


def is_ahead(rows: Rows, one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether the first measure of rows is above the second beyond chance; users with a single row have no say."""
    return is_clear(rows.per_user(one - other)[rows.people.sizes > 1])


def is_clear(gains: NDArray[np.float64]) -> bool:
    """Whether the sum of users' gains is above its standard error.

    >>> is_clear(np.array([3.0, 2.0, -1.0])), is_clear(np.array([3.0, -2.0, 0.0]))
    (True, False)
    """
    return bool(gains.sum() > gains.std() * np.sqrt(gains.size))


GRAPHS = ("everyone", "evidence")
# Four times the pull would bring School 0.15 points on average, and leave more of its users worse off than alone.
MU_SCALES = (1.0, 0.25)
N_FOLDS = 3
# What suits a population shows in so many of its users.
MOST_USERS = 1000


class Choice(NamedTuple):
    """What is tried: a family of base predictors, a graph, mu as a multiple of the usual, and whether to the end."""

    family: str
    graph: str
    mu_scale: float = 1.0
    whole: bool = False

    def __str__(self) -> str:
        return (
            f"{self.family}, {self.graph}" + f", mu x {self.mu_scale:g}" * (self.mu_scale != 1) + ", whole" * self.whole
        )


class Decided(NamedTuple):
    """The recipe of the base predictors, settings with a graph and numbers in them, and how choices compared."""

    recipe: Recipe
    family: str
    params: dict[str, Any]
    held_out: dict[str, float]


def decide(params: dict[str, Any], rows: Rows, rng: np.random.Generator, observer: Observer = silent) -> Decided:
    """Decide base predictors, graph and mu where they are left open; the observer hears of each trial.

    Where users are too few, or the rows, to hold any out, the first of all choices is taken.
    """
    recipes = recipes_of(params["predictors"], rows)
    n_users = rows.people.n_users
    graph = params["graph"] if isinstance(params["graph"], str) else "given"
    simplest = "everyone" if n_users > 1 else "none"
    is_open = graph == AUTO
    # Learning a graph from distances takes long, one that is given says nothing about a sample of users, and alone
    # users have too few rows to tell base predictors apart.
    under = graph if graph == "evidence" else simplest
    trials = Trials(params, rows, recipes, rng, observer)
    # Stumps come late into their own, so families are compared when they are done, and all else before.
    best = trials.best([Choice(family, under, whole=True) for family in recipes])._replace(whole=False)
    # Evidence makes directed graphs, along which updates cannot take time.
    if is_open and n_users > 2 and params["mu"] != 0 and latency_of(params) == 0:
        best = trials.best([best._replace(graph=name) for name in GRAPHS])
    if graph in (AUTO, *GRAPHS) and n_users > 1 and params["mu"] == AUTO:
        best = trials.best([best._replace(mu_scale=mu_scale) for mu_scale in MU_SCALES], by="log_score")
    decided = dict(params)
    if is_open:
        decided["graph"] = best.graph
    if params["mu"] == AUTO:
        decided["mu"] = best.mu_scale * numbers(params, rows, 1, best.family)["mu"]
    return Decided(recipes[best.family], best.family, decided, trials.means())


class Fold(NamedTuple):
    """Places of the rows to judge by, rows to learn from, rows to judge by, base predictors agreed on by the former."""

    places: NDArray[np.intp]
    learned: Rows
    held_out: Rows
    predictors: dict[str, BasePredictors]


class Trials:
    """How well choices do on held-out rows; each is tried once."""

    def __init__(
        self,
        params: dict[str, Any],
        rows: Rows,
        recipes: dict[str, Recipe],
        rng: np.random.Generator,
        observer: Observer,
    ):
        self.recipes = recipes
        self.observer = observer
        self.params = params | {"engine": "local", "n_jobs": None, "latency": 0.0}
        self.params |= {"tol": None, "max_bits": None, "max_time_s": None}
        self.rows = _some(rows, rng)
        self.seed = int(rng.integers(2**31))
        self.rng = rng
        self._folds: list[Fold] | None = None
        self._judged: dict[Choice, HeldOutScores] = {}

    @property
    def are_possible(self) -> bool:
        """Whether there are rows enough to hold some out."""
        sizes = self.rows.people.sizes
        return int(sizes[sizes > 1].sum()) >= N_FOLDS

    def best(self, candidates: Sequence[Choice], by: str = "right") -> Choice:
        """The first candidate, or one that beats it by more than the standard error of the difference.

        All rows count alike in the comparison, or users with three rows would drown the others' say.
        """
        best = candidates[0]
        if not self.are_possible:
            return best
        for other in candidates[1:]:
            if is_ahead(self.rows, getattr(self.judged(other), by), getattr(self.judged(best), by)):
                best = other
        return best

    def means(self) -> dict[str, float]:
        """What was tried, and the share of rows that it got right."""
        return {str(choice): share_right(self.rows, found) for choice, found in self._judged.items()}

    def judged(self, choice: Choice) -> HeldOutScores:
        """How good the choice is on each row when it is held out."""
        if choice not in self._judged:
            self.observer(TrialStarted(str(choice)))
            found = HeldOutScores.none_yet(self.rows.people.n_rows)
            for places, learned, held_out, predictors in self.folds:
                if choice.family not in predictors:
                    predictors[choice.family], _ = agreed(self.recipes[choice.family], learned.people)
                models = self._models(choice, learned, predictors[choice.family])
                found.add(places, HeldOutScores.of(held_out, decisions_of(held_out, predictors[choice.family], models)))
            self._judged[choice] = found
        return self._judged[choice]

    @property
    def folds(self) -> list[Fold]:
        """Parts of the rows to judge by, each with the others to learn from."""
        if self._folds is None:
            owners, labels = self.rows.owners, None if self.rows.n_classes == 0 else self.rows.people.y
            split = PerUserKFold(N_FOLDS, shuffle=True, random_state=self.rng).split(owners, labels, users=owners)
            self._folds = [Fold(tested, self.rows.take(kept), self.rows.take(tested), {}) for kept, tested in split]
        return self._folds

    def _models(self, choice: Choice, rows: Rows, predictors: BasePredictors) -> NDArray[Any]:
        used = numbers(self.params, rows, predictors.n * rows.n_blocks, choice.family)
        used |= {"graph": choice.graph, "mu": choice.mu_scale * used["mu"], "lam": None}
        if not choice.whole:
            # Early models tell graphs apart best; but linear predictors tell nothing before they are nearly done.
            is_quick = choice.family == LINEAR and rows.n_classes <= 2
            used["n_updates"] = min(used["n_updates"], UPDATES_OF_LINEAR // 2 if is_quick else LEAST_UPDATES // 2)
        result = carry_out(used, rows, predictors, np.random.default_rng(self.seed))
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return result.models


def _some(rows: Rows, rng: np.random.Generator) -> Rows:
    """All rows, or those of some users drawn at random where there are many."""
    n_users = rows.people.n_users
    if n_users <= MOST_USERS:
        return rows
    return of_users(rows, np.sort(rng.choice(n_users, MOST_USERS, replace=False)))
