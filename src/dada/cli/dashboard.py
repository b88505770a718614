"""`dada dashboard`: the page of a recording, finished or still being written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dada.cli.console import stderr
from dada.cli.watch import announce


def dashboard(
    file: Annotated[
        Path | None, typer.Argument(help="Recording (.dadalog); the newest one of this folder where not given.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve at; beyond this machine, the link holds a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve at; 0 is any free one.")] = 0,
) -> None:
    """Show a recorded run in the browser: the graph as it grew, every user, the curves.

    A recording that a run is still writing is followed as it grows. Ends with Ctrl-C.

    **Examples**

    - `dada dashboard run.dadalog`
    - `dada demo --record run.dadalog & dada dashboard run.dadalog`
    - `dada dashboard run.dadalog --host 0.0.0.0 --port 8000`
    """
    from dada.dashboard.live import server_module

    server = server_module()
    path = newest_recording(Path()) if file is None else file
    check_recording(path)
    server.serve(path, server.Address(host, port), announce)


def newest_recording(folder: Path) -> Path:
    """The recording in a folder that was written to last."""
    found = sorted(folder.glob("*.dadalog"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError(
            "no recording (*.dadalog) in this folder: make one with dada demo --record run.dadalog, or name one"
        )
    return found[-1]


def check_recording(path: Path) -> None:
    """Refuse what is no recording of this version, and say where one that is cut off ends."""
    from dada.dashboard.logfile import LogReader

    reader = LogReader(path)
    n_records = sum(1 for _ in reader)
    if reader.lost_bytes:
        stderr().print(
            f"{path} ends within a record, or is still being written: "
            f"{n_records} records are good, {reader.lost_bytes} bytes after them are left out.",
            style="yellow",
            highlight=False,
        )
