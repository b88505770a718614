"""Methods to compare: each takes training data, test data and settings, and returns a `MethodResult`."""

from dada.baselines.boosting import BoostSettings, MethodResult, accuracies, boost

__all__ = ["BoostSettings", "MethodResult", "accuracies", "boost"]
