"""Choose base predictors, graph and mu by trials on held-out rows; folds that leave every user training rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax
from sklearn.model_selection import BaseCrossValidator

from dada.core.compiled import Array
from dada.core.losses import mean_per_user
from dada.core.plan import Status
from dada.core.problem import Problem
from dada.data import BoostedTrees, Population, Recipe, Trees, Union
from dada.data.population import as_values
from dada.engine import RunResult
from dada.events import Observer, TrialStarted, silent
from dada.fitting.boosting import ROUNDS, boosted_of, boosted_values
from dada.fitting.models import Decided, HeldOutValues, decisions, dictionary, run_engine
from dada.fitting.settings import (
    AUTO,
    BOOSTED,
    GROWN,
    LEAST_UPDATES,
    LINEAR_FAMILIES,
    MOST_CELLS,
    TREES,
    UPDATES_OF_LINEAR,
    WAVES,
    Settings,
    generator,
)
from dada.fitting.trees import Grove, residuals
from dada.task import n_blocks

GRAPHS = ("everyone", "evidence")
# Multiples of the automatic mu to try: down from 1 as long as users gain, else up.
WEAKER, STRONGER = (0.25, 0.0625), (4.0, 16.0)
N_FOLDS = 3
# Rows held out after which a trial needs no further fold, nor more users than some: the rest would hardly change its
# standard error.
ENOUGH_HELD_OUT, SOME_USERS = 3000, 100
# Block steps per user in a trial of base predictors, and of graphs, which early models separate best, and mu. Many
# linear features are correlated and converge slowly: all their trials are long.
TRIAL_WAKEUPS, SHORT_WAKEUPS = 30, 10
MANY_FEATURES = 100
# Standard errors by which a choice must be ahead of the usual one: by chance, one in twenty is. Trials of interactions
# take long, so the test that precedes them asks for more; what passes it needs no such doubt again.
DOUBT, SCREEN_DOUBT, SCREENED_DOUBT = 1.64, 3.0, 1.0
# Trees of neighbourhoods cost about six times the bits of users' own trees: they must be ahead beyond doubt.
DEAR_DOUBT = 3.0
# Standard errors of the unknown rest within which further folds may change the answer of a comparison. Those of few
# users, or of few held-out rows, are uncertain themselves, so all folds are tried.
OPEN_WITHIN, FEW_USERS, FEW_HELD_OUT = 2.0, 30, 200
# With so few rows a series of comparisons of classes finds differences where there are none.
DOUBT_OF_FEW = 3.0
# Trees that show whether features interact: one for each user and its neighbours.
SCREEN = Trees(per_neighbourhood=1, cuts=15)
# Boosted trees to try: weights of the pool's leaf values against own rows, around which those of the trees spread, and
# shares of the boosted models in decision values.
OWN, SPREAD = (2.0, 30.0, math.inf), 3.0
SHARES = (0.25, 0.5, 0.75, 0.9)
# They are compared after fewer rounds at a higher rate, on as many folds as hold out this many rows. Many features need
# few thresholds.
CLIMBING_ROUNDS, CLIMBING_RATE, ENOUGH_FOR_TREES, FEW_CUTS = 100, 0.3, 700, 15
# A run ends after this number of comparisons in a row without a new best.
TIRED = 2
# Standard errors by which labels must be likelier after more rounds, which cost messages, or with the trees at all; and
# with a larger share of the trees: users with few rows, who count little in likelihoods, need the coupled models.
LIKELIER, LIKELIER_OF_SHARES = 0.5, 1.0
# Temperatures at which likelihoods of boosted trees are compared: powers of two in steps of a quarter.
TEMPERATURES = tuple(2.0 ** (quarters / 4) for quarters in range(-8, 17))
# A sample of this size shows which settings suit a population.
MOST_USERS = 1000


@dataclass(eq=False, repr=False)
class PerUserKFold(BaseCrossValidator):
    """K-fold cross-validation inside every user's rows.

    The rows of each user are assigned to the folds in turn, so that its numbers of rows in any two folds differ by at
    most one. Each row of a user with two rows or more is tested once, and at least one row remains for training. The
    only row of a user is never tested. With labels, a user's rows are assigned label by label, so that all folds have a
    similar mix of labels.

    Parameters
    ----------
    n_splits : int
        Number of folds, at least 2.
    shuffle : bool
        Assign each user's rows in random order instead of the order given.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Source of the random order; only used with `shuffle`.

    Examples
    --------
    >>> users = ["ann", "ann", "ann", "bob", "bob", "eve"]
    >>> for train, test in PerUserKFold(n_splits=2).split(users, users=users):
    ...     print(train, test)
    [1 3 5] [0 2 4]
    [0 2 4 5] [1 3]
    """

    # With scikit-learn's metadata routing, users (or groups) given to a search reach `split`.
    __metadata_request__split: ClassVar[dict[str, bool]] = {"users": True, "groups": True}

    n_splits: int = 3
    _: KW_ONLY
    shuffle: bool = False
    random_state: Any = None

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, *, users: Any = None) -> int:
        """Number of folds."""
        return int(self.n_splits)

    def split(
        self, X: Any, y: Any = None, groups: Any = None, *, users: Any = None
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield the training and the test rows of every fold.

        Parameters
        ----------
        X : array
            Not used.
        y : array of shape (rows,), optional
            Labels.
        groups, users : array of shape (rows,)
            The user of each row, under either name.
        """
        fold = self._folds(users if users is not None else groups, y)
        for i in range(self.n_splits):
            yield np.flatnonzero(fold != i), np.flatnonzero(fold == i)

    def _folds(self, users: Any, y: Any) -> NDArray[np.intp]:
        """The fold in which each row is tested, or -1."""
        if not isinstance(self.n_splits, Integral) or self.n_splits < 2:
            raise ValueError(f"n_splits must be an integer >= 2, got {self.n_splits!r}")
        if users is None:
            raise ValueError("PerUserKFold needs the user of each row: give users=, one entry per row")
        codes, counts = np.unique(as_values(users, "users"), return_inverse=True, return_counts=True)[1:]
        labels = np.zeros(codes.size) if y is None else np.unique(as_values(y, "y"), return_inverse=True)[1]
        if labels.size != codes.size:
            raise ValueError(f"y and users must have one entry per row, got {labels.size} and {codes.size}")
        turn = generator(self.random_state).random(codes.size) if self.shuffle else np.arange(codes.size)
        order = np.lexsort((turn, labels, codes))
        dealt = order[counts[codes[order]] > 1]
        if dealt.size < self.n_splits:
            raise ValueError(
                f"n_splits must be at most {dealt.size}, the number of rows of users with two rows or more, "
                f"got {self.n_splits}"
            )
        fold = np.full(codes.size, -1)
        fold[dealt] = np.arange(dealt.size) % self.n_splits
        return fold


