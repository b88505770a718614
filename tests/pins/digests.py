"""Digests of what comes out of a run, as far as it is the same on every machine."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import dada

Parts = dict[str, str]


def digest(*pieces: Any) -> str:
    """Of arrays their type, shape and bytes; of other values their JSON or bytes."""
    found = hashlib.sha256()
    for piece in pieces:
        if isinstance(piece, bytes):
            content = piece
        elif isinstance(piece, np.ndarray):
            found.update(f"{piece.dtype.str}{piece.shape}".encode())
            content = np.ascontiguousarray(piece).tobytes()
        else:
            content = json.dumps(piece, sort_keys=True).encode()
        found.update(struct.pack("<Q", len(content)))
        found.update(content)
    return found.hexdigest()[:16]


def plain(value: Any) -> Any:
    """A setting as JSON can express it; of an object only its kind."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return digest(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    return type(value).__name__


def numbers(value: Any) -> list[float]:
    """The numbers among settings, under whatever names."""
    if isinstance(value, dict | list):
        return [number for one in (value.values() if isinstance(value, dict) else value) for number in numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []


def of_graph(graph: Any) -> str:
    return digest(*graph.edges(), graph.n_users, graph.directed)


def of_trace(model: Any) -> str:
    """Every number of every point, in the order of the fields and without their names."""
    points = [[np.asarray(getattr(point, field.name)) for field in fields(point)] for point in model.trace_]
    return digest(*(value for point in points for value in point))


def of_fitted(model: Any, X: Any, users: Any) -> Parts:
    """All that an estimator knows after a fit, and what it says about rows."""
    values = model.decision_function(X, users) if hasattr(model, "decision_function") else model.predict(X, users)
    return {
        "models": digest(model.models_, model.confidence_, model.users_),
        "graph": of_graph(model.graph_),
        "trace": of_trace(model),
        "sent": digest(model.bits_, model.ledger_.messages, model.n_iter_),
        "values": digest(values, model.predict(X, users)),
        "numbers": digest(sorted(numbers(plain(model.settings_)))),
        "settings": digest(plain(model.settings_)),
    }


def of_model_file(path: Path) -> Parts:
    """A model file: its arrays, and its manifest with the table of members.

    The manifest names the version of the library that wrote the file, which changes with every release: it is left out,
    and so are the checksums of the archive itself, which cover it.
    """
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert manifest.pop("library") == f"dada-learn {dada.__version__}"
        members = archive.infolist()
        how = [
            [one.filename, one.date_time, one.compress_type, one.create_system, one.external_attr] for one in members
        ]
        arrays = [archive.read(one) for one in members if one.filename != "manifest.json"]
    return {"arrays": digest(*arrays), "manifest": digest(manifest, how)}


def of_recording(path: Path) -> str:
    """The contents of all records; compressed bytes would differ from one zlib to the next."""
    content = path.read_bytes()
    at, records = struct.calcsize("<8sI"), [content[: struct.calcsize("<8sI")]]
    while at < len(content):
        length, _ = struct.unpack_from("<II", content, at)
        body = content[at + 8 : at + 8 + length]
        records.append(zlib.decompress(body[1:]) if body[0] else body[1:])
        at += 8 + length
    assert len(records) > 10
    return digest(*records)


def of_journal(path: Path) -> Parts:
    """All that a peer was told, with digests of its state; and by themselves the messages that it got.

    The whole changes with the names of settings and of what a peer is made of; messages only with what is sent.
    """
    content = path.read_bytes()
    at, heard = 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        record = msgspec.msgpack.decode(content[at + 4 : at + 4 + length])
        heard += [msgspec.msgpack.encode(part) for part in record if is_message(part)]
        at += 4 + length
    assert len(heard) > 50
    return {"journal": digest(content), "heard": digest(*heard)}


def is_message(part: Any) -> bool:
    """Whether a part of a record is a message: an array that begins with the number of its kind."""
    return isinstance(part, list) and bool(part) and isinstance(part[0], int)
