"""Sixty identities that surround one peer neither fill its view nor take its weight."""

import numpy as np

from dada.core.problem import Problem
from dada.peer.member import Rhythm
from dada.sim.faults import Faults
from dada.sim.liars import Eclipser
from dada.sim.simulation import SimulatedNetwork
from tests.sim.test_network import CONFIGS

HONEST, ATTACKERS, WARM_UP_S, ATTACK_S, WAKEUPS_PER_S = 40, 60, 240, 120, 0.5


def alike(K, n=30, n_rows=20):
    """Users with enough samples to judge models by; the first predictor is right for most of them."""
    A = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), size=(K * n_rows, n))
    A[:, 0] = np.where(np.arange(len(A)) % 10, 1, -1)
    return Problem(A, np.arange(0, len(A) + 1, n_rows), beta=5.0, mu1=1.0)


def test_sixty_attackers_do_not_eclipse_a_peer():
    K = HONEST + ATTACKERS
    network = SimulatedNetwork(
        alike(K),
        CONFIGS["evidence"],
        Rhythm(local_steps=5, first_graph_steps=3, graph_every=4, wakeups_per_s=WAKEUPS_PER_S),
        Faults(lying=ATTACKERS / K),
        steps=int((WARM_UP_S + ATTACK_S) * WAKEUPS_PER_S),
        seed=0,
        liar_kinds=(Eclipser,),
        liars_join_s=WARM_UP_S,
    )
    world = network.world
    shares = []
    # The invariants of a whole run are tested elsewhere; this one ends with the attack.
    for after_s in (40, 80, ATTACK_S):
        world.run(WARM_UP_S + after_s)
        member = world.hosts[0].member
        honest = {host.me for host in world.hosts if host.is_honest}
        edges = member.peer.edges
        weight = sum(edges[peer].weight for peer in edges.neighbours if peer in honest)
        shares.append((len(honest & set(member.sampling.view)) / len(member.sampling.view), weight / edges.degree))
    assert min(in_view for in_view, _ in shares) > 1 / 3
    assert min(in_weight for _, in_weight in shares) > 1 / 2
