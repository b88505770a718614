"""The format of saved models: a zip of a readable manifest and plain arrays, with no code in it.

The documentation describes it. The same model always gives the same bytes. A file is written completely or not at all,
and its content is checked before use, because compiled code does not check bounds.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from scipy import sparse

from dada import atomic
from dada.core.graph import CollaborationGraph
from dada.core.plan import Status
from dada.data import BasePredictors, predictors_from_arrays
from dada.engine import Ledger
from dada.engine.state import TRACE_FIELDS, trace_columns, trace_of
from dada.events import TracePoint

FORMAT, VERSION = "dada-model", 4
MANIFEST = "manifest.json"
TRANSFORMERS = "transformers.skops"
_NO_DATE = (1980, 1, 1, 0, 0, 0)

Arrays = dict[str, NDArray[Any]]


class ModelFileError(ValueError):
    """A file is not a model file, is damaged, or comes from a newer version."""


@dataclass(frozen=True, eq=False)
class StoredModel:
    """The content of a model file."""

    # Name and version of the library that wrote the file.
    library: str
    # Hyper-parameters, as values that JSON can express.
    settings: dict[str, Any]
    # Of any type that NumPy stores without pickle; no classes for regression.
    classes: NDArray[Any]
    user_ids: NDArray[Any]
    feature_names: tuple[str, ...] | None
    predictors: BasePredictors
    # A row per user: a block of weights, or one block per class if there are more than two.
    models: NDArray[Any]
    confidence: NDArray[np.float64]
    graph: CollaborationGraph
    trace: tuple[TracePoint, ...]
    ledger: Ledger
    status: Status
    n_updates: int
    # Notes of the writer, such as names of columns.
    note: dict[str, str] = field(default_factory=dict)
    # Mean and scale of the regression target.
    target: tuple[float, float] | None = None
    # The columns of the training table and their encoding, as JSON; None if they are the features.
    table: dict[str, Any] | None = None
    # Temperatures of users, and how reliable probabilities are, as JSON; None without calibration.
    temperatures: NDArray[np.float64] | None = None
    calibration: dict[str, Any] | None = None
    # The fitted steps of a pipeline before the model, as `dada.estimators.transformers` writes them.
    transformers: bytes | None = None


def write(model: StoredModel, path: str | os.PathLike[str]) -> None:
    """Write a model file; an existing file is replaced only by a complete one.

    It raises `TypeError` if the model holds what can only be stored as code: pretrained predictors, or ids and labels
    that are neither numbers, text nor dates.
    """
    content = _encode(model)
    try:
        atomic.write_bytes(path, content)
    except OSError as error:
        raise OSError(error.errno, f"the model file was not written ({error.strerror})", str(path)) from error


def read(path: str | os.PathLike[str]) -> StoredModel:
    """Read a model file after checking all of it."""
    content = Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            manifest = _manifest(archive)
            members = _checked_members(archive, manifest["members"])
        transformers = members.pop(TRANSFORMERS, None)
        arrays = {name.removesuffix(".npy"): _npy_array(name, data) for name, data in members.items()}
        return _decode(manifest, arrays, transformers)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFileError(f"{path}: not a model file, or damaged or cut short ({error})") from error
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(f"{path}: the content of the model file is inconsistent ({error!r})") from error


def _encode(model: StoredModel) -> bytes:
    spec, predictor_arrays = model.predictors.to_arrays()
    # Fails now, rather than when reading, for a family that cannot be read again.
    predictors_from_arrays(spec, predictor_arrays)
    weights = sparse.csr_array(model.models)
    arrays = {
        "classes": model.classes,
        "confidence": model.confidence,
        "graph/indices": model.graph.indices,
        "graph/indptr": model.graph.indptr,
        "graph/weights": model.graph.weights,
        "ledger/graph": model.ledger.graph,
        "ledger/models": model.ledger.models,
        "models/data": weights.data,
        "models/indices": weights.indices.astype(np.int32),
        "models/indptr": weights.indptr.astype(np.int64),
        "users": model.user_ids,
    }
    if model.ledger.coded.any():
        arrays["ledger/coded"] = model.ledger.coded
    if model.temperatures is not None:
        arrays["temperatures"] = model.temperatures
    arrays |= {f"predictors/{name}": array for name, array in predictor_arrays.items()}
    arrays |= {f"trace/{name}": column for name, column in trace_columns(model.trace).items()}
    members = {f"{name}.npy": _npy_bytes(name, array) for name, array in sorted(arrays.items())}
    if model.transformers is not None:
        members[TRANSFORMERS] = model.transformers
    manifest = {
        "format": FORMAT,
        "version": _version(model),
        "library": model.library,
        "n_users": int(model.models.shape[0]),
        "n_predictors": model.predictors.n,
        "feature_names": None if model.feature_names is None else list(model.feature_names),
        "float_bits": model.ledger.float_bits,
        "graph_directed": model.graph.directed,
        "n_updates": model.n_updates,
        "note": model.note,
        "predictors": spec,
        "settings": model.settings,
        "status": model.status.name,
        "target": None if model.target is None else list(model.target),
        "members": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    if model.table is not None:
        manifest["table"] = model.table
    if model.calibration is not None:
        manifest["calibration"] = model.calibration
    text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return zip_bytes({MANIFEST: text.encode(), **members})


def _version(model: StoredModel) -> int:
    """Readers of version 1 know two classes only, of 2 no tables, of 3 no pipelines; they still read such files."""
    if model.transformers is not None:
        return 4
    return 3 if model.table is not None else 1 if len(model.classes) == 2 else 2


def zip_bytes(members: Mapping[str, bytes]) -> bytes:
    """A zip archive of some members: the same ones give the same bytes."""
    # Not compressed: compressed bytes differ between machines, and could hide a zip bomb.
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, _NO_DATE)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def stored_members(data: bytes) -> dict[str, bytes]:
    """The members of an archive in memory, none of them compressed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: _member(archive, name) for name in archive.namelist()}


