"""Atomic writes replace a whole file or nothing."""

import os
import stat

import pytest

from dada import atomic


def test_an_error_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic.replacing(path) as file:
        file.write("text")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_old_content_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("durable", [True, False])
def test_a_private_file_is_readable_by_its_owner_alone(tmp_path, durable):
    atomic.write_bytes(tmp_path / "private", b"", private=True, durable=durable)
    atomic.write_bytes(tmp_path / "shared", b"", durable=durable)
    (tmp_path / "usual").touch()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["private"] == 0o600
    assert modes["shared"] == modes["usual"]


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    atomic.write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
