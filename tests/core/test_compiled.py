"""How kernels are compiled."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numba.core.errors import TypingError

from dada.core.compiled import bits_of, kernel, lean_kernel, source_stamp
from dada.core.model_steps import largest_entry


def test_a_lean_kernel_that_returns_a_view_is_refused_and_not_run():
    @lean_kernel
    def head(array):
        return array[:1]

    with pytest.raises(TypingError, match="Only accept returning of array passed into the function as argument"):
        head(np.zeros(3))


def test_a_lean_kernel_that_makes_an_array_is_refused_and_not_run():
    @lean_kernel
    def total(n):
        return np.ones(n).sum()

    with pytest.raises(TypingError, match="No implementation of function"):
        total(3)


@pytest.mark.parametrize(("dtype", "integer"), [(np.float32, np.int32), (np.float64, np.int64)])
def test_bits_are_those_in_memory(dtype, integer):
    @kernel
    def bits(array):
        return bits_of(array[0])

    array = np.array([-1.5], dtype)
    assert bits(array) == array.view(integer)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_largest_entry_is_the_first_of_largest_magnitude(dtype):
    rng = np.random.default_rng(0)
    for size in (1, 2, 15, 64, 201):
        for _ in range(50):
            gradient = rng.integers(-4, 5, size).astype(dtype) * dtype(0.1)
            assert largest_entry(gradient) == np.argmax(abs(gradient))


def test_largest_entry_of_zeros_is_the_first():
    assert largest_entry(np.array([-0.0, 0.0], np.float32)) == 0


@pytest.mark.parametrize(
    ("module", "packages"), [("dada.core.losses", {"core"}), ("dada.engine.model_loops", {"core", "engine"})]
)
def test_a_kernel_is_compiled_again_when_core_or_its_own_package_changes(module, packages):
    stamp = source_stamp(module)
    assert {name.partition("/")[0] for name, _, _ in stamp} == packages
    assert "core/model_steps.py" in {name for name, _, _ in stamp}


SCRIPT = """
import sys
import numpy as np
from dada.core.model_steps import largest_entry
print([int(largest_entry(np.array([1, 3, 2], dtype))) for dtype in sys.argv[1:]])
"""


def test_processes_may_fill_one_cache_at_the_same_time(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def start(*dtypes):
        line = [sys.executable, "-c", SCRIPT, *dtypes]
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)

    both = [start("float32"), start("float64")]
    assert [process.communicate()[0].strip() for process in both] == ["[1]", "[1]"]
    assert start("float32", "float64").communicate()[0].strip() == "[1, 1]"
    files = [file.name for file in tmp_path.rglob("*largest_entry*.nbc")]
    assert len(files) == len(set(files)) >= 2
