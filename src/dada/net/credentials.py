"""Key files, and lines of text that users pass to each other: tickets, certificates, lists of revoked members."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import stat
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dada import atomic
from dada.net.address_book import is_relay
from dada.net.network_file import KEY_SIZE, NetworkFile, read_network
from dada.peer.messages import Descriptor, PeerId, Revocation

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
