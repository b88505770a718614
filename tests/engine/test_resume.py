import errno
import io
import json
import os
import signal
import threading
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dada.core.graph_steps import DegreeFunction, LogDegree
from dada.core.losses import Loss
from dada.core.plan import Status
from dada.engine import Plan, Samples, run
from dada.events import CheckpointFailed, CheckpointSaved
from tests.helpers.problems import random_graph, random_problem
from tests.helpers.runs import InterruptAt, bits_of

PROBLEM = random_problem(
    np.random.default_rng(0), 9, 8, beta=5.0, mu1=0.5, regularizer=LogDegree(0.3, 0.1), dtype=np.float32
)
SAMPLES = Samples(PROBLEM.A, np.ones(len(PROBLEM.A), np.int8), PROBLEM.row_start)
PLAN = Plan(n_updates=400, graph_every=90, kappa=3, trace_every=70)


def go(plan=PLAN, problem=PROBLEM, seed=3, **options):
    return run(problem, plan, np.random.default_rng(seed), train=SAMPLES, **options)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    assert bits_of(go()) == bits_of(go())
    assert bits_of(go()) != bits_of(go(seed=4))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_where_a_run_is_cut_into_chunks_changes_no_bit(chunk):
    assert bits_of(go(chunk=chunk)) == bits_of(go())


def test_watching_changes_nothing():
    events = []
    assert bits_of(go(observer=events.append)) == bits_of(go())
    assert [type(event).__name__ for event in events[:3]] == ["TracePoint", "SnapshotOffer", "PhaseStarted"]


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, step="paper", restart="local"),
        replace(PLAN, step="line-search", graph_step="lipschitz"),
        replace(PLAN, max_neighbours=2),
        replace(PLAN, step="local"),
        replace(PLAN, graph_rule="evidence"),
        replace(PLAN, sampler="gossip"),
    ],
    ids=["pairwise", "paper", "line-search", "max-neighbours", "local", "evidence", "gossip"],
)
def test_a_run_that_is_interrupted_again_and_again_ends_with_the_same_bits(plan, tmp_path):
    whole = go(plan)
    result, pauses = None, 0
    while result is None or result.status is Status.INTERRUPTED:
        # Different places each time: after 3, 4, 5, ... events of the run.
        result = go(plan, checkpoint=tmp_path / "run", resume=True, observer=InterruptAt(3 + pauses), chunk=16)
        pauses += 1
    assert pauses > 8
    assert result.status is Status.FINISHED
    assert bits_of(result) == bits_of(whole)


def test_a_run_over_a_given_graph_resumes_too(tmp_path):
    options = dict(plan=replace(PLAN, learn_graph=False), graph=random_graph(np.random.default_rng(1), 9))
    whole = go(**options)
    paused = go(checkpoint=tmp_path / "run", observer=InterruptAt(9), chunk=16, **options)
    assert 0 < paused.updates < 400
    assert bits_of(go(checkpoint=tmp_path / "run", resume=True, **options)) == bits_of(whole)


def test_a_run_stopped_by_its_budget_goes_on_with_a_larger_one(tmp_path):
    whole = go()
    for share in (0.1, 0.35, 0.8):
        short = replace(PLAN, max_bits=share * whole.ledger.bits)
        assert go(short, checkpoint=tmp_path / "run", resume=True).status is Status.OUT_OF_BITS
    assert bits_of(go(checkpoint=tmp_path / "run", resume=True)) == bits_of(whole)


def test_resuming_a_finished_run_gives_its_result_again(tmp_path):
    whole = go(checkpoint=tmp_path / "run")
    again = go(checkpoint=tmp_path / "run", resume=True)
    assert again.status is Status.FINISHED
    assert bits_of(again) == bits_of(whole)


def test_resume_without_a_checkpoint_yet_starts_at_the_beginning(tmp_path):
    assert bits_of(go(checkpoint=tmp_path / "run", resume=True)) == bits_of(go())
    with pytest.raises(ValueError, match="resume=True needs a checkpoint"):
        go(resume=True)


def test_half_written_files_of_a_killed_run_are_removed_by_the_next(tmp_path):
    path = tmp_path / "run.ckpt"
    for name in (".run.ckpt.a1b2c3d4", ".run.ckpt.other.a1b2c3d4", "run.ckpt.a1b2c3d4"):
        (tmp_path / name).write_bytes(b"half")
    go(checkpoint=path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".run.ckpt.other.a1b2c3d4", "run.ckpt", "run.ckpt.a1b2c3d4",
    ]  # fmt: skip


def test_without_resume_an_old_checkpoint_is_replaced(tmp_path):
    go(seed=9, checkpoint=tmp_path / "run")
    assert bits_of(go(checkpoint=tmp_path / "run")) == bits_of(go())


SQUARE = Loss("own", lambda z: (1 - z) ** 2, lambda z: 2 * z - 2, lambda z: 2.0)
TWICE = Loss("own", lambda z: 2 * (1 - z) ** 2, lambda z: 4 * z - 4, lambda z: 4.0)
FALLING = DegreeFunction(lambda d: 1 / (1 + d), lambda d: -1 / (1 + d) ** 2, lambda d: 2 / (1 + d) ** 3)
FASTER = DegreeFunction(lambda d: 1 / (2 + d), lambda d: -1 / (2 + d) ** 2, lambda d: 2 / (2 + d) ** 3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"seed": 4}),
        ({}, {"plan": replace(PLAN, kappa=2)}),
        ({}, {"problem": replace(PROBLEM, beta=4.0)}),
        ({}, {"problem": replace(PROBLEM, A=-PROBLEM.A)}),
        ({}, {"problem": replace(PROBLEM, weights=1.0 + np.arange(len(PROBLEM.A)))}),
        ({}, {"dtype": np.float64}),
        ({"problem": replace(PROBLEM, loss=SQUARE)}, {"problem": replace(PROBLEM, loss=TWICE)}),
        ({"problem": replace(PROBLEM, regularizer=FALLING)}, {"problem": replace(PROBLEM, regularizer=FASTER)}),
    ],
    ids=["seed", "plan", "beta", "data", "weights", "dtype", "loss", "regularizer"],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, before, after):
    short = replace(PLAN, n_updates=1, local_updates=1, first_graph_wakeups=1)
    if "plan" in after:
        after = {"plan": replace(short, kappa=2)}
    go(**({"plan": short} | before), checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="belongs to another run: data, settings or seed differ"):
        go(**({"plan": short} | before | after), checkpoint=tmp_path / "run", resume=True)


