"""The method in scikit-learn's conventions; the algorithm is in `dada.fitting` and below."""

from dada.estimators.base import Neighbour
from dada.estimators.classifier import DadaClassifier, DadaRegressor
from dada.estimators.cv import DadaClassifierCV, DadaRegressorCV
from dada.estimators.explanation import FeatureEffect
from dada.estimators.files import load_model, save_model
from dada.fitting.held_out import PerUserKFold

__all__ = [
    "DadaClassifier",
    "DadaClassifierCV",
    "DadaRegressor",
    "DadaRegressorCV",
    "FeatureEffect",
    "Neighbour",
    "PerUserKFold",
    "load_model",
    "save_model",
]
