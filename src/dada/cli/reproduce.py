"""``dada reproduce``: the tables and figures of the paper, one command each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada.cli.console import AsJson, Seed, print_json, print_table, stderr, stdout

if TYPE_CHECKING:
    from dada.experiments.catalogue import Reproduction

Name = Annotated[str | None, typer.Argument(help="Page to make: a name from --list, or all.", show_default=False)]
Dataset = Annotated[str | None, typer.Option(help="Use only this real dataset; by default all that are present.")]
Quick = Annotated[bool, typer.Option("--quick", help="Coarse grids and short runs: a trial, not for results.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Parallel jobs; by default 2, on Ray one per processor.")]
Engine = Annotated[Literal["local", "ray"], typer.Option(help="Run on this machine or on a Ray cluster.")]
Out = Annotated[Path, typer.Option(help="Folder for pages, figures and the journal of results.")]
List = Annotated[bool, typer.Option("--list", help="List the pages.")]
Check = Annotated[bool, typer.Option("--check", help="Report the pages in --out that other code made, and make none.")]

Mark = Annotated[bool, typer.Option("--mark", help="With --check, write a notice on these pages.")]


def reproduce(
    name: Name = None,
    dataset: Dataset = None,
    quick: Quick = False,
    jobs: Jobs = None,
    engine: Engine = "local",
    out: Out = Path("results"),
    seed: Seed = 0,
    as_json: AsJson = False,
    list_all: List = False,
    check: Check = False,
    marks: Mark = False,
) -> None:
    """Make a table or figure of the paper, with our numbers beside the published ones.

    A journal stores finished work: an interrupted command resumes when it is run again.
    """
    from dada.data.datasets import entry_of
    from dada.experiments.catalogue import CATALOGUE, faults, mark

    if check:
        if marks:
            mark(out)
        for fault in (found := faults(out)):
            stderr().print(fault, highlight=False, soft_wrap=True)
        raise typer.Exit(1 if found else 0)
    if list_all or name is None:
        rows = [[entry.name, entry.source, entry.title] for entry in CATALOGUE.values()]
        rows.append(["all", "", "All of these, and an index"])
        print_table(["name", "in the paper", "content"], rows, title="Pages", wide=True, text_columns=3)
        return
    if name != "all" and name not in CATALOGUE:
        raise ValueError(f"the page must be one of {', '.join(CATALOGUE)} or all, got {name!r}")
    if dataset is not None:
        entry_of(dataset)
    if engine == "ray" and jobs is None:
        from dada.engine.backends import cluster_cpus

        jobs = cluster_cpus()
    work = {"seed": seed, "quick": quick, "engine": engine, "n_jobs": jobs or 2}
    make_pages(list(CATALOGUE.values()) if name == "all" else [CATALOGUE[name]], dataset, out, as_json, work)


def make_pages(
    entries: Sequence[Reproduction], dataset: str | None, out: Path, as_json: bool, work: dict[str, Any]
) -> None:
    """Make pages, write their files and print their tables or JSON; `work` are the arguments of `Lab`."""
    from dada.experiments.catalogue import write_index
    from dada.experiments.lab import Lab
    from dada.experiments.page import Table

    console = stderr()
    plans = [(entry, *entry.datasets(dataset)) for entry in entries]
    for note in dict.fromkeys(note for *_, notes in plans for note in notes):
        console.print(note, style="dim", highlight=False)
    with Lab(out / "journal", console=console, **work) as lab:
        pages = []
        for entry, datasets, _ in plans:
            page = entry.write(lab, datasets, out)
            pages.append(page)
            for block in [] if as_json else page.blocks:
                if isinstance(block, Table):
                    print_table(block.columns, block.rows, title=block.caption, wide=True)
                    stdout().print()
        if as_json:
            made = zip(entries, pages, strict=True)
            documents = {page.name: json.loads(page.json(entry.made_with(lab))) for entry, page in made}
            print_json(documents if len(pages) > 1 else documents[pages[0].name])
        index = out / f"{pages[0].name}.html"
        if len(pages) > 1:
            links = [(page.name, page.title, entry.source) for page, entry in zip(pages, entries, strict=True)]
            index = write_index(links, lab, out)
    console.print(f"Written: {index}", highlight=False)
