"""The network file: a JSON file with everything that the peers of one network share.

It contains the settings of the learning problem, the rate of wake-ups, the names of features and classes, and the base
predictors as arrays. It contains no samples. The file of a private network also contains the network secret: anybody
with the file can join.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dada.core.block_steps import BlockStep
from dada.core.compiled import Array
from dada.core.regularizers import DegreeTarget, LogDegree, Regularizer
from dada.peer.config import PeerConfig
from dada.peer.member import Rhythm

FORMAT, VERSION = "dada-network", 1
SHORTEST_SECRET = 16

_REGULARIZERS: dict[str, type[LogDegree] | type[DegreeTarget]] = {
    "log-degree": LogDegree,
    "degree-target": DegreeTarget,
}
_DERIVED = {"n_predictors", "coupling", "predictors_digest", "regularizer"}


@dataclass(frozen=True, eq=False)
class NetworkFile:
    """Content of a network file.

    Parameters
    ----------
    settings : mapping
        Settings of `PeerConfig` by name: beta, mu1, loss, step, ...
    features : tuple of str
        Columns of the data, in the order of the base predictors' inputs.
    classes : tuple of two str
        Labels of the classes -1 and +1.
    coupling : array of shape (n_predictors,)
        Coupling of each base predictor.
    predictors, arrays : mapping
        Result of the base predictors' `to_arrays`.
    rhythm : Rhythm
        When peers wake.
    regularizer : Regularizer
    secret : bytes
        Empty if anybody may join.
    """

    settings: Mapping[str, Any]
    features: tuple[str, ...]
    classes: tuple[str, str]
    coupling: Array
    predictors: Mapping[str, Any]
    arrays: Mapping[str, Array]
    rhythm: Rhythm = field(default_factory=Rhythm)
    regularizer: Regularizer = field(default_factory=LogDegree)
    secret: bytes = b""

    @property
    def config(self) -> PeerConfig:
        """Configuration of a peer's state machine."""
        text = json.dumps(self._predictors(), sort_keys=True, allow_nan=False)
        return PeerConfig(
            n_predictors=int(self.coupling.size),
            coupling=self.coupling,
            predictors_digest=hashlib.sha256(text.encode()).digest(),
            regularizer=self.regularizer,
            **self.settings,
        )

    def _predictors(self) -> dict[str, Any]:
        arrays = {name: _array_to_json(array) for name, array in sorted(self.arrays.items())}
        about = {"features": list(self.features), "classes": list(self.classes), "coupling": self.coupling.tolist()}
        return about | {"spec": dict(self.predictors), "arrays": arrays}

    def write(self, path: Path) -> None:
        """Write a new file, with mode 0600 if the network is private; an existing file is an error."""
        kind = next(name for name, known in _REGULARIZERS.items() if isinstance(self.regularizer, known))
        settings = dict(self.settings)
        if "block" in settings:
            settings["block"] = settings["block"]._asdict()
        content = {
            "format": FORMAT,
            "version": VERSION,
            "settings": settings,
            "regularizer": {"kind": kind, **asdict(self.regularizer)},
            "rhythm": asdict(self.rhythm),
            "predictors": self._predictors(),
            "secret": self.secret.hex() or None,
        }
        text = json.dumps(content, indent=1, allow_nan=False)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if self.secret else 0o644)
        except FileExistsError as error:
            raise NetworkFileError(f"{path} exists already: give another name, or remove it first") from error
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")


class NetworkFileError(ValueError):
    """A network file is invalid."""


def read_network(path: Path) -> NetworkFile:
    """Read and validate a network file."""
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except KeyError as error:
        raise NetworkFileError(f"{path}: not a network file, or damaged (it lacks {error})") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise NetworkFileError(f"{path}: not a network file, or damaged ({error})") from error


def _from_json(content: Mapping[str, Any]) -> NetworkFile:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r} instead of {FORMAT!r}")
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']}, this dada reads {VERSION}: update the older of the two")
    predictors = content["predictors"]
    regularizer = dict(content["regularizer"])
    known = {one.name for one in fields(PeerConfig)} - _DERIVED
    unknown = set(content["settings"]) - known
    if unknown:
        raise ValueError(f"settings that this version does not know: {', '.join(sorted(unknown))}")
    first, second = (str(name) for name in predictors["classes"])
    settings = dict(content["settings"])
    if "block" in settings:
        settings["block"] = BlockStep(**settings["block"])
    network = NetworkFile(
        settings=settings,
        features=tuple(str(name) for name in predictors["features"]),
        classes=(first, second),
        coupling=np.array(predictors["coupling"], np.float64),
        predictors=dict(predictors["spec"]),
        arrays={str(name): _array_from_json(value) for name, value in predictors["arrays"].items()},
        rhythm=Rhythm(**content["rhythm"]),
        regularizer=_REGULARIZERS[regularizer.pop("kind")](**regularizer),
        secret=bytes.fromhex(content["secret"] or ""),
    )
    if network.secret and len(network.secret) < SHORTEST_SECRET:
        raise ValueError(f"a secret of {len(network.secret)} bytes, it needs at least {SHORTEST_SECRET}")
    if network.coupling.ndim != 1 or not network.coupling.size or not np.isfinite(network.coupling).all():
        raise ValueError("the coupling of the base predictors is not a list of numbers")
    if first == second:
        raise ValueError(f"two different classes are needed, got {first!r} twice")
    _ = network.config
    return network


def _array_to_json(array: Array) -> dict[str, Any]:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"base predictors with arrays of type {array.dtype} cannot be written to a network file")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "values": array.ravel().tolist()}


def _array_from_json(value: Mapping[str, Any]) -> Array:
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of type {dtype}")
    return np.array(value["values"], dtype).reshape(value["shape"])
