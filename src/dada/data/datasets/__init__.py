"""The real datasets of the paper: fetched from their publishers, kept as one Parquet file each, never shipped."""

from dada.data.datasets.cache import DownloadError, cache_folder, dataset_path, fetch, load
from dada.data.datasets.catalog import CATALOG, NAMES, Entry, entry_of
from dada.data.datasets.dataset import Dataset

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
