"""User datasets and base predictors."""

from dada.data.moons import SyntheticUsers, moons, moons100
from dada.data.population import Population
from dada.data.stumps import FittedStumps, Stumps

__all__ = ["FittedStumps", "Population", "Stumps", "SyntheticUsers", "moons", "moons100"]
