"""Methods to compare: each takes training data, test data and settings, and returns a `MethodResult`."""

from dada.baselines.boosting import BoostSettings, boost
from dada.baselines.outcome import MethodResult, accuracies

__all__ = ["BoostSettings", "MethodResult", "accuracies", "boost"]
