"""What a user releases once: noisy sufficient statistics of its rows, or its labels after randomised response.

With base predictions h of a row, ||h||_2 <= R, and outputs y, ||y||_2 <= 1, the statistics are

    G = sum h h^T      replace-one sensitivity sqrt(2) R^2 in Frobenius norm
    B = sum h y^T      replace-one sensitivity 2 R

No row moves both that far. If h is replaced by h' with h.h' = c R^2, then G / R^2 moves by the square root of 2 - 2 c^2
at most, and B / R by that of 2 + 2 |c|: together by at most 3 / sqrt(2), for c = 1/2 and opposite outputs. So both
receive the same noise in these units, a third less on B than if the two sensitivities were added up.

Both are sums of integers: h and y are cut to multiples of 2^-16, which shortens them. So the sensitivities hold
exactly, and noise on the same grid hides every bit. A release is encoded once; whoever holds its bytes can decode them,
and everything computed from them is post-processing.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dada.privacy.accounting import PrivacyCost, gaussian_mu, grid_delta
from dada.privacy.noise import Bits, gaussian_vector, randomised_response

MAGIC = b"dada-rel"
FORMAT = 1
# Cells of h and y have this many fractional bits, their products twice as many.
CELL_BITS = 16
UNIT = 1 << (2 * CELL_BITS)
# Part of mu^2 that B received when the sensitivities of G and B were added up, as folders of older peers still do.
MOMENT_SHARE = 0.5
# Float products are exact up to 2^53.
EXACT_ROWS = 1 << 20
MOST_HEADER = 1 << 16
# Sums up to this size leave room for their noise in 64 bits.
MOST_CELL = 1 << 62


class ReleaseError(ValueError):
    """Bytes that are no release, or damaged."""


class Statistics(NamedTuple):
    """Released statistics: G, symmetric, and B, with the number of rows and the standard deviations of the noise.

    `gram_sigma` is that of the diagonal of G; off the diagonal it is smaller by the square root of 2.
    """

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    n_rows: int
    gram_sigma: float
    moment_sigma: float


@dataclass(frozen=True)
class StatisticsMechanism:
    """Gaussian mechanism for (G, B), calibrated jointly.

    `norm` is R, the public bound on ||h||_2. `gram_steps` and `moment_steps` are the standard deviations of the noise
    on the diagonal of G and on B, in units of 2^-32.
    """

    n_predictors: int
    n_outputs: int
    norm: float
    gram_steps: int
    moment_steps: int

    @classmethod
    def calibrated(
        cls,
        epsilon: float,
        delta: float,
        *,
        n_predictors: int,
        n_outputs: int,
        norm: float | None = None,
        is_joint: bool = True,
    ) -> Self:
        """The least noise that makes (G, B) together (epsilon, delta)-private.

        Noise of equal size on G / R^2 and B / R makes the least error of a model whose outputs reach 1 on rows of norm
        R. Without `is_joint` the sensitivities of G and B are added up.
        """
        norm = math.sqrt(n_predictors) if norm is None else min(norm, math.sqrt(n_predictors))
        # The grid costs less than this part of delta whenever there are 2^20 steps per standard deviation.
        mu = gaussian_mu(epsilon, delta * (1 - 1e-6))
        sensitivities = (
            (3 / math.sqrt(2),) * 2 if is_joint else (math.sqrt(2 / (1 - MOMENT_SHARE)), 2 / math.sqrt(MOMENT_SHARE))
        )
        gram, moment = sensitivities[0] * norm**2 / mu, sensitivities[1] * norm / mu
        found = cls(n_predictors, n_outputs, norm, math.ceil(gram * UNIT), math.ceil(moment * UNIT))
        spent = found.cost(epsilon).delta_at(epsilon)
        if spent > delta:
            raise ValueError(
                f"epsilon={epsilon:g} allows so little noise that the grid of 2^-{2 * CELL_BITS} shows "
                f"(delta {spent:.3g}, budget {delta:.3g}): use a smaller epsilon"
            )
        return found

    @property
    def gram_sigma(self) -> float:
        """Standard deviation of the noise on the diagonal of G."""
        return self.gram_steps / UNIT

    @property
    def moment_sigma(self) -> float:
        """Standard deviation of the noise on B."""
        return self.moment_steps / UNIT

    def cost(self, epsilon: float) -> PrivacyCost:
        """The cost of one release, with the delta of the grid at this epsilon."""
        n = self.n_predictors
        steps = (self.gram_steps, _off_diagonal(self.gram_steps), self.moment_steps)
        return PrivacyCost(mu=self.mu, delta=grid_delta(epsilon, steps, (n, n * (n - 1) // 2, n * self.n_outputs)))

    @property
    def mu(self) -> float:
        """How far one replaced row moves (G, B), in standard deviations of the noise, at most."""
        gram, moment = (self.norm**2 / self.gram_sigma) ** 2, (self.norm / self.moment_sigma) ** 2
        # The largest value of gram (2 - 2 c^2) + moment (2 + 2 c) for 0 <= c <= 1.
        cosine = min(1.0, moment / (2 * gram))
        return math.sqrt(gram * (2 - 2 * cosine**2) + moment * (2 + 2 * cosine))

    def release(self, h: NDArray[Any], y: NDArray[Any], source: Bits, spec: str = "") -> bytes:
        """Noisy statistics of a user's rows, as bytes: base predictions h and outputs y in [-1, 1].

        Rows of h longer than `norm` are shortened, and rows of y longer than 1. `spec` names the base predictors and
        ranges; releases with different names cannot be added.
        """
        gram, moment = sums(h, y, self.norm)
        n = self.n_predictors
        if gram.shape != (n, n) or moment.shape != (n, self.n_outputs):
            raise ValueError(f"h must have {n} columns and y {self.n_outputs}, got {len(gram)} and {moment.shape[1]}")
        upper = np.triu_indices(n, 1)
        parts = (
            np.diagonal(gram) + gaussian_vector(source, self.gram_steps, n),
            gram[upper] + gaussian_vector(source, _off_diagonal(self.gram_steps), len(upper[0])),
            moment.ravel() + gaussian_vector(source, self.moment_steps, moment.size),
        )
        header = {"kind": "statistics", "rows": len(h), "predictors": n, "outputs": self.n_outputs, "norm": self.norm}
        header |= {"gram_steps": self.gram_steps, "moment_steps": self.moment_steps, "spec": spec}
        return _encoded(header, np.concatenate(parts))


def _off_diagonal(steps: int) -> int:
    """Noise off the diagonal of G, whose cells count twice in the Frobenius norm: smaller by sqrt(2), rounded up."""
    return math.isqrt(steps * steps // 2) + 1


def sums(h: NDArray[Any], y: NDArray[Any], norm: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Exact G and B in units of 2^-32, of rows cut to the grid and shortened to `norm`."""
    if len(h) * norm**2 * UNIT > MOST_CELL:
        raise ValueError(
            f"a release holds at most {MOST_CELL / UNIT / norm**2:.3g} rows of norm {norm:g}, got {len(h)}"
        )
    cells, outputs = _shortened(h, norm), _shortened(y, 1.0)
    gram = np.zeros((cells.shape[1], cells.shape[1]), np.int64)
    moment = np.zeros((cells.shape[1], outputs.shape[1]), np.int64)
    for start in range(0, len(cells), EXACT_ROWS):
        block = cells[start : start + EXACT_ROWS]
        gram += (block.T @ block).astype(np.int64)
        moment += (block.T @ outputs[start : start + EXACT_ROWS]).astype(np.int64)
    return gram, moment


