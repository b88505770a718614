import networkx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada.core.graph import CollaborationGraph
from tests.helpers.problems import random_graph

graphs = st.builds(
    lambda seed, n_users, density: random_graph(np.random.default_rng(seed), n_users, density),
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.3, 1.0]),
)
DIRECTED = CollaborationGraph(np.array([0, 1, 3, 3]), np.array([1, 0, 2], np.int32), np.array([0.5, 1.0, 2.0]), True)


def assert_same_graph(got, wanted):
    assert_array_equal(got.indptr, wanted.indptr)
    assert_array_equal(got.indices, wanted.indices)
    assert_array_equal(got.weights, wanted.weights)


@given(graphs)
def test_edges_matrices_and_networkx_hold_the_same_graph(graph):
    assert_same_graph(CollaborationGraph.from_edges(graph.n_users, *graph.edges()), graph)
    assert_same_graph(CollaborationGraph.from_scipy(graph.to_scipy()), graph)
    assert_same_graph(CollaborationGraph.from_scipy(graph.to_scipy().toarray()), graph)
    as_networkx = graph.to_networkx()
    assert as_networkx.number_of_edges() == graph.n_edges
    assert_same_graph(CollaborationGraph.from_scipy(networkx.to_scipy_sparse_array(as_networkx)), graph)


@given(graphs)
def test_degrees_and_neighbours_are_those_of_the_matrix(graph):
    weights = graph.to_scipy().toarray()
    assert_array_equal(weights, weights.T)
    assert_allclose(graph.degree, weights.sum(axis=1), rtol=1e-14)
    assert_array_equal(graph.neighbour_counts, (weights > 0).sum(axis=1))
    assert graph.mean_neighbours == (weights > 0).sum() / graph.n_users
    for k in range(graph.n_users):
        ids, own = graph.neighbours(k)
        assert_array_equal(weights[k, ids], own)
        assert (np.diff(own) <= 0).all()


def test_graphml_can_be_read_back(tmp_path):
    graph = random_graph(np.random.default_rng(0), 6)
    names = ["anna", "bo", "cy", "dee", "eve", "flo"]
    graph.write_graphml(tmp_path / "graph.graphml", names)
    read = networkx.read_graphml(tmp_path / "graph.graphml")
    assert list(read.nodes) == names
    assert_same_graph(CollaborationGraph.from_scipy(networkx.to_scipy_sparse_array(read, nodelist=names)), graph)


def test_one_user_has_no_neighbours():
    for graph in (
        CollaborationGraph.empty(1),
        CollaborationGraph.complete(1),
        CollaborationGraph.from_edges(1, [], [], []),
        CollaborationGraph.from_scipy([[0.0]]),
    ):
        assert (graph.n_users, graph.n_edges, graph.mean_neighbours) == (1, 0, 0.0)
        assert graph.degree.tolist() == [0.0]
        assert graph.neighbours(0)[0].size == 0
        assert graph.to_networkx(["only"]).number_of_nodes() == 1


def test_the_complete_graph_joins_all_pairs():
    graph = CollaborationGraph.complete(4, weight=0.5)
    assert graph.n_edges == 6
    assert_array_equal(graph.degree, np.full(4, 1.5))


def test_a_directed_graph_stands_in_the_rows_of_those_who_learn():
    assert DIRECTED.n_edges == 3
    assert DIRECTED.degree.tolist() == [0.5, 3.0, 0.0]
    assert [list(part) for part in DIRECTED.edges()] == [[0, 1, 1], [1, 0, 2], [0.5, 1.0, 2.0]]
    assert set(DIRECTED.to_networkx().edges) == {(0, 1), (1, 0), (1, 2)}
    halves = DIRECTED.symmetrised()
    assert not halves.directed
    assert_array_equal(halves.to_scipy().toarray(), [[0, 0.75, 0], [0.75, 0, 1.0], [0, 1.0, 0]])
    assert halves.symmetrised() is halves


def test_a_weight_of_zero_is_no_edge_not_even_on_the_diagonal():
    assert CollaborationGraph.from_edges(2, [0, 1], [1, 1], [0.0, 0.0]).n_edges == 0
    stored_zeros = scipy.sparse.coo_array(([0.0, 1.0, 1.0], ([1, 0, 1], [1, 1, 0])), shape=(2, 2)).tocsr()
    assert CollaborationGraph.from_scipy(stored_zeros).n_edges == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, [], [], []), "n_users must be at least 1, got 0"),
        ((3, [0], [1, 2], [1.0]), r"equal length, got shapes \(1,\), \(2,\) and \(1,\)"),
        ((3, [[0]], [[1]], [[1.0]]), "edge lists must be of equal length"),
        ((3, [0], [3], [1.0]), r"edge ends must be users 0\.\.2, got 0\.\.3"),
        ((3, [-1], [2], [1.0]), r"edge ends must be users 0\.\.2, got -1\.\.2"),
        ((3, [0, 1], [1, 1], [1.0, 1.0]), "edges must join two different users, got one from 1 to itself"),
        ((3, [0], [1], [-1.0]), "finite and not negative"),
        ((3, [0], [1], [np.nan]), "finite and not negative"),
        ((3, [0], [1], [np.inf]), "finite and not negative"),
        ((3, [0, 1], [1, 0], [1.0, 1.0]), r"each edge must be given once, got \(0, 1\) twice"),
    ],
)
def test_edge_lists_that_make_no_graph_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CollaborationGraph.from_edges(*arguments)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3)), r"must be square, got shape \(2, 3\)"),
        ([[0.0, 1.0], [2.0, 0.0]], "must be symmetric"),
        ([[1.0, 1.0], [1.0, 0.0]], "two different users, got one from 0 to itself"),
        ([[0.0, -1.0], [-1.0, 0.0]], "not negative"),
        ([[0.0, np.nan], [np.nan, 0.0]], "finite"),
    ],
)
def test_matrices_that_make_no_graph_are_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        CollaborationGraph.from_scipy(matrix)


def test_names_must_be_as_many_as_users_and_different():
    pair = CollaborationGraph.complete(2)
    with pytest.raises(ValueError, match="2 distinct names, got 3 with 3"):
        pair.to_networkx(["a", "b", "c"])
    with pytest.raises(ValueError, match="2 distinct names, got 2 with 1"):
        pair.to_networkx(["a", "a"])


@pytest.mark.parametrize("k", [-1, 2])
def test_an_unknown_user_is_named(k):
    with pytest.raises(IndexError, match=rf"user must be in 0\.\.1, got {k}"):
        CollaborationGraph.complete(2).neighbours(k)
