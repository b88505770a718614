"""The method over a whole population in one process, compiled."""

from dada.core.plan import Plan
from dada.engine.evaluate import Samples, accuracy_per_user, decision_values
from dada.engine.ledger import Ledger
from dada.engine.run import RunResult, run

__all__ = ["Ledger", "Plan", "RunResult", "Samples", "accuracy_per_user", "decision_values", "run"]
