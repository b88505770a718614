"""Digest of the code that a result depends on, by which a page that is older than its code is recognised."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import dada

SOURCES = Path(dada.__file__).parents[1]
# Parts that show results or run peers: no number of a page depends on them. `dada` itself holds names only.
LEFT_OUT = ("dada.cli", "dada.dashboard", "dada.net", "dada.peer", "dada.plot", "dada.sim")
# A module and the name of a definition in it; the empty name stands for statements that define nothing.
_Place = tuple[str, str]


def digest(roots: Iterable[str], *more: str, sources: Path = SOURCES, left_out: tuple[str, ...] = LEFT_OUT) -> str:
    """Digest of the code of definitions, of everything in the package that they refer to, and of other texts.

    A definition is a function, a class, or a constant of a module. Comments, docstrings and empty lines do not count,
    nor do definitions that nothing refers to, so that a change elsewhere has no effect.

    Parameters
    ----------
    roots : iterable of str
        Names of definitions, or of modules for everything in them.
    *more : str
        Other texts that results depend on, such as settings.
    sources : Path
        The folder that contains the package.
    left_out : tuple of str
        Modules and packages that do not count.

    Examples
    --------
    >>> digest(["dada.core.graph_steps.LogDegree"]) == digest(["dada.core.graph_steps.LogDegree"], "seed 1")
    False
    """
    found = hashlib.sha256()
    for module, name in _reached(roots, sources, left_out):
        found.update(f"{module} {name}\n{_module(module, sources).code_of(name)}\n".encode())
    for text in more:
        found.update(b"\0" + text.encode())
    return found.hexdigest()[:16]


def modules_of(roots: Iterable[str], sources: Path = SOURCES) -> list[str]:
    """The modules of the package with a definition that the roots refer to, directly or not, in alphabetical order.

    >>> modules_of(["dada.core.bits.Ledger"])
    ['dada.core.bits', 'dada.core.compiled']
    """
    return sorted({module for module, _ in _reached(roots, sources, LEFT_OUT)})


def _reached(roots: Iterable[str], sources: Path, left_out: tuple[str, ...]) -> list[_Place]:
    """All definitions that the roots refer to, directly or not, in alphabetical order."""
    home = partial(_home, sources, left_out)
    found: set[_Place] = set()
    new = [place for root in roots for place in home(*root.rpartition(".")[::2])]
    while new:
        place = new.pop()
        if place not in found:
            found.add(place)
            module, name = place
            known = _module(module, sources)
            new += [(module, other) for other in known.refers_to(name)]
            new += [place for names in known.imports_of(name) for place in home(*names)]
    return sorted(found)


def _home(
    sources: Path, left_out: tuple[str, ...], module: str, name: str, attribute: str | None = None
) -> list[_Place]:
    """Where a name imported from a module is defined; all definitions of a module, or the one that is asked of it."""
    if module.startswith(left_out) or f"{module}.{name}".startswith(left_out):
        return []
    if _file(inner := f"{module}.{name}", sources).is_file():
        if attribute is not None:
            return _home(sources, left_out, inner, attribute)
        return [(inner, each) for each in _module(inner, sources).definitions]
    known = _module(module, sources)
    if name in known.definitions:
        return [(module, name)]
    if name in known.imports:
        return _home(sources, left_out, *known.imports[name], attribute)
    raise ValueError(f"{module} defines no {name!r}")


@dataclass(frozen=True)
class _Module:
    """The lines of code of a module, the statements that define each name, and what it imports from the package.

    Statements that define nothing belong to the empty name.
    """

    lines: list[str]
    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, _Place]

    def code_of(self, name: str) -> str:
        """The code of a definition."""
        parts = []
        for statement in self.definitions[name]:
            first = min([statement.lineno, *(node.lineno for node in getattr(statement, "decorator_list", ()))])
            parts += self.lines[first - 1 : statement.end_lineno]
        return "\n".join(line for line in parts if line)

    def refers_to(self, name: str) -> Iterator[str]:
        """Other definitions of the module that a definition refers to; every one needs what the module does at once."""
        yield ""
        for node in self._nodes(name):
            if isinstance(node, ast.Name) and node.id in self.definitions:
                yield node.id

    def imports_of(self, name: str) -> Iterator[tuple[str, str, str | None]]:
        """What a definition refers to in other modules: module, name, and attribute of the name, if one is taken."""
        nodes = list(self._nodes(name))
        known = self.imports | {alias: place for node in nodes for alias, place in _imported(node).items()}
        taken = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in known:
                yield *known[node.id], taken.get(id(node))

    def _nodes(self, name: str) -> Iterator[ast.AST]:
        for statement in self.definitions[name]:
            yield from ast.walk(statement)


@lru_cache(maxsize=1024)
def _module(name: str, sources: Path) -> _Module:
    text = _file(name, sources).read_text(encoding="utf-8")
    tree = ast.parse(text)
    module = _Module(code_lines(text, tree), {"": []}, {})
    for statement in tree.body:
        if (
            isinstance(statement, ast.If)
            and isinstance(statement.test, ast.Name)
            and statement.test.id == "TYPE_CHECKING"
        ):
            # The package fetches its names when they are first used; what type checkers read says from where.
            for inner in statement.body if name == "dada" else ():
                module.imports.update(_imported(inner))
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            module.imports.update(_imported(statement))
            continue
        for bound in _bound(statement) or [""]:
            module.definitions.setdefault(bound, []).append(statement)
    return module


def _imported(node: ast.AST) -> dict[str, _Place]:
    """Names that a statement imports from the package, each with the module and the name there."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dada":
        return {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
    return {}


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _bound(statement: ast.stmt) -> list[str]:
    """Names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _file(module: str, sources: Path) -> Path:
    path = sources.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def code_lines(text: str, tree: ast.Module) -> list[str]:
    """Lines of a file, empty where it has comments and docstrings only; the same in every version of Python."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[row] = ""
    return [line.rstrip() for line in lines]
