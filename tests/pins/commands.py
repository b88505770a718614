"""The `dada` command, here or in a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dada

# A recording tells when things happened, and takes fewer snapshots where they cost much. With a clock that stands
# still, it takes all of them, always at the same time.
STILL = "import time; time.perf_counter = lambda: 0.0; from dada.cli.app import main; main()"
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
    """What `dada` prints in a process of its own, where the clock stands still."""
    paths = [str(Path(dada.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    settled = PAPER | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    line = [sys.executable, "-c", STILL, *map(str, arguments)]
    done = subprocess.run(line, cwd=folder, env=os.environ | settled, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
