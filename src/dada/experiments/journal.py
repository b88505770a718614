"""Finished work, one line of JSON each, in a file that survives crashes: an interrupted experiment goes on from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

FORMAT = 1


class Journal:
    """Results by key, each on disk before it counts.

    Parameters
    ----------
    path : path
        The file; made where it does not exist.
    identity : mapping
        What the results depend on beside their keys, such as the version of the code. A file of another identity is
        moved aside (to the same name with ``.old``), never mixed with new results.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal(Path(folder) / "journal.jsonl", {"code": "1"}) as journal:
    ...         journal.add("a", {"x": 1.5})
    ...     with Journal(Path(folder) / "journal.jsonl", {"code": "1"}) as journal:
    ...         journal.results
    {'a': {'x': 1.5}}
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.header = {"format": FORMAT, **identity}
        self.results: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read() if path.exists() else 0
        self._file: BinaryIO = path.open("ab")
        if whole:
            self._file.truncate(whole)
        else:
            self._write(self.header)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: str, result: Any) -> None:
        """Keep a result; it is on disk when this returns."""
        self._write({"key": key, "result": result})
        self.results[key] = result

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Take up what the file holds; returns the length of its whole lines, 0 where it must start afresh."""
        content = self.path.read_bytes()
        # A line without its end is one whose writing was cut short: the work is done again.
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines or json.loads(lines[0]) != self.header:
            self.path.replace(self.path.with_name(self.path.name + ".old"))
            return 0
        for number, line in enumerate(lines[1:], start=2):
            try:
                row = json.loads(line)
                self.results[row["key"]] = row["result"]
            except (ValueError, KeyError) as error:
                raise ValueError(
                    f"{self.path} is damaged at line {number} ({error}): remove the file to start afresh"
                ) from error
        return whole
