"""Snapshots made by hand, and small recordings."""

import numpy as np

from dada.events import Snapshot


def snapshot(edges=(), n_users=3, **given):
    """A snapshot with the given edges (k, l, w); everything else is plain unless given."""
    k, l, w = (np.array(column) for column in zip(*edges, strict=True)) if edges else (np.zeros(0, int),) * 3
    plain = {
        "phase": "models",
        "updates": 0,
        "directed": False,
        "confidence": np.ones(n_users),
        "loss": np.linspace(0, 1, n_users),
        "accuracy": np.linspace(0.5, 1, n_users),
        "predictors": np.tile([0, 1, -1], (n_users, 1)),
        "predictor_weights": np.tile([2.0, -1.0, 0.0], (n_users, 1)),
        "messages": np.arange(n_users),
        "bits": 40.0 * np.arange(n_users),
    }
    return Snapshot(k=k, l=l, w=w.astype(float), **(plain | given))
