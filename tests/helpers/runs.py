"""Runs whose inner state is looked at while they go on."""

import signal
from dataclasses import fields, replace

import numpy as np

from dada.core.graph import CollaborationGraph
from dada.core.model_steps import refresh_margins
from dada.core.plan import GRAPH_STREAM, Schedule
from dada.engine.graph_loops import DistanceRule
from dada.engine.model_loops import user_model
from dada.engine.runner import Runner
from dada.engine.state import State
from dada.events import Progress, SnapshotOffer


def watched_run(problem, plan, seed, look, graph=None, dtype=np.float32, chunk=16):
    """A run that calls look(state) after every chunk of wake-ups; returns the final state."""

    def observer(event):
        if isinstance(event, Progress):
            look(state)

    learns_directed = plan.learn_graph and plan.graph_rule == "evidence"
    start = replace(CollaborationGraph.empty(problem.n_users), directed=learns_directed) if graph is None else graph
    state = State.start(problem, plan, start, dtype)
    n_asked = plan.batch_mix(problem.n_users).n_uniform if plan.learn_graph else 1
    schedule = Schedule.draw(np.random.default_rng(seed), problem.n_users, n_asked, plan.span)
    runner = Runner(problem, plan, schedule, state, None, None, observer, chunk=chunk)
    runner.go()
    return state


class InterruptAt:
    """An observer that presses Ctrl-C at the n-th event of a run, not counting offers."""

    def __init__(self, number):
        self.left = number

    def __call__(self, event):
        if isinstance(event, SnapshotOffer):
            return
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


def graph_phase(problem, plan, alpha, seed, wakeups):
    """A graph phase for given models, wake-up by wake-up: yields the state after each."""
    state = State.start(problem, plan, CollaborationGraph.empty(problem.n_users), np.float64)
    users = state.users
    users.alpha[:] = alpha
    users.n_support[:] = np.count_nonzero(alpha, axis=1)
    for k in range(problem.n_users):
        users.support[k, : users.n_support[k]] = np.flatnonzero(alpha[k])
        refresh_margins(user_model(users, k), users.n_support[k])
    learner = DistanceRule(problem, plan, np.dtype(np.float64))
    learner.begin(state)
    schedule = Schedule.draw(np.random.default_rng(seed), problem.n_users, plan.kappa)
    awake, batches = schedule.users(GRAPH_STREAM, 0, wakeups), schedule.batches(0, wakeups)
    for e in range(wakeups):
        one = slice(e, e + 1)
        while not learner.wake(state, awake[one], batches[one], np.zeros((1, 0), np.int64)):
            pass
        yield state, int(awake[e]), batches[e].tolist()
