"""The `dada` command."""

from __future__ import annotations

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Lines are as long as this, whatever the terminal.
PAPER = {"COLUMNS": "100"}


def command(folder: Path, *arguments: Any) -> str:
    """What `dada` prints, called in a folder."""
    from dada.cli.app import main

    out, said, code = io.StringIO(), io.StringIO(), None
    line = ["dada", *map(str, arguments)]
    with chdir(folder), patch.object(sys, "argv", line), patch.dict(os.environ, PAPER):
        try:
            with redirect_stdout(out), redirect_stderr(said):
                main()
        except SystemExit as end:
            code = end.code
    assert not code, said.getvalue()
    return out.getvalue()


def still_command(folder: Path, *arguments: Any) -> str:
    """What `dada` prints where the clock of recordings stands still.

    A recording tells when things happened, and takes fewer snapshots where they cost much. With a clock that stands
    still, it takes all of them, always at the same time.
    """
    from dada.dashboard.records import Recorder

    with patch.object(Recorder.__init__, "__defaults__", (lambda: 0.0,)):
        return command(folder, *arguments)
