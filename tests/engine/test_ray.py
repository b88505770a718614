"""Shards on Ray: the same state as in one process, also when an actor dies in the middle."""

import hashlib
import json
import os
import statistics
import sys
import uuid
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dada import DadaClassifier, DadaClassifierCV, DadaRegressor, load_model
from dada.cli.app import app
from dada.cli.paper_commands import make_pages
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import LogDegree
from dada.core.losses import Loss
from dada.core.plan import Plan
from dada.core.problem import Problem
from dada.data import moons
from dada.engine import run
from dada.engine.shards import Sharded, ThisProcess
from dada.events import TracePoint
from dada.experiments.catalogue import Reproduction
from dada.experiments.lab import Lab
from dada.experiments.methods import train_job
from dada.experiments.page import Page

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "dada-learn[ray]"')

from dada.engine.backends import OnRay, Tasks  # noqa: E402

# A cluster takes minutes; the page about clusters runs on one in every test run.
pytestmark = pytest.mark.skipif(not os.environ.get("DADA_RAY"), reason="set DADA_RAY=1 to test on a Ray cluster")

K, N = 60, 12
WINDOWS = 5


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A Ray of two processors that listens on loopback only and sends no reports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Ray refuses connections without a token; given one, it writes none into the home folder.
        patch.delenv("RAY_AUTH_MODE", raising=False)
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex + uuid.uuid4().hex)
        start()
        yield
        ray.shutdown()


def start(attempts=3):
    """Start Ray; on a machine with too much to do its parts may miss each other, and find each other the next time."""
    for attempt in range(attempts):
        try:
            ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                     object_store_memory=200_000_000, _node_ip_address="127.0.0.1")  # fmt: skip
            return
        except Exception:
            ray.shutdown()
            if attempt == attempts - 1:
                raise


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


def blocks_by_evidence():
    phases = dict(local_updates=3 * K, first_graph_wakeups=3 * K, graph_every=5 * K, graph_wakeups=K)
    return replace(plan(learn=True), step="block", graph_rule="evidence", n_neighbours=3, sampler="gossip", **phases)


