import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.graph import (
    FIRST_ROOM,
    free_cells,
    grow,
    lightest,
    list_degree,
    lists_from_csr,
    lists_to_csr,
    set_weight,
    weight_of,
)
from tests.helpers.problems import random_graph


@given(seed=st.integers(0, 2**32), n_users=st.integers(2, 14))
def test_lists_hold_what_a_matrix_would(seed, n_users):
    rng = np.random.default_rng(seed)
    start = random_graph(rng, n_users, density=0.3)
    lists = lists_from_csr(start.indptr, start.indices, start.weights)
    dense = start.to_scipy().toarray()
    for _ in range(60):
        k, l = rng.choice(n_users, 2, replace=False)
        w = rng.choice([0.0, rng.exponential()])
        # A full list moves to twice its room.
        cells = 2 * int(lists.room[k] + lists.room[l] + FIRST_ROOM)
        if free_cells(lists) < cells:
            lists = grow(lists, spare=cells)
        set_weight(lists, k, l, w)
        dense[k, l] = dense[l, k] = w
        assert weight_of(lists, k, l) == weight_of(lists, l, k) == w
    indptr, indices, weights = lists_to_csr(lists)
    assert_array_equal(indptr, np.concatenate([[0], np.cumsum((dense > 0).sum(axis=1))]))
    assert_array_equal(indices, np.nonzero(dense)[1])
    assert_array_equal(weights, dense[dense > 0])
    for k in range(n_users):
        assert_allclose(list_degree(lists, k), dense[k].sum(), rtol=1e-14)
        if dense[k].any():
            assert lists.weights[lightest(lists, k)] == dense[k][dense[k] > 0].min()


def test_growing_changes_nothing_but_the_room():
    graph = random_graph(np.random.default_rng(0), 9)
    lists = lists_from_csr(graph.indptr, graph.indices, graph.weights)
    larger = grow(lists, spare=100)
    assert free_cells(larger) >= 100
    for got, wanted in zip(lists_to_csr(larger), lists_to_csr(lists), strict=True):
        assert_array_equal(got, wanted)


def test_memory_is_linear_in_the_edges():
    k = np.arange(10_000)
    chain = lists_from_csr(
        np.concatenate([[0], np.cumsum(np.where(k == 0, 1, 2))]),
        np.concatenate([[1], np.stack([k[1:] - 1, (k[1:] + 1) % 10_000], axis=1).ravel()]),
        np.ones(19_999),
    )
    assert chain.ids.size <= 8 * 10_000
