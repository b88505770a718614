"""The method over a whole population in one process, compiled."""

from dada.core.bits import Ledger
from dada.core.plan import Plan
from dada.engine.accuracy import Samples, accuracy_per_user, decision_values
from dada.engine.runner import RunResult, run

__all__ = ["Ledger", "Plan", "RunResult", "Samples", "accuracy_per_user", "decision_values", "run"]
