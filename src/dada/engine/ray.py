"""Shards as Ray actors: more users than one machine holds. Needs the extra `ray`.

One actor keeps one shard. A window of all shards is one call per actor, and what they have for each other goes from
actor to actor in one batch per pair; this process only says which batch goes where. When an actor dies, a new one takes
its data, and all begin the present stretch again from the models that it began with: the result is the same.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from dada.core.compiled import Array
from dada.engine.sharded import Held, Outcome, Part, Shard, exchanged, refuse_addresses

# Stretches are begun anew this many times in a row when actors die; the run then gives up.
ATTEMPTS = 5
# Windows that may be under way at once: enough to hide the time of a call, few enough to bound memory.
AHEAD = 4
# A part of a processor in the units that Ray reckons with.
SMALLEST_SHARE = 1e-4


def needed() -> Any:
    """Ray, or a word on how to get it."""
    # Nothing that runs here reports to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray says in a warning what it will do about graphics cards one day; it shall do so now.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError('this needs Ray: pip install "dada-learn[ray]"') from error
    return ray


def started() -> Any:
    """Ray, connected to the cluster that RAY_ADDRESS names or that runs here, else started on this machine."""
    ray = needed()
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def cluster_cpus() -> int:
    """Processors of the cluster, at least 1."""
    return max(1, int(started().cluster_resources().get("CPU", 1)))


class ShardActor(Shard):
    """A shard that can say that it lives."""

    def is_alive(self) -> bool:
        """Yes."""
        return True


class OnRay:
    """Keeps every shard in an actor.

    Parameters
    ----------
    cpus_per_shard : float, optional
        What an actor reserves; by default one processor, or less where the cluster has fewer than shards.
    """

    def __init__(self, cpus_per_shard: float | None = None) -> None:
        self.ray = started()
        self.cpus_per_shard = cpus_per_shard
        self.held: list[Held] = []
        self.actors: list[Any] = []

    def hold(self, held: list[Held]) -> None:
        """Start an actor for each."""
        self.close()
        self.held = held
        self.actors = [self._actor(one) for one in held]

    def run(self, parts: list[Part], awake: Array, n_windows: int) -> list[Outcome]:
        """Carry out the windows; where an actor dies, all begin the stretch again."""
        refuse_addresses(parts)
        kept, events = [self.ray.put(part) for part in parts], self.ray.put(awake)
        return self._insist(lambda: self._windows(kept, events, n_windows))[len(parts) :]

    def ask(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Array]:
        """What a method of every shard answers."""

        def asked() -> list[Any]:
            pairs = zip(self.actors, arguments, strict=True)
            return [getattr(actor, name).remote(*given) for actor, given in pairs]

        return self._insist(asked)

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.held, self.actors = [], []

    def _windows(self, parts: list[Any], awake: Any, n_windows: int) -> list[Any]:
        """Calls for a stretch; returns references of all beginnings, then of what the shards have at the end."""
        begun = [actor.begin.remote(part, awake) for actor, part in zip(self.actors, parts, strict=True)]
        arrived: list[list[Any]] = [[] for _ in parts]
        under_way: list[Any] = []
        for number in range(n_windows):
            outgoing = self._window(number, arrived)
            arrived = exchanged(outgoing)
            under_way.append([batches[0] for batches in outgoing])
            if len(under_way) > AHEAD:
                self.ray.wait(under_way.pop(0), num_returns=len(parts), fetch_local=False)
        ended = [actor.result.remote(*batches) for actor, batches in zip(self.actors, arrived, strict=True)]
        return begun + ended

    def _window(self, number: int, arrived: list[list[Any]]) -> list[list[Any]]:
        """One window of all shards; returns references of what each has for every other."""
        n = len(self.actors)
        calls = [
            actor.step.options(num_returns=n).remote(*batches)
            for actor, batches in zip(self.actors, arrived, strict=True)
        ]
        return [[call] for call in calls] if n == 1 else calls

    def _insist(self, work: Any) -> list[Any]:
        """The results of some work; it is done again where actors died meanwhile."""
        for attempt in range(ATTEMPTS):
            try:
                return list(self.ray.get(work()))
            except self.ray.exceptions.RayError:
                if not self._replaced() or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _replaced(self) -> bool:
        """Put new actors in the place of dead ones; returns whether there were any."""
        dead = [number for number, actor in enumerate(self.actors) if not self._is_alive(actor)]
        for number in dead:
            self.actors[number] = self._actor(self.held[number])
        return bool(dead)

    def _is_alive(self, actor: Any) -> bool:
        try:
            return bool(self.ray.get(actor.is_alive.remote()))
        except self.ray.exceptions.RayActorError:
            return False

    def _actor(self, held: Held) -> Any:
        share = self.cpus_per_shard
        if share is None:
            share = min(1.0, cluster_cpus() / len(self.held) // SMALLEST_SHARE * SMALLEST_SHARE)
        options = {"num_cpus": share, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self.ray.remote(**options)(ShardActor).remote(held)
