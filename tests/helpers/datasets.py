"""Real data, where the machine has them."""

import os
from pathlib import Path

import pytest

from dada.data.datasets import Dataset, load


def load_or_skip(name: str) -> Dataset:
    """A real dataset from the folder that DADA_DATA names; the test is skipped where it is not there."""
    folder = os.environ.get("DADA_DATA")
    if not folder or not Path(folder, f"{name}.parquet").is_file():
        pytest.skip(f"DADA_DATA names no folder with {name}.parquet")
    return load(name)
