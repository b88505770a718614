"""When a fit ends, what it tells those who watch, and that watching changes nothing."""

import signal
import threading
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from dada import DadaClassifier
from dada.core.plan import Status
from dada.events import Progress, Stopped, TracePoint, TrialStarted
from tests.helpers.people import moons_rows, opposites


def fit(rows, observer=None, **settings):
    watching = {} if observer is None else {"observer": observer}
    return DadaClassifier(**{"random_state": 0, **settings}).fit(rows.X, rows.y, users=rows.users, **watching)


def test_a_fit_ends_after_its_updates():
    model = fit(opposites(), n_updates=30)
    assert model.status_ is Status.FINISHED
    assert model.n_iter_ == model.trace_[-1].updates == 120
    assert model.objective_ == model.trace_[-1].objective
    assert model.bits_ == model.ledger_.bits == model.trace_[-1].bits


def test_too_few_updates_raise_a_warning_with_the_way_out():
    train, _ = moons_rows(1, n_users=20)
    with pytest.warns(ConvergenceWarning, match="far from settled after 2 updates per user.* Set a larger n_updates"):
        fit(train, graph="everyone", n_updates=2)


def test_default_updates_are_enough_to_settle():
    train, _ = moons_rows(1, n_users=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(train)


def test_objective_and_bits_are_unknown_before_the_fit():
    with pytest.raises(NotFittedError):
        DadaClassifier().objective_  # noqa: B018 - the look itself is the test
    assert not hasattr(DadaClassifier(), "bits_")


def test_a_fit_ends_at_a_small_gap():
    train, _ = moons_rows(1, n_users=20)
    model = fit(train, tol=0.05, n_updates=2000)
    assert model.status_ is Status.CONVERGED
    assert model.n_iter_ < 2000 * 20


@pytest.mark.parametrize("users", [True, False])
def test_the_gap_of_users_who_learn_alone_counts(users):
    rows, _ = moons_rows(1, n_users=5)
    model = DadaClassifier(loss="adaboost", beta=10.0, tol=0.01, graph="none", random_state=0)
    model.fit(rows.X, rows.y, users=rows.users if users else None)
    small = [point.gap <= 0.01 * model.trace_[0].gap for point in model.trace_]
    assert model.status_ is Status.CONVERGED
    assert len(small) > 2
    assert small == [False] * (len(small) - 1) + [True]


def test_a_fit_ends_within_its_bits():
    train, _ = moons_rows(1, n_users=20)
    model = fit(train, max_bits=1e5)
    assert model.status_ is Status.OUT_OF_BITS
    assert model.bits_ <= 1e5


def test_a_fit_ends_in_time():
    model = fit(opposites(), max_time_s=1e-9)
    assert model.status_ is Status.OUT_OF_TIME
    assert model.predict([[0.5]], users=["ann"]).shape == (1,)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals need the main thread")
def test_ctrl_c_keeps_the_state_so_far_and_warns():
    def interrupt(event):
        if isinstance(event, TracePoint) and event.updates >= 400:
            signal.raise_signal(signal.SIGINT)

    rows = opposites()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.warns(ConvergenceWarning, match="state so far is kept"):
        model = fit(rows, observer=interrupt, n_updates=1000, loss="adaboost", beta=10.0, graph="learned", lam=0.1)
    assert signal.getsignal(signal.SIGINT) is handler
    assert model.status_ is Status.INTERRUPTED
    assert 400 <= model.n_iter_ < 4000
    assert model.score(rows.X, rows.y, users=rows.users) > 0.9


def test_watching_changes_nothing(capsys):
    rows, events = opposites(), []
    watched, unwatched = fit(rows, observer=events.append, verbose=1), fit(rows)
    np.testing.assert_array_equal(watched.models_, unwatched.models_)
    assert [e for e in events if isinstance(e, TracePoint)] == list(watched.trace_)
    assert any(isinstance(e, Progress) for e in events)
    assert events[-1] == Stopped(Status.FINISHED.value)
    printed = capsys.readouterr()
    assert printed.out == ""
    tried = [e.choice for e in events if isinstance(e, TrialStarted)]
    assert tried == list(watched.settings_["held_out"])
    assert len(printed.err.splitlines()) == len(tried) + len(watched.trace_)
    assert f"trying on held-out rows: {tried[0]}" in printed.err
    assert "training accuracy" in printed.err


def test_an_interrupted_fit_goes_on_from_its_checkpoint_bit_for_bit(tmp_path):
    def stop_half_way(event):
        if isinstance(event, TracePoint) and event.updates >= 400:
            signal.raise_signal(signal.SIGINT)

    rows = opposites()
    model = DadaClassifier(n_updates=1000, loss="adaboost", beta=10.0, graph="learned", lam=0.1, random_state=3)
    whole = clone(model).fit(rows.X, rows.y, users=rows.users)
    path = tmp_path / "half-way"
    with pytest.warns(ConvergenceWarning):
        half = clone(model).fit(rows.X, rows.y, users=rows.users, observer=stop_half_way, checkpoint=path)
    again = clone(model).fit(rows.X, rows.y, users=rows.users, checkpoint=path)
    assert half.n_iter_ < whole.n_iter_ == again.n_iter_
    np.testing.assert_array_equal(again.models_, whole.models_)
    np.testing.assert_array_equal(again.graph_.weights, whole.graph_.weights)


def test_a_fit_of_two_runs_keeps_both(tmp_path):
    rows, _ = moons_rows(1, n_users=12)
    model = DadaClassifier(graph="evidence-symmetric", n_updates=40, random_state=0)
    first = clone(model).fit(rows.X, rows.y, users=rows.users, checkpoint=tmp_path / "state")
    again = clone(model).fit(rows.X, rows.y, users=rows.users, checkpoint=tmp_path / "state")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "state.symmetric"]
    np.testing.assert_array_equal(first.models_, again.models_)
