"""Peers on a perfect network, driven by the engine's schedule: wake-ups are sequential, messages arrive at once.

Given the same problem, plan and schedule, the peers compute the models, the graph and the message counts of the
compiled engine, bit for bit. Bounded lists, gossip batches and latency are the engine's alone: they are refused.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dada.core.bits import Ledger
from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.model_steps import STEP_RULES, step_size
from dada.core.plan import BLOCK_STEP, GRAPH_STREAM, LOCAL_STREAM, MODEL_STREAM, Plan, Schedule
from dada.core.problem import Problem
from dada.peer.edges import Edge
from dada.peer.inputs import Action, Effect, GraphStep, ModelStep, PeerConfig, Received, Refused, ResetModel, Send
from dada.peer.peer import Peer
from dada.sim.simulation import peer_id


def is_background(graph: CollaborationGraph | None) -> bool:
    """Whether a graph may come about between peers that choose others at random: all weights are one."""
    return graph is not None and bool((graph.weights == 1.0).all())


class Lockstep:
    """Peers that exchange messages without delay or loss."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        graph: CollaborationGraph | None = None,
        dtype: str = "float32",
        n_classes: int = 2,
    ) -> None:
        engine_only = {
            "max_neighbours": plan.learn_graph and plan.max_neighbours is not None,
            "sampler": plan.learn_graph and plan.batch_mix(problem.n_users).n_gossip > 0,
            "latency": plan.latency > 0,
        }
        if refused := [name for name, is_set in engine_only.items() if is_set]:
            raise ValueError(f"peers in lockstep have no {' and no '.join(refused)}: leave it out of the plan")
        self.problem, self.plan = problem, plan
        config = PeerConfig(
            problem.n_predictors,
            problem.beta,
            problem.mu1,
            problem.mu2,
            problem.loss,
            problem.regularizer,
            problem.graph_loss,
            problem.coupling,
            graph=plan.graph_rule if plan.learn_graph else "everyone" if is_background(graph) else "distance",
            n_neighbours=plan.n_neighbours,
            tau=plan.tau,
            step=plan.step,
            block=plan.block,
            dtype=dtype,
            graph_step=plan.graph_step,
            largest_prediction=max(1.0, float(abs(problem.A).max())),
            n_classes=n_classes,
            known_largest=int(problem.sizes.max()),
        )
        self.peers = [Peer(peer_id(k), problem.rows_of(k), config) for k in range(problem.n_users)]
        self._numbers = {peer.me: k for k, peer in enumerate(self.peers)}
        for k, l, w in zip(*graph.edges(), strict=True) if graph is not None else ():
            edges, other = self.peers[k].edges, peer_id(int(l))
            self.deliver(int(k), [*edges.decide(other, Edge(), float(w)), edges.announce(other, 0.0)])

    def run(self, rng: np.random.Generator) -> None:
        """Execute the plan with the schedule that the engine draws from the same generator."""
        K = self.problem.n_users
        schedule = Schedule.draw(rng, K, self.plan.kappa if self.plan.learn_graph else 1, self.plan.span)
        counts = {"local": 0, "graph": 0, "models": 0}
        streams = {"local": LOCAL_STREAM, "graph": GRAPH_STREAM, "models": MODEL_STREAM}
        for number, phase in enumerate(self.plan.phases(K)):
            start, stop = counts[phase.kind], counts[phase.kind] + phase.events
            if phase.kind == "models" and number == 2 and self.plan.restart == "zero":
                for k in range(K):
                    self.wake(k, ResetModel(0.0))
            awake = schedule.users(streams[phase.kind], start, stop)
            batches = schedule.batches(start, stop) if phase.kind == "graph" else None
            t = start + (counts["local"] if phase.kind == "models" and self.plan.restart == "local" else 0)
            for e, k in enumerate(awake.tolist()):
                if batches is not None:
                    self.wake(k, GraphStep(0.0, tuple(peer_id(l) for l in batches[e].tolist())))
                else:
                    own = self.peers[k].own.updates
                    is_block = self.plan.step == BLOCK_STEP
                    gamma = -1.0 if is_block else step_size(STEP_RULES[self.plan.step], K, t + e, own)
                    self.wake(k, ModelStep(0.0, gamma))
            counts[phase.kind] = stop

    def wake(self, k: int, action: Action) -> None:
        """Make one step, and deliver all messages that follow from it."""
        self.deliver(k, self.peers[k].handle(action))

    def deliver(self, k: int, effects: list[Effect]) -> None:
        """Deliver the messages of a peer, and those that follow from them; none may be refused."""
        queue = deque((k, effect) for effect in effects)
        while queue:
            sender, effect = queue.popleft()
            if isinstance(effect, Send):
                l = self._numbers[effect.to]
                answers = self.peers[l].handle(Received(0.0, self.peers[sender].me, effect.message))
                queue.extend((l, answer) for answer in answers)
            assert not isinstance(effect, Refused), effect

    @property
    def models(self) -> Array:
        """The peers' models, one row each."""
        return np.stack([peer.own.model.alpha for peer in self.peers])

    @property
    def shared(self) -> Array:
        """The peers' shared models, one row each."""
        return np.stack([peer.own.shared.alpha for peer in self.peers])

    @property
    def graph(self) -> CollaborationGraph:
        """The graph of the peers' edges."""
        ends = [[(self._numbers[l], peer.edges[l].weight) for l in peer.edges.neighbours] for peer in self.peers]
        indptr = np.cumsum([0, *(len(row) for row in ends)])
        pairs = np.array([pair for row in ends for pair in row]).reshape(-1, 2)
        directed = self.plan.graph_rule == "evidence"
        return CollaborationGraph(indptr.astype(np.int64), pairs[:, 0].astype(np.int32), pairs[:, 1], directed)

    @property
    def counts(self) -> Array:
        """Messages, floats and indices sent, in the paper's count."""
        return self.ledger.models + self.ledger.graph

    @property
    def ledger(self) -> Ledger:
        """All that the peers have counted."""
        total = Ledger(self.problem.n_predictors)
        for peer in self.peers:
            for name in ("models", "graph", "coded"):
                getattr(total, name)[...] += getattr(peer.neighbourhood.ledger, name)
        return total
