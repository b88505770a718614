"""One run shared by threads, by shards in processes, and by shards on Ray: the same state, and what each costs.

    python benchmarks/shards.py [--users 100000] [--updates 10] [--json FILE]

Users have 3 to 15 random rows of 200 stumps and 20 neighbours, on a ring with random chords. Seconds are of the second
half of the updates, with workers started, data handed out and kernels compiled, and with models going to the shards and
back. Memory is the peak of the largest worker. Without Ray, its lines are left out.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from machine import processor_seconds

from dada.core.graph import CollaborationGraph
from dada.core.plan import MODEL_STREAM, Plan, Schedule
from dada.core.problem import Problem
from dada.engine.backends import Processes
from dada.engine.model_loops import GraphLists
from dada.engine.shards import Segment, Sharded, ThisProcess, Threads
from dada.engine.state import State

N, NEIGHBOURS = 200, 20
LATENCY = 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=10, help="per user")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    problem, graph = population(options.users), ring(options.users)
    plan = Plan(options.updates * options.users, learn_graph=False, latency=LATENCY)
    schedule = Schedule.draw(np.random.default_rng(0), options.users, 1)
    awake = schedule.users(MODEL_STREAM, 0, plan.n_updates)
    entries = []
    for name, n_workers, workers in worker_sets():
        state = State.start(problem, plan, graph, np.float32)
        settings, window = problem.settings(np.float32), plan.window(options.users)
        arrays = settings, None, state.users, state.shared, GraphLists(state.lists, state.followers)
        half = [Segment(*arrays, part, window, state.ledger) for part in np.array_split(awake, 2)]
        with workers if hasattr(workers, "__exit__") else nullcontext():
            workers.advance(half[0])
            began, spent = time.perf_counter(), processor_seconds()
            workers.advance(half[1])
            seconds, spent = time.perf_counter() - began, processor_seconds() - spent
            peak = peak_of(workers)
        digest = hashlib.sha256(state.users.alpha.tobytes()).hexdigest()[:16]
        times = {"seconds": seconds, "processor_seconds": spent}
        entries.append({"backend": name, "workers": n_workers, **times, "peak_mb": peak, "state": digest})
        print(f"{name:12}{n_workers:3}{seconds:8.2f} s{spent:8.2f} s of processors{peak:8.0f} MB  {digest}", flush=True)
    if len({entry["state"] for entry in entries}) > 1:
        sys.exit("states differ")
    setting = {"users": options.users, "updates_per_user": options.updates, "latency": LATENCY, "predictors": N}
    machine = {
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "processor": platform.machine(),
        "python": platform.python_version(),
    }
    if options.json:
        result = {"setting": setting | {"neighbours": NEIGHBOURS}, "entries": entries, "machine": machine}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def worker_sets():
    yield "threads", 1, Threads(1)
    yield "threads", 2, Threads(2)
    yield "here", 2, Sharded(2, ThisProcess())
    yield "processes", 2, Sharded(2, Processes())
    try:
        from dada.engine.backends import OnRay
    except ImportError as error:
        print(error, file=sys.stderr)
        return
    for shards in (1, 2, 4):
        yield "Ray", shards, Sharded(shards, OnRay())


def peak_of(workers):
    """Megabytes of the largest process that works for a crew."""
    backend = getattr(workers, "backend", None)
    if isinstance(backend, Processes):
        return max(map(peak_mb, (worker.pid for worker in backend.workers)))
    if hasattr(backend, "actors"):
        return max(
            backend.ray.get([actor.__ray_call__.remote(lambda _: peak_mb(os.getpid())) for actor in backend.actors])
        )
    return peak_mb(os.getpid())


def peak_mb(pid):
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def population(n_users):
    rng = np.random.default_rng(0)
    rows = np.concatenate([[0], np.cumsum(rng.integers(3, 16, n_users))])
    A = rng.integers(0, 2, (rows[-1], N), dtype=np.int8)
    A *= 2
    A -= 1
    return Problem(A, rows, beta=10.0, mu1=1.0)


def ring(n_users):
    rng, k = np.random.default_rng(1), np.arange(n_users)
    ends = [np.sort([k, (k + step) % n_users], axis=0) for step in (*range(1, 6), *rng.integers(6, n_users // 2, 5))]
    pairs = np.unique(np.concatenate(ends, axis=1), axis=1)
    return CollaborationGraph.from_edges(n_users, pairs[0], pairs[1], np.ones(pairs.shape[1]))


if __name__ == "__main__":
    main()
