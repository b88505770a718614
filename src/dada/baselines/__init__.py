"""Methods to compare: each is one function of a task, its test data and its settings, and gives an `Outcome`."""

from dada.baselines.boosting import BoostSettings, dada_learned, dada_oracle, global_boost, local_boost
from dada.baselines.outcome import Outcome, Scores

__all__ = [
    "BoostSettings",
    "Outcome",
    "Scores",
    "dada_learned",
    "dada_oracle",
    "global_boost",
    "local_boost",
]
