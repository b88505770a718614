"""The journal keeps every finished result and no unfinished one."""

import json

import pytest

from dada.experiments.lab import ResultJournal


def written(path, n, identity=None):
    with ResultJournal(path, identity or {"code": "a"}) as journal:
        for i in range(n):
            journal.add(f"job {i}", {"value": i / 3})
    return path


def test_results_come_back_as_they_were(tmp_path):
    path = written(tmp_path / "journal.jsonl", 5)
    with ResultJournal(path, {"code": "a"}) as journal:
        assert journal.results == {f"job {i}": {"value": i / 3} for i in range(5)}


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path, cut):
    path = written(tmp_path / "journal.jsonl", 3)
    path.write_bytes(path.read_bytes()[:-cut])
    with ResultJournal(path, {"code": "a"}) as journal:
        assert sorted(journal.results) == ["job 0", "job 1"]
        journal.add("job 2", "again")
    lines = path.read_text().splitlines()
    assert [json.loads(line).get("key") for line in lines] == [None, "job 0", "job 1", "job 2"]


def test_a_journal_of_other_code_is_moved_aside(tmp_path):
    path = written(tmp_path / "journal.jsonl", 2)
    with ResultJournal(path, {"code": "b"}) as journal:
        assert journal.results == {}
    assert (tmp_path / "journal.jsonl.old").read_text().count("job") == 2


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
        ResultJournal(path, {"code": "a"})
