"""Many peers in one process on virtual time, with faults: `simulate` runs the users of a population."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dada import task
from dada.core.compiled import Array
from dada.core.graph_steps import LogDegree
from dada.core.model_steps import UserRows, n_blocks, rows_per_sample
from dada.core.problem import Problem
from dada.data import BasePredictors, Population, Recipe
from dada.fitting.atoms import grown_orchard
from dada.fitting.boosted_peers import boosted_users, with_boosted
from dada.fitting.boosting import boosted_of
from dada.fitting.calibration import Exam
from dada.fitting.private import outputs, public_predictors
from dada.fitting.settings import AUTO, LINEAR, STUMPS, Settings, families
from dada.fitting.trees import trees_of
from dada.peer.boosted_trees import BoostedUsers
from dada.peer.grove import Orchard
from dada.peer.inputs import PeerConfig, usual_settings
from dada.peer.member import Rhythm
from dada.peer.releases import ExactRows
from dada.privacy.accounting import Privacy, PrivacyLedger
from dada.privacy.noise import Bits, label_correlation
from dada.sim.liars import KINDS, Exploder, Grafter, Poacher
from dada.sim.private import PrivateUsers, released_labels
from dada.sim.simulation import NetworkPoint, SimulatedNetwork, SimulationResult
from dada.sim.virtual import Faults

__all__ = ["Faults", "NetworkPoint", "SimulatedNetwork", "Simulation", "SimulationResult", "simulate"]

# AdaBoost's beta, and the losses of two classes and of numbers.
BETA, LOSSES = 10.0, {0: "squared", 2: "adaboost"}


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated network and its end.

    Attributes
    ----------
    predictors : BasePredictors
        The base predictors of all peers.
    network : SimulatedNetwork
        The network, with its problem and its hosts.
    result : SimulationResult
        Models of all users, learned together and alone, and counts of messages, faults and checks. With privacy, models
        learned together are home models.
    """

    predictors: BasePredictors
    network: SimulatedNetwork
    result: SimulationResult

    def accuracies(self, population: Population) -> dict[str, Array]:
        """Accuracy of each user on rows of a population of the same users; for numbers, the variance explained.

        "chosen" is that of the model a user predicts with: the one learned together, or its fallback model. Liars have
        NaN.
        """
        ends = self.result
        models = {"chosen": ends.models, "together": ends.together, "alone": ends.alone}
        return {
            name: np.where(ends.honest, per_user, np.nan).astype(np.float32)
            for name, per_user in ((name, self._exam(name, rows, population)) for name, rows in models.items())
        }

    def _exam(self, name: str, models: Array, population: Population) -> Array:
        """Accuracy of each user; boosted trees stand beside all models but those learned alone."""
        predictors, boosted = self.predictors, self.network.boosted
        if boosted is not None and name != "alone":
            predictors, models = with_boosted(predictors, models, boosted.terms, boosted.cuts, self.result.leaves)
        return Exam(population, predictors).per_user(models)


def simulate(
    population: Population,
    predictors: Recipe | None = None,
    *,
    faults: str | Faults = "none",
    graph: str = "evidence",
    step: str = "block",
    loss: str | None = None,
    beta: float | None = None,
    mu: float | None = None,
    steps: int = 150,
    seed: int = 0,
    observe: Callable[[NetworkPoint], None] | None = None,
    privacy: Privacy | None = None,
) -> Simulation:
    """Let the users of a population learn as peers of a virtual network, and check its invariants after every event.

    Peers run the code of a real network; only time and transport are virtual. A seed repeats a run exactly. If an
    invariant does not hold, `InvariantError` reports it.

    Parameters
    ----------
    population : Population
        Rows of classes, or of numbers that are standardised.
    predictors : Recipe, optional
        Base predictors; by default stumps at quantiles, clipped linear features and a constant. With `Trees`, every
        peer grows its own on its rows and sends them to all others. With `BoostedTrees` beside others, peers grow them
        with each other, with leaves of each user's own.
    faults : str or Faults
        "none", "loss", "churn", "byzantine" or "all", several separated by commas, or shares of your own.
    graph : {"evidence", "distance", "everyone"}
        How peers choose neighbours.
    step : {"block", "pairwise"}
        Rule of the model step.
    loss : str, optional
        AdaBoost's for two classes, by default; "logistic" for more, "squared" for numbers.
    beta, mu : float, optional
        As in `DadaClassifier`, automatic by default; with AdaBoost's loss, beta is 10.
    steps : int
        Wake-ups per peer, on average.
    seed : int
        Source of all randomness.
    observe : callable, optional
        Receives a `NetworkPoint` at twenty times of the run.
    privacy : Privacy, optional
        Peers protect their labels or their rows with this budget, as those of `dada peer init --epsilon` do; users of
        classes only. Noise comes from the seed. ``network.private`` has the ledger.

    Returns
    -------
    Simulation

    Examples
    --------
    >>> from dada import Stumps, moons
    >>> people = moons(0, n_users=10)
    >>> found = simulate(people.train, Stumps(n=50), faults="loss,churn", steps=8)
    >>> found.result.checks > 1000, found.result.counts["lost"] > 0
    (True, True)
    >>> sorted(found.accuracies(people.test))
    ['alone', 'chosen', 'together']
    """
    boosted, coupled = boosted_of(predictors)
    if privacy is None:
        fitted, problem, orchard = network_problem(population, coupled, beta, mu, loss, seed)
        private = None
    else:
        fitted, problem, private = private_problem(population, privacy, predictors, beta, mu, loss, seed, graph)
        orchard = None
    faults = Faults.named(faults) if isinstance(faults, str) else faults
    options: Any = {"graph": graph, "step": step, "steps": steps, "seed": seed, "orchard": orchard, "private": private}
    options |= {"boosted": None if boosted is None else boosted_users(boosted, population)}
    network = network_of(problem, faults, n_classes=population.n_classes, **options)
    return Simulation(fitted, network, network.run(observe))


