"""The page of a recording: live, served by a separate process, or as one HTML file.

A run and its live page share only the recording, so that the page and its viewers cannot disturb the run.
"""

from __future__ import annotations

import base64
import html
import importlib
import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dada import atomic
from dada.dashboard import records
from dada.dashboard.records import LogReader


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
    >>> from dada.dashboard.records import Recorder
    >>> with TemporaryDirectory() as folder:
    ...     with Recorder(Path(folder) / "run.dadalog") as recorder, LivePage(recorder.path) as page:
    ...         print(page.url)  # and: run(..., observer=recorder)
    http://127.0.0.1:.../
    """

    def __init__(self, path: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 0) -> None:
        address = server_module().Address(host, port).with_token()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dada.dashboard.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # A terminal sends Ctrl-C to all processes of its session; this process handles it.
            start_new_session=True,
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


_STYLE = '<link rel="stylesheet" href="app.css">'
_SCRIPT = '<script defer src="app.js"></script>'


def read_asset(name: str) -> bytes:
    """A file of the page."""
    return (Path(__file__).parent / "assets" / name).read_bytes()


def report_html(path: str | os.PathLike[str]) -> str:
    """The page of a recording with everything inside: style, script and the recording, up to its last good record."""
    reader = LogReader(path)
    title = ""
    for content in reader:
        record = records.decode(content)
        if isinstance(record, records.Info):
            title = record.title
    with reader.path.open("rb") as file:
        log = base64.b64encode(file.read(reader.good_bytes)).decode("ascii")
    page, style, script = (read_asset(name).decode() for name in ("index.html", "app.css", "app.js"))
    parts = {
        "<title>dada</title>": f"<title>{html.escape(title or 'dada')}</title>",
        _STYLE: f"<style>{style}</style>",
        _SCRIPT: "",
        "</body>": (
            f'<script type="application/octet-stream" id="recording">{log}</script>\n<script>{script}</script>\n</body>'
        ),
    }
    for mark, replacement in parts.items():
        before, found, after = page.rpartition(mark)
        if not found:
            raise RuntimeError(f"the page has no {mark}")
        page = before + replacement + after
    return page


def write_report(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Write the report of a recording; an existing one is replaced only by a complete one.

    Parameters
    ----------
    path : path
        The recording. A truncated one is reported up to its last good record.
    output : path
        The HTML file.
    """
    atomic.write_bytes(output, report_html(path).encode())
