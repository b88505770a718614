"""Recordings of small runs that never were: no kernel has to be compiled for them."""

import numpy as np

from dada import events
from dada.dashboard.records import Recorder
from tests.helpers.snapshots import snapshot


class StepClock:
    """A clock that moves by a fixed time whenever it is read."""

    def __init__(self, step_s=0.01):
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


def graph_at(moment, n_users, seed=0):
    """A graph of two groups that grows from moment to moment, and whose weights change."""
    rng = np.random.default_rng(seed)
    pairs = [(k, l) for k in range(n_users) for l in range(k + 1, n_users) if k % 2 == l % 2]
    order, weights = rng.permutation(len(pairs)), rng.uniform(0.2, 1.0, len(pairs))
    return [(*pairs[p], weights[p] * (1 + 0.1 * moment)) for p in sorted(order[: 5 * moment])]


def tell_run(observer, moments=8, n_users=20, finished=True):
    """Send an observer the events of a run with the given number of snapshots."""
    names = tuple(f"user-{k}" for k in range(n_users))
    observer(
        events.RunInfo(
            "Two groups",
            names,
            np.arange(n_users) % 2,
            ("even", "odd"),
            np.full(n_users, 0.6),
            {"Local-boost": 0.6},
            ("x0 <= 1", "x1 <= 2"),
        )
    )
    for moment in range(moments):
        tell_moment(observer, moment, n_users)
    if finished:
        observer(events.Stopped("All planned updates were made."))


def tell_moment(observer, moment, n_users=20):
    """Tell an observer of one more moment of that run."""
    accuracy = np.minimum(0.5 + 0.04 * moment + 0.01 * np.arange(n_users) / n_users, 1.0).astype(np.float32)
    edges = graph_at(moment, n_users)
    given = {"updates": 100 * moment, "accuracy": accuracy, "messages": np.full(n_users, 10 * moment)}
    given |= {"bits": np.full(n_users, 400.0 * moment), "confidence": np.linspace(0.2, 1.0, n_users)}
    observer(events.SnapshotOffer(lambda: snapshot(edges, n_users, **given), milestone=True))
    gap, bits = 10.0 / (moment + 1), 400.0 * moment * n_users
    point = events.TracePoint(100 * moment, 0, -float(moment), gap, accuracy, accuracy, len(edges), bits, 0.0)
    observer(point)


def write_recording(path, **options):
    """A whole recording; returns its path."""
    with Recorder(path, now=StepClock()) as recorder:
        tell_run(recorder, **options)
    return path
