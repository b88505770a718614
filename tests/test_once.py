"""Every equation, message price and measure has one home: nobody computes it a second time."""

import ast
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "dada"

# What a line of code may contain in one place only, and the files that may contain it.
HOMES = {
    "bits of an index: log2": (r"\blog2\(", {"core/bits.py"}),
    "bits of a float: 32 or 64 times": (r"\bFLOAT_BITS = |[^*]\*\s*(32|64)(\.0)?\b", {"core/bits.py"}),
    "a price of a message": (r"ledger\.\w+ \+= \(|ledger\.\w+ \+= np\.array|counts\[\d\] \+=", set()),
    "logistic loss": (r"logaddexp|log1p\((math|np)\.exp\(|log\(1(\.0)? \+ (math|np)\.exp", {"core/losses.py"}),
    "Huber loss": (r"abs\(\w+\) - 0\.5\b|size - 0\.5\b", {"core/losses.py"}),
    "pair cost": (r"0\.5 \* (\w+\.)?mu1? \* (dist2|\w*distance)", {"core/graph_steps.py"}),
    "Frank-Wolfe gap": (r"abs\(gradient\)\.max\(", {"core/problem.py"}),
    "margins of labels": (r"\by\[:, (None|np\.newaxis)\]\.astype", {"core/problem.py"}),
    "mean per user": (r"reduceat\(.*right|bincount\(\w+, weights=right|/ np\.bincount", set()),
    "right signs": (r"\(values > 0\) == \(", {"core/losses.py"}),
}
# The objective of a linear model and benchmarks of display are other equations that look alike.
EXCEPTIONS = {
    ("pair cost", "baselines/persolin.py"),
    ("right signs", "fitting/held_out.py"),
}


def code_lines(path):
    """Lines of a file without comments and docstrings."""
    source = path.read_text()
    tree = ast.parse(source)
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, node.end_lineno):
                lines[number] = ""
    return [(number, line.split("  #")[0]) for number, line in enumerate(lines, 1) if not line.lstrip().startswith("#")]


@pytest.fixture(scope="module")
def sources():
    return {str(path.relative_to(SOURCES)): code_lines(path) for path in sorted(SOURCES.rglob("*.py"))}


@pytest.mark.parametrize("what", HOMES)
def test_it_has_one_home(what, sources):
    pattern, homes = HOMES[what]
    copies = [
        f"{name}:{number}: {line.strip()}"
        for name, lines in sources.items()
        for number, line in lines
        if re.search(pattern, line) and name not in homes and (what, name) not in EXCEPTIONS
    ]
    assert copies == []


@pytest.mark.parametrize("what", [what for what, (_, homes) in HOMES.items() if homes])
def test_its_home_still_has_it(what, sources):
    pattern, homes = HOMES[what]
    for home in homes:
        assert any(re.search(pattern, line) for _, line in sources[home]), home


def test_a_second_copy_is_found():
    copies = {
        "bits of an index: log2": "index_bits = math.log2(n)",
        "bits of a float: 32 or 64 times": "bits = floats * 32",
        "a price of a message": "self.ledger.models += np.array([1, 1, 2])",
        "logistic loss": "losses = np.logaddexp(0.0, -margins)",
        "Huber loss": "value = abs(z) - 0.5",
        "pair cost": "cost = loss_k + loss_l + 0.5 * self.mu1 * dist2",
        "Frank-Wolfe gap": "gap = (gradient * alpha).sum() + beta * abs(gradient).max(axis=1)",
        "margins of labels": "A = predictions * y[:, None].astype(np.int8)",
        "mean per user": "share = np.add.reduceat(right, row_start[:-1]) / sizes",
        "right signs": "right = (values > 0) == (y > 0)",
    }
    assert list(copies) == list(HOMES)
    for what, line in copies.items():
        assert re.search(HOMES[what][0], line), what
