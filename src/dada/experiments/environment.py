"""With what results were made: versions, commit, seed."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dada
from dada.experiments.lab import Lab

_PACKAGES = ("numpy", "numba", "scipy", "scikit-learn")


def made_with(lab: Lab) -> dict[str, Any]:
    """Everything a reader needs to make the same results again."""
    return {
        "dada": dada.__version__,
        "commit": commit(Path(dada.__file__).parent),
        "seed": lab.seed,
        "mode": "quick" if lab.quick else "full",
        "Python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def commit(folder: Path) -> str | None:
    """The commit a folder is at, with a plus where its files have changed since; None outside a repository."""
    try:
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
