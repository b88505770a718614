"""The folder of one peer: key, network file, samples, state and status."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dada import atomic
from dada.core.compiled import Array
from dada.core.model_steps import UserRows, rows_per_sample
from dada.net.network_file import (
    CERTIFICATE_PREFIX,
    NetworkFile,
    from_text,
    read_key,
    read_network,
    read_revocation,
    write_key,
)
from dada.net.store import damaged, needing_room, read_records
from dada.peer.grove import Plot, SharedGrove
from dada.peer.inputs import PeerConfig
from dada.peer.messages import Certificate, PeerId, Revocation
from dada.peer.model import Fallback, OwnModel, checked_rows
from dada.peer.signatures import Membership, Seal, Unsealed
from dada.privacy.noise import Bits

# Loaded for private peers and those that boost trees: they load scipy, which takes as much memory as all that another
# peer needs of its own.
if TYPE_CHECKING:
    from dada.peer.boosted_trees import BoostedRows, LeafModel
    from dada.peer.boosting import SharedBoosting
    from dada.peer.releases import ExactRows, SignedReleases
    from dada.privacy.accounting import PrivacyLedger

LONGEST_NAME = 40


def shown(peer: str, names: Mapping[str, str]) -> str:
    """A peer by its nickname, if it has one, and the first digits of its id.

    >>> shown("c17dbd6687aa", {"c17dbd6687aa": "Bob"}), shown("73896625bf05", {})
    ('Bob (c17dbd6687)', '73896625bf')
    """
    return f"{names[peer]} ({peer[:10]})" if peer in names else peer[:10]


def privacy_text(status: Mapping[str, Any]) -> list[str]:
    """Budget and releases in the status of a private peer, as lines; none for another.

    >>> privacy = {"protects": "rows", "epsilon": 4.0, "spent": 0.0, "left": 4.0, "delta": 1e-5, "released": []}
    >>> privacy_text({"privacy": privacy, "releases": {"held": 2, "is_sent": False, "reason": "Nothing is sent."}})
    ['epsilon 0 of 4 spent on 0 releases, 4 left', '2 releases of others held. Nothing is sent.']
    """
    privacy, lines = status.get("privacy"), []
    if privacy:
        made = privacy["released"]
        spent = f"epsilon {privacy['spent']:g} of {privacy['epsilon']:g} spent on {len(made)} releases"
        lines.append(f"{spent}, {privacy['left']:g} left")
        for one in made:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["time"]))
            lines.append(f"{privacy['protects']} released {when}, SHA-256 {one['sha256']}")
    if releases := status.get("releases"):
        what = "peers are in the sums held" if releases.get("is_summed") else "releases of others held"
        lines.append(f"{releases['held']} {what}. {releases['reason']}")
    return lines


# Records of a node's choice between the shared and the local model, and of the home model of a private peer.
TRUST_KEY, HOME_KEY = b"trust", b"home"
# Whether the noise of a budget follows from the joint sensitivity of statistics; that of older folders stays as it was.
JOINT = "joint"
# Files of the inbox whose names are kept after they were taken in: a power cut may bring back files that were removed.
MOST_TAKEN = 64
# Arrays of samples that only networks with trees have.
PLOT_PARTS = ("signs", "bins", "grown")
BOOSTED_PARTS = ("bins", "y", "row_weights")
# Owner of a peer's releases in its ledger.
ME = "this peer"


class HomeError(OSError):
    """A peer's folder lacks something or is in use."""