def state_hash(workers, given=None, **options):
    given = plan() if given is None else given
    fixed = None if given.learn_graph else graph()
    result = run(population(), given, np.random.default_rng(5), graph=fixed, workers=workers, **options)
    digest = hashlib.sha256(result.models.tobytes() + result.graph.weights.tobytes())
    digest.update(result.ledger.models.tobytes() + np.array([point.gap for point in result.trace]).tobytes())
    digest.update(result.shared.model.tobytes() + result.ledger.coded.tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def expected():
    return state_hash(None)


@pytest.mark.parametrize("shards", [2])
def test_shards_agree_with_and_without_ray(shards, expected):
    assert state_hash(Sharded(shards, ThisProcess())) == expected
    with Sharded(shards, OnRay()) as workers:
        assert state_hash(workers) == expected


class Fragile(OnRay):
    """Loses an actor in the middle of a segment, another one in the segment after it, and one in the first round."""

    killed = 0
    judged = 0
    segments = 0
    windows = 0

    def _windows(self, parts, awake, n_windows):
        self.segments += 1
        self.windows = 0
        return super()._windows(parts, awake, n_windows)

    def _calls(self, name, arguments, **options):
        if name == "step":
            if self.windows == 3 and self.killed < 2 and self.segments > 2:
                ray.kill(self.actors[self.killed])
                self.killed += 1
            self.windows += 1
        if name == "judge":
            if self.judged == 0:
                ray.kill(self.actors[0])
            self.judged += 1
        return super()._calls(name, arguments, **options)


def test_actors_that_die_in_the_middle_change_nothing(expected):
    backend = Fragile()
    with Sharded(3, backend) as workers:
        assert state_hash(workers) == expected
    assert backend.killed == 2
    assert backend.segments == 20 // (WINDOWS * 12 // K) + 2


def test_block_steps_and_evidence_agree_although_actors_die():
    backend = Fragile()
    with Sharded(2, backend) as workers:
        assert state_hash(workers, blocks_by_evidence()) == state_hash(None, blocks_by_evidence())
    assert backend.killed == 2
    # Three rounds at first, one in each of three later phases, and one again.
    assert backend.judged == 3 + 3 + 1


def test_a_run_that_learns_its_graph_agrees_and_goes_on_from_its_checkpoint(tmp_path):
    expected = state_hash(None, plan(learn=True))
    file = tmp_path / "half-way"

    def stop(event):
        if isinstance(event, TracePoint) and event.updates > 10 * K:
            raise KeyboardInterrupt

    with Sharded(2, OnRay()) as workers, pytest.raises(KeyboardInterrupt):
        state_hash(workers, plan(learn=True), checkpoint=file, checkpoint_every_s=0, observer=stop)
    with Sharded(4, OnRay()) as workers:
        assert state_hash(workers, plan(learn=True), checkpoint=file, resume=True) == expected


def test_an_error_in_a_shard_is_raised_and_not_tried_again():
    def read(first, last):
        raise OSError("the disk is gone")

    with Sharded(2, OnRay(), read) as workers, pytest.raises(ray.exceptions.RayError, match="the disk is gone"):
        state_hash(workers)


def test_a_custom_loss_is_refused():
    own = Loss("mine", value=lambda z: (1 - z) ** 2, slope=lambda z: 2 * (z - 1), curvature=lambda z: 2.0, growth=2.0)
    with Sharded(2, OnRay()) as workers, pytest.raises(ValueError, match="built-in loss"):
        run(population(loss=own), plan(), np.random.default_rng(0), graph=graph(), workers=workers)


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "dada-learn\[ray\]"'):
        OnRay()


@pytest.fixture(scope="module")
def people():
    train = moons(3, n_users=12).train
    return train.X[:, :2], train.y, train.users


@pytest.mark.parametrize("estimator", [DadaRegressor])
def test_estimators_learn_the_same_models_on_ray(estimator, people):
    X, y, users = people
    here = estimator(n_updates=20, latency=0.1, random_state=0).fit(X, y, users=users)
    there = estimator(n_updates=20, engine="ray", n_jobs=2, random_state=0).fit(X, y, users=users)
    assert there.settings_["latency"] == 0.1
    assert np.array_equal(here.models_, there.models_)


def test_a_search_finds_the_same_on_ray(people):
    X, y, users = people
    search = DadaClassifierCV(DadaClassifier(n_updates=20), betas=(10.0,), mu_scales=(1.0, 0.5), random_state=0)
    here = search.fit(X, y, users=users).cv_results_
    assert search.set_params(engine="ray", n_jobs=2).fit(X, y, users=users).cv_results_ == here


def test_jobs_of_a_reproduction_give_the_same_on_ray(tmp_path):
    jobs = [train_job("moons", "constant", {}, seed=0, run=number) for number in range(3)]
    with Lab(tmp_path / "here", n_jobs=1) as lab:
        here = lab.run(jobs, "here")
    with Lab(tmp_path / "there", n_jobs=2, engine="ray") as lab:
        assert lab.run(jobs, "there") == here


def test_a_page_is_made_on_ray(tmp_path, capsys):
    def make(lab, datasets):
        found = lab.run([train_job("moons", "constant", {}, seed=0, run=0)], "one")
        return Page("small", "A page", "Lead.", [], {"engine": lab.engine, "test": found[0]["test"]})

    entry = Reproduction("small", "A page", "supplement", make)
    make_pages([entry], None, tmp_path, as_json=True, work={"engine": "ray", "n_jobs": 2})
    shown = json.loads(capsys.readouterr().out)
    assert (shown["engine"], len(shown["test"])) == ("ray", 100)


def test_an_error_in_a_task_is_raised():
    with Tasks() as tasks, pytest.raises(statistics.StatisticsError):
        tasks.submit(statistics.mean, []).result()


def test_shards_read_their_own_files_and_the_command_line_fits_them(people, tmp_path):
    X, y, users = people
    rows = pl.DataFrame(X, schema=["east", "north"]).with_columns(who=pl.Series(users), side=pl.Series(y))
    (tmp_path / "rows").mkdir()
    for number, part in enumerate(rows.partition_by("who", maintain_order=True)):
        part.write_parquet(tmp_path / "rows" / f"{number}.parquet")
    models = []
    for name, engine in (("here", ["--jobs", "1"]), ("there", ["--engine", "ray", "--jobs", "2"])):
        columns = ["--user", "who", "--label", "side", "--updates", "20", "--graph", "none", "--json"]
        words = ["fit", str(tmp_path / "rows"), *columns, *engine, "-o", str(tmp_path / name)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["users"] == 12
        models.append(load_model(tmp_path / name).models_)
    assert np.array_equal(*models)
