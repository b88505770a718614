"""Jobs, the processes that run them, and the journal of their results, from which an interrupted experiment resumes."""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from dada.experiments.digest import digest

FORMAT = 2
_Key = TypeVar("_Key")


@dataclass(frozen=True, eq=False)
class Job:
    """A call of a function with plain arguments. Equal keys give equal results, in any process and at any time.

    The function is at the top level of a module; its keyword arguments and its result are what JSON can hold. `data` is
    the digest of the data that it reads from disk. The key contains the digest of the function and of what it refers
    to; `loads` names modules that the function loads by name.

    Examples
    --------
    >>> import textwrap
    >>> Job(textwrap.wrap, {"text": "a b", "width": 1}).execute()
    ['a', 'b']
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    data: str = ""
    loads: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What the result depends on."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        return json.dumps([name, _code_of(self.function, self.loads), self.data, self.arguments], sort_keys=True)

    def execute(self) -> Any:
        """Call the function."""
        return self.function(**self.arguments)

    def timed(self) -> tuple[Any, float]:
        """Call the function; return its result and the processor time in seconds."""
        started = time.process_time()
        return self.execute(), time.process_time() - started


@lru_cache
def _code_of(function: Callable[..., Any], loads: tuple[str, ...]) -> str:
    """Digest of the code behind a function; of its file only if it is not of this package."""
    if function.__module__.startswith("dada."):
        return digest([f"{function.__module__}.{function.__qualname__}", *loads])
    return hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()[:16]


class ResultJournal:
    """Results by key, each on disk before it is used; the file is created if missing.

    `seconds` has the processor time of each. A key contains the digest of the code, so results of other code are never
    used. A file of another format is renamed (``.old`` is appended).

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ResultJournal(Path(folder) / "journal.jsonl") as journal:
    ...         journal.add("a", {"x": 1.5}, seconds=0.25)
    ...     with ResultJournal(Path(folder) / "journal.jsonl") as journal:
    ...         journal.results, journal.seconds
    ({'a': {'x': 1.5}}, {'a': 0.25})
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = {"format": FORMAT}
        self.results: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read() if path.exists() else 0
        self._file: BinaryIO = path.open("ab")
        if whole:
            self._file.truncate(whole)
        else:
            self._write(self.header)

    def __enter__(self) -> ResultJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: str, result: Any, seconds: float) -> None:
        """Store a result; it is on disk when this returns."""
        self._write({"key": key, "result": result, "seconds": round(seconds, 3)})
        self.results[key], self.seconds[key] = result, seconds

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Load the file; return the length of its complete lines, 0 if it starts afresh."""
        content = self.path.read_bytes()
        # A line without its end was cut short while being written: its job runs again.
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines or json.loads(lines[0]) != self.header:
            self.path.replace(self.path.with_name(self.path.name + ".old"))
            return 0
        for number, line in enumerate(lines[1:], start=2):
            try:
                row = json.loads(line)
                self.results[row["key"]], self.seconds[row["key"]] = row["result"], row["seconds"]
            except (ValueError, KeyError) as error:
                raise ValueError(
                    f"{self.path} is damaged at line {number} ({error}): remove the file to start afresh"
                ) from error
        return whole


class Lab:
    """Runs jobs and stores their results.

    Parameters
    ----------
    folder : path
        Folder of the journal.
    seed : int
        Seed of the experiment.
    quick : bool
        Coarse grids, one repeat of cross-validation, short runs: a check that everything works, not for results.
    n_jobs : int
        Number of parallel jobs; 1 runs them in this process.
    engine : {"local", "ray"}
        Run in processes of this machine, or on a Ray cluster, whose nodes all need the datasets.
    console : rich.console.Console, optional
        Shows progress.

    Examples
    --------
    >>> import tempfile
    >>> import textwrap
    >>> job = Job(textwrap.wrap, {"text": "a b", "width": 1})
    >>> with tempfile.TemporaryDirectory() as folder, Lab(Path(folder), n_jobs=1) as lab:
    ...     lab.run([job, job], "demo")
    [['a', 'b'], ['a', 'b']]
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
        self.journal = ResultJournal(folder / "journal.jsonl")
        self._used: set[str] = set()
        self._pool: Executor | None = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self.journal.__exit__()

    def run(self, jobs: Sequence[Job], label: str) -> list[Any]:
        """The results of the jobs, in their order; only jobs that are not in the journal run."""
        keys = [job.key for job in jobs]
        missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in self.journal.results}
        if missing:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, TimeRemainingColumn(), console=self.console) as shown:
                task = shown.add_task(label, total=len(set(keys)), completed=len(set(keys)) - len(missing))
                for key, (result, seconds) in self._work(missing):
                    self.journal.add(key, result, seconds)
                    shown.advance(task)
        self._used.update(keys)
        return [self.journal.results[key] for key in keys]

    def spent(self) -> float:
        """Processor time in seconds of all results used since the last call, of earlier commands too."""
        seconds = sum(self.journal.seconds[key] for key in sorted(self._used))
        self._used.clear()
        return seconds

    def _work(self, jobs: dict[str, Job]) -> Iterator[tuple[str, tuple[Any, float]]]:
        if self.n_jobs == 1 and self.engine == "local":
            with one_thread():
                for key, job in jobs.items():
                    yield key, job.timed()
            return
        if self._pool is None:
            self._pool = self._workers()
        waiting, running = deque(jobs.items()), dict[Future[Any], str]()
        try:
            while waiting or running:
                # A short queue, so that Ctrl-C ends the work soon.
                while waiting and len(running) < 4 * self.n_jobs:
                    key, job = waiting.popleft()
                    running[self._pool.submit(Job.timed, job)] = key
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise OSError("a worker process died; run the same command again to resume") from error

    def _workers(self) -> Executor:
        if self.engine == "ray":
            from dada.engine.backends import Tasks

            return Tasks()
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.n_jobs, mp_context=context, initializer=_start_worker)


def run_groups(lab: Lab, jobs: Mapping[_Key, Sequence[Job]], label: str) -> dict[_Key, list[Any]]:
    """The results of groups of jobs, all run together."""
    results = iter(lab.run([job for group in jobs.values() for job in group], label))
    return {key: [next(results) for _ in group] for key, group in jobs.items()}


def one_thread() -> threadpool_limits:
    """Limit numerical libraries to one thread.

    A limit holds for libraries that are loaded: scikit-learn's trees would wait for each other on busy processors.
    """
    import_module("sklearn.ensemble")
    return threadpool_limits(1)


def _start_worker() -> None:
    """Limit a worker to one thread, and end it with its parent, even if that is killed."""
    one_thread()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for([sentinel])
    os._exit(1)
