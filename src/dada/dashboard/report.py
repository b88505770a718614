"""A recording as one HTML file that works from disk and needs no network."""

from __future__ import annotations

import base64
import html
import os
import tempfile
from pathlib import Path

from dada.dashboard import records
from dada.dashboard.logfile import LogReader

_STYLE = '<link rel="stylesheet" href="app.css">'
_SCRIPT = '<script defer src="app.js"></script>'


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


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
    page = _asset("index.html")
    parts = {
        "<title>dada</title>": f"<title>{html.escape(title or 'dada')}</title>",
        _STYLE: f"<style>{_asset('app.css')}</style>",
        _SCRIPT: "",
        "</body>": (
            f'<script type="application/octet-stream" id="recording">{log}</script>\n'
            f"<script>{_asset('app.js')}</script>\n</body>"
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
    target = Path(output)
    page = report_html(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page)
        # The temporary file is private; the report gets the permissions of any new file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
