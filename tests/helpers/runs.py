"""Runs whose inner state is looked at while they go on."""

import importlib
import signal
from dataclasses import fields
from unittest.mock import patch

import numpy as np

from dada.engine import run
from dada.engine.state import State
from dada.events import Progress

# The package gives the function of that name in the module's place.
ENGINE = importlib.import_module("dada.engine.run")


def watched_run(problem, plan, seed, look, chunk_work=0.0, **options):
    """A run that calls look(state) after every chunk of wake-ups; the least chunk is 16 of them."""
    start, states = State.start, []

    def remembered(*arguments):
        states.append(start(*arguments))
        return states[-1]

    def observer(event):
        if isinstance(event, Progress):
            look(states[0])

    with patch.object(State, "start", remembered), patch.object(ENGINE, "CHUNK_WORK", chunk_work):
        return run(problem, plan, np.random.default_rng(seed), observer=observer, **options)


class InterruptAt:
    """An observer that presses Ctrl-C when the run tells it something for the n-th time."""

    def __init__(self, number):
        self.left = number

    def __call__(self, event):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


def bits_of(result):
    """Everything a run computed, as bytes."""
    graph, ledger = result.graph, result.ledger
    arrays = [result.models, graph.indptr, graph.indices, graph.weights, ledger.models, ledger.graph]
    for point in result.trace:
        arrays += [np.asarray(getattr(point, item.name)) for item in fields(point)]
    return b"".join(array.tobytes() for array in arrays)
