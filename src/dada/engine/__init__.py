"""The compiled engine: the method over a whole population on one machine."""

from dada.core.bits import Ledger
from dada.core.losses import Samples, accuracy_per_user, decision_values
from dada.core.plan import Plan
from dada.engine.runner import RunResult, run

__all__ = ["Ledger", "Plan", "RunResult", "Samples", "accuracy_per_user", "decision_values", "run"]
