"""Cost of an update and memory per user, for growing populations of 20 neighbours and 200 predictors.

    python benchmarks/scale.py [--users 1000 --users 1000000] [--threads 2] > scale.json

Times are processor time of one thread for pairwise updates in random order, best of several; `near_update_us` is the
same with consecutive wake-ups among 1,024 users (`Plan(span=1024)`). The speed-up by threads is wall-clock time and
needs a quiet machine. The peak is that of the whole process, with the construction of the population.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
from machine import machine_facts

from dada.core.bits import Ledger
from dada.core.graph import CollaborationGraph
from dada.core.model_steps import PAIRWISE
from dada.core.plan import MODEL_STREAM, Plan, Schedule
from dada.core.problem import Problem, bytes_of_run, check_memory, peak_bytes
from dada.engine.model_loops import NUMBERS, GraphLists, loop_scratch, run_models
from dada.engine.shards import Segment, Threads
from dada.engine.state import State

N_PREDICTORS, N_NEIGHBOURS = 200, 20
FEWEST_SAMPLES, MOST_SAMPLES = 3, 15
# Updates per user before timing, so that models have their usual size, and at most while timing: models grow, and those
# of small populations must not have grown more than those of large ones.
WARM_UP, MOST_OWN = 8, 8
TIMED, REPETITIONS = 200_000, 8
LATENCY = 0.1
# Number of users among whom consecutive wake-ups fall in the second timing.
SPAN = 1024
# Fields of the data, as opposed to the state of a run.
DATA = ("A", "offset", "sample_weight")


def measure(sizes, threads=1, timed=TIMED, repetitions=REPETITIONS):
    """Costs and memory for each size, with facts about the machine."""
    refuse_too_many(max(sizes))
    entries = []
    for n_users in sorted(sizes):
        print(f"Timing {n_users:,} users", file=sys.stderr)
        population = Many.of(n_users)
        entry = {"users": n_users, **population.costs(timed, repetitions)}
        if threads > 1:
            entry |= population.thread_costs(threads, timed, repetitions)
        entry["peak_gb"] = round(peak_bytes() / 1e9, 3)
        entries.append(entry)
        del population
    for entry in entries:
        entry["cost_ratio"] = entry["update_us"] / entries[0]["update_us"]
    setting = {
        "predictors": N_PREDICTORS, "neighbours": N_NEIGHBOURS, "samples": [FEWEST_SAMPLES, MOST_SAMPLES],
        "order": "random", "span_of_near": SPAN, "step": "pairwise", "dtype": "float32", "latency_of_threads": LATENCY,
    }  # fmt: skip
    return {"scale": entries, "setting": setting, "machine": machine_facts()}


def refuse_too_many(n_users):
    """Raise before anything is allocated if the largest population does not fit into memory."""
    rows = n_users * (FEWEST_SAMPLES + MOST_SAMPLES) // 2
    # Edges are sorted from three arrays of eight bytes before they are lists.
    making = n_users * N_NEIGHBOURS * 3 * 8
    needed = bytes_of_run(n_users, rows, N_PREDICTORS, neighbours=N_NEIGHBOURS) + making
    check_memory(needed, f"a benchmark of {n_users:,} users", "choose smaller populations with --users")


@dataclass(frozen=True, eq=False)
class Many:
    """A population of random margins on a ring with random chords, warmed up."""

    problem: Problem
    state: State
    schedule: Schedule

    @classmethod
    def of(cls, n_users):
        """A population of that size."""
        rng = np.random.default_rng(0)
        sizes = rng.integers(FEWEST_SAMPLES, MOST_SAMPLES + 1, n_users)
        rows = np.concatenate([[0], np.cumsum(sizes)])
        problem = Problem(random_margins(rng, int(rows[-1])), rows, beta=10.0, mu1=1.0)
        state = State.start(problem, Plan(0), ring(rng, n_users), np.float32)
        many = cls(problem, state, Schedule.draw(rng, n_users, 1))
        # Compiles, and gives models their support; in order of users, which is quicker.
        many.update(np.tile(np.arange(n_users, dtype=np.int32), WARM_UP))
        return many

    def update(self, awake):
        """Processor time of this thread for updates of these users."""
        users, lists = self.state.users, self.state.lists
        scratch = loop_scratch(N_PREDICTORS, MOST_SAMPLES, users.alpha.dtype)
        settings, bill = self.problem.settings(users.alpha.dtype), Ledger(N_PREDICTORS).model_bill()
        started = time.thread_time()
        run_models(PAIRWISE, settings, users, GraphLists(lists, lists), awake, 0, bill, scratch)
        return time.thread_time() - started

    def costs(self, timed, repetitions):
        """Time of an update, best of several segments, and memory."""
        seconds, near = (
            self.best_update(schedule, timed, repetitions)
            for schedule in (self.schedule, replace(self.schedule, span=SPAN))
        )
        users, lists, nearest = self.state.users, self.state.lists, self.state.nearest
        state = [getattr(users, name) for name in users._fields if name not in (*DATA, *(NUMBERS.names or ()))]
        state_bytes = sum(array.nbytes for array in (*state, *lists, *nearest)) / self.problem.n_users
        data_bytes = sum(getattr(users, name).nbytes for name in DATA) / self.problem.n_users
        state_bytes += NUMBERS.itemsize
        return {
            "update_us": 1e6 * seconds, "updates_per_s": 1 / seconds, "near_update_us": 1e6 * near,
            "state_bytes": state_bytes, "data_bytes": data_bytes,
        }  # fmt: skip

    def best_update(self, schedule, timed, repetitions):
        """Seconds of one update, in the best of several segments of a schedule."""
        each = min(timed, MOST_OWN * self.problem.n_users // repetitions)
        draws = [schedule.users(MODEL_STREAM, r * each, (r + 1) * each) for r in range(repetitions)]
        return min(self.update(awake) for awake in draws) / each

    def thread_costs(self, n_threads, timed, repetitions):
        """Wall-clock speed-up of updates in windows by several threads."""
        awake = self.schedule.users(MODEL_STREAM, 0, timed)
        window = Plan(0, latency=LATENCY).window(self.problem.n_users)
        state, settings = self.state, self.problem.settings(np.float32)
        edges = GraphLists(state.lists, state.followers)
        segment = Segment(settings, None, state.users, state.shared, edges, awake, window, state.ledger)
        seconds = {}
        for n in (1, n_threads):
            times = []
            for _ in range(repetitions):
                started = time.perf_counter()
                Threads(n).advance(segment)
                times.append(time.perf_counter() - started)
            seconds[n] = min(times)
        return {"threads": n_threads, "thread_speedup": seconds[1] / seconds[n_threads]}


def random_margins(rng, n_rows):
    """Random margins; a few thousand rows are repeated, because drawing all would take longer than timing."""
    some = rng.choice(np.array([-1, 1], np.int8), (4096, N_PREDICTORS))
    margins = np.empty((n_rows, N_PREDICTORS), np.int8)
    for start in range(0, n_rows, len(some)):
        margins[start : start + len(some)] = some[: n_rows - start]
    return margins


def ring(rng, n_users):
    """A ring with random chords: no two neighbours are near each other in memory."""
    distances = rng.choice(np.arange(1, n_users // 2), N_NEIGHBOURS // 2, replace=False)
    k = np.repeat(np.arange(n_users), distances.size)
    l = (k + np.tile(distances, n_users)) % n_users
    return CollaborationGraph.from_edges(n_users, k, l, rng.random(k.size) + 0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, action="append", help="population size; may be repeated")
    parser.add_argument("--threads", type=int, default=1, help="also time this number of threads")
    options = parser.parse_args()
    try:
        result = measure(options.users or [1_000, 10_000, 100_000, 1_000_000], options.threads)
    except MemoryError as error:
        sys.exit(f"Error: {error}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
