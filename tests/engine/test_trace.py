"""The bits in a trace."""

import numpy as np

from dada import task
from dada.core.graph_steps import LogDegree
from dada.data import Stumps, moons
from dada.engine import Plan, run


def test_bits_of_the_graph_are_counted_apart():
    users = moons(0, n_users=12, n_test=1)
    predictors, regularizer = Stumps(n=40).fit(users.train.X), LogDegree(lam=0.3, delta=0.1)
    problem = task.problem(users.train, predictors, beta=5.0, mu1=1.0, regularizer=regularizer)
    plan = Plan(n_updates=60, graph_every=20, first_graph_wakeups=50, graph_wakeups=10, trace_every=10)
    result = run(problem, plan, np.random.default_rng(0))
    graph_bits = [point.graph_bits for point in result.trace]
    assert graph_bits[0] == 0.0
    assert graph_bits[1] == graph_bits[2] < graph_bits[3] == graph_bits[4] < graph_bits[5] == graph_bits[6]
    assert (result.trace[-1].bits, graph_bits[-1]) == (result.ledger.bits, result.ledger.graph_bits)
