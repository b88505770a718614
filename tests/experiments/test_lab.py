"""Results depend neither on the number of processes nor on when a run was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from dada.experiments.jobs import Job
from dada.experiments.lab import Lab

SCRIPT = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from dada.experiments.lab import Lab
from dada.experiments.protocol import choose, finals, summarise

def main(folder, n_jobs):
    pair = ("moons", "local-boost")
    with Lab(Path(folder), seed=3, quick=True, n_jobs=int(n_jobs)) as lab:
        add = lab.journal.add
        lab.journal.add = lambda key, result: (add(key, result), print("row", flush=True))
        choice = choose(lab, [pair], "")[pair]
        runs = finals(lab, {pair: choice.settings}, "", detail="trace")[pair]
    print(json.dumps({"choice": asdict(choice), "summary": asdict(summarise(runs)), "runs": runs}, sort_keys=True))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def start(folder: Path, n_jobs: int) -> subprocess.Popen:
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen([sys.executable, script, str(folder), str(n_jobs)], stdout=subprocess.PIPE, text=True)


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    whole, _ = start(tmp_path / "whole", 1).communicate()
    assert whole.count("row\n") == 12

    process = start(tmp_path / "killed", 2)
    for _ in range(4):
        assert process.stdout.readline() == "row\n"
    process.kill()
    process.communicate()

    rest, _ = start(tmp_path / "killed", 1).communicate()
    assert rest.count("row\n") < 12 - 3
    assert rest.splitlines()[-1] == whole.splitlines()[-1]


def test_work_done_is_not_done_again(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr("dada.experiments.lab.execute", lambda job: done.append(job) or {"x": 1})
    jobs = [Job.of("moons", "constant", {}, seed=0, run=run) for run in (0, 1, 0)]
    with Lab(tmp_path, n_jobs=1) as lab:
        assert lab.run(jobs, "") == [{"x": 1}] * 3
    with Lab(tmp_path, n_jobs=1) as lab:
        lab.run(jobs, "")
    assert len(done) == 2


@pytest.mark.parametrize(("arguments", "message"), [({"n_jobs": 0}, "jobs must be"), ({"seed": -1}, "seed must be")])
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        Lab(tmp_path, **arguments)