@dataclass
class Home:
    """The folder of one peer.

    Attributes
    ----------
    key, samples : Path
        The secret key, and the user's samples as margins of the base predictors. Both stay in the folder, mode 0600.
    budget, ledger, released, exact : Path
        Of a private peer: its epsilon, the record of its releases, its samples with released labels or one public row,
        and base predictions and outputs of protected rows.
    inbox : Path
        Files of new samples that the running peer takes in.
    network : Path
        A copy of the network file.
    state : Path
        Model, edges, counters and known peers.
    status, log : Path
        The last status of the running peer, and the log of its process in a swarm.
    names : Path
        Nicknames of other peers.
    certificate, revoked : Path
        In a network with a founder: the peer's certificate, and a list of revoked members to be sent on.

    Examples
    --------
    >>> Home(Path("ann")).state.name
    'state.sqlite'
    """

    folder: Path

    def __post_init__(self) -> None:
        self.key, self.network = self.folder / "key", self.folder / "network.json"
        self.samples, self.state = self.folder / "samples.npz", self.folder / "state.sqlite"
        self.status, self.log = self.folder / "status.json", self.folder / "log"
        self.budget, self.ledger = self.folder / "privacy.json", self.folder / "ledger.sqlite"
        self.released, self.exact = self.folder / "released.npz", self.folder / "exact.npz"
        self.names, self.inbox = self.folder / "names.json", self.folder / "inbox"
        self.certificate, self.revoked = self.folder / "certificate", self.folder / "revoked"
        self._revoked_at = 0

    def open_journal(self) -> BinaryIO:
        """Open a new journal file; mode 0600, because a journal contains the samples.

        It has no buffer: after a kill, it still ends with the last input that the peer handled.
        """
        folder = self.folder / "journals"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.journal"
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)

    def create(self, network: Path, key: bytes) -> None:
        """Create the folder of a new peer; an existing key is kept."""
        read_network(network)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.network.exists() and self.network.read_bytes() != network.read_bytes():
            raise HomeError(f"{self.folder} belongs to another network: use another folder")
        with needing_room(self.folder):
            if not self.network.exists():
                atomic.write_bytes(self.network, network.read_bytes(), private=True)
            if not self.key.exists():
                write_key(self.key, key)

    def read(self) -> tuple[bytes, NetworkFile]:
        """Key and network file of an existing peer."""
        if not self.key.exists() and not self.network.exists():
            raise HomeError(f"no peer in {self.folder}: create one with `dada peer init`")
        return read_key(self.key), read_network(self.network)

    def write_certificate(self, text: str, membership: Membership | None, me: PeerId) -> None:
        """Keep the peer's certificate, if it is valid."""
        certificate = from_text(CERTIFICATE_PREFIX, text, Certificate, "a certificate")
        flaw = "the network has no founder" if membership is None else membership.flaw_of(certificate, me, time.time())
        if flaw is not None:
            raise HomeError(f"the certificate is not valid here: {flaw}. {_how_to_join(me)}")
        with needing_room(self.certificate):
            atomic.write_bytes(self.certificate, text.strip().encode() + b"\n", private=True)

    def read_certificate(self, membership: Membership | None, me: PeerId) -> Certificate | None:
        """The peer's certificate; raises if the network demands one and the peer has none that is valid."""
        if membership is None:
            return None
        if not self.certificate.exists():
            raise HomeError(f"this network admits members only. {_how_to_join(me)}")
        text = self.certificate.read_text(encoding="ascii", errors="replace")
        certificate: Certificate = from_text(CERTIFICATE_PREFIX, text, Certificate, "a certificate")
        flaw = membership.flaw_of(certificate, me, time.time())
        if flaw is not None:
            raise HomeError(f"{self.certificate} is not valid: {flaw}. {_how_to_join(me)}")
        return certificate

    def new_revocation(self) -> Revocation | None:
        """The list of revoked members in the folder, if the file is new since the last call."""
        try:
            written_at = self.revoked.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if written_at == self._revoked_at:
            return None
        self._revoked_at = written_at
        return read_revocation(self.revoked)

    @property
    def is_private(self) -> bool:
        """Whether this peer protects its labels or its rows."""
        return self.budget.exists()

    @property
    def protects(self) -> str:
        """What a private peer protects: labels, rows or users; empty for another."""
        return str(json.loads(self.budget.read_bytes())["protects"]) if self.is_private else ""

    @property
    def has_statistics(self) -> bool:
        """Whether all that this peer releases are statistics of its rows."""
        return self.protects in ("rows", "users")

    def protect(
        self,
        epsilon: float,
        protects: str = "labels",
        n_peers: int = 0,
        is_summed: bool = False,
        rows_per_user: int = 0,
        group: str = "",
    ) -> None:
        """Fix the budget of this peer, before its first samples; the same one again changes nothing.

        `n_peers` is the number of peers that are expected to release statistics of their rows. If `is_summed`, only
        sums of these are seen, those of `group` if it is given; to protect users, with `rows_per_user` of each at most.
        """
        from dada.peer.releases import LONGEST_GROUP, ReleaseTerms
        from dada.privacy.accounting import Privacy

        # Base predictors have public ranges: rows are clipped to them.
        checked = Privacy(epsilon, protects="rows" if protects == "users" else protects, ranges=(-1, 1))
        _, network = self.read()
        if network.has_trees:
            raise HomeError("the peers of this network send trees, which reveal more than any budget allows")
        if is_summed and protects == "labels":
            raise HomeError("secure sums are for rows: add --protects rows, or users")
        if (protects == "users") != (rows_per_user > 0) or (protects == "users" and not is_summed):
            raise HomeError("--protects users needs --secure-sum and --rows-per-user, which nothing else does")
        if group and (not is_summed or len(group.encode()) > LONGEST_GROUP or not group.isprintable()):
            raise HomeError(
                f"--group is the public group of a --secure-sum, of at most {LONGEST_GROUP} bytes, got {group!r}"
            )
        if protects != "labels":
            if network.target.class_weights or network.config.graph != "evidence":
                raise HomeError(
                    "rows can be protected in networks with --graph evidence and without weights of classes"
                )
            ReleaseTerms.of(network.config, checked.epsilon, checked.delta)
        elif not network.target.classes:
            raise HomeError(
                "the labels of this network are numbers, which randomised response cannot protect: protect rows"
            )
        if self.samples.exists() and not self.is_private:
            raise HomeError(f"{self.folder} has samples, and what was sent cannot be withdrawn: use a new folder")
        # The budget comes first: a peer that is killed here is private, with an empty ledger.
        wanted = {"epsilon": checked.epsilon, "protects": protects, "n_peers": n_peers}
        wanted |= {"secure_sum": True} if is_summed else {}
        wanted |= {"rows_per_user": rows_per_user} if rows_per_user else {}
        wanted |= {"group": group} if group else {}
        wanted |= {JOINT: True} if protects != "labels" else {}
        if not self.is_private:
            atomic.write_bytes(self.budget, json.dumps(wanted).encode(), private=True)
        kept = json.loads(self.budget.read_bytes())
        for option in ("secure_sum", "rows_per_user", "group"):
            if kept.get(option) != wanted.get(option):
                raise HomeError(
                    f"{self.folder} was created with another --{option.replace('_', '-')}: use a new folder"
                )
        with self.open_ledger() as ledger:
            if (ledger.epsilon, self.protects) != (checked.epsilon, protects):
                raise HomeError(
                    f"{self.folder} has the budget epsilon {ledger.epsilon:g} for {self.protects}, got "
                    f"{checked.epsilon:g} for {protects}: what was released cannot be withdrawn, so the budget "
                    "stays"
                )

    @contextmanager
    def open_ledger(self) -> Iterator[PrivacyLedger]:
        """The ledger of a private peer."""
        from dada.privacy.accounting import Privacy, PrivacyLedger

        epsilon = json.loads(self.budget.read_bytes())["epsilon"]
        ledger = PrivacyLedger(self.ledger, epsilon=epsilon, delta=Privacy.delta)
        self.ledger.chmod(0o600)
        try:
            yield ledger
        finally:
            ledger.close()

    def release_labels(self, codes: NDArray[np.integer], n_classes: int, rows: bytes, source: Bits) -> Array:
        """Class numbers after randomised response, on disk before they are returned.

        The same rows, given by their bytes, return the same class numbers: after a crash no label is flipped anew.
        Other rows are refused, because the budget is spent.
        """
        from dada.privacy.accounting import BudgetError, PrivacyCost
        from dada.privacy.release import read_labels, release_labels

        name = f"labels of rows {_digest(rows, codes.astype('<i8').tobytes())}"
        with self.open_ledger() as ledger:
            epsilon, cost = ledger.epsilon, PrivacyCost(epsilon=ledger.epsilon)
            try:
                body = ledger.release(ME, name, cost, lambda: release_labels(codes, n_classes, epsilon, source))
            except BudgetError as error:
                raise self._spent() from error
        return read_labels(body)

    def kept_correlation(self, n_classes: int) -> float:
        """Correlation of released labels with the exact ones, 1 if this peer does not protect labels."""
        from dada.privacy.noise import label_correlation

        if self.protects != "labels":
            return 1.0
        return label_correlation(float(json.loads(self.budget.read_bytes())["epsilon"]), n_classes)

    def _spent(self) -> HomeError:
        return HomeError(
            f"{self.folder} released other {self.protects} before, and its budget is spent: run without --data to go "
            "on with these, or use a new folder if the new rows are of other persons"
        )

    def write_exact(self, rows: ExactRows, samples: UserRows) -> None:
        """Store rows to protect; others are refused after a release. Others' models may depend on a public row."""
        from dada.peer.releases import public_row

        with self.open_ledger() as ledger:
            if any(entry.name != _name_of(rows) for entry in ledger.entries(ME)):
                raise self._spent()
        _write_arrays(self.exact, {"h": rows.h, "y": rows.y})
        self.write_samples(samples, public_row(self.read()[1].config))

    def open_releases(self, me: PeerId, seal: Seal) -> SignedReleases:
        """The releases of a peer that protects its rows, with its own if it was made."""
        from dada.peer.releases import ExactRows, Releases, ReleaseTerms
        from dada.peer.secure_sums import SecureSums
        from dada.privacy.accounting import Privacy

        try:
            with self.exact.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                rows = ExactRows(**parts)
        except FileNotFoundError as error:
            raise HomeError(f"no samples in {self.folder} yet: give them once with `dada peer run --data`") from error
        budget, config = json.loads(self.budget.read_bytes()), self.read()[1].config
        many, is_joint = budget.get("rows_per_user", 0), budget.get(JOINT, False)
        terms = ReleaseTerms.of(config, budget["epsilon"], Privacy.delta, many, is_joint)
        n_peers = budget.get("n_peers", 0)
        found: SignedReleases
        if budget.get("secure_sum"):
            found = SecureSums(me, terms, rows, seal, secrets.token_bytes, n_peers, group=budget.get("group", ""))
        else:
            found = Releases(me, terms, rows, seal, n_peers)
        with self.open_ledger() as ledger:
            is_made = bool(ledger.entries(ME))
        if is_made:
            found.publish(self.release_statistics(found, Bits()))
        return found

    def release_statistics(self, releases: SignedReleases, source: Bits) -> bytes:
        """The noisy statistics of a peer's rows, on disk before they are returned; always the same bytes.

        A release that others returned is entered in the ledger as it was.
        """
        with self.open_ledger() as ledger:
            return ledger.release(
                ME,
                _name_of(releases.rows),
                releases.terms.mechanism.cost(ledger.epsilon),
                lambda: releases.returned or releases.draw(source),
            )

    def privacy_status(self) -> dict[str, Any]:
        """Budget and releases of a private peer; nothing for another."""
        if not self.is_private:
            return {}
        with self.open_ledger() as ledger:
            entries = ledger.entries(ME)
        # A release takes the whole budget. Its name is a digest of exact rows, from which few labels could be guessed.
        spent = ledger.epsilon if entries else 0.0
        # The ledger is written by releases only, and there is one at most.
        when = self.ledger.stat().st_mtime
        shown = {"protects": self.protects, "epsilon": ledger.epsilon, "spent": spent, "left": ledger.epsilon - spent}
        shown |= {"delta": 0.0 if self.protects == "labels" else ledger.delta}
        return {"privacy": shown | {"released": [{"sha256": entry.digest, "time": when} for entry in entries]}}

    def write_samples(self, rows: UserRows, released: UserRows | None = None) -> None:
        """Store the user's samples, as margins, for this and later runs; with released labels, if it is private.

        They replace all earlier ones, including those that wait in the inbox.
        """
        if (released is None) == self.is_private:
            raise HomeError(f"{self.folder}: a private peer, and no other, needs samples with released labels")
        if released is not None:
            _write_rows(self.released, released)
        waiting = self._waiting()
        _write_rows(self.samples, rows, [path.name for path in waiting])
        for path in waiting:
            path.unlink()

    def add_rows(self, rows: UserRows) -> None:
        """Put new samples into the inbox; the running peer takes them in within seconds, another one when it starts."""
        if self.is_private:
            raise HomeError("a private peer makes one release: new rows would need another")
        _, network = self.read()
        if network.has_trees:
            raise HomeError("trees are grown on all rows: give all of them again with `dada peer run --data`")
        checked_rows(rows, network.config)
        self.read_samples()
        self.inbox.mkdir(mode=0o700, exist_ok=True)
        _write_rows(self.inbox / f"{time.time_ns():020}-{secrets.token_hex(4)}.npz", rows)

    def write_plot(self, plot: Plot) -> None:
        """Store the user's samples in a network with trees, and the trees that were grown on them."""
        rows = {name: array for name, array in plot.fixed._asdict().items() if array is not None}
        grown = np.frombuffer(b"".join(plot.grown), np.uint8)
        parts = {"signs": plot.signs, "bins": plot.bins, "grown": grown, "taken": np.array([], np.str_)}
        _write_arrays(self.samples, rows | parts)

    def write_boosted(self, rows: UserRows, boosted: BoostedRows) -> None:
        """Store the user's samples in a network with boosted trees: as margins, and as numbers of thresholds."""
        margins = {name: array for name, array in rows._asdict().items() if array is not None}
        parts: dict[str, Any] = {"bins": boosted.bins, "y": boosted.y, "taken": np.array([], np.str_)}
        parts |= {} if boosted.weights is None else {"row_weights": boosted.weights}
        _write_arrays(self.samples, margins | parts)

    def open_boosting(self, me: PeerId, seal: Seal) -> SharedBoosting | None:
        """The samples of a peer for boosted trees, if its network has any."""
        _, network = self.read()
        if network.boosting is None:
            return None
        from dada.peer.boosted_trees import BoostedRows, varying_in
        from dada.peer.boosting import SharedBoosting

        _ = self.read_samples()
        with self.samples.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if not {"bins", "y"} <= set(stored):
                raise HomeError(f"{self.samples} has no rows for boosted trees: give --data and --label again")
            rows = BoostedRows(stored["bins"], stored["y"], stored.get("row_weights"))
        terms, config = network.boosting.terms(network.target.n_classes), network.config
        varying = varying_in(network.boosting.cuts)
        return SharedBoosting(me, terms, rows, varying, config.digest, seal, config.reply_timeout_s)

    def read_leaves(self) -> LeafModel | None:
        """Boosted trees and the user's own values of their leaves, if the network has any."""
        boosting = self.open_boosting(b"", Unsealed())
        if boosting is None:
            return None
        try:
            boosting.restore(read_records(self.state))
        except ValueError as error:
            raise damaged(self.state, str(error)) from error
        return boosting.leaves().model

    def open_grove(self, me: PeerId, seal: Seal) -> SharedGrove | None:
        """The samples and trees of a peer, if its network has trees."""
        _, network = self.read()
        if network.trees is None:
            return None
        rows = self.read_samples()
        with self.samples.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if not {*PLOT_PARTS} <= set(stored):
                raise HomeError(f"{self.samples} has no trees: give --data and --label again")
            signs, bins, grown = (stored[name] for name in PLOT_PARTS)
        terms = network.trees.terms
        plot = Plot(rows, signs, bins, tuple(terms.split(grown.tobytes())))
        return SharedGrove(me, terms, plot, network.config.digest, seal)

    def take_rows(self, config: PeerConfig, half_life: float | None, rng: np.random.Generator) -> UserRows | None:
        """Take the oldest file out of the inbox; returns all samples, or None if the inbox is empty.

        They are stored before the file is removed, with its name: whenever the process is killed, each file is taken
        once. With `half_life`, every older sample is first dropped with the probability that leaves half of them after
        that many files.
        """
        waiting = self._waiting()
        if not waiting:
            return None
        held, taken = _read_rows(self.samples)
        for path in waiting:
            if path.name in taken:
                path.unlink()
                continue
            try:
                new, _ = _read_rows(path)
                if half_life is not None:
                    held = _aged(held, rows_per_sample(config.n_classes), half_life, rng)
                rows = held.joined(checked_rows(new, config))
            except ValueError as error:
                path.rename(path.with_suffix(".refused"))
                raise HomeError(
                    f"{path} is refused ({error}): give these rows again with `dada peer add-rows`"
                ) from error
            _write_rows(self.samples, rows, [*taken, path.name][-MOST_TAKEN:])
            path.unlink()
            return rows
        return None

    def _waiting(self) -> list[Path]:
        """Files in the inbox, the oldest first."""
        return sorted(self.inbox.glob("[0-9]*.npz"))

    def read_samples(self) -> UserRows:
        """The user's samples, as margins."""
        return self._rows_in(self.samples)

    def read_released(self) -> UserRows:
        """The samples of a private peer with released labels: all that others' models may depend on."""
        return self._rows_in(self.released)

    def _rows_in(self, path: Path) -> UserRows:
        try:
            return _read_rows(path)[0]
        except FileNotFoundError as error:
            raise HomeError(f"no samples in {self.folder} yet: give them once with `dada peer run --data`") from error
        except ValueError as error:
            raise HomeError(f"{path} is damaged ({error}): give --data and --label again") from error

    def read_model(self) -> Array:
        """The model for predictions: the shared one, or the local one if the peer chose it."""
        return self.read_model_and_trees()[0]

    def read_model_and_trees(self) -> tuple[Array, list[bytes]]:
        """The model for predictions, and the trees among its base predictors, if the network has any."""
        config, rows = self.read()[1].config, self.read_samples()
        records = read_records(self.state)
        if HOME_KEY in records:
            return np.frombuffer(records[HOME_KEY], config.dtype), []
        if self.has_statistics:
            alone = self.open_releases(b"", Unsealed()).home_model(np.random.default_rng(0))
            return alone.astype(config.dtype), []
        grove, atoms = self.open_grove(b"", Unsealed()), list[bytes]()
        try:
            if grove is not None:
                grove.restore(records, OwnModel.stored_dictionary(records))
                rows, atoms, config = grove.rows(), grove.atoms, config.with_trees(grove.name, grove.origin([]))
            if records.get(TRUST_KEY) == b"no":
                return Fallback(rows, config).alpha, atoms
            own = OwnModel(rows, config)
            own.restore(records)
        except ValueError as error:
            raise damaged(self.state, str(error)) from error
        return own.model.alpha, atoms

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status file, for `dada peer status`."""
        atomic.write_bytes(self.status, json.dumps(status, allow_nan=False).encode(), private=True, durable=False)

    def read_status(self) -> dict[str, Any]:
        """Last status of the peer, with `running` true or false."""
        return _read_object(self.status) | {"running": self.is_running()} | self.privacy_status()

    def read_names(self) -> dict[str, str]:
        """Nicknames that the owner gave to other peers, by id."""
        return {str(peer): str(name) for peer, name in _read_object(self.names).items()}

    def give_name(self, peer: PeerId, name: str) -> None:
        """Give a peer a nickname, which only the owner of this folder sees; an empty one removes it."""
        if not name.isprintable() or len(name) > LONGEST_NAME:
            raise ValueError(f"a nickname has at most {LONGEST_NAME} printable characters, got {name!r}")
        names = {other: known for other, known in self.read_names().items() if other != peer.hex()}
        if name in names.values():
            raise ValueError(f"another peer is called {name!r} already: choose another name")
        names |= {peer.hex(): name} if name else {}
        atomic.write_bytes(self.names, json.dumps(names, indent=1).encode(), private=True)

    def is_running(self) -> bool:
        """Whether a process runs this peer now."""
        try:
            with self.lock():
                return False
        except HomeError:
            return True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the peer for this process: two processes with one identity would overwrite each other's state."""
        import fcntl

        if not self.folder.is_dir():
            raise FileNotFoundError(f"no peer in {self.folder}: create one with `dada peer init`")
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise HomeError(f"another process runs the peer in {self.folder}: stop it first") from error
        finally:
            os.close(descriptor)


