"""Cost of an idle peer: memory and processor time of the processes of a swarm, at one wake-up a second.

    python benchmarks/idle.py --seconds 60

The peers know each other and are idle; the first seconds, in which they meet, do not count. Memory is the proportional
set size: a page that n processes share counts as 1/n in each. Two claims are checked: less than 80 MB per peer with its
share of the fork server, and less than 1 % of a core.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dada.cli.network_runs import make_homes, make_network
from dada.cli.simulated_runs import synthetic_peers
from dada.net.forkserver import Swarm
from dada.net.process import RunOptions

WARMING_UP_S = 15.0


def cpu_s(pid):
    """Processor time that a process has used."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid):
    """Proportional set size of a process, in millions of bytes."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Pss"].split()[0]) * 1024 / 1e6


def parent(pid):
    """The process that started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def measure(users, seconds):
    """Memory and share of a core of each peer."""
    people = synthetic_peers("moons", users, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        homes = make_homes(Path(folder), people, make_network(people, wakeups_per_s=1.0))
        swarm = Swarm(homes, RunOptions(), np.random.default_rng(0))
        try:
            swarm.start()
            time.sleep(WARMING_UP_S)
            pids = [peer.pid for peer in swarm.peers]
            before, began = [cpu_s(pid) for pid in pids], time.monotonic()
            time.sleep(seconds)
            passed = time.monotonic() - began
            shares = [(cpu_s(pid) - was) / passed for pid, was in zip(pids, before, strict=True)]
            memory = sum(memory_mb(pid) for pid in [*pids, parent(pids[0])])
        finally:
            swarm.stop()
    return {"peers": users, "seconds": seconds, "mean_mb": memory / users, "mean_core": float(np.mean(shares))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=3, help="number of peers")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()
    found = measure(options.users, options.seconds)
    cost = f"{found['mean_mb']:.1f} MB and {100 * found['mean_core']:.2f} % of a core each, on average"
    text = f"{found['peers']} peers for {found['seconds']:g} s: {cost}"
    print(json.dumps(found, indent=2) if options.json else text)
    sys.exit(not (found["mean_mb"] < 80.0 and found["mean_core"] < 0.01))


if __name__ == "__main__":
    main()