def foreign_files():
    npz, npy = io.BytesIO(), io.BytesIO()
    np.savez(npz, something=np.zeros(3))
    np.save(npy, np.zeros(3))
    listed, empty = io.BytesIO(), io.BytesIO()
    np.savez(listed, header=np.frombuffer(b"[1, 2]", np.uint8))
    np.savez(empty, header=np.frombuffer(b"{}", np.uint8))
    texts = {"no bytes": b"", "text": b"Hello\n" * 50, "a pickle": b"\x80\x04N."}
    return texts | {name: file.getvalue() for name, file in dict(npz=npz, npy=npy, listed=listed, empty=empty).items()}


@pytest.mark.parametrize("kind", foreign_files())
def test_a_foreign_file_is_refused_and_left_alone(tmp_path, kind):
    content = foreign_files()[kind]
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(ValueError, match="run is not a readable dada checkpoint"):
        go(checkpoint=tmp_path / "run", resume=True)
    assert (tmp_path / "run").read_bytes() == content


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path):
    header = json.dumps({"format": "dada-checkpoint", "version": 99, "run": "x"}).encode()
    np.savez(tmp_path / "run.npz", header=np.frombuffer(header, np.uint8))
    with pytest.raises(ValueError, match="dada-checkpoint of version 99, expected dada-checkpoint 3"):
        go(checkpoint=tmp_path / "run.npz", resume=True)


@pytest.fixture(scope="module")
def checkpoint_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "run"
    go(replace(PLAN, n_updates=20), checkpoint=path)
    return path.read_bytes()


@settings(max_examples=30)
@given(data=st.data())
def test_a_damaged_checkpoint_is_refused_or_does_no_harm(checkpoint_bytes, tmp_path_factory, data):
    content = bytearray(checkpoint_bytes)
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    short, complaint = replace(PLAN, n_updates=20), "damaged"
    try:
        # A flipped byte may be one of the file format that nobody reads.
        assert bits_of(go(short, checkpoint=path, resume=True)) == bits_of(go(short))
    except ValueError as error:
        complaint = str(error)
    assert "damaged" in complaint


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("broken", ["numpy.savez", "os.fsync", "os.replace", "tempfile.mkstemp"])
def test_on_a_full_disk_the_run_goes_on_and_the_old_checkpoint_stays(tmp_path, broken):
    paused = go(checkpoint=tmp_path / "run", observer=InterruptAt(9), chunk=16)
    old, events = (tmp_path / "run").read_bytes(), []
    options = dict(checkpoint=tmp_path / "run", checkpoint_every_s=0.0, resume=True)
    with patch(broken, full_disk), pytest.warns(RuntimeWarning, match="cannot be resumed from its end.*No space left"):
        result = go(observer=events.append, chunk=16, **options)
    assert result.status is Status.FINISHED
    assert bits_of(result) == bits_of(go())
    failures = [event for event in events if isinstance(event, CheckpointFailed)]
    assert len(failures) > 10
    assert "No space left on device" in failures[0].reason
    assert "the previous one is intact" in failures[0].reason
    assert not any(isinstance(event, CheckpointSaved) for event in events)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").read_bytes() == old
    assert paused.updates < 400


def test_periodic_checkpoints_are_reported_and_can_be_resumed(tmp_path):
    copies = []

    def keep(event):
        if isinstance(event, CheckpointSaved):
            copies.append((tmp_path / "run").read_bytes())

    whole = go(checkpoint=tmp_path / "run", checkpoint_every_s=0.0, observer=keep, chunk=16)
    assert len(copies) > 20
    for number in (0, 5, 13, len(copies) - 2):
        (tmp_path / "run").write_bytes(copies[number])
        assert bits_of(go(checkpoint=tmp_path / "run", resume=True)) == bits_of(whole)


def test_a_place_where_no_checkpoint_can_be_is_refused_before_any_work(tmp_path):
    events = []
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist, create it first"):
        go(checkpoint=tmp_path / "nowhere" / "run", observer=events.append)
    with pytest.raises(IsADirectoryError, match="is a folder: give the path of a file"):
        go(checkpoint=tmp_path, observer=events.append)
    assert events == []


def test_ctrl_c_ends_a_run_with_its_state_so_far():
    before = signal.getsignal(signal.SIGINT)
    result = go(observer=InterruptAt(60), chunk=16)
    assert result.status is Status.INTERRUPTED
    assert 0 < result.updates < 400
    assert result.trace[-1].updates == result.updates
    assert result.trace[-1].bits == result.ledger.bits
    assert np.abs(result.models).sum() > 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_interrupts_at_once():
    def twice(event):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        go(observer=twice, chunk=16)
    assert signal.getsignal(signal.SIGINT) is before


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert go(observer=InterruptAt(5)).status is Status.FINISHED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_in_another_thread_computes_the_same():
    results = []
    thread = threading.Thread(target=lambda: results.append(go()))
    thread.start()
    thread.join()
    assert bits_of(results[0]) == bits_of(go())
