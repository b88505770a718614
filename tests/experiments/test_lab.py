"""Results depend neither on the number of processes nor on interruptions; the journal keeps every finished one."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from dada.experiments.lab import Job, Lab, ResultJournal
from dada.experiments.methods import train, train_job
from dada.experiments.protocol import final_jobs


def square(number, log):
    """A job that leaves a line in a log."""
    with Path(log).open("a") as lines:
        lines.write(f"{number}\n")
    return {"square": number**2}


def hang(fifo):
    """A job that reports its start through a pipe and then waits for its end, unless the pipe is gone."""
    if Path(fifo).exists():
        with open(fifo, "w") as pipe:
            pipe.write("started")
        signal.pause()
    return {"square": None}


def die_once(marker):
    """A job that ends its process at the first call."""
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(1)
    return {"square": 0}


def work(folder, jobs):
    with Lab(folder, n_jobs=1) as lab:
        lab.run(jobs, "")


def test_a_killed_experiment_resumes_after_its_last_result(tmp_path):
    log, fifo = tmp_path / "log", tmp_path / "fifo"
    os.mkfifo(fifo)
    jobs = [Job(square, {"number": i, "log": str(log)}) for i in range(5)]
    jobs.insert(3, Job(hang, {"fifo": str(fifo)}))
    process = multiprocessing.get_context("spawn").Process(target=work, args=(tmp_path, jobs))
    process.start()
    assert fifo.read_text() == "started"
    process.kill()
    process.join()
    fifo.unlink()
    assert log.read_text().split() == ["0", "1", "2"]
    with Lab(tmp_path, n_jobs=1) as lab:
        results = lab.run(jobs, "")
    assert [result["square"] for result in results] == [0, 1, 4, None, 9, 16]
    assert log.read_text().split() == ["0", "1", "2", "3", "4"]


def test_a_dead_worker_is_reported_with_the_way_to_resume(tmp_path):
    job = Job(die_once, {"marker": str(tmp_path / "marker")})
    with Lab(tmp_path, n_jobs=2) as lab, pytest.raises(OSError, match="run the same command again to resume"):
        lab.run([job], "")
    with Lab(tmp_path, n_jobs=1) as lab:
        assert lab.run([job], "") == [{"square": 0}]


def test_processes_give_the_same_results_as_one(tmp_path):
    settings = {"beta": 10.0, "updates": 5, "stumps": 40}
    with Lab(tmp_path / "one", seed=3, n_jobs=1) as lab:
        jobs = final_jobs(lab, ("moons", "local-boost"), settings, detail="trace")
        alone = lab.run(jobs, "")
    with Lab(tmp_path / "two", seed=3, n_jobs=2) as lab:
        assert lab.run(jobs, "") == alone


def test_equal_jobs_run_once(tmp_path):
    log = tmp_path / "log"
    jobs = [Job(square, {"number": number, "log": str(log)}) for number in (0, 1, 0)]
    for _ in range(2):
        with Lab(tmp_path, n_jobs=1) as lab:
            assert [result["square"] for result in lab.run(jobs, "")] == [0, 1, 0]
    assert log.read_text().split() == ["0", "1"]


def test_jobs_differ_by_function_arguments_and_data():
    jobs = [
        train_job("moons", "constant", {}, seed=0, run=0),
        train_job("moons", "constant", {}, seed=0, run=1),
        Job(square, {"number": 1}),
        Job(hang, {"number": 1}),
        Job(hang, {"number": 1}, data="digest"),
        Job(train, {}),
        Job(train, {}, loads=("dada.experiments.ours",)),
    ]
    assert len({job.key for job in jobs}) == len(jobs)


@pytest.mark.parametrize(("arguments", "message"), [({"n_jobs": 0}, "jobs must be"), ({"seed": -1}, "seed must be")])
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        Lab(tmp_path, **arguments)


def written(path, n):
    with ResultJournal(path) as journal:
        for i in range(n):
            journal.add(f"job {i}", {"value": i / 3}, seconds=0.5)
    return path


def test_results_come_back_as_they_were(tmp_path):
    path = written(tmp_path / "journal.jsonl", 5)
    with ResultJournal(path) as journal:
        assert journal.results == {f"job {i}": {"value": i / 3} for i in range(5)}


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path, cut):
    path = written(tmp_path / "journal.jsonl", 3)
    path.write_bytes(path.read_bytes()[:-cut])
    with ResultJournal(path) as journal:
        assert sorted(journal.results) == ["job 0", "job 1"]
        journal.add("job 2", "again", seconds=0.5)
    lines = path.read_text().splitlines()
    assert [json.loads(line).get("key") for line in lines] == [None, "job 0", "job 1", "job 2"]


def test_a_journal_of_another_format_is_moved_aside(tmp_path):
    path = written(tmp_path / "journal.jsonl", 2)
    path.write_text(path.read_text().replace('"format":2', '"format":1'))
    with ResultJournal(path) as journal:
        assert journal.results == {}
    assert (tmp_path / "journal.jsonl.old").read_text().count("job") == 2


def test_the_time_of_a_page_includes_results_of_earlier_commands(tmp_path):
    job = Job(square, {"number": 1, "log": str(tmp_path / "log")})
    path = tmp_path / "journal.jsonl"
    with ResultJournal(path) as journal:
        journal.add(job.key, {"square": 1}, seconds=2.5)
        journal.add("other", None, seconds=1.0)
    with Lab(tmp_path, n_jobs=1) as lab:
        lab.run([job, job], "")
        assert [lab.spent(), lab.spent()] == [2.5, 0]


def test_a_torn_header_starts_afresh(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"format": 1, "co')
    assert len(written(path, 1).read_text().splitlines()) == 2


def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path):
    path = written(tmp_path / "journal.jsonl", 3)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"garbage\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match="damaged at line 3"):
        ResultJournal(path)
