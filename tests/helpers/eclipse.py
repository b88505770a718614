"""A peer that many identities surround, in a simulated network."""

from __future__ import annotations

import numpy as np

from dada.core.problem import Problem
from dada.peer.inputs import PeerConfig
from dada.peer.member import Rhythm
from dada.sim.liars import Eclipser
from dada.sim.simulation import SimulatedNetwork
from dada.sim.virtual import Faults

HONEST, WARM_UP_S, WAKEUPS_PER_S = 20, 150, 0.5
CONFIG = PeerConfig(
    30, 5.0, 1.0, graph="evidence", n_neighbours=3, tau=1.0, max_neighbours=8, vet=True, trust_largest=0.2
)


def alike(K: int, n: int, n_rows: int = 20) -> Problem:
    """Users with enough samples to judge models by; the first predictor is right for most of them."""
    A = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), size=(K * n_rows, n))
    A[:, 0] = np.where(np.arange(len(A)) % 10, 1, -1)
    return Problem(A, np.arange(0, len(A) + 1, n_rows), beta=5.0, mu1=1.0)


def eclipse(attackers: int, seconds: int) -> tuple[float, float]:
    """Attack one peer; returns the least shares of honest peers in its view, and in the weight of its edges."""
    K = HONEST + attackers
    network = SimulatedNetwork(
        alike(K, CONFIG.n_predictors),
        CONFIG,
        Rhythm(local_steps=5, first_graph_steps=3, graph_every=4, wakeups_per_s=WAKEUPS_PER_S),
        Faults(lying=attackers / K),
        steps=int((WARM_UP_S + seconds) * WAKEUPS_PER_S),
        seed=0,
        liar_kinds=(Eclipser,),
        liars_join_s=WARM_UP_S,
    )
    world = network.world
    in_view, in_weight = [], []
    # Invariants are tested elsewhere, and take most of the time.
    world.watch = world.before_sending = lambda *_: None
    for third in (1, 2, 3):
        world.run(WARM_UP_S + seconds * third / 3)
        member = world.hosts[0].member
        honest = {host.me for host in world.hosts if host.is_honest}
        edges = member.peer.edges
        weight = sum(edges[peer].weight for peer in edges.neighbours if peer in honest)
        in_view.append(len(honest & set(member.sampling.view)) / len(member.sampling.view))
        in_weight.append(weight / edges.degree)
    return min(in_view), min(in_weight)
