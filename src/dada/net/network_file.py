"""The network file: a JSON file with everything that the peers of one network share.

It contains the settings of the learning problem, the rate of wake-ups, the names of features, the target, and the base
predictors as arrays. It contains no samples. The file of a private network also contains the network secret: anybody
with the file can join. If it contains the key of a founder, only peers that the founder admits can.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dada.core.block_steps import BlockStep
from dada.core.compiled import Array
from dada.core.graph_steps import DegreeTarget, LogDegree, Regularizer
from dada.core.model_steps import n_blocks
from dada.net.store import needing_room
from dada.peer.atoms import AtomTerms
from dada.peer.config import PeerConfig
from dada.peer.member import Rhythm
from dada.peer.membership import Membership
from dada.peer.messages import DIGEST_SIZE
from dada.peer.witnesses import Seal

FORMAT, VERSION = "dada-network", 2
SHORTEST_SECRET, KEY_SIZE = 16, 32

_REGULARIZERS: dict[str, type[LogDegree] | type[DegreeTarget]] = {
    "log-degree": LogDegree,
    "degree-target": DegreeTarget,
}
_DERIVED = {"n_predictors", "n_classes", "coupling", "predictors_digest", "regularizer", "dictionary", "agreed"}


@dataclass(frozen=True)
class Target:
    """What the peers of a network predict.

    Parameters
    ----------
    classes : tuple of str
        Labels of the classes; the first of two is -1, the second +1. None for numbers.
    class_weights : tuple of float
        Weight of the samples of each class; equal if empty.
    mean, scale : float
        Of numbers: models predict (number - mean) / scale.

    Examples
    --------
    >>> Target(("no", "yes")).coded(["yes", "no"]).tolist(), Target(("a", "b", "c")).coded(["c", "a"]).tolist()
    ([1, -1], [2, 0])
    >>> Target(mean=5.0, scale=2.0).coded([5.0, 9.0]).tolist()
    [0.0, 2.0]
    """

    classes: tuple[str, ...] = ()
    class_weights: tuple[float, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if len(self.classes) == 1 or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"two or more different classes are needed, got {', '.join(self.classes)}")
        if self.class_weights and len(self.class_weights) != len(self.classes):
            raise ValueError(f"{len(self.classes)} classes have as many weights, got {len(self.class_weights)}")
        if not all(0 < weight < math.inf for weight in self.class_weights):
            raise ValueError(f"class weights must be > 0 and finite, got {self.class_weights}")
        if not (math.isfinite(self.mean) and 0 < self.scale < math.inf):
            raise ValueError(f"a target needs a finite mean and a scale > 0, got {self.mean} and {self.scale}")

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for numbers."""
        return len(self.classes)

    def coded(self, values: Sequence[Any] | Array) -> Array:
        """Labels or numbers as models learn them; raises `ValueError` for an unknown label."""
        if not self.classes:
            numbers = np.asarray(values, np.float64)
            if not np.isfinite(numbers).all():
                raise ValueError("numbers to learn must be finite")
            return (numbers - self.mean) / self.scale
        unknown = sorted(set(values) - set(self.classes))
        if unknown:
            raise ValueError(f"labels {unknown[:3]}, the network knows {list(self.classes)}")
        codes = np.array([self.classes.index(label) for label in values])
        return 2 * codes - 1 if len(self.classes) == 2 else codes


@dataclass(frozen=True, eq=False)
class NetworkTrees:
    """The trees that the peers of a network grow (see `dada.peer.grove`).

    Parameters
    ----------
    cuts : array of shape (n_features, n_cuts)
        Thresholds of each feature, ascending.
    depth, per_user : int
        Tests on the way to a leaf, and trees that each peer grows.
    """

    cuts: Array
    depth: int = 3
    per_user: int = 30

    @property
    def terms(self) -> AtomTerms:
        """What all trees have in common."""
        n_features, n_cuts = self.cuts.shape
        return AtomTerms(n_features, n_cuts, self.depth, self.per_user)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], n_features: int) -> NetworkTrees:
        """The inverse of `to_json`, checked."""
        trees = cls(_array_from_json(value["cuts"]).astype(np.float64), int(value["depth"]), int(value["per_user"]))
        if trees.cuts.ndim != 2 or len(trees.cuts) != n_features:
            raise ValueError(f"thresholds of trees of shape {trees.cuts.shape}, there are {n_features} features")
        if not np.isfinite(trees.cuts).all() or (np.diff(trees.cuts, axis=1) < 0).any():
            raise ValueError("thresholds of trees that are not finite, or not ascending")
        _ = trees.terms
        return trees

    def to_json(self) -> dict[str, Any]:
        """An object for a network file."""
        return {"depth": self.depth, "per_user": self.per_user, "cuts": _array_to_json(self.cuts)}


