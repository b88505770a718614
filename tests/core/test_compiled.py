"""How kernels are compiled."""

import numpy as np
import pytest
from numba.core.errors import TypingError

from dada.core.compiled import bits_of, kernel, lean_kernel
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