def _shortened(values: NDArray[Any], norm: float) -> NDArray[np.float64]:
    """Rows as whole numbers of 2^-16, cut towards zero, none longer than `norm`."""
    values = np.clip(np.asarray(values, np.float64), -1.0, 1.0)
    length = np.sqrt((values**2).sum(axis=1, keepdims=True))
    scale = np.minimum(1.0, norm / np.maximum(length, 1e-300))
    limit = norm**2 * UNIT
    while True:
        cells = np.trunc(values * scale * (1 << CELL_BITS))
        long = (cells**2).sum(axis=1) > limit
        if not long.any():
            return np.asarray(cells, np.float64)
        scale[long] *= 1 - 2.0**-CELL_BITS


def read_statistics(body: bytes) -> tuple[Statistics, str]:
    """Decode released statistics, and the name of their base predictors and ranges."""
    header, values = _decoded(body, "statistics")
    try:
        n, outputs, rows = (int(header[name]) for name in ("predictors", "outputs", "rows"))
        sigmas = [int(header[name]) / UNIT for name in ("gram_steps", "moment_steps")]
        spec = str(header["spec"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReleaseError(f"the header of the release lacks a number ({error!r})") from error
    triangle = n * (n - 1) // 2
    if min(n, outputs, rows, *sigmas) <= 0 or len(values) != n + triangle + n * outputs:
        raise ReleaseError(f"a release of {n} predictors and {outputs} outputs cannot hold {len(values)} numbers")
    cells = values / UNIT
    gram = np.zeros((n, n))
    gram[np.triu_indices(n, 1)] = cells[n : n + triangle]
    gram += gram.T
    gram[np.diag_indices(n)] = cells[:n]
    return Statistics(gram, cells[n + triangle :].reshape(n, outputs), rows, *sigmas), spec


def release_labels(labels: NDArray[np.integer], n_classes: int, epsilon: float, source: Bits) -> bytes:
    """A user's class numbers after randomised response, as bytes."""
    given = randomised_response(source, labels, n_classes, epsilon)
    return _encoded({"kind": "labels", "classes": n_classes, "epsilon": epsilon}, given)


def read_labels(body: bytes) -> NDArray[np.int64]:
    """Decode released labels."""
    header, labels = _decoded(body, "labels")
    n_classes = header.get("classes")
    if not isinstance(n_classes, int) or not ((labels >= 0) & (labels < n_classes)).all():
        raise ReleaseError(f"released labels must be class numbers below {n_classes!r}")
    return labels


def _encoded(header: dict[str, Any], values: NDArray[np.int64]) -> bytes:
    """Magic, format, length of the header, header as JSON, numbers as little-endian int64."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return MAGIC + struct.pack("<HI", FORMAT, len(text)) + text + values.astype("<i8").tobytes()


def _decoded(body: bytes, kind: str) -> tuple[dict[str, Any], NDArray[np.int64]]:
    start = len(MAGIC) + struct.calcsize("<HI")
    if len(body) < start or not body.startswith(MAGIC):
        raise ReleaseError(f"a release starts with {MAGIC!r}, got {body[:8]!r}")
    version, size = struct.unpack("<HI", body[len(MAGIC) : start])
    if version != FORMAT:
        raise ReleaseError(f"the release has format {version}, this program reads {FORMAT}: update it")
    if size > MOST_HEADER or len(body) < start + size or (len(body) - start - size) % 8:
        raise ReleaseError(f"the release is cut short or damaged: {len(body)} bytes, header of {size}")
    try:
        header = json.loads(body[start : start + size])
    except ValueError as error:
        raise ReleaseError("the header of the release is damaged") from error
    if not isinstance(header, dict) or header.get("kind") != kind:
        raise ReleaseError(f"the release must hold {kind}, got {str(header)[:80]}")
    return header, np.frombuffer(body[start + size :], "<i8").astype(np.int64)


class Estimate(NamedTuple):
    """Whether releases are worth sending, and why, as a sentence."""

    send: bool
    reason: str


def worth_sending(mechanism: StatisticsMechanism, n_users: int, n_rows: int, square: float | None = None) -> Estimate:
    """Compare the sum of all users' statistics with the sum of their noise, from public numbers only.

    The signal is what a direction of G receives from `n_rows` rows on average, if ||h||^2 has the mean `square` (R^2 if
    it is not known better); the noise is the root mean square of the eigenvalues of the summed noise. If the noise is
    larger, nothing is sent: epsilon = 0.
    """
    n, longest = mechanism.n_predictors, mechanism.norm**2
    signal = n_rows * min(longest, longest if square is None else square) / n
    noise = mechanism.gram_sigma / math.sqrt(2) * math.sqrt(n_users * n)
    what = f"the pooled signal of {n_rows} rows ({signal:.3g} per direction)"
    if signal >= noise:
        return Estimate(True, f"Releases are sent: {what} exceeds the pooled noise ({noise:.3g}).")
    return Estimate(
        False,
        f"Nothing is sent and every user learns alone, with epsilon 0: {what} is below the pooled noise ({noise:.3g}). "
        "More users or rows, fewer features, or a larger epsilon would change that.",
    )
