"""Shards in processes of their own, on one machine and without Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from dada.core.compiled import Array
from dada.engine.shards import Batch, Outcome, Shard, ShardData, ShardJob, exchanged, refuse_addresses


class Processes:
    """Keeps every shard in a process of its own."""

    def __init__(self) -> None:
        self.workers: list[BaseProcess] = []
        self.pipes: list[Connection] = []

    def hold(self, held: list[ShardData]) -> None:
        """Start a process for each."""
        self.close()
        context = get_context("spawn")
        for one in held:
            here, there = context.Pipe()
            worker = context.Process(target=serve, args=(there,), daemon=True)
            worker.start()
            there.close()
            here.send(one)
            self.workers.append(worker)
            self.pipes.append(here)

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[Outcome]:
        """Carry out the windows."""
        refuse_addresses(parts)
        self._call("begin", [(part, awake) for part in parts])
        arrived: list[list[Batch]] = [[] for _ in parts]
        for _ in range(n_windows):
            arrived = exchanged(self._call("step", arrived))
        return self._call("result", arrived)

    def ask(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Array]:
        """What a method of every shard answers."""
        return self._call(name, arguments)

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for worker in self.workers:
            worker.terminate()
            worker.join()
        self.workers, self.pipes = [], []

    def _call(self, name: str, arguments: list[Any]) -> list[Any]:
        try:
            for pipe, given in zip(self.pipes, arguments, strict=True):
                pipe.send((name, given))
            answers = [pipe.recv() for pipe in self.pipes]
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise OSError("a process with a shard died; a run with a checkpoint goes on from there") from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def serve(pipe: Connection) -> None:
    """Keep one shard, and do with it what comes through the pipe until that is closed."""
    try:
        shard = Shard(pipe.recv())
        while True:
            name, given = pipe.recv()
            pipe.send(getattr(shard, name)(*given))
    except EOFError:
        return
    except Exception as error:
        pipe.send(error)


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
        self.held: list[ShardData] = []
        self.actors: list[Any] = []

    def hold(self, held: list[ShardData]) -> None:
        """Start an actor for each."""
        self.close()
        self.held = held
        self.actors = [self._actor(one) for one in held]

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[Outcome]:
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

    def _actor(self, held: ShardData) -> Any:
        share = self.cpus_per_shard
        if share is None:
            share = min(1.0, cluster_cpus() / len(self.held) // SMALLEST_SHARE * SMALLEST_SHARE)
        options = {"num_cpus": share, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self.ray.remote(**options)(ShardActor).remote(held)


@contextmanager
def joblib_on_ray() -> Iterator[None]:
    """Let `joblib.Parallel`, and with it the searches of scikit-learn, work on the cluster."""
    started()
    from joblib import parallel_config
    from ray.util.joblib import register_ray

    register_ray()
    with parallel_config(backend="ray"):
        yield


class Tasks(Executor):
    """An executor whose workers are Ray's; a piece of work whose worker dies is done again elsewhere."""

    def __init__(self) -> None:
        self.ray = started()
        self.called = self.ray.remote(_called)
        self.under_way: set[Any] = set()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called."""
        reference = self.called.remote(function, args, kwargs)
        self.under_way.add(reference)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda _: self.under_way.discard(reference))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End; with `cancel_futures`, what has not begun is left undone."""
        for reference in list(self.under_way) if cancel_futures else ():
            self.ray.cancel(reference)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ray takes plain functions only; through this one, methods of objects go too."""
    return function(*args, **kwargs)
