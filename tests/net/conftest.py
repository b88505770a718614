import numpy as np
import pytest

from dada.net.kernels import rehearse
from tests.helpers.net import N_PREDICTORS


@pytest.fixture(scope="session")
def compiled_kernels():
    """Compile what peers call before a test with a time limit needs it."""
    rehearse(np.dtype(np.int8), N_PREDICTORS)
