"""Shards in processes of their own, on one machine and without Ray."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from dada.core.compiled import Array
from dada.engine.sharded import Batch, Held, Outcome, Part, Shard, exchanged, refuse_addresses


class Processes:
    """Keeps every shard in a process of its own."""

    def __init__(self) -> None:
        self.workers: list[BaseProcess] = []
        self.pipes: list[Connection] = []

    def hold(self, held: list[Held]) -> None:
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

    def run(self, parts: list[Part], awake: Array, n_windows: int) -> list[Outcome]:
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
