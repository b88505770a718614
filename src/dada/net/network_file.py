"""What users pass to each other to form a network: the network file, tickets, certificates, lists of revoked members.

The network file is a JSON file with everything that the peers of one network share. It contains the settings of the
learning problem, the rate of wake-ups, the names of features, the target, and the base predictors as arrays. It
contains no samples. The file of a private network also contains the network secret: anybody with the file can join. If
it contains the key of a founder, only peers that the founder admits can.

Tickets, certificates and lists are lines of text. Keys are in files that only their owner can read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
import math
import os
import stat
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dada import atomic
from dada.core.block_steps import BlockStep
from dada.core.compiled import Array
from dada.core.graph_steps import DegreeTarget, LogDegree, Regularizer
from dada.core.model_steps import n_blocks
from dada.net.store import needing_room
from dada.net.transport import is_relay
from dada.peer.grove import AtomTerms
from dada.peer.inputs import PeerConfig
from dada.peer.member import Rhythm
from dada.peer.messages import DIGEST_SIZE, Descriptor, PeerId, Revocation
from dada.peer.signatures import Membership, Seal

if TYPE_CHECKING:
    from dada.peer.boosted_trees import BoostedTerms

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
        trees = cls(_read_cuts(value["cuts"], n_features), int(value["depth"]), int(value["per_user"]))
        _ = trees.terms
        return trees

    def to_json(self) -> dict[str, Any]:
        """An object for a network file."""
        return {"depth": self.depth, "per_user": self.per_user, "cuts": _array_to_json(self.cuts)}


@dataclass(frozen=True, eq=False)
class NetworkBoosting:
    """The boosted trees that the peers of a network grow with each other (see `dada.peer.boosting`).

    Parameters
    ----------
    cuts : array of shape (n_features, n_cuts)
        Thresholds of each feature, ascending.
    rounds, depth, own, rate, share
        As in `dada.data.BoostedTrees`.
    """

    cuts: Array
    rounds: int = 500
    depth: int = 2
    own: float = 3.0
    rate: float = 0.1
    share: float = 0.5

    def terms(self, n_classes: int) -> BoostedTerms:
        """What all trees have in common."""
        # Most networks have no boosted trees, and their numbers load scipy.
        from dada.peer.boosted_trees import BoostedTerms

        n_features, n_cuts = self.cuts.shape
        return BoostedTerms(n_features, n_cuts, n_classes, self.rounds, self.depth, self.own, self.rate, self.share)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], n_features: int, n_classes: int) -> NetworkBoosting:
        """The inverse of `to_json`, checked."""
        numbers = {name: kind(value[name]) for name, kind in _OF_BOOSTING.items()}
        trees = cls(_read_cuts(value["cuts"], n_features), **numbers)
        _ = trees.terms(n_classes)
        return trees

    def to_json(self) -> dict[str, Any]:
        """An object for a network file."""
        return {name: getattr(self, name) for name in _OF_BOOSTING} | {"cuts": _array_to_json(self.cuts)}


_OF_BOOSTING: dict[str, type] = {"rounds": int, "depth": int, "own": float, "rate": float, "share": float}


def _read_cuts(value: Any, n_features: int) -> Array:
    """Thresholds of trees, checked."""
    cuts = _array_from_json(value).astype(np.float64)
    if cuts.ndim != 2 or len(cuts) != n_features:
        raise ValueError(f"thresholds of trees of shape {cuts.shape}, there are {n_features} features")
    if not np.isfinite(cuts).all() or (np.diff(cuts, axis=1) < 0).any():
        raise ValueError("thresholds of trees that are not finite, or not ascending")
    return cuts


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
    boosting : NetworkBoosting, optional
        Boosted trees that the peers grow with each other, beside the models on the base predictors of this file.
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
    boosting: NetworkBoosting | None = None

    @property
    def has_trees(self) -> bool:
        """Whether peers grow trees of any kind, which reveal rows and need all of them at once."""
        return self.trees is not None or self.boosting is not None

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
        boosted = {} if self.boosting is None else {"boosting": self.boosting.to_json()}
        return about | {"spec": dict(self.predictors), "arrays": arrays, "encoder": self.encoder} | trees | boosted

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
    boosting = predictors.get("boosting")
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
    if boosting is not None:
        network = replace(
            network, boosting=NetworkBoosting.from_json(boosting, len(features), network.target.n_classes)
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


DAY_S = 86_400


class KeyFileError(OSError):
    """A key file is missing, damaged or readable by others."""


def write_key(path: Path, key: bytes) -> None:
    """Create a key file with mode 0600; an existing file is never replaced.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_key(folder / "key", bytes(32))
    >>> read_key(folder / "key") == bytes(32)
    True
    """
    if path.exists():
        raise KeyFileError(f"{path} exists already and is kept: a new key would be a new peer")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a hard link fails if the file exists.
        os.link(temporary, path)
    except FileExistsError as error:
        raise KeyFileError(f"{path} was just created by another process") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_key(path: Path, way_out: str = "create one with `dada peer init`") -> bytes:
    """Read a key file; raises if others can read it. The error of a missing one ends with the way out."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise KeyFileError(f"no key at {path} ({error.strerror}): {way_out}") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(
            f"{path} has mode {stat.S_IMODE(mode):04o}, so others may have copied this identity: "
            f"`chmod 600 {path}` if they cannot have, else move it away and create a new one with `dada peer init`"
        )
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE:
        raise KeyFileError(f"{path} is damaged: a key is {2 * KEY_SIZE} hexadecimal digits on one line")
    return key


