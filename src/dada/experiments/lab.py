"""Finished work, one line of JSON each, in a file that survives crashes: an interrupted experiment goes on from it."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

import dada
from dada.experiments.jobs import Job, execute

FORMAT = 1


class Journal:
    """Results by key, each on disk before it counts.

    Parameters
    ----------
    path : path
        The file; made where it does not exist.
    identity : mapping
        What the results depend on beside their keys, such as the version of the code. A file of another identity is
        moved aside (to the same name with ``.old``), never mixed with new results.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal(Path(folder) / "journal.jsonl", {"code": "1"}) as journal:
    ...         journal.add("a", {"x": 1.5})
    ...     with Journal(Path(folder) / "journal.jsonl", {"code": "1"}) as journal:
    ...         journal.results
    {'a': {'x': 1.5}}
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.header = {"format": FORMAT, **identity}
        self.results: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read() if path.exists() else 0
        self._file: BinaryIO = path.open("ab")
        if whole:
            self._file.truncate(whole)
        else:
            self._write(self.header)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: str, result: Any) -> None:
        """Keep a result; it is on disk when this returns."""
        self._write({"key": key, "result": result})
        self.results[key] = result

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Take up what the file holds; returns the length of its whole lines, 0 where it must start afresh."""
        content = self.path.read_bytes()
        # A line without its end is one whose writing was cut short: the work is done again.
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines or json.loads(lines[0]) != self.header:
            self.path.replace(self.path.with_name(self.path.name + ".old"))
            return 0
        for number, line in enumerate(lines[1:], start=2):
            try:
                row = json.loads(line)
                self.results[row["key"]] = row["result"]
            except (ValueError, KeyError) as error:
                raise ValueError(
                    f"{self.path} is damaged at line {number} ({error}): remove the file to start afresh"
                ) from error
        return whole


# What a result depends on; a change in any file there makes a journal useless.
_SOURCES = ("core", "engine", "baselines", "data", "estimators", "experiments/data.py",
            "experiments/graph_study.py", "experiments/jobs.py", "experiments/methods.py", "experiments/ours.py",
            "experiments/task_studies.py", "task.py")  # fmt: skip


class Lab:
    """Runs jobs and remembers their results.

    Parameters
    ----------
    folder : path
        Where the journal is kept.
    seed : int
        Seed of everything that is drawn.
    quick : bool
        Coarse grids, one repeat of cross-validation, shorter runs: to see that all works, not for results.
    n_jobs : int
        Jobs at work at the same time; 1 works in this process.
    engine : {"local", "ray"}
        Where: in processes of this machine, or on a Ray cluster, which must find the same datasets everywhere.
    console : rich.console.Console, optional
        Where progress is shown; nowhere where not given.

    Examples
    --------
    >>> import tempfile
    >>> job = Job.of("moons", "constant", {}, seed=0, run=0)
    >>> with tempfile.TemporaryDirectory() as folder, Lab(Path(folder), n_jobs=1) as lab:
    ...     sorted(lab.run([job], "demo")[0])
    ['bits', 'neighbours', 'test', 'test_pooled', 'train', 'train_pooled']
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        quick: bool = False,
        n_jobs: int = 2,
        engine: str = "local",
        console: Console | None = None,
    ) -> None:
        if n_jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {n_jobs}")
        if seed < 0:
            raise ValueError(f"seed must be >= 0, got {seed}")
        self.folder, self.seed, self.quick, self.n_jobs, self.engine = folder, seed, quick, n_jobs, engine
        self.console = Console(quiet=True) if console is None else console
        self.journal = Journal(folder / "journal.jsonl", {"code": code_digest()})
        self._pool: Executor | None = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self.journal.__exit__()

    def run(self, jobs: Sequence[Job], label: str) -> list[dict[str, Any]]:
        """The results of the jobs, in their order; only those not in the journal are done."""
        keys = [job.key for job in jobs]
        missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in self.journal.results}
        if missing:
            with self._progress(label, total=len(set(keys)), done=len(set(keys)) - len(missing)) as advance:
                for key, result in self._work(missing):
                    self.journal.add(key, result)
                    advance()
        return [self.journal.results[key] for key in keys]

    def _work(self, jobs: dict[str, Job]) -> Iterator[tuple[str, dict[str, Any]]]:
        if self.n_jobs == 1 and self.engine == "local":
            with threadpool_limits(1):
                for key, job in jobs.items():
                    yield key, execute(job)
            return
        if self._pool is None:
            self._pool = self._workers()
        waiting, running = deque(jobs.items()), dict[Future[dict[str, Any]], str]()
        try:
            while waiting or running:
                # Few jobs ahead of the workers: Ctrl-C then ends the work soon.
                while waiting and len(running) < 4 * self.n_jobs:
                    key, job = waiting.popleft()
                    running[self._pool.submit(execute, job)] = key
                yield from _finished(running)
        except BrokenProcessPool as error:
            raise OSError("a worker process died; the same command goes on from where this one stopped") from error

    def _workers(self) -> Executor:
        if self.engine == "ray":
            from dada.engine.backends import Tasks

            return Tasks()
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.n_jobs, mp_context=context, initializer=_start_worker)

    @contextmanager
    def _progress(self, label: str, total: int, done: int) -> Iterator[Any]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        bars: AbstractContextManager[Progress] = Progress(*columns, console=self.console)
        with bars as shown:
            task = shown.add_task(label, total=total, completed=done)
            yield lambda: shown.advance(task)


def _finished(running: dict[Future[dict[str, Any]], str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Wait for a result and hand out all that are there."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


def _start_worker() -> None:
    """Keep each worker to one thread, and end it with its parent, even where that is killed."""
    threadpool_limits(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for([sentinel])
    os._exit(1)


def code_digest() -> str:
    """Short name of the code on which results depend."""
    root, digest = Path(dada.__file__).parent, hashlib.sha256()
    for part in _SOURCES:
        path = root / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
