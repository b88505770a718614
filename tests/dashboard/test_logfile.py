import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.dashboard.records import COMPRESS_FROM, LogReader, RecordingError, frame, header

CONTENTS = [b"first", bytes(range(256)) * 3, b"", b"last"]


def read(path):
    reader = LogReader(path)
    return list(reader), reader


@given(st.lists(st.binary(max_size=3 * COMPRESS_FROM), max_size=6))
def test_what_is_written_is_read(tmp_path_factory, contents):
    path = tmp_path_factory.mktemp("log") / "run.dadalog"
    path.write_bytes(header() + b"".join(map(frame, contents)))
    found, reader = read(path)
    assert found == contents
    assert reader.lost_bytes == 0


def test_a_truncated_recording_opens_up_to_its_last_good_record(tmp_path):
    whole = header() + b"".join(map(frame, CONTENTS))
    ends = [len(header()) + sum(len(frame(content)) for content in CONTENTS[:n]) for n in range(len(CONTENTS) + 1)]
    path = tmp_path / "run.dadalog"
    for size in range(len(header()), len(whole) + 1):
        path.write_bytes(whole[:size])
        found, reader = read(path)
        n_good = sum(end <= size for end in ends) - 1
        assert found == CONTENTS[:n_good]
        assert (reader.good_bytes, reader.lost_bytes) == (ends[n_good], size - ends[n_good])


def test_nothing_is_read_from_a_damaged_record_on(tmp_path):
    first, second, third = map(frame, CONTENTS[:3])
    path = tmp_path / "run.dadalog"
    for at in range(len(second)):
        damaged = bytearray(second)
        damaged[at] ^= 0x41
        path.write_bytes(header() + first + bytes(damaged) + third)
        assert read(path)[0] == CONTENTS[:1]


def test_a_record_that_unpacks_to_more_than_any_record_holds_is_damage(tmp_path):
    path = tmp_path / "run.dadalog"
    path.write_bytes(header() + frame(b"good") + frame(bytes(10_000)))
    assert len(list(LogReader(path, largest_content=10_000))) == 2
    assert list(LogReader(path, largest_content=9_999)) == [b"good"]


def test_a_newer_version_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "run.dadalog"
    path.write_bytes(struct.pack("<8sI", b"DADALOG\n", 7) + frame(b"content"))
    with pytest.raises(RecordingError, match=r"run.dadalog is a recording of version 7, .* up to 1: update dada"):
        LogReader(path)


@pytest.mark.parametrize("content", [b"", b"DADALOG", b"DADALOG\n\1\0\0", b"<html>this is no recording</html>"])
def test_what_is_no_recording_is_refused(tmp_path, content):
    path = tmp_path / "run.dadalog"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="is not a recording of dada"):
        LogReader(path)


def test_a_recording_goes_on_being_read_where_it_ended(tmp_path):
    path = tmp_path / "run.dadalog"
    path.write_bytes(header() + frame(b"one"))
    reader = LogReader(path)
    assert list(reader) == [b"one"]
    with path.open("ab") as file:
        file.write(frame(b"two"))
    assert list(reader) == [b"two"]
