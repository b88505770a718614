"""Random states as scikit-learn's users hold them."""

from __future__ import annotations

from typing import Any

import numpy as np


def generator(random_state: Any) -> np.random.Generator:
    """A generator from what scikit-learn calls a random state: None, a seed, a Generator or a RandomState.

    >>> generator(7).integers(100) == np.random.default_rng(7).integers(100)
    np.True_
    """
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    if random_state is None or isinstance(random_state, int | np.integer | np.random.Generator):
        return np.random.default_rng(random_state)
    raise TypeError(
        "random_state must be None, an integer, a numpy.random.Generator or a numpy.random.RandomState, "
        f"got {random_state!r}"
    )
