import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from dada import BoostedTrees, DadaClassifier, Linear, Union, events
from dada.cli.network_runs import make_homes, make_network
from dada.cli.simulated_runs import synthetic_peers
from dada.cli.watching import Ending, SlowMotion, dashboard, newest_recording, report, watching
from dada.dashboard import records
from dada.dashboard.records import LogReader
from tests.helpers.recordings import tell_run, write_recording
from tests.helpers.viewer import Viewer

ROOT = Path(__file__).parents[2]

app = typer.Typer()
app.command()(dashboard)
app.command()(report)


def test_a_run_is_recorded_in_the_given_file(tmp_path):
    path = tmp_path / "run.dadalog"
    with watching(live=False, record=path) as observer:
        tell_run(observer)
    last = [records.decode(content) for content in LogReader(path)][-1]
    assert last.status == "All planned updates were made."


def test_without_options_the_observer_is_silent():
    with watching(live=False, record=None) as observer:
        assert observer is events.silent


def test_a_recording_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    with pytest.raises(FileNotFoundError), watching(live=False, record=tmp_path / "none" / "run.dadalog"):
        pytest.fail("the run began")


def test_a_live_page_stays_until_ctrl_c():
    script = (
        "from dada.cli.watching import watching\n"
        "from tests.helpers.recordings import tell_run\n"
        "with watching(live=True, record=None) as observer:\n"
        "    tell_run(observer)\n"
        "print('left')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = [process.stderr.readline() for _ in range(2)]
    assert lines[0].startswith("Watch it at http://127.0.0.1:")
    assert "until Ctrl-C" in lines[1]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("left\n", "")


@contextmanager
def live(*arguments, cwd):
    """A viewer of the page that a command of dada shows, and its process; ends with Ctrl-C."""
    script = "from dada.cli.app import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = process.stderr.readline()
            while line and not line.startswith("Watch it at "):
                line = process.stderr.readline()
            assert line, "the command ended without a page"
            yield Viewer(line.split()[-1]), process
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode in (0, 130)


COMMANDS = {
    "demo": ["--users", 10],
    "fit": ["visits.csv", "--user", "person", "--label", "came", "--holdout", 0, "--updates", 20],
    "sim": ["--users", 6, "--steps", 8, "--faults", "churn"],
    "swarm": ["--users", 3, "--seconds", 2, "--in-process"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_way_to_run_can_be_watched_and_recorded(command, tmp_path):
    rows = [f"{person},{x},{'yes' if x > person else 'no'}" for person in range(3) for x in range(5)]
    (tmp_path / "visits.csv").write_text("\n".join(["person,x,came", *rows]))
    with live(command, *COMMANDS[command], "--live", "--record", "run.dadalog", cwd=tmp_path) as (viewer, process):
        viewer.until(records.UserStates)
        # Before that, Ctrl-C would only end the run. A live demo takes twenty seconds, and ends with its run.
        while command != "demo" and "until Ctrl-C" not in process.stderr.readline():
            assert process.poll() is None
    kept = [records.decode(content) for content in LogReader(tmp_path / "run.dadalog")]
    info = next(record for record in kept if isinstance(record, records.Info))
    n_users = {"demo": 10, "fit": 3, "sim": 6, "swarm": 3}[command]
    assert len(info.users) == n_users
    assert len(info.title) > 10
    assert any(isinstance(record, records.Edges) for record in kept)
    assert any(isinstance(record, records.Peers) for record in kept) == (command in ("sim", "swarm"))
    assert {"fit": "-1 at", "demo": "x0"}.get(command, "<=") in info.predictors[0]


@pytest.fixture
def homes(tmp_path):
    people = synthetic_peers("moons", 2, seed=0)
    return make_homes(tmp_path / "peers", people, make_network(people, 1.0))


def write_status(home, me, other, **given):
    """Write the status of a peer as its process does, with a time in the future so that it does not expire."""
    plain = {
        "id": me, "epoch": 5, "time": time.time() + 600, "samples": 4, "model_updates": 3, "loss": 0.1, "accuracy": 1.0,
        "heaviest": [[2, 1.0]], "neighbours": {other: 0.5}, "round_trips_ms": {other: 2.5}, "links_refused": {},
        "messages_sent": 9, "wire_bytes": 900, "messages_refused": 0,
    }  # fmt: skip
    # Replaced at once: a reader never sees half of it.
    (home.folder / "new").write_text(json.dumps(plain | given))
    os.replace(home.folder / "new", home.status)


def test_peers_on_this_machine_are_followed(homes, tmp_path):
    ann, bob = homes
    write_status(ann, "aa" * 32, "bb" * 32, neighbours={}, round_trips_ms={})
    with live("dashboard", "peers", cwd=tmp_path) as (viewer, _):
        first = viewer.until(records.Peers)
        assert (first.up, viewer.until(records.Info).users[:2]) == (b"\1\0", ["peer-000", "peer-001"])
        write_status(ann, "aa" * 32, "bb" * 32)
        write_status(bob, "bb" * 32, "aa" * 32, messages_refused=3)
        peers = viewer.until(records.Peers, lambda record: record.up == b"\1\1")
        assert np.frombuffer(peers.refused, "<u4").tolist() == [0, 3]
        np.testing.assert_allclose(np.frombuffer(peers.rtt_ms, "<f4"), [2.5, 2.5])
        write_status(bob, "bb" * 32, "aa" * 32, epoch=6)
        viewer.until(records.Peers, lambda record: np.frombuffer(record.restarts, "<u4").tolist() == [0, 1])


def test_one_peer_is_followed_with_its_neighbours_elsewhere(homes, tmp_path):
    write_status(homes[0], "aa" * 32, "bb" * 32)
    with live("dashboard", "peers/peer-000", cwd=tmp_path) as (viewer, _):
        info = viewer.until(records.Info)
        assert (info.title, info.users) == ("Peer peer-000", ["peer-000", "bbbbbbbb"])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_end_shows_models_with_the_trees_that_joined_after_the_run(n_classes):
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(120, 2)), np.repeat(["ann", "bob"], 60)
    y = np.digitize(X[:, 0] * X[:, 1], [0.0] if n_classes == 2 else [-0.3, 0.3])
    recipe, seen = Union(Linear(), BoostedTrees(rounds=7, share=0.9, rate=1.0)), []
    ending = Ending(seen.append)
    model = DadaClassifier(recipe, graph="everyone", mu=0.1, n_updates=5, random_state=0)
    model.fit(X, y, users=users, observer=ending)
    assert not any(isinstance(event, events.Stopped) for event in seen)
    n_before = len(seen)
    ending.finish(model)
    info, offer, stopped = seen[n_before:]
    assert isinstance(stopped, events.Stopped)
    # Numbers of base predictors of earlier snapshots keep their meaning.
    first = next(event for event in seen if isinstance(event, events.RunInfo))
    assert info.predictors[: len(first.predictors)] == first.predictors
    assert len(info.predictors) == model.models_.shape[1]
    last = offer.take()
    for k in range(2):
        named = {info.predictors[j]: w for j, w in zip(last.predictors[k], last.predictor_weights[k], strict=True)}
        heaviest = np.argsort(-np.abs(model.models_[k]))[:3]
        for j in heaviest:
            block, base = divmod(int(j), model.predictors_.n)
            name = model.predictors_.describe(base) + (f" (class {block})" if n_classes == 3 else "")
            assert named[name] in model.models_[k]
    if n_classes == 2:
        right = [np.mean(model.predict(X[users == user], user) == y[users == user]) for user in ("ann", "bob")]
        np.testing.assert_allclose(last.accuracy, right, atol=1e-6)
        assert np.mean(right) > seen_before(seen[:n_before]).mean()


def seen_before(seen):
    """Accuracies of the last snapshot of the run."""
    return next(event for event in reversed(seen) if isinstance(event, events.SnapshotOffer)).take().accuracy


def test_the_end_of_a_run_without_trees_stays_as_it_is():
    seen, X = [], np.arange(12.0)[:, None]
    ending = Ending(seen.append)
    model = DadaClassifier(Linear(), graph="everyone", mu=0.1, n_updates=5, random_state=0)
    model.fit(X, np.tile([0, 1], 6), users=np.repeat(["ann", "bob"], 6), observer=ending)
    n_before = len(seen)
    ending.finish(model)
    assert [type(event) for event in seen[n_before:]] == [events.Stopped]


def test_slow_motion_stretches_a_run_and_less_so_its_beginning():
    now_s, received = 0.0, []

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds

    slow = SlowMotion(received.append, 10.0, now=lambda: now_s, sleep=sleep)
    for done, at_s in enumerate([0.0, 0.625, 2.5, 5.625, 10.0]):
        slow(events.Progress(done, 4))
        assert now_s == pytest.approx(at_s)
    slow(events.Stopped("Over."))
    assert len(received) == 6


def test_the_newest_recording_is_shown_by_default(tmp_path):
    old, new = write_recording(tmp_path / "b.dadalog"), write_recording(tmp_path / "a.dadalog")
    assert old.stat().st_mtime_ns <= new.stat().st_mtime_ns
    assert newest_recording(tmp_path) == new
    with pytest.raises(FileNotFoundError, match="make a recording with dada demo --record"):
        newest_recording(tmp_path / "empty")


def test_a_report_of_a_truncated_recording_names_the_lost_part(tmp_path):
    path = write_recording(tmp_path / "run.dadalog")
    path.write_bytes(path.read_bytes()[:-5])
    done = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "report.html")])
    assert done.exit_code == 0
    assert "records are good" in done.output
    assert "Two groups" in (tmp_path / "report.html").read_text()


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = write_recording(tmp_path / "run.dadalog")
    (tmp_path / "report.html").write_text("old")
    broken = tmp_path / "broken.dadalog"
    broken.write_bytes(b"nothing")
    done = CliRunner().invoke(app, ["report", str(broken), "-o", str(tmp_path / "report.html")])
    assert done.exit_code == 1
    assert "is not a recording" in str(done.exception)
    assert (tmp_path / "report.html").read_text() == "old"
    done = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "none" / "report.html")])
    assert isinstance(done.exception, FileNotFoundError)


def test_a_newer_recording_is_refused_by_the_command(tmp_path):
    path = write_recording(tmp_path / "run.dadalog")
    content = bytearray(path.read_bytes())
    content[8] = 2
    path.write_bytes(bytes(content))
    done = CliRunner().invoke(app, ["dashboard", str(path)])
    assert "version 2" in str(done.exception)
