import numpy as np
import pytest

from dada.core.model_steps import UserRows
from dada.net.forkserver import rehearse
from tests.helpers.net import CONFIG, N_PREDICTORS


@pytest.fixture(scope="session")
def compiled_kernels():
    """Compile the kernels of peers before a test with a time limit needs them."""
    rehearse(UserRows(np.ones((3, N_PREDICTORS), np.int8)), CONFIG)