def _npy_bytes(name: str, array: NDArray[Any]) -> bytes:
    if array.dtype.hasobject:
        kind = type(array.flat[0]).__name__ if array.size else "object"
        raise TypeError(
            f"{name} of type {kind} cannot be written to a model file: it holds numbers, text and dates. "
            "Use such values, for example their str()"
        )
    buffer = io.BytesIO()
    npy.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    if MANIFEST not in archive.namelist():
        raise ModelFileError(f"a zip file but not a model file: it has no {MANIFEST}")
    manifest = json.loads(_member(archive, MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ModelFileError(f"not a model file: {MANIFEST} does not state format {FORMAT!r}")
    version = manifest.get("version")
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"the version of a model file must be an integer >= 1, got {version!r}")
    if version > VERSION:
        raise ModelFileError(
            f"a model file of version {version}, written by {manifest.get('library')}; "
            f"this library reads versions up to {VERSION}: install a newer one"
        )
    return manifest


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if name not in archive.namelist():
        raise ModelFileError(f"the model file is damaged: it lacks {name}")
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ModelFileError(f"{name} is compressed, as no member of a model file is")
    return archive.read(name)


def _checked_members(archive: zipfile.ZipFile, checksums: Mapping[str, str]) -> dict[str, bytes]:
    members = {name: _member(archive, name) for name in checksums}
    for name, data in members.items():
        if hashlib.sha256(data).hexdigest() != checksums[name]:
            raise ModelFileError(f"the model file is damaged: the checksum of {name} does not fit")
    return members


def _npy_array(name: str, data: bytes) -> NDArray[Any]:
    """An array from the bytes of a .npy file, whose header must match the number of bytes."""
    file = io.BytesIO(data)
    major = npy.read_magic(file)[0]
    shape, fortran, dtype = (npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0)(file)
    if dtype.hasobject or fortran or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ModelFileError(f"{name} is not a plain array of the stated size")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape).copy()


