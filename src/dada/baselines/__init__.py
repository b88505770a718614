"""Methods to compare: each takes training data, base predictors, test data and settings, returns a `MethodResult`."""

from dada.baselines.boosting import BoostSettings, dada_learned, dada_oracle, global_boost, local_boost
from dada.baselines.outcome import MethodResult, Scores

__all__ = ["BoostSettings", "MethodResult", "Scores", "dada_learned", "dada_oracle", "global_boost", "local_boost"]
