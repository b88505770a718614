"""Private peers of a simulated network: each release is in a ledger, which survives crashes, before it is sent.

Noise comes from the seed, so that a run can be repeated: a simulation protects nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dada.core.compiled import Array
from dada.core.model_steps import UserRows
from dada.peer.inputs import PeerConfig
from dada.peer.member import Member
from dada.peer.messages import PeerId
from dada.peer.releases import ExactRows, Releases, ReleaseTerms, SignedReleases
from dada.peer.signatures import Seal
from dada.privacy.accounting import PrivacyCost, PrivacyLedger
from dada.privacy.noise import Bits
from dada.privacy.pooling import home_model
from dada.privacy.release import read_labels, release_labels


@dataclass(frozen=True, eq=False)
class PrivateUsers:
    """Users who protect their labels or their rows.

    `learned` are the samples of which all that peers send about models is made, with released labels or public ones;
    `exact` what stays at home. `kept` is the correlation of a released label with the exact one.
    """

    learned: Sequence[UserRows]
    exact: Sequence[UserRows] | Sequence[ExactRows]
    ledger: PrivacyLedger
    source: Bits
    kept: float = 1.0

    @property
    def n_released(self) -> int:
        """Users who have made their release."""
        return len(self.ledger.entries())

    def options(self, k: int, me: PeerId, config: PeerConfig, seal: Seal) -> dict[str, Any]:
        """What makes the member of user k a private one, in each of its lives."""
        exact = self.exact[k]
        if isinstance(exact, UserRows):
            return {"exact": exact, "kept": self.kept}
        terms = ReleaseTerms.of(config, self.ledger.epsilon, self.ledger.delta)
        releases = Releases(me, terms, exact, seal, expected=len(self.exact))
        if self.ledger.entries(me.hex()):
            releases.publish(self._booked(releases))
        return {"releases": releases}

    def release_once(self, member: Member) -> None:
        """Make the release of a peer that protects its rows, as a node does."""
        releases = member.releases
        if releases is None or releases.own is not None:
            return
        if releases.returned is not None or member.release_estimate.send:
            releases.publish(self._booked(releases))

    def _booked(self, releases: SignedReleases) -> bytes:
        cost = releases.terms.mechanism.cost(self.ledger.epsilon)
        return self.ledger.release(
            releases.me.hex(), "statistics", cost, lambda: releases.returned or releases.draw(self.source)
        )


def released_labels(
    codes: NDArray[np.integer], row_start: NDArray[np.integer], n_classes: int, ledger: PrivacyLedger, source: Bits
) -> NDArray[np.int64]:
    """Class numbers of all users after randomised response, each user's entered in the ledger."""
    epsilon, found = ledger.epsilon, []
    for k in range(len(row_start) - 1):
        own = codes[row_start[k] : row_start[k + 1]]
        body = ledger.release(
            str(k),
            "labels",
            PrivacyCost(epsilon=epsilon),
            lambda own=own: release_labels(own, n_classes, epsilon, source),  # type: ignore[misc]
        )
        found.append(read_labels(body))
    return np.concatenate(found)


def together(member: Member) -> Array:
    """The model that a member has learned with others; of a private one, its home model."""
    is_private = member.is_private or member.releases is not None
    return member.model if is_private else member.peer.own.model.alpha


def alone(member: Member) -> Array:
    """The model of a member's exact rows alone."""
    releases = member.releases
    if releases is None:
        return member.fallback.alpha
    mechanism, rows = releases.terms.mechanism, releases.rows
    nothing = np.zeros((0, mechanism.n_predictors, mechanism.n_outputs))
    return np.ascontiguousarray(home_model(rows.h, rows.y, nothing, releases.terms.coupling).T).ravel()


def trusts(member: Member) -> bool:
    """Whether a member predicts with the model learned with others; home models contain that choice."""
    return True if member.releases is not None else member.trusts_others
