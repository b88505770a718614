"""What does not fit is refused before it is made, with the estimate."""

import subprocess
import sys

import numpy as np
import pytest

from dada import DadaClassifier, Stumps
from dada.core.graph import CollaborationGraph
from dada.core.plan import Plan
from dada.core.problem import Problem, TooLittleMemoryError, available_bytes, bytes_of_run, check_memory, peak_bytes
from dada.engine.state import State


@pytest.mark.parametrize("weighted", [False, True])
def test_the_estimate_covers_the_state_of_a_run(weighted):
    rng = np.random.default_rng(0)
    rows = np.arange(501) * 9
    weights = np.ones(rows[-1]) if weighted else None
    A = rng.choice(np.array([-1, 1], np.int8), (rows[-1], 50))
    problem = Problem(A, rows, beta=1.0, mu1=1.0, weights=weights)
    state = State.start(problem, Plan(0), CollaborationGraph.empty(500), np.float32)
    held = sum(array.nbytes for array in (*state.users, *state.lists, *state.nearest)) + state.users.alpha.nbytes
    assert held < bytes_of_run(500, int(rows[-1]), 50, weighted=weighted) < 3 * held


def test_a_limit_of_the_process_is_respected():
    code = (
        "import resource; from dada.core.problem import available_bytes; "
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31)); print(available_bytes())"
    )
    free = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert free < 1 << 31
    assert free < available_bytes()


def test_peak_memory_is_that_of_this_process():
    before = peak_bytes()
    held = np.ones(30_000_000, np.uint8)
    assert peak_bytes() >= min(before, held.nbytes)


def test_what_is_needed_and_what_is_free_are_both_named():
    free = 3_000_000_000
    check_memory(2_999_999_999, "a run", "wait", free)
    with pytest.raises(TooLittleMemoryError, match=r"a run needs about 4\.5 GB of memory, and 3\.0 GB are free: wait"):
        check_memory(4_500_000_000, "a run", "wait", free)


def test_a_fit_that_does_not_fit_is_refused_before_its_tables_are_made():
    # 10,000 users with ten million base predictors each would need terabytes: only a check in advance can fail in time.
    X, users = np.arange(10_000.0)[:, None], np.arange(10_000)
    with pytest.raises(ValueError, match=r"a fit of 10,000 users with 10,000 rows and .* base predictors needs about"):
        DadaClassifier(Stumps(n=10_000_000, rule="feature-range"), graph="none", random_state=0).fit(
            X, np.arange(10_000) % 2, users=users
        )
