"""Variables of a MATLAB file, checked before anyone relies on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["matrix", "variables", "vector"]


def variables(path: Path, *names: str) -> dict[str, Any]:
    """Read a .mat file that must hold the named variables."""
    from scipy.io import loadmat

    try:
        found: dict[str, Any] = loadmat(str(path))
    except FileNotFoundError:
        raise
    except NotImplementedError as error:
        raise ValueError(f"{path}: saved in MATLAB's v7.3 format, save it again with -v7") from error
    except Exception as error:  # a damaged file fails in the decoder with whatever its bytes lead to
        raise ValueError(f"{path}: not a readable MATLAB file ({error})") from error
    absent = [name for name in names if name not in found]
    if absent:
        present = [name for name in found if not name.startswith("__")]
        raise ValueError(f"{path}: lacks {', '.join(absent)}; it holds {', '.join(present) or 'nothing'}")
    return {name: found[name] for name in names}


def matrix(value: Any, name: str, path: Path, n_columns: int | None = None) -> np.ndarray:
    """Take a variable as a matrix of finite numbers."""
    array = np.asarray(value)
    numeric = array.dtype.kind in "biuf" and bool(np.isfinite(array).all())
    if not numeric or array.ndim != 2 or (n_columns is not None and array.shape[1] != n_columns):
        columns = "" if n_columns is None else f" with {n_columns} columns"
        raise ValueError(
            f"{path}: {name} must be a matrix of finite numbers{columns}, got {array.dtype} of shape {array.shape}"
        )
    return array


def vector(value: Any, name: str, path: Path) -> np.ndarray:
    """Take a variable as a row or column of finite numbers."""
    array = matrix(value, name, path)
    if 1 not in array.shape:
        raise ValueError(f"{path}: {name} must be one row or one column, got shape {array.shape}")
    return array.ravel()
