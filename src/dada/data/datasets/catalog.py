"""The real datasets: what each is, who publishes it under which terms, and how its files are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dada.data.datasets import readers
from dada.data.datasets.dataset import Dataset

__all__ = ["CATALOG", "NAMES", "Entry", "entry_of"]


@dataclass(frozen=True)
class Entry:
    """Facts about a dataset that are known before it is read.

    Attributes
    ----------
    name, title, stored_name : str
        Name on the command line, one-line description, and name in the metadata of the Parquet file.
    n_users, n_features : int
        K and D.
    n_rows : int, optional
        Number of records, if known.
    task, split : str
        The question that the label answers, and the split of the published results.
    publisher, terms, citation : str
        Source of the data, conditions of use, and the article to cite.
    files : mapping of str to (str or None)
        Names of the publisher's files, and the SHA-256 digest of each, if known.
    read : callable
        Turns local copies of `files`, by file name, into a dataset.
    url : str, optional
        Address of the folder with `files`; None if there is no lasting address.
    sha256 : str, optional
        Digest of the rows of a conversion that was checked by hand (`Dataset.sha256`).
    local_file_hint : str
        Where to find the files if they cannot be downloaded.
    """

    name: str
    title: str
    stored_name: str
    n_users: int
    n_features: int
    n_rows: int | None
    task: str
    split: str
    publisher: str
    terms: str
    citation: str
    files: Mapping[str, str | None]
    read: Callable[[Mapping[str, Path]], Dataset]
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


NO_TERMS = "None found for the data. Cite the article."

_VEHICLE = Entry(
    name="vehicle",
    title="Vehicle Sensor, all records",
    stored_name="Vehicle Sensor",
    n_users=23,
    n_features=100,
    n_rows=None,
    task="Which of two kinds of vehicle passes?",
    split="a random 20 % of each sensor's records, drawn from the generator you give",
    publisher="M. F. Duarte and Y. H. Hu, University of Wisconsin-Madison, http://www.ece.wisc.edu/~sensit",
    terms=NO_TERMS,
    citation="M. F. Duarte, Y. H. Hu: Vehicle classification in distributed sensor networks. "
    "Journal of Parallel and Distributed Computing 64 (2004) 826-838.",
    files={readers.VEHICLE_FILE: None},
    read=readers.read_vehicle,
    local_file_hint="No lasting address of vehicle.mat is known; the repository litian96/fair_flearn on GitHub "
    "links to a copy (data/vehicle). The dataset vehicle_partial holds a small part of it",
)

_ENTRIES = (
    Entry(
        name="harws",
        title="Human activity recognition with smartphones",
        stored_name="HARWS",
        n_users=30,
        n_features=561,
        n_rows=10299,
        task="Is the subject sitting?",
        split="split20: 20 % of all rows, with the seed of the authors' program",
        publisher="Smartlab, University of Genova, at the UCI repository, dataset 240, doi:10.24432/C54S4K",
        terms="Cite the article; no commercial use (README of the dataset; UCI's page is said to state CC BY 4.0).",
        citation="D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz: A public domain dataset for human "
        "activity recognition using smartphones. ESANN 2013.",
        url="https://archive.ics.uci.edu/static/public/240",
        files={readers.HARWS_FILE: "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031"},
        read=readers.read_harws,
        sha256="6464085daacfb04871915abeddd7bce96db1dceb4157a3662fd1b79421cd0a09",
    ),
    _VEHICLE,
    replace(
        _VEHICLE,
        name="vehicle_partial",
        title="Vehicle Sensor, 1860 records only",
        stored_name="Vehicle Sensor (PARTIAL)",
        n_rows=1860,
        split="split50: half of each class of each sensor; not the paper's, results do not compare with it",
        publisher=f"{_VEHICLE.publisher}; this draw: repository litian96/ditto on GitHub, pull request 3",
        url="https://raw.githubusercontent.com/litian96/ditto/602f571de561f7796104860108dfa91182bfbcd8/data/vehicle"
        "/data/train",
        files={readers.VEHICLE_PARTIAL_FILE: "a8c8b22a89ea64e5a563cffe94352b48c1f44a02100fd3256adfc09dc43d9ddc"},
        read=readers.read_vehicle_partial,
        sha256="d9cc814d90a96f9f9ef6445bd486535815e220647ba979c967e7ce340df7a7f6",
        local_file_hint="",
    ),
    Entry(
        name="computer",
        title="Computer Buyers",
        stored_name="Computer Buyers",
        n_users=190,
        n_features=14,
        n_rows=3800,
        task="Would the person buy the computer (score above 5 of 10)?",
        split="paper_split: 5 to 10 of the 20 computers of each person, the authors' own draw",
        publisher="P. Lenk's survey of 1994, kept in the repository probml/pmtkdata on GitHub",
        terms="None stated. Cite the article.",
        citation="P. J. Lenk, W. S. DeSarbo, P. E. Green, M. R. Young: Hierarchical Bayes conjoint analysis. "
        "Marketing Science 15(2), 1996.",
        url="https://raw.githubusercontent.com/probml/pmtkdata/master/conjointAnalysisComputerBuyers",
        files={readers.COMPUTER_FILE: "6e6b5f98f438c7d15ed6c7adab44322c9345f52263a4f3026322019f184679b5"},
        read=readers.read_computer,
        sha256="d702c2ddfbda31a53d6987e71629f9f133cbaa8e28e784d653c3d020d9e885f0",
    ),
    Entry(
        name="school",
        title="School",
        stored_name="School",
        n_users=139,
        n_features=17,
        n_rows=15362,
        task="Is the pupil's exam score above 20?",
        split="split1, the first of ten that came with the data (split1..split10)",
        publisher="Inner London Education Authority, Centre for Multilevel Modelling, http://www.cmm.bristol.ac.uk, "
        "in the coding kept in the repository tjanez/PyMTL on GitHub",
        terms=NO_TERMS,
        citation="H. Goldstein: Multilevel modelling of survey data. The Statistician 40 (1991) 235-244.",
        url="https://raw.githubusercontent.com/tjanez/PyMTL/master/data/school",
        files={
            readers.SCHOOL_FILE: "973f1ca99d0d41a838ec6ae86001a48e7b69391eb74646b9e4fc54f62866a146",
            **dict.fromkeys(readers.SCHOOL_SPLIT_FILES.values()),
        },
        read=readers.read_school,
        sha256="1e4d71a23df105abd45a6700ad6264e1ca6574d2d650d718bb7486b5ccc9eef9",
    ),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
NAMES: tuple[str, ...] = tuple(CATALOG)
