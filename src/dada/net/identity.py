"""The key file: 32 secret bytes that are a peer's identity, readable by its owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

KEY_SIZE = 32


class KeyFileError(OSError):
    """A key file that is missing, damaged or open to others."""


def write_key(path: Path, key: bytes) -> None:
    """Create a key file with mode 0600: whole, or not at all, and never in the place of another.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_key(folder / "key", bytes(32))
    >>> read_key(folder / "key") == bytes(32)
    True
    """
    if path.exists():
        raise KeyFileError(f"{path} exists already and is left as it is: a new key would be a new peer")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, fails where another process was faster.
        os.link(temporary, path)
    except FileExistsError as error:
        raise KeyFileError(f"{path} was just created by another process") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_key(path: Path) -> bytes:
    """The key in a file that nobody else can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise KeyFileError(f"no key at {path} ({error.strerror}): make one with `dada peer init`") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(
            f"{path} has mode {stat.S_IMODE(mode):04o}, so others may have copied this identity: "
            f"`chmod 600 {path}` if they cannot have, else move it away and make a new one with `dada peer init`"
        )
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE:
        raise KeyFileError(f"{path} is damaged: a key is {2 * KEY_SIZE} hexadecimal digits on one line")
    return key