class EvenFolds(PerUserKFold):
    """Folds of trials: like those of `PerUserKFold`, but with similar labels also for users of equal sizes.

    There users with a multiple of as many rows as folds have their last label in the last fold, all of them. Here each
    such user begins with a random fold.
    """

    def _folds(self, users: Any, y: Any) -> NDArray[np.intp]:
        fold = super()._folds(users, y)
        codes, counts = np.unique(users, return_inverse=True, return_counts=True)[1:]
        begins = generator(self.random_state).integers(self.n_splits, size=counts.size)
        moved = (counts % self.n_splits == 0)[codes] & (fold >= 0)
        fold[moved] = (fold + begins[codes])[moved] % self.n_splits
        return fold


class HeldOutScores(NamedTuple):
    """Two scores of each row.

    `right` is 1 or 0 for a class, and minus the squared error for a number. `log_score` is the logarithm of the
    probability of a row's class; it needs fewer rows to show a difference, but is not comparable across families of
    models, some of which give larger decision values than others.
    """

    right: NDArray[np.float32]
    log_score: NDArray[np.float32]

    @classmethod
    def zeros(cls, n_rows: int) -> Self:
        """Zeros, to add scores to."""
        return cls(*np.zeros((2, n_rows), np.float32))

    @classmethod
    def of(cls, population: Population, values: NDArray[np.float64]) -> Self:
        """Scores of decision values.

        >>> people = Population.from_arrays([[0.0], [1.0]], [0, 1], ["ann", "ann"])
        >>> HeldOutScores.of(people, np.array([2.0, 3.0])).right.tolist()
        [0.0, 1.0]
        """
        y = population.y
        if population.n_classes > 2:
            right = values.argmax(axis=1) == y
            log_score = log_softmax(values, axis=1)[np.arange(len(y)), y]
        elif population.n_classes == 2:
            right, log_score = (values > 0) == (y > 0), log_expit(values * y)
        else:
            right = log_score = -((values - y) ** 2)
        return cls(right.astype(np.float32), log_score.astype(np.float32))

    def add(self, places: NDArray[np.intp], found: HeldOutScores, share: float = 1.0) -> None:
        """Add scores of the rows at these places."""
        for mine, theirs in zip(self, found, strict=True):
            mine[places] += np.float32(share) * theirs

    @property
    def likelihood(self) -> float:
        """Sum of the log scores."""
        return float(self.log_score.sum(dtype=np.float64))


