"""Small networks: simulated peers, and real nodes on virtual links."""

from dataclasses import replace

import numpy as np

from dada.core.block_steps import BlockStep
from dada.core.problem import Problem
from dada.peer.inputs import PeerConfig
from dada.peer.member import Rhythm
from dada.sim.nodes import NodeNetwork
from dada.sim.simulation import SimulatedNetwork
from dada.sim.virtual import Faults

BLOCK = BlockStep(inner_moves=10, momentum=0.5, theta=0.7, quantise_bits=6, silence=0.02)
CONFIGS = {
    graph: PeerConfig(
        30, 5.0, 1.0, graph=graph, n_neighbours=3, tau=1.0, max_neighbours=8, damping=0.5, vet=True, trust_largest=0.2
    )
    for graph in ("distance", "evidence")
}
# Networks of block steps, with momentum, theta and silence.
CONFIGS |= {f"{graph}, block": replace(config, step="block", block=BLOCK) for graph, config in CONFIGS.items()}
CONFIGS["everyone"] = PeerConfig(30, 5.0, 1.0, graph="everyone", step="block", block=BlockStep(theta=0.5))
RHYTHM = Rhythm(local_steps=5, first_graph_steps=3, graph_every=2)


def users(K, seed=0, n=30):
    """Users of two kinds: for each kind, one predictor is right for most samples."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 8, K)
    A = rng.choice(np.array([-1, 1], np.int8), size=(sizes.sum(), n))
    kind = np.repeat(np.arange(K) % 2, sizes)
    A[np.arange(len(A)), kind] = np.where(rng.random(len(A)) < 0.9, 1, -1)
    return Problem(A, np.concatenate([[0], np.cumsum(sizes)]), beta=5.0, mu1=1.0)


def network(K=12, steps=20, seed=0, faults="all", graph="distance", **others):
    """A simulated network."""
    faults = Faults.named(faults) if isinstance(faults, str) else faults
    return SimulatedNetwork(users(K), CONFIGS[graph], RHYTHM, faults, steps=steps, seed=seed, **others)


def nodes(seed, duration_s=30.0, n=6, graph="evidence", **others):
    """Real nodes on virtual links."""
    return NodeNetwork(users(n), CONFIGS[graph], RHYTHM, duration_s=duration_s, seed=seed, **others)
