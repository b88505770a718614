import os
import sqlite3

import pytest

from dada.net.store import CorruptStoreError, Store, StoreError, first_epoch, last_epoch, read_records, set_aside
from dada.peer.inputs import Persist


def test_records_survive_closing_and_empty_values_forget(tmp_path):
    store = Store(tmp_path / "state.sqlite")
    store.write([Persist(b"epoch", b"1"), Persist(b"edge:x", b"w"), Persist(b"model", b"m")])
    store.write([Persist(b"edge:x", b""), Persist(b"model", b"n")])
    store.close()
    again = Store(tmp_path / "state.sqlite")
    assert again.records() == {b"epoch": b"1", b"model": b"n"}
    again.close()


def test_a_reader_sees_the_state_of_a_running_peer(tmp_path):
    store = Store(tmp_path / "state.sqlite")
    store.write([Persist(b"model", b"m")])
    assert read_records(tmp_path / "state.sqlite") == {b"model": b"m"}
    store.close()


def test_when_the_disk_is_full_nothing_of_the_change_is_stored(tmp_path, monkeypatch):
    connect = sqlite3.connect

    def connect_to_small_disk(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count=4")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_to_small_disk)
    store = Store(tmp_path / "state.sqlite")
    store.write([Persist(b"model", b"last good")])
    with pytest.raises(StoreError, match=r"no room to store .* the last good state is intact"):
        store.write([Persist(b"planner", b"p"), Persist(b"model", os.urandom(100_000))])
    store.close()
    again = Store(tmp_path / "state.sqlite")
    assert again.records() == {b"model": b"last good"}
    again.close()


@pytest.mark.parametrize("damage", ["garbage", "truncated", "one page"])
def test_a_damaged_file_is_noticed_and_the_way_out_is_named(tmp_path, damage):
    path = tmp_path / "state.sqlite"
    store = Store(path)
    store.write([Persist(b"edge:%d" % i, bytes(200)) for i in range(200)])
    store.close()
    content = path.read_bytes()
    broken = {
        "garbage": b"this is no database at all" * 100,
        "truncated": content[: len(content) // 2],
        "one page": content[:4096] + os.urandom(4096) + content[8192:],
    }
    path.write_bytes(broken[damage])
    with pytest.raises(CorruptStoreError, match="dada peer init --recover"):
        Store(path).records()


def test_a_changed_value_does_not_fit_its_checksum(tmp_path):
    path = tmp_path / "state.sqlite"
    store = Store(path)
    store.write([Persist(b"model", b"a" * 50)])
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET value = ?", (b"a" * 49 + b"b",))
    connection.close()
    with pytest.raises(CorruptStoreError, match="checksum"):
        read_records(path)


def test_a_damaged_file_is_kept_aside_under_a_name_of_its_own(tmp_path):
    path = tmp_path / "state.sqlite"
    for number in (1, 2):
        path.write_bytes(b"bad %d" % number)
        assert set_aside(path) == tmp_path / f"state.sqlite.damaged-{number}"
        assert not path.exists()
    assert (tmp_path / "state.sqlite.damaged-1").read_bytes() == b"bad 1"
    assert set_aside(path) is None


def test_a_peer_that_never_ran_has_no_state(tmp_path):
    with pytest.raises(StoreError, match="has never run"):
        read_records(tmp_path / "state.sqlite")
    assert not (tmp_path / "state.sqlite").exists()


def test_a_file_of_a_newer_version_is_left_alone(tmp_path):
    path = tmp_path / "state.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StoreError, match="version 99"):
        Store(path)


def test_the_epoch_before_a_start_is_the_stored_one_or_that_of_the_clock():
    now = 1_800_000_000.0
    early, late = ((first_epoch(now) + steps).to_bytes(8, "big") for steps in (-5, 5))
    assert last_epoch(early, now) == last_epoch(None, now) == first_epoch(now).to_bytes(8, "big")
    assert last_epoch(late, now) == late
