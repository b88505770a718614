"""The catalog of real datasets: the facts of catalog.toml with a reader for each."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from dada.data.datasets import readers
from dada.data.datasets.dataset import Dataset


@dataclass(frozen=True)
class Entry:
    """Facts about a dataset that are known before it is read.

    Attributes
    ----------
    name, title : str
        Name on the command line, and one-line description.
    n_users, n_features : int
        K and D.
    task, split : str
        The question that the label answers, and the split of the published results.
    publisher, terms, citation : str
        Source of the data, conditions of use, and the article to cite.
    files : mapping of str to (str or None)
        Names of the publisher's files, and the SHA-256 digest of each, if known.
    read : callable
        Turns local copies of `files`, by file name, into a dataset.
    about : mapping
        Metadata of the Parquet file: name, title, and the meaning of the label and of the extra columns.
    n_rows : int, optional
        Number of records, if known.
    url : str, optional
        Address of the folder with `files`; None if there is no lasting address.
    sha256 : str, optional
        Digest of the rows of a conversion that was checked by hand (`Dataset.sha256`).
    local_file_hint : str
        Where to find the files if they cannot be downloaded.
    """

    name: str
    title: str
    n_users: int
    n_features: int
    task: str
    split: str
    publisher: str
    terms: str
    citation: str
    files: Mapping[str, str | None]
    read: Callable[[Mapping[str, Path]], Dataset]
    about: Mapping[str, Any]
    n_rows: int | None = None
    url: str | None = None
    sha256: str | None = None
    local_file_hint: str = ""

    @property
    def how_to_get(self) -> str:
        """The command that fetches the dataset, with the source of a local file if one is needed."""
        command = f"run: dada datasets fetch {self.name}"
        return command if self.url else f"{command} --file {next(iter(self.files))}. {self.local_file_hint}"


def entry_of(name: str) -> Entry:
    """Look a dataset up by its name.

    Examples
    --------
    >>> entry_of("school").n_users
    139
    """
    if name not in CATALOG:
        raise ValueError(f"dataset must be one of {', '.join(CATALOG)}, got {name!r}")
    return CATALOG[name]


def _entry(name: str, facts: dict[str, Any]) -> Entry:
    files = {file: digest or None for file, digest in facts.pop("files").items()}
    return Entry(name=name, files=files, read=getattr(readers, f"read_{name}"), **facts)


_FACTS = tomllib.loads(files("dada.data.datasets").joinpath("catalog.toml").read_text(encoding="utf-8"))
CATALOG: dict[str, Entry] = {name: _entry(name, facts) for name, facts in _FACTS.items()}
NAMES: tuple[str, ...] = tuple(CATALOG)
