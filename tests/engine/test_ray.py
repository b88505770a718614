"""Shards on Ray: the same state as in one process, also when an actor dies in the middle."""

import hashlib
import sys
import uuid

import numpy as np
import pytest

from dada.core.graph import CollaborationGraph
from dada.core.losses import Loss
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.core.regularizers import LogDegree
from dada.engine import run
from dada.engine.sharded import Sharded, ThisProcess
from dada.events import TracePoint

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "dada-learn[ray]"')

from dada.engine.ray import OnRay  # noqa: E402

K, N = 60, 12
WINDOWS = 5


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A Ray of two processors that listens on loopback only and reports to nobody."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Ray lets nobody in without a token; given one, it writes none into the home folder.
        patch.delenv("RAY_AUTH_MODE", raising=False)
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex + uuid.uuid4().hex)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                 object_store_memory=200_000_000, _node_ip_address="127.0.0.1")  # fmt: skip
        yield
        ray.shutdown()


def population(**settings):
    rng = np.random.default_rng(0)
    rows = np.concatenate([[0], np.cumsum(rng.integers(1, 6, K))])
    A = rng.choice(np.array([-1, 1], np.int8), (rows[-1], N))
    return Problem(A, rows, beta=3.0, mu1=0.5, regularizer=LogDegree(lam=0.5), **settings)


def graph():
    rng = np.random.default_rng(1)
    k, l = np.nonzero(np.triu(rng.random((K, K)) < 0.15, 1))
    return CollaborationGraph.from_edges(K, k, l, rng.random(k.size) + 0.1)


def plan(learn=False):
    return Plan(n_updates=20 * K, learn_graph=learn, kappa=3, latency=0.2, graph_every=7 * K, trace_every=WINDOWS * 12)


def state_hash(crew, learn=False, **options):
    result = run(
        population(), plan(learn), np.random.default_rng(5), graph=None if learn else graph(), crew=crew, **options
    )
    digest = hashlib.sha256(result.models.tobytes() + result.graph.weights.tobytes())
    digest.update(result.ledger.models.tobytes() + np.array([point.gap for point in result.trace]).tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def expected():
    return state_hash(None)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_shards_agree_with_and_without_ray(shards, expected):
    assert state_hash(Sharded(shards, ThisProcess())) == expected
    with Sharded(shards, OnRay()) as crew:
        assert state_hash(crew) == expected


class Fragile(OnRay):
    """Loses an actor in the middle of a stretch, and another one in the stretch after it."""

    killed = 0
    stretches = 0

    def _windows(self, parts, awake, n_windows):
        self.stretches += 1
        return super()._windows(parts, awake, n_windows)

    def _window(self, number, arrived):
        if number == 3 and self.killed < 2 and self.stretches > 2:
            ray.kill(self.actors[self.killed])
            self.killed += 1
        return super()._window(number, arrived)


def test_actors_that_die_in_the_middle_change_nothing(expected):
    hands = Fragile()
    with Sharded(3, hands) as crew:
        assert state_hash(crew) == expected
    assert hands.killed == 2
    assert hands.stretches == 20 // (WINDOWS * 12 // K) + 2


def test_a_run_that_learns_its_graph_agrees_and_goes_on_from_its_checkpoint(tmp_path):
    expected = state_hash(None, learn=True)
    file = tmp_path / "half-way"

    def stop(event):
        if isinstance(event, TracePoint) and event.updates > 10 * K:
            raise KeyboardInterrupt

    with Sharded(2, OnRay()) as crew, pytest.raises(KeyboardInterrupt):
        state_hash(crew, learn=True, checkpoint=file, checkpoint_every_s=0, observer=stop)
    with Sharded(4, OnRay()) as crew:
        assert state_hash(crew, learn=True, checkpoint=file, resume=True) == expected


def test_an_error_in_a_shard_is_raised_and_not_tried_again():
    def read(first, last):
        raise OSError("the disk is gone")

    with Sharded(2, OnRay(), read) as crew, pytest.raises(ray.exceptions.RayError, match="the disk is gone"):
        state_hash(crew)


def test_a_loss_of_ones_own_is_refused():
    own = Loss("mine", value=lambda z: (1 - z) ** 2, slope=lambda z: 2 * (z - 1), curvature=lambda z: 2.0, growth=2.0)
    with Sharded(2, OnRay()) as crew, pytest.raises(ValueError, match="built-in loss"):
        run(population(loss=own), plan(), np.random.default_rng(0), graph=graph(), crew=crew)


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "dada-learn\[ray\]"'):
        OnRay()
