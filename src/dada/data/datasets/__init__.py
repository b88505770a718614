"""The real datasets of the paper: fetched from their publishers, kept as one Parquet file each, never shipped."""

from dada.data.datasets.cache import (
    CATALOG,
    NAMES,
    DownloadError,
    Entry,
    cache_folder,
    dataset_path,
    entry_of,
    fetch,
    load,
)
from dada.data.datasets.readers import Dataset

__all__ = [
    "CATALOG",
    "NAMES",
    "Dataset",
    "DownloadError",
    "Entry",
    "cache_folder",
    "dataset_path",
    "entry_of",
    "fetch",
    "load",
]
