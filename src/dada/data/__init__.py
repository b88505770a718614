"""User datasets and base predictors."""

from dada.data.encoding import TableEncoder
from dada.data.population import Population
from dada.data.predictors.families import (
    BasePredictors,
    FeatureSummary,
    FittedFamily,
    Recipe,
    Union,
    predictors_from_arrays,
    register_predictors,
)
from dada.data.predictors.linear import Constant, Linear, Pretrained, RandomFourier
from dada.data.predictors.thresholds import BoostedTrees, Stumps, Trees
from dada.data.synthetic import SyntheticUsers, boxes, moons, moons100, xor
from dada.data.tables import ParquetUsers, UserTable, population_from_table, read_table

__all__ = [
    "BasePredictors",
    "BoostedTrees",
    "Constant",
    "FeatureSummary",
    "FittedFamily",
    "Linear",
    "ParquetUsers",
    "Population",
    "Pretrained",
    "RandomFourier",
    "Recipe",
    "Stumps",
    "SyntheticUsers",
    "TableEncoder",
    "Trees",
    "Union",
    "UserTable",
    "boxes",
    "moons",
    "moons100",
    "population_from_table",
    "predictors_from_arrays",
    "read_table",
    "register_predictors",
    "xor",
]
