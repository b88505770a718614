"""Why a run ended, as a sentence."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """The reason a run stopped."""

    FINISHED = "All planned updates were made."
    CONVERGED = "The duality gap fell below the wanted tolerance."
    OUT_OF_BITS = "The communication budget is used up."
    OUT_OF_TIME = "The time limit was reached."
    INTERRUPTED = "The run was interrupted; its state so far is kept."
