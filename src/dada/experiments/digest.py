"""Digest of the code that a result depends on, by which a page that is older than its code is recognised."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import dada

SOURCES = Path(dada.__file__).parents[1]
# Parts that show results or run peers: no number of a page depends on them. `dada` itself holds names only.
_LEFT_OUT = ("dada.cli", "dada.dashboard", "dada.net", "dada.peer", "dada.plot", "dada.sim")


def digest(modules: Iterable[str], *more: str, sources: Path = SOURCES) -> str:
    """Digest of the code of modules and of everything in the package that they import, and of other texts.

    Comments, docstrings and empty lines do not count. A name imported from a package stands for the module that defines
    it, so that a change elsewhere in the package has no effect.

    Parameters
    ----------
    modules : iterable of str
        Names of modules of the package.
    *more : str
        Other texts that results depend on, such as settings.
    sources : Path
        The folder that contains the package.

    Examples
    --------
    >>> digest(["dada.core.losses"]) == digest(["dada.core.losses"], "seed 1")
    False
    """
    found = hashlib.sha256()
    for module in modules_of(modules, sources):
        found.update(f"{module}\n{_code(_file(module, sources))}\n".encode())
    for text in more:
        found.update(b"\0" + text.encode())
    return found.hexdigest()[:16]


def modules_of(modules: Iterable[str], sources: Path = SOURCES) -> list[str]:
    """Modules and all modules of the package that they import, directly or not, in alphabetical order.

    Modules of other packages do not count.
    """
    found: set[str] = set()
    new = [module for module in modules if module.startswith("dada.")]
    while new:
        module = new.pop()
        if module not in found:
            found.add(module)
            new += _imported(module, sources)
    return sorted(found)


@lru_cache(maxsize=1024)
def _imported(module: str, sources: Path) -> tuple[str, ...]:
    found = dict.fromkeys(_home(*names, sources) for names in _names(_tree(_file(module, sources))))
    return tuple(name for name in found if name != "dada" and not name.startswith(_LEFT_OUT))


def _names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules of the package that a tree imports, each with the name imported from it; not those for type checks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dada":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "dada")
        else:
            yield from _names(node)


def _home(module: str, name: str, sources: Path) -> str:
    """The module that defines a name imported from a module or package."""
    inner = f"{module}.{name}"
    if name and _file(inner, sources).is_file():
        return inner
    path = _file(module, sources)
    if path.name == "__init__.py":
        for node in _tree(path).body:
            if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
                return _home(str(node.module), name, sources)
    return module


def _file(module: str, sources: Path) -> Path:
    path = sources.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@lru_cache(maxsize=1024)
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=1024)
def _code(path: Path) -> str:
    """Lines of a file without comments, docstrings and empty lines; the same in every version of Python."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())
