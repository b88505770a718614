"""The method in scikit-learn's conventions; no algorithm inside."""

from dada.estimators.base import Neighbour
from dada.estimators.classifier import DadaClassifier
from dada.estimators.cv import DadaClassifierCV
from dada.estimators.regressor import DadaRegressor
from dada.estimators.splitter import PerUserKFold
from dada.estimators.storage import load_model, save_model

__all__ = [
    "DadaClassifier",
    "DadaClassifierCV",
    "DadaRegressor",
    "Neighbour",
    "PerUserKFold",
    "load_model",
    "save_model",
]
