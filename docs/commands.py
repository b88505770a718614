"""Write docs/commands.md, the reference of all commands, from the commands themselves: ``python docs/commands.py``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from dada.cli.app import app

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Commands

`dada --help` and `dada COMMAND --help` show the same text. `--debug` before a command shows tracebacks.
This page is made by `python docs/commands.py`.
"""


def reference() -> str:
    """The page: a section for each command, with its description, examples, arguments and options."""
    return HEAD + "".join(section(path, command) for path, command in leaves("dada", typer.main.get_command(app)))


def leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """All commands of a tree, with the words that call them."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from leaves(f"{path} {name}", inner)


def section(path: str, command: Any) -> str:
    """A command as Markdown."""
    # Without the extras of annotations: the types that the function takes.
    types = get_type_hints(inspect.unwrap(command.callback))
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    names = [param.name.upper() if param.required else f"[{param.name.upper()}]" for param in arguments]
    needed = [f"{param.opts[-1]} {values(types[param.name])}" for param in options if param.required]
    rows = [(f"`{param.name.upper()}`", param) for param in arguments]
    rows += [(flags(param, types[param.name]), param) for param in options]
    table = "".join(f"| {name} | {cell(param.help or '')} | {default(param)} |\n" for name, param in rows)
    usage = " ".join([path, *names, *needed, *["[OPTIONS]"] * bool(options)])
    text = f"\n## {path}\n\n    {usage}\n\n{inspect.cleandoc(command.help or '')}\n"
    return text + (f"\n| | | default |\n| --- | --- | --- |\n{table}" if rows else "")


def flags(param: Any, kind: Any) -> str:
    """The names of an option, and the kind of its value."""
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=len))
    return f"`{names}` {cell(values(kind))}".rstrip()


def values(kind: Any) -> str:
    """The values of a type, in the words of usage lines; nothing for a switch."""
    inner = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal:
        return "|".join(inner)
    if get_origin(kind) is tuple:
        return " ".join(map(values, inner))
    return values(inner[0]) if inner else {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}.get(kind, "")


def default(param: Any) -> str:
    """The default of a parameter; "required" if it has none, empty if it is off or unset."""
    if param.required:
        return "required"
    value = param.default
    return "" if value is None or value is False or value == () else f"`{value}`"


def cell(text: str) -> str:
    """Text inside a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