TICKET_PREFIX, CERTIFICATE_PREFIX, REVOCATION_PREFIX = "dada1", "dadacert1", "dadarevoked1"


class TicketError(ValueError):
    """The text is not a valid ticket, certificate or list."""


def to_text(prefix: str, content: Any) -> str:
    """Encode a value as a line of text with a checksum.

    >>> text = to_text("dada1", (b"ann", 3))
    >>> from_text("dada1", text, tuple[bytes, int], "a ticket")
    (b'ann', 3)
    """
    packed = msgspec.msgpack.encode(content)
    checked = packed + zlib.crc32(packed).to_bytes(4, "big")
    return prefix + base64.b32encode(checked).decode().rstrip("=").lower()


def from_text(prefix: str, line: str, kind: type[Any], name: str) -> Any:
    """Decode a line of text; `name` is what an error calls it."""
    text = line.strip()
    if not text.startswith(prefix):
        raise TicketError(f"{name} begins with {prefix!r}, got {text[:20]!r}: copy the whole line")
    body = text[len(prefix) :].upper()
    try:
        checked = base64.b32decode(body + "=" * (-len(body) % 8))
        content, checksum = checked[:-4], checked[-4:]
        if zlib.crc32(content).to_bytes(4, "big") != checksum:
            raise ValueError("its checksum does not fit")
        return msgspec.msgpack.decode(content, type=kind)
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise TicketError(f"{name} {text[:20]}... is damaged ({error}): copy it again") from error


def write_ticket(peer: Descriptor) -> str:
    """Encode a peer's id and addresses as text.

    >>> ticket = write_ticket(Descriptor(bytes(32), 0, ("127.0.0.1:4040",)))
    >>> read_ticket(ticket).addresses
    ('127.0.0.1:4040',)
    """
    return to_text(TICKET_PREFIX, (peer.peer, peer.addresses))


def read_ticket(ticket: str) -> Descriptor:
    """Decode a ticket."""
    peer, addresses = from_text(TICKET_PREFIX, ticket, tuple[bytes, tuple[str, ...]], "a ticket")
    return Descriptor(peer, 0, addresses)


def is_for_one_machine(peer: Descriptor) -> bool:
    """Whether all addresses of a ticket are loopback addresses, which other machines cannot reach.

    >>> is_for_one_machine(Descriptor(bytes(32), 0, ("127.0.0.1:4040", "[::1]:4040")))
    True
    >>> is_for_one_machine(Descriptor(bytes(32), 0, ("127.0.0.1:4040", "192.0.2.1:4040")))
    False
    """
    hosts = [address.rpartition(":")[0].strip("[]") for address in peer.addresses if not is_relay(address)]
    return len(hosts) == len(peer.addresses) and all(ipaddress.ip_address(host).is_loopback for host in hosts)


def read_revocation(path: Path) -> Revocation:
    """The list of revoked members in a file."""
    text = path.read_text(encoding="ascii", errors="replace")
    found: Revocation = from_text(REVOCATION_PREFIX, text, Revocation, f"the list in {path}")
    return found


class Founder:
    """The founder of the network that a file describes: its key and its list of revoked members.

    No peer needs these two files. Whoever has the key decides who belongs to the network.

    Parameters
    ----------
    network : Path
        The network file. The key is beside it, with the suffix `.founder`, and the list with `.revoked`.
    """

    def __init__(self, network: Path) -> None:
        # Only founders need the transport here: simulations import this module without it.
        from dada.net.iroh_transport import IrohSeal, public_key

        self.key, self.list = network.with_suffix(".founder"), network.with_suffix(".revoked")
        file = read_network(network)
        key = read_key(self.key, "it is where `dada peer new-network --members` wrote it")
        membership = file.membership(IrohSeal(key))
        if membership is None or membership.founder != public_key(key):
            raise KeyFileError(f"{self.key} is not the key of the founder of {network}")
        self.membership = membership

    @classmethod
    def create(cls, network: NetworkFile, path: Path) -> Founder:
        """Write the file of a new network, and the key of its founder."""
        from dada.net.iroh_transport import new_secret_key, public_key

        key = new_secret_key()
        write_key(path.with_suffix(".founder"), key)
        try:
            replace(network, founder=public_key(key)).write(path)
        except BaseException:
            path.with_suffix(".founder").unlink()
            raise
        return cls(path)

    def admit(self, peer: PeerId, days: int = 0) -> str:
        """The certificate of a peer as text; it expires after some days, or never."""
        expires = int(time.time()) + DAY_S * days if days else 0
        return to_text(CERTIFICATE_PREFIX, self.membership.admit(peer, expires))

    def revoke(self, peer: PeerId) -> int:
        """Exclude a peer: writes the next list, and returns the number of revoked members.

        The counter comes from the clock, so that it rises even if the last list was lost.
        """
        last = read_revocation(self.list) if self.list.exists() else None
        counter = max(int(time.time()), 1 + (0 if last is None else last.counter))
        revocation = self.membership.revoke({peer, *(() if last is None else last.revoked)}, counter)
        atomic.write_bytes(self.list, to_text(REVOCATION_PREFIX, revocation).encode() + b"\n")
        return len(revocation.revoked)
