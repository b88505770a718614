"""The founder of a network: its key and its list of revoked members, in two files beside the network file.

No peer needs these files. Whoever has the key decides who belongs to the network.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from dada import atomic
from dada.net.credentials import (
    CERTIFICATE_PREFIX,
    REVOCATION_PREFIX,
    KeyFileError,
    read_key,
    read_revocation,
    to_text,
    write_key,
)
from dada.net.iroh_transport import IrohSeal, new_secret_key, public_key
from dada.net.network_file import NetworkFile, read_network
from dada.peer.messages import PeerId

DAY_S = 86_400


class Founder:
    """The founder of the network that a file describes.

    Parameters
    ----------
    network : Path
        The network file. The key is beside it, with the suffix `.founder`, and the list with `.revoked`.
    """

    def __init__(self, network: Path) -> None:
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