def cooled_log_scores(population: Population, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log scores of rows at the temperature at which labels are likeliest; of numbers, minus the squared errors.

    Probabilities are calibrated after a fit, so that models which are only too sure must not count as worse.

    >>> people = Population.from_arrays(np.zeros((4, 1)), [0, 1, 1, 1], ["ann"] * 4)
    >>> cool, hot = (cooled_log_scores(people, np.array([1.0, 1.0, 1.0, 1.0]) * scale) for scale in (1.0, 8.0))
    >>> bool(abs(cool.sum() - hot.sum()) < 1e-9)
    True
    """
    if not population.n_classes:
        return HeldOutScores.of(population, values).log_score.astype(np.float64)
    scores = [HeldOutScores.of(population, values / temperature) for temperature in TEMPERATURES]
    return max(scores, key=lambda found: found.likelihood).log_score.astype(np.float64)


def per_user(population: Population, scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Sum of a score over each user's rows."""
    return np.bincount(population.owners, weights=scores, minlength=population.n_users).astype(np.float64)


def share_right(population: Population, scores: HeldOutScores) -> float:
    """Share of right rows, or minus the squared error: mean over the users with rows to hold out."""
    return float(mean_per_user(scores.right, population.row_start)[population.sizes > 1].mean())


def is_ahead(population: Population, one: NDArray[np.float32], other: NDArray[np.float32], doubt: float = 1.0) -> bool:
    """Whether the first score is clearly above the second; users with one row do not count."""
    return standard_errors(per_user(population, one - other)[population.sizes > 1]) > doubt


def standard_errors(gains: NDArray[np.float64]) -> float:
    """How many of its standard errors the sum of users' gains is above zero.

    >>> standard_errors(np.array([3.0, 2.0, -1.0])) > 1, standard_errors(np.zeros(3))
    (True, 0.0)
    """
    total, error = float(gains.sum()), float(gains.std() * np.sqrt(gains.size))
    return total / error if error > 0 else np.copysign(np.inf, total) if total else 0.0


def expected_answer(ahead: float, share: float, doubt: float) -> bool | None:
    """Whether a lead will exceed `doubt` standard errors; None while the folds to come may change the answer.

    `ahead` is the lead after this share of the folds. If it goes on growing as it did, the final one has the mean
    ahead / sqrt(share) and the standard deviation sqrt(1 - share).

    >>> [expected_answer(ahead, share=1 / 3, doubt=1.64) for ahead in (-0.5, 1.0, 2.0)]
    [False, None, True]
    """
    beyond = ahead / np.sqrt(share) - doubt
    return None if abs(beyond) < OPEN_WITHIN * np.sqrt(1 - share) else bool(beyond > 0)


def better_alone(gains: NDArray[np.float32], population: Population, doubt: float) -> NDArray[np.bool_]:
    """Users whose local model was right more often, by McNemar's test with Edwards' correction for few rows.

    Of numbers, gains are differences of squared errors: their sum is compared with its standard error.

    >>> people = Population.from_arrays(np.zeros((6, 1)), [0, 1] * 3, ["ann"] * 6)
    >>> better_alone(np.ones(6, np.float32), people, doubt=1.64).tolist()
    [True]
    """
    least = 1.0 if population.n_classes else 0.0
    error = np.sqrt(np.maximum(per_user(population, gains**2), least))
    return np.asarray(per_user(population, gains) - least > doubt * error)


class Choice(NamedTuple):
    """One trial: a family of base predictors, a graph, mu as a multiple of its automatic value, and its length.

    With boosted trees, decision values are weighted means of those of the models and of the trees.
    """

    family: str
    graph: str
    mu_scale: float = 1.0
    whole: bool = False
    boosted: BoostedTrees | None = None

    def __str__(self) -> str:
        scaled = f", mu x {self.mu_scale:g}" * (self.mu_scale != 1)
        name = f"{self.family}, {self.graph}{scaled}" + ", whole" * self.whole
        trees = self.boosted
        if trees is None:
            return name
        return f"{name}, {trees.share:g} boosted (depth {trees.depth}, own {trees.own:g}, {trees.rounds} rounds)"


def decide(
    settings: Settings,
    population: Population,
    rng: np.random.Generator,
    observer: Observer = silent,
    most_users: int = MOST_USERS,
    grows: bool = True,
    interacts: bool = True,
) -> Decided:
    """Decide base predictors, graph and mu if they are open; the observer receives an event per trial.

    With too few users or rows to hold any out, the first of all choices is taken. With ``grows=False``, trees are not
    among the choices, with ``interacts=False`` nor are waves.
    """
    recipes = settings.recipes(population)
    n_users, is_open = population.n_users, settings.is_graph(AUTO)
    # A graph learned from distances takes long, a given graph does not fit a sample of users, and users alone have too
    # few rows to compare families.
    graph = "evidence" if settings.is_graph("evidence") else "everyone" if n_users > 1 else "none"
    trials = Trials(settings, population, recipes, rng, observer, most_users)
    boosted = boosted_of(settings.predictors)[0]
    doubt = DOUBT if settings.takes_blocks else 1.0
    # Stumps converge late, so families are compared at the end of a run; graphs and mu are compared earlier.
    by_family = [Choice(family, graph, whole=True) for family in recipes]
    # Features clipped at one deviation or at several are equally simple: the best compete with the next family.
    equals = [choice for choice in by_family if choice.family in LINEAR_FAMILIES]
    best = trials.best(equals or by_family[:1], doubt=0.0)
    best = trials.best([best, *(c for c in by_family if c not in (*equals, best))], doubt=doubt)._replace(whole=False)
    if is_open and n_users > 2 and settings.mu != 0:
        best = trials.best_graph(best, doubt)
    shares = settings.is_graph(AUTO, *GRAPHS) and n_users > 1 and settings.mu != 0
    if shares and settings.mu == AUTO:
        best = trials.best_mu(best)
    # What interactions gain depends on mu, so they are tried with the chosen one; with them, evidence may win.
    simple = best
    rich = settings.rich_recipes(population, grows) if shares and interacts else {}
    is_rich = bool(rich) and trials.find_interactions(best._replace(whole=True))
    trials.recipes |= rich
    is_asked = settings.predictors == BOOSTED
    for family in (WAVES, BOOSTED, TREES, GROWN) if is_rich else (BOOSTED, WAVES):
        # Waves cost no messages: where they help, boosted trees, which do, are not tried.
        if family == BOOSTED and grows and n_users > 1 and settings.may_boost and best == simple:
            best = trials.boosted(simple, is_asked) or best
            # Boosted trees that help show interactions which the test has missed.
            is_rich = is_rich or best != simple
        if not is_rich:
            continue
        is_dear = family == GROWN
        # Waves and users' own trees may be level where trees of neighbourhoods are far ahead of both.
        if family not in rich or (is_dear and (best.family not in (WAVES, TREES) or trials.is_behind(TREES, best))):
            continue
        richer = best._replace(family=family, boosted=None)
        if is_open and n_users > 2 and best.graph != GRAPHS[-1] and not is_dear:
            richer = trials.best_graph(richer, doubt)
        pair = [choice._replace(whole=True) for choice in (best, richer)]
        if trials.best(pair, doubt=DEAR_DOUBT if is_dear else SCREENED_DOUBT) == pair[1]:
            best = richer
    if boosted is not None:
        best = best._replace(boosted=boosted)
    mu = settings.mu
    if isinstance(mu, str):
        mu = best.mu_scale * settings.resolved(population, 1, best.family).model_settings["mu1"]
    decided = replace(settings, graph=best.graph if is_open else settings.graph, mu=mu)
    values, recipe = trials.values_like(best), trials.recipes[best.family]
    if best.boosted is not None:
        recipe = Union(*(recipe.recipes if isinstance(recipe, Union) else (recipe,)), best.boosted)
    return Decided(recipe, best.family, decided, trials.means(), best.mu_scale, values)


class Tables(NamedTuple):
    """A fold through one family of base predictors: problem and predictions of its rows, and of the held-out rows."""

    problem: Problem
    learned: NDArray[Any]
    held_out: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to learn from and rows held out, with the places of the latter in the population."""

    learned: Population
    held_out: Population
    places: NDArray[np.intp]
    tables: dict[str, Tables] = field(default_factory=dict)

    @classmethod
    def of(cls, population: Population, kept: NDArray[np.intp], tested: NDArray[np.intp]) -> Self:
        """The fold that holds out the tested rows."""
        return cls(population.take(kept), population.take(tested), tested)

    def through(
        self, family: str, recipe: Recipe, settings: Settings, graph: str | None = None
    ) -> tuple[Tables, Settings]:
        """Tables of a family, made once, and the settings resolved for it; trees grow along `graph`, if it is given."""
        if family not in self.tables:
            rng = np.random.default_rng(self.learned.n_rows)
            along = settings if graph is None else replace(settings, graph=graph)
            predictors, predictions, *_ = dictionary(recipe, family, along, self.learned, rng)
            first = self._resolved(settings, predictors.n, family).problem(self.learned, predictors, predictions)
            self.tables[family] = Tables(first, predictions, predictors.predict(self.held_out.X))
        tables = self.tables[family]
        return tables, self._resolved(settings, tables.held_out.shape[1], family)

    def _resolved(self, settings: Settings, n: int, family: str) -> Settings:
        return settings.resolved(self.learned, n * n_blocks(self.learned), family)

    def values(self, family: str, models: NDArray[Any]) -> NDArray[np.float64]:
        """Decision values of models on the held-out rows."""
        return decisions(self.tables[family].held_out, self.held_out.row_start, models)


class Trial(NamedTuple):
    """A choice on a fold: decision values of the held-out rows, and their scores."""

    values: NDArray[np.float64]
    scores: HeldOutScores


class Trials:
    """Scores of choices on held-out rows; each choice is tried once, on a random sample of `most_users` at most."""

    def __init__(
        self,
        settings: Settings,
        population: Population,
        recipes: dict[str, Recipe],
        rng: np.random.Generator,
        observer: Observer,
        most_users: int = MOST_USERS,
    ):
        self.recipes = recipes
        self.observer = observer
        self.settings = replace(
            settings, engine="local", n_jobs=None, latency=0.0, tol=None, max_bits=None, max_time_s=None
        )
        all_users = population.n_users
        if settings.takes_blocks:
            enough = math.ceil(N_FOLDS * ENOUGH_HELD_OUT * population.n_users / population.n_rows)
            most_users = min(most_users, max(SOME_USERS, enough))
        if population.n_users > most_users:
            population = population.select(np.sort(rng.choice(population.n_users, most_users, replace=False)))
        self.population = population
        self.seed = int(rng.integers(2**31))
        self.rng = rng
        # Boosted trees for which a model of every user finds room.
        self.most_rounds = MOST_CELLS // (all_users * n_blocks(population) * 2**BoostedTrees.depth)
        self._folds: list[Fold] = []
        # By choice and number of the fold.
        self._tried: dict[Choice, dict[int, Trial]] = {}
        self._whole_runs: dict[tuple[Choice, int], RunResult] = {}
        # By trees and number of the fold; then by rounds.
        self._boosted: dict[tuple[BoostedTrees, int], dict[int, Array]] = {}
        self._cooled: dict[tuple[BoostedTrees | Choice, int], Array] = {}

    @property
    def are_possible(self) -> bool:
        """Whether there are enough rows to hold some out."""
        sizes = self.population.sizes
        return int(sizes[sizes > 1].sum()) >= N_FOLDS

    def best(self, candidates: Sequence[Choice], by: str = "right", doubt: float = 1.0) -> Choice:
        """The first candidate, or one that beats it by more than chance would.

        Rows are weighted equally: users with three rows would otherwise outweigh the others.
        """
        best = candidates[0]
        if not self.are_possible:
            return best
        for other in candidates[1:]:
            if other != best and self.is_better(other, best, by, doubt):
                best = other
        return best

    def is_behind(self, family: str, choice: Choice) -> bool:
        """Whether a family of base predictors is clearly behind a choice of another one."""
        choice = choice._replace(whole=True)
        return self.is_better(choice, choice._replace(family=family), "right", DEAR_DOUBT)

    def is_better(self, one: Choice, other: Choice, by: str, doubt: float) -> bool:
        """Whether the first choice is clearly ahead, on as many folds as it takes to know."""

        def gains(number: int) -> NDArray[np.float64]:
            mine, theirs = (getattr(self.trial(choice, number).scores, by) for choice in (one, other))
            return per_user(self.folds[number].held_out, mine - theirs)

        return self._is_clear(gains, doubt)

    def _is_clear(self, gains: Callable[[int], NDArray[np.float64]], doubt: float, every: bool = False) -> bool:
        """Whether users' gains, given by the number of a fold, are clear in sum; users with one row do not count."""
        total, n_folds = np.zeros(self.population.n_users), len(self.folds)
        has_few_rows = self.folds[0].held_out.n_rows < FEW_HELD_OUT
        if has_few_rows and self.population.n_classes:
            doubt = max(doubt, DOUBT_OF_FEW)
        for number in range(n_folds):
            total += gains(number)
            share = (number + 1) / n_folds
            is_large = self.population.n_users >= FEW_USERS and not has_few_rows
            may_stop = self.settings.takes_blocks and is_large and not every
            stops = share == 1 or may_stop
            answer = expected_answer(standard_errors(total[self.population.sizes > 1]), share, doubt) if stops else None
            if answer is not None:
                break
        return bool(answer)

    def best_graph(self, choice: Choice, doubt: float) -> Choice:
        """The choice with evidence if that is clearly ahead early, and everyone is not clearly ahead at the end.

        Early models separate graphs best, but those of correlated features are still far from converged.
        """
        early = self.best([choice._replace(graph=name, whole=False) for name in GRAPHS], doubt=doubt)
        late = [choice._replace(graph=name, whole=True) for name in (early.graph, GRAPHS[0])]
        best = self.best(late, doubt=doubt) if self.settings.takes_blocks else early
        return best._replace(whole=False)

    def best_mu(self, choice: Choice) -> Choice:
        """The choice with the best of a few values of mu, by likelihood; the next is tried only if the last was better.

        A stronger coupling is tried among everyone only: evidence follows few, and likelihood favours caution there.
        Short trials favour a mu whose models converge fast, so the one that they prefer is compared again at the end.
        """
        best = choice
        paths = (WEAKER, STRONGER) if choice.graph == "everyone" else (WEAKER,)
        for path in paths if self.settings.takes_blocks else (WEAKER[:1],):
            for mu_scale in path:
                doubt = 1.0
                other = self.best([best, choice._replace(mu_scale=mu_scale)], "log_score", doubt)
                if other == best:
                    break
                best = other
            if best != choice:
                break
        if best == choice or not self.settings.takes_blocks:
            return best
        late = [one._replace(whole=True) for one in (best, choice)]
        return self.best(late, "log_score", 1.0)._replace(whole=False)

    def boosted(self, choice: Choice, is_asked: bool) -> Choice | None:
        """A choice with the best boosted trees beside its models, by the likelihood of held-out labels.

        None if labels do not become likelier, or fewer rows are right; unless trees are asked for.
        """
        if self.most_rounds < ROUNDS[0]:
            return None
        cuts = FEW_CUTS if self.population.n_features >= MANY_FEATURES else BoostedTrees.cuts
        trees = BoostedTrees(rounds=CLIMBING_ROUNDS, own=OWN[0], spread=SPREAD, rate=CLIMBING_RATE, cuts=cuts)
        if not self.are_possible:
            return choice._replace(boosted=BoostedTrees(cuts=cuts)) if is_asked else None
        choice, trees = choice._replace(whole=True), self._best_own(self._best_rounds(trees))
        by_share = [choice._replace(boosted=replace(trees, share=share)) for share in SHARES]
        if not is_asked and not any(self._may_pay(one, choice) for one in by_share):
            return None
        trees = self._best_rounds(replace(trees, rounds=ROUNDS[-1], rate=BoostedTrees.rate))
        by_share = [choice._replace(boosted=replace(trees, share=share)) for share in SHARES]
        best = max(by_share, key=self._likelihood)
        best = next(one for one in by_share if one == best or not self._is_likelier(best, one, LIKELIER_OF_SHARES))
        if is_asked:
            return best
        # The trees cost most of the bits, so they must be right more often beyond chance.
        ahead = sum(
            self._right_of_users(best, number) - self._right_of_users(choice, number) for number in self._compared
        )
        pays = self._may_pay(best, choice) and standard_errors(np.asarray(ahead)) > SCREENED_DOUBT
        return best if pays and self._is_clear(partial(self._gains, best, choice), LIKELIER) else None

    def _may_pay(self, one: Choice, other: Choice) -> bool:
        """Whether a choice makes labels likelier, at the best temperature, and more of them right."""
        return self._likelihood(one) > self._likelihood(other) and self._right(one) > self._right(other)

    def _best_own(self, best: BoostedTrees) -> BoostedTrees:
        """Give the pool's values more weight as long as held-out labels grow likelier."""
        for own in OWN[1:]:
            other = self._best_rounds(replace(best, own=own, rounds=CLIMBING_ROUNDS))
            if not self._is_likelier(other, best):
                break
            best = other
        return best

    def _best_rounds(self, trees: BoostedTrees) -> BoostedTrees:
        """The trees with the fewest rounds after which held-out labels were hardly less likely than after others."""
        most = min(trees.rounds, self.most_rounds)
        by_rounds = [replace(trees, rounds=rounds) for rounds in ROUNDS if rounds <= most]
        best = max(by_rounds, key=self._likelihood)
        return next(one for one in by_rounds if one == best or not self._is_likelier(best, one))

    def _is_likelier(self, one: BoostedTrees | Choice, other: BoostedTrees | Choice, doubt: float = LIKELIER) -> bool:
        gains = sum(self._gains(one, other, number) for number in self._compared)
        return standard_errors(np.asarray(gains)) > doubt

    def _gains(self, one: BoostedTrees | Choice, other: BoostedTrees | Choice, number: int) -> Array:
        """What users gain on a fold in cooled log scores."""
        mine, theirs = (self._log_scores(tried, number) for tried in (one, other))
        return per_user(self.folds[number].held_out, mine - theirs)

    def _likelihood(self, tried: BoostedTrees | Choice) -> float:
        return sum(float(self._log_scores(tried, number).sum()) for number in self._compared)

    def _right(self, choice: Choice) -> float:
        return sum(float(self._right_of_users(choice, number).sum()) for number in self._compared)

    def _right_of_users(self, choice: Choice, number: int) -> Array:
        return per_user(self.folds[number].held_out, self.trial(choice, number).scores.right)

    def _log_scores(self, tried: BoostedTrees | Choice, number: int) -> Array:
        """Cooled log scores of the held-out rows of a fold."""
        key = tried if isinstance(tried, Choice) else replace(tried, share=BoostedTrees.share)
        if (key, number) not in self._cooled:
            if isinstance(tried, Choice):
                values = self.trial(tried, number).values
            else:
                values = self._boosted_values(tried, number)
            self._cooled[key, number] = cooled_log_scores(self.folds[number].held_out, values)
        return self._cooled[key, number]

    @property
    def _compared(self) -> range:
        """Folds that are enough to compare boosted trees, whose trials differ little by chance."""
        return range(min(len(self.folds), 1 + ENOUGH_FOR_TREES // self.folds[0].held_out.n_rows))

    def _boosted_values(self, trees: BoostedTrees, number: int) -> Array:
        """Decision values of boosted trees alone on the held-out rows of a fold."""
        rounds = CLIMBING_ROUNDS if trees.rate == CLIMBING_RATE else ROUNDS[-1]
        key = replace(trees, rounds=rounds, share=BoostedTrees.share)
        if (key, number) not in self._boosted:
            fold, rng, likelihoods = self.folds[number], np.random.default_rng(self.seed), [-np.inf]
            found = self._boosted[key, number] = {}
            for reached, values in boosted_values(key, fold.learned, fold.held_out, rng):
                found[reached] = values
                likelihoods.append(float(cooled_log_scores(fold.held_out, values).sum()))
                if max(likelihoods[-TIRED:]) < max(likelihoods):
                    break
        found = self._boosted[key, number]
        return found[max(reached for reached in found if reached <= trees.rounds)]

    def means(self) -> dict[str, float]:
        """The share of right rows of each choice tried, on the folds on which it was tried."""
        found = {}
        for choice, on_folds in self._tried.items():
            tested = np.concatenate([self.folds[number].places for number in on_folds])
            right, order = np.concatenate([trial.scores.right for trial in on_folds.values()]), np.argsort(tested)
            people = self.population.take(tested[order])
            found[str(choice)] = float(mean_per_user(right[order], people.row_start)[people.sizes > 0].mean())
        return found

    def trial(self, choice: Choice, number: int) -> Trial:
        """A choice on the fold with this number."""
        if choice.family in LINEAR_FAMILIES and self.settings.takes_blocks:
            choice = choice._replace(whole=choice.whole or self.population.n_features >= MANY_FEATURES)
        if choice not in self._tried:
            self.observer(TrialStarted(str(choice)))
        on_folds = self._tried.setdefault(choice, {})
        if number not in on_folds:
            fold, trees = self.folds[number], choice.boosted
            if trees is None:
                values = fold.values(choice.family, self._run(choice, number).models)
            else:
                coupled = self.trial(choice._replace(boosted=None), number).values
                values = (1 - trees.share) * coupled + trees.share * self._boosted_values(trees, number)
            on_folds[number] = Trial(values, HeldOutScores.of(fold.held_out, values))
        return on_folds[number]

    def values_like(self, choice: Choice) -> HeldOutValues | None:
        """Decision values of held-out rows in the trial most like a choice; None without one, and for numbers."""
        trials = [o for o in self._tried if (o.family, o.boosted) == (choice.family, choice.boosted)]
        if not trials or not self.population.n_classes:
            return None
        best = max(
            trials,
            key=lambda one: (
                one.graph == choice.graph, one.mu_scale == choice.mu_scale, len(self._tried[one]), one.whole
            ),
        )  # fmt: skip
        on_folds = self._tried[best]
        tested = [self.folds[number].held_out for number in on_folds]
        users, labels = (np.concatenate([getattr(people, name) for people in tested]) for name in ("users", "codes"))
        return HeldOutValues(users, labels, np.concatenate([trial.values for trial in on_folds.values()]))

    @property
    def folds(self) -> list[Fold]:
        """The folds, drawn at the first trial."""
        if not self._folds:
            owners, labels = self.population.owners, None if self.population.n_classes == 0 else self.population.y
            split = EvenFolds(N_FOLDS, shuffle=True, random_state=self.rng).split(owners, labels, users=owners)
            enough = max(1, round(ENOUGH_HELD_OUT * N_FOLDS / self.population.n_rows))
            self._folds = [Fold.of(self.population, kept, tested) for kept, tested in islice(split, enough)]
        return self._folds

    def find_interactions(self, choice: Choice) -> bool:
        """Whether a few trees, grown on what a choice leaves to learn, explain it on held-out rows as well.

        This is the slope of the held-out loss as models move towards the trees of their neighbourhoods. It takes far
        less time than a trial of models with trees.
        """
        if not self.are_possible or self.population.n_users < 2:
            return False

        def gains(number: int) -> NDArray[np.float64]:
            fold, values, result = self.folds[number], self.trial(choice, number).values, self._run(choice, number)
            learned = decisions(fold.tables[choice.family].learned, fold.learned.row_start, result.models)
            grove = Grove(SCREEN, fold.learned, None, np.random.default_rng(self.seed))
            trees, outputs, _ = grove.proposals(learned, result.graph)
            near = np.ones((fold.learned.n_users, trees.n), np.float32)
            if choice.graph != "everyone":
                near = (result.graph.to_scipy().toarray() > 0) + np.eye(trees.n, dtype=np.float32)
            near /= near.sum(axis=1, keepdims=True)
            left = residuals(fold.held_out, values)
            slope = (near[fold.held_out.owners] * trees.predict(fold.held_out.X) * left[:, outputs]).sum(axis=1)
            return per_user(fold.held_out, slope)

        # What this test misses is not tried at all, so it takes every fold.
        return self._is_clear(gains, SCREEN_DOUBT, every=True)

    def _run(self, choice: Choice, number: int) -> RunResult:
        if choice.whole and (choice, number) in self._whole_runs:
            return self._whole_runs[choice, number]
        fold = self.folds[number]
        recipe = self.recipes[choice.family]
        tables, settings = fold.through(choice.family, recipe, self.settings, choice.graph)
        mu, n_updates = choice.mu_scale * settings.model_settings["mu1"], settings.n_updates
        if settings.takes_blocks:
            n_updates = min(int(n_updates), TRIAL_WAKEUPS if choice.whole else SHORT_WAKEUPS)
        elif not choice.whole:
            # Early models separate graphs best, but linear predictors must be almost converged.
            is_quick = choice.family in LINEAR_FAMILIES and self.population.n_classes <= 2
            n_updates = min(int(n_updates), UPDATES_OF_LINEAR // 2 if is_quick else LEAST_UPDATES // 2)
        settings = replace(settings, graph=choice.graph, mu=mu, lam=AUTO, n_updates=n_updates)
        problem = replace(tables.problem, **settings.model_settings)
        result = run_engine(settings, problem, np.random.default_rng(self.seed), traced=False)
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if choice.whole:
            self._whole_runs[choice, number] = result
        return result