def _decode(manifest: Mapping[str, Any], arrays: Arrays, transformers: bytes | None) -> StoredModel:
    K, n = int(manifest["n_users"]), int(manifest["n_predictors"])
    target = manifest.get("target")
    names = manifest["feature_names"]
    own = {name.removeprefix("predictors/"): a for name, a in arrays.items() if name.startswith("predictors/")}
    predictors = predictors_from_arrays(manifest["predictors"], own)
    _require(predictors.n == n, f"{predictors.n} base predictors where {n} are announced")
    _require(names is None or len(names) == predictors.n_features, "as many feature names as features")
    users, classes, confidence = arrays["users"], arrays["classes"], arrays["confidence"]
    _require(users.shape == (K,) and len(np.unique(users)) == K, f"{K} different users")
    n_classes = len(classes)
    if target is None:
        _require(n_classes >= 2 and len(np.unique(classes)) == n_classes, "two classes or more")
    else:
        _require(n_classes == 0 and len(target) == 2 and target[1] > 0, "the mean and the scale of what is predicted")
    n_weights = n * n_classes if n_classes > 2 else n
    _require(confidence.shape == (K,) and bool((confidence > 0).all()), f"{K} confidences > 0")
    ledger = Ledger(n_weights, int(manifest["float_bits"]), arrays["ledger/models"], arrays["ledger/graph"])
    if "ledger/coded" in arrays:
        _require(arrays["ledger/coded"].shape == (2,), "bits of coded messages in two kinds of phase")
        ledger.coded[...] = arrays["ledger/coded"]
    temperatures = arrays.get("temperatures")
    if temperatures is not None:
        is_sound = temperatures.ndim == 1 and len(temperatures) <= K and temperatures.dtype == np.float64
        _require(is_sound and bool((temperatures > 0).all() and np.isfinite(temperatures).all()), "temperatures > 0")
    return StoredModel(
        library=str(manifest["library"]),
        settings=dict(manifest["settings"]),
        classes=classes,
        user_ids=users,
        feature_names=None if names is None else tuple(names),
        predictors=predictors,
        models=_csr(arrays, "models", "data", (K, n_weights)).toarray(),
        confidence=confidence,
        graph=_graph(arrays, K, bool(manifest["graph_directed"])),
        trace=tuple(trace_of(arrays[f"trace/{name}"] for name in TRACE_FIELDS)),
        ledger=ledger,
        status=Status[manifest["status"]],
        n_updates=int(manifest["n_updates"]),
        note={str(name): str(text) for name, text in manifest.get("note", {}).items()},
        target=None if target is None else (float(target[0]), float(target[1])),
        table=manifest.get("table"),
        temperatures=temperatures,
        calibration=manifest.get("calibration"),
        transformers=transformers,
    )


def _csr(arrays: Arrays, group: str, values: str, shape: tuple[int, int]) -> Any:
    """A checked sparse matrix from three stored arrays."""
    data, indices, indptr = (arrays[f"{group}/{name}"] for name in (values, "indices", "indptr"))
    _require(data.dtype in (np.float32, np.float64) and bool(np.isfinite(data).all()), f"finite {group}/{values}")
    matrix = sparse.csr_array((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def _graph(arrays: Arrays, K: int, directed: bool) -> CollaborationGraph:
    weights = _csr(arrays, "graph", "weights", (K, K))
    _require(
        weights.has_canonical_format and bool((weights.data > 0).all()), "positive weights between users, in order"
    )
    _require(not weights.diagonal().any(), "no weight of a user to itself")
    _require(directed or (weights != weights.T).nnz == 0, "a symmetric graph")
    return CollaborationGraph(arrays["graph/indptr"], arrays["graph/indices"], arrays["graph/weights"], directed)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ModelFileError(f"the model file is damaged: it should hold {what}")