def network_problem(
    population: Population,
    predictors: Recipe | None = None,
    beta: float | None = None,
    mu: float | None = None,
    loss: str | None = None,
    seed: int = 0,
) -> tuple[BasePredictors, Problem, Orchard | None]:
    """Fitted base predictors, the joint problem of users that become peers, and their trees, if the recipe has any.

    The seed is that of the trees' bootstrap samples. Rounds of trees for neighbourhoods are left out.
    """
    check_several_users(population)
    trees, recipe = trees_of(families(population)[STUMPS] if predictors is None else predictors)
    fitted, _ = task.shared_predictors(families(population)[LINEAR] if recipe is None else recipe, population)
    predictions, orchard = None, None
    if trees is not None:
        orchard, fitted, predictions = grown_orchard(trees, fitted, population, np.random.default_rng(seed))
    return fitted, _settings(population, beta, mu, loss).problem(population, fitted, predictions), orchard


def _settings(population: Population, beta: float | None, mu: float | None, loss: str | None) -> Settings:
    """Settings of peers, resolved."""
    loss = loss or LOSSES.get(population.n_classes, "logistic")
    if beta is None and loss == "adaboost":
        beta = BETA
    return Settings(
        loss=loss,
        beta=AUTO if beta is None else beta,
        mu=AUTO if mu is None else mu,
        regularizer=LogDegree(lam=0.3, delta=0.1),
    ).resolved(population, 1)


def private_problem(
    population: Population,
    privacy: Privacy,
    predictors: Recipe | None = None,
    beta: float | None = None,
    mu: float | None = None,
    loss: str | None = None,
    seed: int = 0,
    graph: str = "evidence",
) -> tuple[BasePredictors, Problem, PrivateUsers]:
    """Fitted base predictors, the problem of exact rows, and what private peers learn from instead.

    Base predictors of protected rows come from public ranges, those of protected labels from all features.
    """
    check_several_users(population)
    # Refuses trees, which reveal rows.
    Settings(predictors=predictors, privacy=privacy)
    if not population.n_classes or privacy.secure_sum:
        raise ValueError("simulated private peers learn classes, without secure sums")
    source = Bits(np.random.default_rng([seed, *b"noise"]).bytes)
    ledger = PrivacyLedger(None, epsilon=privacy.epsilon, delta=privacy.delta)
    settings, n_classes = _settings(population, beta, mu, loss), population.n_classes
    if privacy.protects == "labels":
        fitted, _ = task.shared_predictors(
            families(population)[STUMPS] if predictors is None else predictors, population
        )
        given = released_labels(population.codes, population.row_start, n_classes, ledger, source)
        noisy = replace(population, y=(2 * given - 1).astype(np.int8) if n_classes == 2 else given)
        problem, learned = (settings.problem(people, fitted) for people in (population, noisy))
        released, exact = ([each.rows_of(k) for k in range(population.n_users)] for each in (learned, problem))
        kept = label_correlation(privacy.epsilon, n_classes)
        return fitted, problem, PrivateUsers(released, exact, ledger, source, kept)
    if graph != "evidence":
        raise ValueError(f"rows are protected in networks with the graph 'evidence', got {graph!r}")
    fitted = public_predictors(predictors, privacy.ranges, population.n_features)
    h, y = fitted.predict(population.X).astype(np.float64), outputs(population)
    at_home = [ExactRows(h[rows], y[rows]) for rows in map(population.user_rows, range(population.n_users))]
    problem = settings.problem(population, fitted)
    public = UserRows(np.zeros((rows_per_sample(n_classes), problem.n_predictors), np.int8))
    return fitted, problem, PrivateUsers([public] * population.n_users, at_home, ledger, source)


def check_several_users(population: Population) -> None:
    """Refuse a network of one."""
    if population.n_users < 2:
        raise ValueError(f"a network needs 2 users or more, got {population.n_users}")


def network_of(
    problem: Problem,
    faults: Faults,
    *,
    graph: str,
    step: str,
    steps: int,
    seed: int,
    n_classes: int = 2,
    orchard: Orchard | None = None,
    boosted: BoostedUsers | None = None,
    **options: Any,
) -> SimulatedNetwork:
    """A network with the usual settings of peers that distrust each other."""
    n, coupling = problem.n_predictors, problem.coupling
    if orchard is not None and coupling is not None:
        by_block = np.reshape(coupling, (n_blocks(n_classes), -1))
        coupling = by_block[:, : by_block.shape[1] - len(orchard.names)].ravel()
        n = coupling.size
        options.setdefault("liar_kinds", (*KINDS, Poacher))
    if boosted is not None:
        options |= {"boosted": boosted}
        options.setdefault("liar_kinds", (*KINDS, Grafter, Exploder))
    config = PeerConfig(
        n, problem.beta, problem.mu1, loss=str(problem.loss), regularizer=problem.regularizer,
        coupling=coupling, n_classes=n_classes, max_neighbours=64, damping=0.5, vet=True, trust_largest=0.2,
        **usual_settings(graph, step),
    )  # fmt: skip
    # A block step makes about ten moves.
    local_steps = 10 if step == "block" else 100
    rhythm = Rhythm(local_steps, first_graph_steps=min(20, max(1, steps // 5)), graph_every=4)
    return SimulatedNetwork(problem, config, rhythm, faults, steps=steps, seed=seed, orchard=orchard, **options)
