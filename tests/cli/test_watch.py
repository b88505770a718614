import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dada import events
from dada.cli.dashboard import dashboard, newest_recording
from dada.cli.report import report
from dada.cli.watch import SlowMotion, watching
from dada.dashboard import records
from dada.dashboard.logfile import LogReader
from tests.helpers.recordings import tell_run, write_recording

app = typer.Typer()
app.command()(dashboard)
app.command()(report)


def test_a_run_is_recorded_where_wanted(tmp_path):
    path = tmp_path / "run.dadalog"
    with watching(live=False, record=path) as observer:
        tell_run(observer)
    last = [records.decode(content) for content in LogReader(path)][-1]
    assert last.status == "All planned updates were made."


def test_nobody_watches_where_nothing_is_asked_for():
    with watching(live=False, record=None) as observer:
        assert observer is events.silent


def test_a_recording_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    with pytest.raises(FileNotFoundError), watching(live=False, record=tmp_path / "none" / "run.dadalog"):
        pytest.fail("the run began")


def test_a_live_page_stays_until_ctrl_c():
    script = (
        "from dada.cli.watch import watching\n"
        "from tests.helpers.recordings import tell_run\n"
        "with watching(live=True, record=None) as observer:\n"
        "    tell_run(observer)\n"
        "print('left')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = [process.stderr.readline() for _ in range(2)]
    assert lines[0].startswith("Watch it at http://127.0.0.1:")
    assert "until Ctrl-C" in lines[1]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("left\n", "")


def test_slow_motion_makes_a_run_last():
    now_s, heard = 0.0, []

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds

    slow = SlowMotion(heard.append, 10.0, now=lambda: now_s, sleep=sleep)
    for done in range(5):
        slow(events.Progress(done, 4))
        assert now_s == pytest.approx(2.5 * done)
    slow(events.Stopped("Over."))
    assert len(heard) == 6


def test_the_newest_recording_is_shown_where_none_is_named(tmp_path):
    old, new = write_recording(tmp_path / "b.dadalog"), write_recording(tmp_path / "a.dadalog")
    assert old.stat().st_mtime_ns <= new.stat().st_mtime_ns
    assert newest_recording(tmp_path) == new
    with pytest.raises(FileNotFoundError, match="make one with dada demo --record"):
        newest_recording(tmp_path / "empty")


def test_a_report_of_a_cut_recording_says_what_is_left_out(tmp_path):
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
