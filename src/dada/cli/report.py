"""`dada report`: a recording as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dada.cli.console import stdout
from dada.cli.dashboard import check_recording


def report(
    file: Annotated[Path, typer.Argument(help="Recording (.dadalog).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Make one HTML file of a recorded run, which opens from disk in any browser, with no network.

    **Examples**

    - `dada report run.dadalog -o report.html`
    """
    from dada.dashboard.report import write_report

    check_recording(file)
    write_report(file, output)
    stdout().print(f"Written to [bold]{output}[/bold].", highlight=False)
