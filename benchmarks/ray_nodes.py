"""Fits on a Ray cluster of three nodes, one of which dies in the middle: the same models as in one process.

    sudo python benchmarks/ray_nodes.py [--users 60] [--updates 60]

Every node has a network, process ids, shared memory and a Ray folder that no other node sees; a bridge joins the
networks. A node that is *killed* loses all its processes at once. A node that is *cut off* loses its link first, so
that nothing announces its death. Both happen half-way, and the other two nodes finish the fit. Needs Linux, root and
Ray.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from dada import DadaClassifier, DadaRegressor, moons
from dada.data import Stumps
from dada.engine.backends import start_ray
from dada.events import TracePoint

HEAD, PORT = "10.77.0.1", 6379
ISOLATED = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
OWN_FILES = "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray && mount -t tmpfs tmpfs /dev/shm"
RAY = "ray start --num-cpus=1 --object-store-memory=200000000 --include-log-monitor=false --block"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
START_LIMIT_S = 600.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, default=60)
    parser.add_argument("--updates", type=int, default=60, help="per user")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        os.execvp(ISOLATED[0], [*ISOLATED, sys.executable, *sys.argv, "--inside"])
    cluster = Cluster()
    differing = 0
    for name, estimator, X, y, users in cases(options.users, options.updates):
        expected = digest(estimator.fit(X, y, users=users))
        print(f"{name:24}one process                 {expected}", flush=True)
        estimator.set_params(engine="ray", n_jobs=3)
        for what in ("no death", "one killed", "one cut off"):
            death = Death(cluster, what, half=options.users * options.updates / 2)
            began = time.perf_counter()
            found = digest(estimator.fit(X, y, users=users, observer=death))
            ended = time.perf_counter()
            after = f", {ended - death.at:.1f} s after the death" if death.at else ""
            print(f"{name:24}{what:16}{ended - began:8.1f} s  {found}{after}", flush=True)
            differing += found != expected
            if death.at:
                cluster.join()
                cluster.wait_for(3)
    sys.exit(f"{differing} models differ" if differing else 0)


def cases(n_users, n_updates):
    """Estimators and their data: classes and numbers, a background graph and evidence."""
    people = moons(1, n_users=n_users).train
    X, two = people.X[:, :4], people.y
    common = dict(n_updates=n_updates, latency=0.1, random_state=0, predictors=Stumps(n=60))
    yield "two classes, everyone", DadaClassifier(graph="everyone", **common), X, two, people.users
    four = two + 4 * (X[:, 2] > 0)
    yield "four classes, evidence", DadaClassifier(graph="evidence", **common), X, four, people.users
    yield "numbers, evidence", DadaRegressor(graph="evidence", **common), X, X[:, 0] * two + X[:, 1], people.users


def digest(model):
    return hashlib.sha256(model.models_.tobytes() + model.graph_.weights.tobytes()).hexdigest()[:16]


class Cluster:
    """A head node, where this process runs, and two others."""

    def __init__(self):
        os.environ |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_ADDRESS": f"{HEAD}:{PORT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex + uuid.uuid4().hex,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.made, self.nodes = 1, []
        shell(f"{OWN_FILES} && ip link set lo up && ip link add joint type bridge")
        shell(f"ip addr add {HEAD}/24 dev joint && ip link set joint up")
        head = f"{RAY} --head --port={PORT} --node-ip-address={HEAD} --include-dashboard=false"
        subprocess.Popen(persistent(head), shell=True, **QUIET)
        self.wait_for(1)
        for n in (2, 3):
            self.join()
            self.wait_for(n)

    def join(self):
        """Start another node."""
        self.made += 1
        address, inner, outer = f"10.77.0.{self.made}", f"inner{self.made}", f"outer{self.made}"
        ray = f"{RAY} --address={HEAD}:{PORT} --node-ip-address={address}"
        link = f"ip link set lo up && ip addr add {address}/24 dev {inner} && ip link set {inner} up"
        line = f"{OWN_FILES} && read _ && {link} && {persistent(ray)}"
        node = subprocess.Popen([*ISOLATED, "sh", "-c", line], stdin=subprocess.PIPE, **QUIET)
        # As soon as `unshare` has a child, the network of the node exists.
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children")
        while not children.read_text():
            time.sleep(0.01)
        shell(f"ip link add {outer} type veth peer name {inner} netns {node.pid}")
        shell(f"ip link set {outer} master joint up")
        node.stdin.write(b"\n")
        node.stdin.close()
        self.nodes.append((node, outer))

    def lose(self, cut_off):
        """Kill all processes of the youngest node, or cut its link first."""
        node, outer = self.nodes.pop()
        if cut_off:
            shell(f"ip link set {outer} down")
        node.kill()

    def wait_for(self, n):
        """Wait until the cluster has this many nodes."""
        began, alive = time.monotonic(), 0
        while alive != n:
            if time.monotonic() - began > START_LIMIT_S:
                sys.exit(f"{alive} nodes after {START_LIMIT_S:.0f} s instead of {n}")
            time.sleep(0.2)
            try:
                alive = sum(node["Alive"] for node in start_ray().nodes())
            except (ConnectionError, RuntimeError):
                alive = 0


class Death:
    """An observer that loses a node half-way."""

    def __init__(self, cluster, what, half):
        self.cluster, self.what, self.half, self.at = cluster, what, half, 0.0

    def __call__(self, event):
        if self.at or self.what == "no death" or not isinstance(event, TracePoint) or event.updates < self.half:
            return
        self.at = time.perf_counter()
        # In another thread, so that it happens in the middle of a segment.
        threading.Timer(0.02, self.cluster.lose, [self.what == "one cut off"]).start()


def persistent(line):
    """A command that is repeated until it succeeds: on a busy machine Ray gives up while it starts."""
    return f"until {line}; do sleep 1; done"


def shell(line):
    subprocess.run(line, shell=True, check=True)


if __name__ == "__main__":
    main()
