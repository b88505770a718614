"""What commands show while they work."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from dada import events
from dada.cli import console
from dada.cli.console import Work, print_table, time_left_s


def test_one_bar_names_the_stage_and_its_trials_and_never_goes_back():
    bars = Progress(console=Console(quiet=True))
    work = Work(bars, {"together": 3.0, "all rows": 1.0})
    (task,) = bars.tasks
    seen = []
    for stage in ("together", "all rows"):
        observe = work(stage)
        assert task.description == stage
        for trial in ("linear, everyone", "stumps, everyone") * (stage == "together"):
            observe(events.TrialStarted(trial))
            assert task.fields["trial"] == f"trying {trial}"
            seen.append(task.completed)
        for done in (0, 5, 10):
            observe(events.Progress(done, 10))
            seen.append(task.completed)
        observe(events.PhaseStarted("models", 10))
        assert task.fields["trial"] == ""
    assert seen == sorted(seen)
    assert seen[-4] == 3.0
    assert task.percentage == 100


def test_the_time_left_is_told_from_the_first_second_and_follows_the_work():
    assert time_left_s(0.0, 0.0, usual_s=8.0) == 8.0
    # Twice as slow as usual: what is left takes as long as what is done.
    assert time_left_s(8.0, 0.5, usual_s=8.0) == pytest.approx(8.0, rel=0.2)
    assert time_left_s(1.0, 0.01, usual_s=8.0) > 5.0
    assert time_left_s(80.0, 0.9, usual_s=8.0) == pytest.approx(80.0 / 9, rel=0.2)


@pytest.mark.parametrize("width", [40, 80])
def test_numbers_of_a_table_stay_whole_on_a_narrow_terminal(width, monkeypatch):
    written = io.StringIO()
    terminal = Console(file=written, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "stdout", lambda: terminal)
    print_table(
        ("On 1064 held-out rows of 532 users", "mean absolute error over rows", "over users"),
        [["one model for all", "-0.000123", "123456"], ["a user with a very long name indeed", "12", "-0.5"]],
    )
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for shown in ("-0.000123", "123456", "-0.5"):
        assert any(shown in line.split() for line in lines)
    assert "…" not in written.getvalue()


def test_a_table_in_a_file_has_its_full_width(capsys):
    header = ("On 1064 held-out rows of 532 users", "mean absolute error over rows", "over users", "R2", "log-loss")
    print_table(header, [["a", "1", "2", "3", "4"]])
    first, *_ = capsys.readouterr().out.splitlines()
    assert all(name in first for name in header)
