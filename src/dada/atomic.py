"""Atomic file writes: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that replaces it when the block ends without an error.

    After an error the old file stays, and nothing else is left behind.

    Parameters
    ----------
    path : path
        The file to write; a symbolic link is followed.
    private : bool
        Whether only the owner may read it; otherwise it has the permissions of any new file.
    durable : bool
        Whether the content must survive a power cut, which takes a few milliseconds.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note") as file:
    ...         _ = file.write(b"whole")
    ...     (Path(folder) / "note").read_bytes()
    b'whole'
    """
    target = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if not private:
            os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_bytes(path: str | os.PathLike[str], content: bytes, *, private: bool = False, durable: bool = True) -> None:
    """Replace the content of a file; see `replacing`."""
    with replacing(path, private=private, durable=durable) as file:
        file.write(content)


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed writers of `path` left beside it. Nobody may be writing it now.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / ".state.a1b2c3d4").write_bytes(b"half")
    ...     remove_leftovers(Path(folder) / "state")
    ...     os.listdir(folder)
    []
    """
    target = Path(os.path.realpath(path))
    # The names that `mkstemp` makes.
    name = re.compile(re.escape(f".{target.name}.") + "[a-z0-9_]{8}")
    for file in target.parent.iterdir():
        if name.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
