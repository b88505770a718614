"""Watch a run live: it is recorded, and a separate process serves the page of the recording.

The run and the page share only the file, so that the page and its viewers cannot disturb the run.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any


def server_module() -> Any:
    """Import the module that serves pages, or raise with install instructions."""
    try:
        return importlib.import_module("dada.dashboard.server")
    except ModuleNotFoundError as error:
        raise OSError(f"the page needs {error.name}: pip install 'dada-learn[dashboard]'") from error


class LivePage(AbstractContextManager["LivePage"]):
    """The page of a recording, served by a separate process until closed.

    Parameters
    ----------
    path : path
        The recording, which may still be growing.
    host, port : str, int
        Address to serve at; port 0 is any free one. Beyond loopback, viewers need the token in the link.

    Attributes
    ----------
    url : str
        The link to the page.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from dada.dashboard.recorder import Recorder
    >>> with TemporaryDirectory() as folder:
    ...     with Recorder(Path(folder) / "run.dadalog") as recorder, LivePage(recorder.path) as page:
    ...         print(page.url)  # and: run(..., observer=recorder)
    http://127.0.0.1:.../
    """

    def __init__(self, path: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 0) -> None:
        address = server_module().Address(host, port).with_token()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dada.dashboard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        answer = self._start({"path": os.fspath(Path(path).resolve()), **asdict(address)})
        if "url" not in answer:
            self.close()
            raise OSError(answer.get("error", "the process that serves the page failed to start"))
        self.url: str = answer["url"]

    def _start(self, settings: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(settings).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return {}
        line = stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    def close(self) -> None:
        """Stop serving."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __exit__(self, *error: object) -> None:
        self.close()
