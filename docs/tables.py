"""Copy tables of docs/results into the pages that quote them: ``python docs/tables.py``.

A table that follows the comment ``<!-- PAGE: CAPTION -->`` is replaced by the one of that caption in results/PAGE.md.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGES = (FOLDER.parent / "README.md", FOLDER / "beyond.md", FOLDER / "privacy.md")
QUOTED = re.compile(r"(<!-- (\w+): (.+?) -->\n\n)((?:\|.*\n)*)")


def quoted(page: str, results: Path = FOLDER / "results") -> str:
    """The text of a page with its tables copied from the results."""
    return QUOTED.sub(lambda found: found[1] + table(results / f"{found[2]}.md", found[3]), page)


def table(path: Path, caption: str) -> str:
    """The table of a caption on a page of results."""
    found = re.search(
        rf"^\*\*{re.escape(caption)}\*\*\n\n((?:\|.*\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    if found is None:
        raise ValueError(f"{path} has no table {caption!r}")
    return found[1]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(quoted(path.read_text(encoding="utf-8")), encoding="utf-8")
