"""Backends that run shards in other processes: on this machine, or on a Ray cluster."""

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
from dada.engine.shards import Shard, ShardData, ShardJob, ShardResult, exchanged, refuse_addresses, run_windows


class Processes:
    """Runs every shard in its own process."""

    def __init__(self) -> None:
        self.workers: list[BaseProcess] = []
        self.pipes: list[Connection] = []

    def hold(self, held: list[ShardData]) -> None:
        """Start one process per shard."""
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

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[ShardResult]:
        """Make the windows of a segment."""
        refuse_addresses(parts)
        return run_windows(self.ask, parts, awake, n_windows)

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for worker in self.workers:
            worker.terminate()
            worker.join()
        self.workers, self.pipes = [], []

    def ask(self, name: str, arguments: list[Any], common: Any = ()) -> list[Any]:
        """Call a method of every shard."""
        try:
            for pipe, given in zip(self.pipes, arguments, strict=True):
                pipe.send((name, (*given, *common)))
            answers = [pipe.recv() for pipe in self.pipes]
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise OSError(
                "the process of a shard died: resume from a checkpoint (run(..., checkpoint=, resume=True))"
            ) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def serve(pipe: Connection) -> None:
    """Hold one shard and call its methods as the pipe requests, until the pipe closes."""
    try:
        shard = Shard(pipe.recv())
        while True:
            name, given = pipe.recv()
            pipe.send(getattr(shard, name)(*given))
    except EOFError:
        return
    except Exception as error:
        pipe.send(error)


# Attempts at one segment when actors die.
ATTEMPTS = 5
# Windows submitted ahead: enough to hide the latency of calls, few enough to bound memory.
AHEAD = 4
# Ray's smallest share of a processor.
SMALLEST_SHARE = 1e-4


def import_ray() -> Any:
    """Import Ray, or raise with install instructions."""
    # No usage reports.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Adopt Ray's future handling of graphics cards, which silences its warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Calls that fail because an actor died are repeated; Ray would print each of them.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        import ray
    except ImportError as error:
        raise ImportError('this needs Ray: pip install "dada-learn[ray]"') from error
    return ray


def start_ray() -> Any:
    """Ray, connected to the cluster of RAY_ADDRESS or a running one; otherwise started on this machine."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def cluster_cpus() -> int:
    """Processors of the cluster, at least 1."""
    return max(1, int(start_ray().cluster_resources().get("CPU", 1)))


class ShardActor(Shard):
    """A shard that answers health checks."""

    def is_alive(self) -> bool:
        """Always true: a dead actor does not answer."""
        return True


class OnRay:
    """Runs every shard in a Ray actor.

    Parameters
    ----------
    cpus_per_shard : float, optional
        Processors that an actor reserves; by default one, or less if there are more shards than processors.
    """

    def __init__(self, cpus_per_shard: float | None = None) -> None:
        self.ray = start_ray()
        self.cpus_per_shard = cpus_per_shard
        self.held: list[ShardData] = []
        self.actors: list[Any] = []

    def hold(self, held: list[ShardData]) -> None:
        """Start one actor per shard."""
        self.close()
        self.held = held
        share = self.cpus_per_shard
        if share is None:
            share = min(1.0, cluster_cpus() / len(held) // SMALLEST_SHARE * SMALLEST_SHARE)
        self.actors = [self._actor(one, share) for one in held]

    def run(self, parts: list[ShardJob], awake: Array, n_windows: int) -> list[ShardResult]:
        """Make the windows of a segment; if an actor dies, all begin the segment again."""
        refuse_addresses(parts)
        kept, events = [self.ray.put(part) for part in parts], self.ray.put(awake)
        return self._retried(lambda: self._windows(kept, events, n_windows))[len(parts) :]

    def ask(self, name: str, arguments: list[Any], common: Any = ()) -> list[Any]:
        """Call a method of every shard."""
        kept = [self.ray.put(value) for value in common]
        return self._retried(lambda: self._calls(name, [(*given, *kept) for given in arguments]))

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.held, self.actors = [], []

    def _windows(self, parts: list[Any], awake: Any, n_windows: int) -> list[Any]:
        """Submit a segment; returns references to all beginnings, then to the results of the shards."""
        begun = self._calls("begin", [(part, awake) for part in parts])
        arrived: list[list[Any]] = [[] for _ in parts]
        under_way: list[Any] = []
        for _ in range(n_windows):
            outgoing = self._calls("step", arrived, num_returns=len(parts))
            # Ray returns one reference for one result, not a list.
            outgoing = outgoing if len(parts) > 1 else [outgoing]
            arrived = exchanged(outgoing)
            under_way.append([batches[0] for batches in outgoing])
            if len(under_way) > AHEAD:
                self.ray.wait(under_way.pop(0), num_returns=len(parts), fetch_local=False)
        return begun + self._calls("result", arrived)

    def _calls(self, name: str, arguments: list[Any], **options: Any) -> list[Any]:
        """Submit a call of a method of every shard; returns references to the results."""
        pairs = zip(self.actors, arguments, strict=True)
        return [getattr(actor, name).options(**options).remote(*given) for actor, given in pairs]

    def _retried(self, work: Callable[[], list[Any]]) -> list[Any]:
        """The results of some calls, repeated if actors died."""
        for attempt in range(ATTEMPTS):
            try:
                return list(self.ray.get(work()))
            except self.ray.exceptions.RayError:
                if not self._replace_dead() or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _replace_dead(self) -> bool:
        """Replace dead actors; returns whether there were any."""
        dead = [number for number, actor in enumerate(self.actors) if not self._is_alive(actor)]
        for number in dead:
            # It reserves no processor: those of a lost node are gone, and the other actors hold the rest.
            self.actors[number] = self._actor(self.held[number], 0.0)
        return bool(dead)

    def _is_alive(self, actor: Any) -> bool:
        try:
            return bool(self.ray.get(actor.is_alive.remote()))
        except self.ray.exceptions.RayActorError:
            return False

    def _actor(self, held: ShardData, n_cpus: float) -> Any:
        options = {"num_cpus": n_cpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self.ray.remote(**options)(ShardActor).remote(held)


@contextmanager
def joblib_on_ray() -> Iterator[None]:
    """Run `joblib.Parallel`, and with it the searches of scikit-learn, on the cluster."""
    start_ray()
    from joblib import parallel_config
    from ray.util.joblib import register_ray

    register_ray()
    with parallel_config(backend="ray"):
        yield


class Tasks(Executor):
    """An executor on Ray; tasks whose worker dies run again elsewhere."""

    def __init__(self) -> None:
        self.ray = start_ray()
        self.called = self.ray.remote(_called)
        self.under_way: set[Any] = set()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function on the cluster."""
        reference = self.called.remote(function, args, kwargs)
        self.under_way.add(reference)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda _: self.under_way.discard(reference))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down; `cancel_futures` cancels pending tasks."""
        for reference in list(self.under_way) if cancel_futures else ():
            self.ray.cancel(reference)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ray accepts plain functions only; this one also calls methods."""
    return function(*args, **kwargs)
