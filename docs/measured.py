"""Which figures of docs/measured.md come from code that has changed since they were measured.

    python docs/measured.py                     mark these rows, and no others
    python docs/measured.py liars "boosted"     the rows whose name has one of these texts ran just now, at this commit

A row ends with a digest of the code behind its commands: of the benchmarks and everything in the package that they
refer to, without comments and docstrings. A test compares the digests.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import NamedTuple

import typer

from dada.cli.app import app
from dada.experiments.digest import code_lines, digest

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
OLDER = ", older than the code"
ROW = re.compile(
    r"^\| (?P<name>.+?) \| (?P<commands>.+?) \| (?P<commit>[0-9a-f]{7}) \| (?P<digest>[0-9a-f]{16})"
    rf"({OLDER})? \|$",
    re.MULTILINE,
)
SCRIPT = re.compile(r"(?:benchmarks[/.]|make |--liars )(\w+)")
FUZZ = ROOT / "tests" / "helpers" / "peer_fuzz.py"
# Commands that benchmarks start as processes of their own.
STARTS = {
    "alternatives": ("benchmarks/alternatives_flower.py", "benchmarks/alternatives_gossipy.py"),
    "dashboard": ("dada demo",),
    "private_soak": ("dada peer new-network", "dada peer init", "dada peer run"),
    "scale_fit": ("dada datasets generate", "dada fit"),
    "swarm": ("dada swarm",),
}


class Code(NamedTuple):
    """Scripts outside the package, and names of definitions of the package."""

    scripts: frozenset[Path]
    names: frozenset[str]


def code_behind(commands: str) -> Code:
    """The code that the commands of a row run."""
    scripts: set[Path] = set()
    names: set[str] = set()
    called = re.findall(r"`(.+?)`", commands)
    while called:
        command = called.pop()
        names.update(callback(command))
        new = [script(name) for name in SCRIPT.findall(command)]
        while new:
            path = new.pop()
            if path not in scripts:
                scripts.add(path)
                called += STARTS.get(path.stem, ())
                imports = list(imported(path))
                new += [each for each in imports if isinstance(each, Path)]
                names.update(each for each in imports if isinstance(each, str))
    if not scripts and not names:
        raise ValueError(f"no code is known behind {commands}")
    return Code(frozenset(scripts), frozenset(names))


@cache
def digest_of(code: Code) -> str:
    """Digest of scripts, of definitions, and of all in the package that they refer to."""
    texts = [f"{path.relative_to(ROOT)}\n{stripped(path)}" for path in sorted(code.scripts)]
    return digest(sorted(code.names), *texts, left_out=())


def script(name: str) -> Path:
    """The file of a benchmark, or of a target of the Makefile."""
    return FUZZ if name == "fuzz" else ROOT / "benchmarks" / f"{name}.py"


def callback(command: str) -> Iterator[str]:
    """The function behind a command of the package; nothing for other text."""
    words = shlex.split(command)
    if words[:1] == ["dada"]:
        found = typer.main.get_command(app)
        for word in words[1:]:
            if not hasattr(found, "commands"):
                break
            found = found.commands[word]
        function = unwrap(found.callback)
        yield f"{function.__module__}.{function.__name__}"


def imported(path: Path) -> Iterator[Path | str]:
    """What a script imports: other scripts, and names of the package."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = node.module.split(".")
            if inside[0] == "dada":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
                continue
            places = [[*inside, alias.name] for alias in node.names] + [inside]
            candidates = [folder.joinpath(*place) for place in places for folder in (ROOT, path.parent)]
            yield from (each.with_suffix(".py") for each in candidates if each.with_suffix(".py").is_file())


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def stripped(path: Path) -> str:
    """The code of a file without comments, docstrings and empty lines."""
    return "\n".join(line for line in code_lines(path.read_text(encoding="utf-8"), parsed(path)) if line)


def marked(page: str) -> str:
    """The text of the page, with a mark on the rows whose code has changed, and on no others."""

    def row(found: re.Match[str]) -> str:
        is_older = digest_of(code_behind(found["commands"])) != found["digest"]
        return "| {name} | {commands} | {commit} | {digest}{mark} |".format(**found.groupdict(), mark=OLDER * is_older)

    return ROW.sub(row, page)


def renewed(page: str, names: list[str], commit: str) -> str:
    """The text of the page, with this commit and the present digests in the rows of these names."""

    def row(found: re.Match[str]) -> str:
        if not any(name in found["name"] for name in names):
            return found[0]
        return f"| {found['name']} | {found['commands']} | {commit} | {digest_of(code_behind(found['commands']))} |"

    return ROW.sub(row, page)


def main() -> None:
    """Mark or renew rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measured", nargs="*", help="parts of the names of rows that ran just now")
    page, names = PAGE.read_text(encoding="utf-8"), parser.parse_args().measured
    if names:
        asked = ["git", "rev-parse", "--short=7", "HEAD"]
        commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        page = renewed(page, names, commit)
    PAGE.write_text(marked(page), encoding="utf-8")


if __name__ == "__main__":
    main()
