"""The paper: its datasets (``dada datasets``, also for synthetic ones) and its results (``dada reproduce``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from dada.cli.console import OUTPUT, AsJson, Seed, print_json, print_table, stderr, stdout

if TYPE_CHECKING:
    from dada.experiments.catalogue import Reproduction


app = typer.Typer(
    no_args_is_help=True, help="List, describe and fetch the real datasets of the paper; generate a synthetic one."
)

Name = Annotated[str, typer.Argument(help="Name of the dataset; `dada datasets list` shows them.", show_default=False)]
LocalFile = Annotated[
    Path | None, typer.Option("--file", help="Local copy of the publisher's file, or a folder with all of them.")
]


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List the datasets and whether they are in the cache folder."""
    from dada.data.datasets import NAMES, cache_folder

    found = [_facts(name) for name in NAMES]
    if as_json:
        print_json(found)
        return
    columns = ("name", "title", "users", "features", "records", "present")
    rows = [[_as_text(name, facts[name], unknown="?") for name in columns] for facts in found]
    print_table(columns, rows, title=f"Datasets in {cache_folder()}", wide=True, text_columns=2)


@app.command()
def info(name: Name, as_json: AsJson = False) -> None:
    """Show a dataset's content, terms, citation and path."""
    _show(_all_facts(name), as_json)


@app.command("fetch")
def fetch_dataset(name: Name, file: LocalFile = None, as_json: AsJson = False) -> None:
    """Download a dataset from its publisher, check it, and store it as one Parquet file."""
    from dada.data.datasets import dataset_path, entry_of, fetch

    entry = entry_of(name)
    if not as_json:
        was_there = "Already there. " if dataset_path(name).is_file() else ""
        typer.echo(f"{was_there}Terms: {entry.terms}", err=True)
    with _progress_bar(shown=not as_json) as progress:
        fetch(name, file=file, progress=progress)
    _show(_all_facts(name), as_json)


@app.command()
def generate(
    output: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    kind: Annotated[
        Literal["moons", "boxes", "xor"],
        typer.Option(help="Moons: four groups of rotated moons. Boxes, xor: three groups, whose features interact."),
    ] = "moons",
    users: Annotated[int, typer.Option(min=2, help="Number of users.")] = 1000,
    test: Annotated[Path | None, typer.Option(help="Also write test rows of the same users to this file.")] = None,
    test_rows: Annotated[int, typer.Option(min=1, help="Test rows per user.")] = 10,
    rule: Annotated[
        Literal["run", "printed"],
        typer.Option(help="Moons as in the authors' program, with 18 features that are always 0, or as printed."),
    ] = "run",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a table of synthetic users in groups: Moons, 3 to 15 rows of 20 features; boxes, xor: 15 to 45 rows of 8.

    The columns are `user`, `label`, the features, and `group`, the user's true group, to be dropped when fitting:
    `dada fit users.parquet --user user --label label --drop group`.
    """
    from dada.data.synthetic import boxes, moons, xor
    from dada.data.tables import write_users

    sizes = {"n_users": users, "n_test": test_rows if test is not None else 1}
    if kind == "moons":
        people = moons(seed, rule=rule, **sizes)
    else:
        people = {"boxes": boxes, "xor": xor}[kind](seed, **sizes)
    write_users(people.train, output, group=people.groups)
    if test is not None:
        write_users(people.test, test, group=people.groups)
    facts = {"users": users, "rows": people.train.n_rows, "path": str(output), "test": str(test) if test else None}
    _show({name: value for name, value in facts.items() if value is not None}, as_json)


def _facts(name: str) -> dict[str, Any]:
    from dada.data.datasets import dataset_path, entry_of

    entry, path = entry_of(name), dataset_path(name)
    return {
        "name": name,
        "title": entry.title,
        "users": entry.n_users,
        "features": entry.n_features,
        "records": entry.n_rows,
        "present": path.is_file(),
        "path": str(path),
    }


def _all_facts(name: str) -> dict[str, Any]:
    from dada.data.datasets import entry_of, load

    entry, facts = entry_of(name), _facts(name)
    facts |= {
        "task": entry.task,
        "paper_split": entry.split,
        "terms": entry.terms,
        "cite": entry.citation,
        "publisher": entry.publisher,
        "files": [
            {"name": file, "url": entry.url and f"{entry.url}/{file}", "sha256": digest}
            for file, digest in entry.files.items()
        ],
    }
    if not facts["present"]:
        return facts | {"to_get_it": entry.how_to_get}
    dataset = load(name)
    sizes = dataset.population().sizes
    return facts | {
        "records": len(dataset.y),
        "records_per_user": [int(sizes.min()), int(sizes.max())],
        "positive_share": round(float((dataset.y == 1).mean()), 4),
        "splits": list(dataset.splits),
        "other_columns": [column for column in dataset.extras if column not in dataset.splits],
        "rows_match_reference": None if entry.sha256 is None else dataset.sha256() == entry.sha256,
    }


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), _as_text(key, value))
    stdout().print(table, highlight=False)


def _as_text(key: str, value: Any, unknown: str = "unknown") -> str:
    if key == "files":
        first = value[0]["url"] or value[0]["name"]
        return first if len(value) == 1 else f"{first} and {len(value) - 1} more from the same place"
    if key == "records_per_user":
        return f"{value[0]} to {value[1]}"
    if key == "positive_share":
        return f"{value:.2%}"
    if isinstance(value, list):
        return ", ".join(value)
    if value is None or isinstance(value, bool):
        return unknown if value is None else "yes" if value else "no"
    return str(value)


@contextmanager
def _progress_bar(shown: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars = Progress(*columns, console=stderr(), disable=not shown)
    tasks: dict[str, TaskID] = {}

    def report(filename: str, done: int, total: int | None) -> None:
        bars.start()
        if filename not in tasks:
            tasks[filename] = bars.add_task(filename, total=total)
        bars.update(tasks[filename], completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:
            bars.stop()


PageName = Annotated[str | None, typer.Argument(help="Page to make: a name from --list, or all.", show_default=False)]
Dataset = Annotated[str | None, typer.Option(help="Use only this real dataset; by default all that are present.")]
Quick = Annotated[bool, typer.Option("--quick", help="Coarse grids and short runs: a trial, not for results.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Parallel jobs; by default 2, on Ray one per processor.")]
Engine = Annotated[Literal["local", "ray"], typer.Option(help="Run on this machine or on a Ray cluster.")]
Out = Annotated[Path, typer.Option(*OUTPUT, help="Folder for pages, figures and the journal of results.")]
List = Annotated[bool, typer.Option("--list", help="List the pages.")]
Check = Annotated[bool, typer.Option("--check", help="Report the pages in --out that other code made, and make none.")]

Mark = Annotated[bool, typer.Option("--mark", help="With --check, write a notice on these pages.")]


def reproduce(
    name: PageName = None,
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
