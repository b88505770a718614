"""A seed repeats a simulation in every process: nothing depends on the order of a set, which changes with the process.

Python orders a set by hashes, and the hashes of strings and bytes differ between processes (PYTHONHASHSEED).
"""

import ast
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.networks import network, nodes

SOURCE = Path(__file__).parents[2] / "src" / "dada"
FILES = sorted(path for package in ("core", "peer", "sim", "net") for path in (SOURCE / package).glob("*.py"))

SCRIPT = "from tests.sim.test_repeatable import hashes; print(*hashes())"


def hashes():
    """What networks with every fault come to, and nodes on virtual links."""
    for graph in ("evidence", "distance"):
        one = network(K=12, steps=15, seed=0, faults="all", graph=graph)
        state = one.check().tobytes() + repr((one.world.counts, one.world.events)).encode()
        yield hashlib.sha256(state).hexdigest()
    yield nodes(seed=0, duration_s=10.0).run().hash


def test_processes_with_different_hash_seeds_simulate_the_same_networks():
    here = [*map(str, hashes())]
    assert len({*here}) == 3
    # This process has a random seed, unless it was told one.
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    line = [sys.executable, "-c", SCRIPT]
    root = SOURCE.parents[1]
    there = subprocess.run(line, env=environment, cwd=root, capture_output=True, text=True, check=True).stdout
    assert there.split() == here


# -- no code iterates over a set -----------------------------------------------------------------------------------

SET_TYPES = ("set", "frozenset", "Set", "AbstractSet", "MutableSet")
SET_METHODS = ("union", "intersection", "difference", "symmetric_difference")
# What these return does not depend on the order of their argument.
ORDER_FREE = ("sorted", "set", "frozenset", "len", "any", "all", "min", "max", "bool")
# These pass the order of their argument on.
ORDERED = ("list", "tuple", "iter", "enumerate", "zip", "map", "filter", "sum", "next", "reversed", "deque", "array")
ORDERED_METHODS = ("fromkeys", "fromiter", "array", "asarray", "join", "extend", "chain")


def name_of(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def is_set_type(annotation):
    parts = ast.walk(annotation) if isinstance(annotation, ast.BinOp) else [annotation]
    return any(name_of(part.value if isinstance(part, ast.Subscript) else part) in SET_TYPES for part in parts)


class Sets:
    """The expressions of some modules that are sets: by their form, or by the type of their name."""

    def __init__(self, trees):
        self.names = set()
        n_known = -1
        while n_known != len(self.names):
            n_known = len(self.names)
            for tree in trees:
                for node in ast.walk(tree):
                    self.names.update(self._named(node))

    def _named(self, node):
        if isinstance(node, ast.AnnAssign) and is_set_type(node.annotation):
            yield name_of(node.target)
        elif isinstance(node, ast.arg) and node.annotation is not None and is_set_type(node.annotation):
            yield node.arg
        elif isinstance(node, ast.FunctionDef) and node.returns is not None and is_set_type(node.returns):
            yield node.name
        elif isinstance(node, ast.Assign) and self.holds(node.value):
            yield from (name_of(target) for target in node.targets if name_of(target))

    def holds(self, node):
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.BitOr | ast.BitAnd | ast.BitXor):
            return any(self.holds(side) or is_keys(side) for side in (node.left, node.right))
        if isinstance(node, ast.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, ast.Call):
            makes_set = SET_METHODS if isinstance(node.func, ast.Attribute) else SET_TYPES
            return name_of(node.func) in makes_set or self.holds(node.func)
        return name_of(node) in self.names


def is_keys(node):
    return isinstance(node, ast.Call) and name_of(node.func) == "keys"


def iterations(trees):
    """Line and text of each expression that iterates over a set in an order that shows."""
    sets = Sets(trees)
    for tree in trees:
        harmless = {
            argument
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and name_of(call.func) in ORDER_FREE
            for argument in call.args
        }
        for node in ast.walk(tree):
            if node in harmless or isinstance(node, ast.SetComp):
                continue
            if any(sets.holds(one) for one in iterated(node)):
                yield node.lineno, ast.unparse(node).splitlines()[0]


def iterated(node):
    """What an expression or statement takes one by one."""
    if isinstance(node, ast.For):
        yield node.iter
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        yield from (part.iter for part in node.generators)
    elif isinstance(node, ast.List | ast.Tuple):
        yield from (one.value for one in node.elts if isinstance(one, ast.Starred))
    elif isinstance(node, ast.Call):
        name = name_of(node.func)
        if isinstance(node.func, ast.Attribute) and name == "pop" and not node.args:
            yield node.func.value
        if name in (ORDERED_METHODS if isinstance(node.func, ast.Attribute) else ORDERED):
            yield from node.args
        yield from (one.value for one in node.args if isinstance(one, ast.Starred))


@pytest.mark.parametrize(
    "code",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "for x in set(y) - z: pass",
        "for x in a.keys() - b: pass",
        "known: set[int] = f()\n[x for x in known]",
        "self.known: frozenset[int] = f()\nlist(other.known)",
        "def f(known: set[int] | None): return tuple(known)",
        "def known() -> set[int]: pass\n[*known()]",
        "known = {x for x in y}\nlater = known\nlater.pop()",
        "known = set()\nf(*known)",
        "dict.fromkeys({1, 2})",
        "sum(x for x in {0.1, 0.2})",
    ],
)
def test_an_iteration_over_a_set_is_found(code):
    assert len(list(iterations([ast.parse(code)]))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "for x in sorted({1, 2}): pass",
        "any(x > 1 for x in {1, 2})",
        "known = set(y)\n1 in known, len(known), {x + 1 for x in known}",
        "for x in dict.fromkeys(y): pass",
        "waiting = {}\nwaiting.pop(3, None)\nstack = []\nstack.pop()",
        "for x in edges.set(1): pass",
    ],
)
def test_order_that_does_not_show_is_allowed(code):
    assert list(iterations([ast.parse(code)])) == []


def test_no_code_of_core_peers_networks_and_simulation_iterates_over_a_set():
    trees = [ast.parse(path.read_text(), path.name) for path in FILES]
    assert list(iterations(trees)) == []
