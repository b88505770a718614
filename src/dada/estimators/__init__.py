"""The method in scikit-learn's conventions; no algorithm inside."""

from dada.estimators.classifier import DadaClassifier, Neighbour
from dada.estimators.splitter import PerUserKFold
from dada.estimators.storage import load_model, save_model

__all__ = ["DadaClassifier", "Neighbour", "PerUserKFold", "load_model", "save_model"]
