"""Progress of a fit, in lines of text."""

from __future__ import annotations

import sys

import numpy as np

from dada.events import Event, Observer, TracePoint, TrialStarted


def also(first: Observer, second: Observer) -> Observer:
    """An observer that tells two others."""

    def observer(event: Event) -> None:
        first(event)
        second(event)

    return observer


def write_line(event: Event) -> None:
    """Write a line to the standard error stream at every trial of a setting and every point of the trace."""
    if isinstance(event, TrialStarted):
        sys.stderr.write(f"trying on held-out rows: {event.choice}\n")
    if isinstance(event, TracePoint):
        sys.stderr.write(
            f"{event.updates} updates: objective {event.objective:.6g}, gap {event.gap:.3g}, "
            f"training accuracy {np.mean(event.train_accuracy):.3f}, {event.edges} edges, {event.bits:.3g} bits\n"
        )