def _write_rows(path: Path, rows: UserRows, taken: Sequence[str] = ()) -> None:
    """Write samples, with the names of inbox files that are among them."""
    arrays = {name: array for name, array in rows._asdict().items() if array is not None}
    _write_arrays(path, arrays | {"taken": np.array(taken, np.str_)})


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with needing_room(path):
        atomic.write_bytes(path, buffer.getvalue(), private=True)


def _read_rows(path: Path) -> tuple[UserRows, list[str]]:
    """Samples, and the names of inbox files that are among them; raises `ValueError` if the file is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            arrays = dict(parts)
        taken = arrays.pop("taken", np.empty(0, np.str_)).tolist()
        return UserRows(
            **{name: array for name, array in arrays.items() if name not in (*PLOT_PARTS, *BOOSTED_PARTS)}
        ), taken
    except (TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from error


def _aged(rows: UserRows, per_sample: int, half_life: float, rng: np.random.Generator) -> UserRows:
    """Samples that are left after one more file."""
    kept = rng.random(len(rows.A) // per_sample) < 0.5 ** (1.0 / half_life)
    return rows.take(np.repeat(kept, per_sample))


def _digest(*content: bytes) -> str:
    return hashlib.sha256(b"".join(content)).hexdigest()[:32]


def _name_of(rows: ExactRows) -> str:
    return f"statistics of rows {_digest(rows.h.tobytes(), rows.y.tobytes())}"


def _how_to_join(me: PeerId) -> str:
    return (
        f"Its founder runs `dada peer admit NETWORK {me.hex()}`; give the line that this prints to "
        "`dada peer init --certificate`"
    )


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it does not exist or is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
