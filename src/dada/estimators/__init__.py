"""The method in scikit-learn's conventions; no algorithm inside."""

from dada.estimators.base import Neighbour
from dada.estimators.classifier import DadaClassifier
from dada.estimators.cv import DadaClassifierCV
from dada.estimators.files import load_model, save_model
from dada.estimators.regressor import DadaRegressor
from dada.fitting.folds import PerUserKFold

__all__ = [
    "DadaClassifier",
    "DadaClassifierCV",
    "DadaRegressor",
    "Neighbour",
    "PerUserKFold",
    "load_model",
    "save_model",
]