@dataclass(frozen=True, eq=False)
class NetworkFile:
    """Content of a network file.

    Parameters
    ----------
    settings : mapping
        Settings of `PeerConfig` by name: beta, mu1, loss, step, ...
    features : tuple of str
        Inputs of the base predictors, in order: columns of the data, or what `encoder` makes of them.
    target : Target
        What the peers predict.
    coupling : array of shape (n_predictors,)
        Coupling of each base predictor.
    predictors, arrays : mapping
        Result of the base predictors' `to_arrays`.
    rhythm : Rhythm
        When peers wake.
    regularizer : Regularizer
    secret : bytes
        Empty if anybody may join.
    encoder : mapping, optional
        Of tables with text, dates or missing values: the result of `TableEncoder.to_json`.
    founder : bytes
        Public key that signs certificates of membership; empty if nobody needs one.
    trees : NetworkTrees, optional
        Trees that the peers grow themselves, next to the base predictors of this file.
    """

    settings: Mapping[str, Any]
    features: tuple[str, ...]
    target: Target
    coupling: Array
    predictors: Mapping[str, Any]
    arrays: Mapping[str, Array]
    rhythm: Rhythm = field(default_factory=Rhythm)
    regularizer: Regularizer = field(default_factory=LogDegree)
    secret: bytes = b""
    encoder: Mapping[str, Any] | None = None
    founder: bytes = b""
    trees: NetworkTrees | None = None

    def membership(self, seal: Seal) -> Membership | None:
        """The rules of membership, if the network has a founder; the seal verifies signatures, or is the founder's."""
        digest = hashlib.sha256(self.config.digest + self.founder).digest()[:DIGEST_SIZE]
        return Membership(digest, self.founder, seal) if self.founder else None

    @property
    def config(self) -> PeerConfig:
        """Configuration of a peer's state machine."""
        text = json.dumps(self._predictors(), sort_keys=True, allow_nan=False)
        blocks = n_blocks(self.target.n_classes)
        return PeerConfig(
            n_predictors=blocks * int(self.coupling.size),
            n_classes=self.target.n_classes,
            coupling=np.tile(self.coupling, blocks),
            predictors_digest=hashlib.sha256(text.encode()).digest(),
            regularizer=self.regularizer,
            **self.settings,
        )

    def _predictors(self) -> dict[str, Any]:
        arrays = {name: _array_to_json(array) for name, array in sorted(self.arrays.items())}
        about = {"features": list(self.features), "target": asdict(self.target), "coupling": self.coupling.tolist()}
        trees = {} if self.trees is None else {"trees": self.trees.to_json()}
        return about | {"spec": dict(self.predictors), "arrays": arrays, "encoder": self.encoder} | trees

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
            **({"founder": self.founder.hex()} if self.founder else {}),
        }
        text = json.dumps(content, indent=1, allow_nan=False)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if self.secret else 0o644)
        except FileExistsError as error:
            raise NetworkFileError(f"{path} exists already: give another name, or remove it first") from error
        try:
            with needing_room(path), os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        except BaseException:
            path.unlink(missing_ok=True)
            raise


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
    setting_names = {one.name for one in fields(PeerConfig)} - _DERIVED
    unknown = set(content["settings"]) - setting_names
    if unknown:
        raise ValueError(f"settings that this version does not know: {', '.join(sorted(unknown))}")
    target = dict(predictors["target"])
    for name, kind in (("classes", str), ("class_weights", float)):
        target[name] = tuple(kind(value) for value in target[name])
    settings = dict(content["settings"])
    if "block" in settings:
        settings["block"] = BlockStep(**settings["block"])
    features, trees = tuple(str(name) for name in predictors["features"]), predictors.get("trees")
    network = NetworkFile(
        settings=settings,
        features=features,
        target=Target(**target),
        coupling=np.array(predictors["coupling"], np.float64),
        predictors=dict(predictors["spec"]),
        arrays={str(name): _array_from_json(value) for name, value in predictors["arrays"].items()},
        rhythm=Rhythm(**content["rhythm"]),
        regularizer=_REGULARIZERS[regularizer.pop("kind")](**regularizer),
        secret=bytes.fromhex(content["secret"] or ""),
        encoder=predictors["encoder"],
        founder=bytes.fromhex(content.get("founder", "")),
        trees=None if trees is None else NetworkTrees.from_json(trees, len(features)),
    )
    if network.trees is not None and not network.config.sends_codes:
        raise ValueError(f'trees need the step "block", got {network.config.step!r}')
    if len(network.founder) not in (0, KEY_SIZE):
        raise ValueError(f"a founder's key of {len(network.founder)} bytes, it needs {KEY_SIZE}")
    if network.secret and len(network.secret) < SHORTEST_SECRET:
        raise ValueError(f"a secret of {len(network.secret)} bytes, it needs at least {SHORTEST_SECRET}")
    if network.coupling.ndim != 1 or not network.coupling.size or not np.isfinite(network.coupling).all():
        raise ValueError("the coupling of the base predictors is not a list of numbers")
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
