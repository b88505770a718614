"""Graph regularizers g(w) = sum of g_kl(w_kl) over pairs + sum of g_k(d_k) over users.

Any such function with convex, smooth parts fits the decentralized graph step: its gradient at an edge depends only on
the weight of that edge and the degrees of its ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dada.core.compiled import NO_ADDRESSES, Addresses, ScalarFunction, addresses_of, call, kernel

LOG_DEGREE, DEGREE_TARGET, DEGREE_FUNCTION = 0, 1, 2


class RegularizerCode(NamedTuple):
    """A regularizer for kernels. `offset` is delta or the target degree."""

    code: int
    lam: float
    l1: float = 0.0
    offset: float = 0.0
    custom: Addresses = NO_ADDRESSES


@dataclass(frozen=True)
class LogDegree:
    """The paper's regularizer lam ||w||^2 - sum log(d_k + delta).

    Every user gets neighbours; a smaller lam gives a sparser graph.

    >>> LogDegree(lam=0.1).compiled.code == LOG_DEGREE
    True
    """

    lam: float = 0.1
    delta: float = 0.1

    def __post_init__(self) -> None:
        if not (0 < self.lam < math.inf and 0 < self.delta < math.inf):
            raise ValueError(f"lam and delta must be > 0 and finite, got lam={self.lam}, delta={self.delta}")

    @property
    def compiled(self) -> RegularizerCode:
        """The regularizer for kernels."""
        return RegularizerCode(LOG_DEGREE, float(self.lam), 0.0, float(self.delta))


@dataclass(frozen=True)
class DegreeTarget:
    """A target for all degrees: lam ||w||^2 + l1 ||w||_1 + sum (d_k - target)^2 / 2; l1 > 0 removes weak edges.

    >>> DegreeTarget(target=2.0).compiled.offset
    2.0
    """

    target: float = 1.0
    lam: float = 0.1
    l1: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.lam < math.inf and 0 < self.target < math.inf and 0 <= self.l1 < math.inf):
            raise ValueError(
                "lam and target must be > 0, l1 >= 0, all finite, "
                f"got lam={self.lam}, target={self.target}, l1={self.l1}"
            )

    @property
    def compiled(self) -> RegularizerCode:
        """The regularizer for kernels."""
        return RegularizerCode(DEGREE_TARGET, float(self.lam), float(self.l1), float(self.target))


@dataclass(frozen=True)
class DegreeFunction:
    """A custom regularizer: lam ||w||^2 + the sum of a convex function of each degree.

    Parameters
    ----------
    value, slope, curvature : functions of one float, compilable by Numba
        The function of the degree and its first and second derivatives. The graph step "lipschitz" assumes that the
        curvature is largest at degree zero; "exact" does not.
    lam : float
        Weight of ||w||^2; must be positive.

    Examples
    --------
    >>> own = DegreeFunction(lambda d: 1 / (1 + d), lambda d: -1 / (1 + d) ** 2, lambda d: 2 / (1 + d) ** 3)
    >>> own.compiled.code == DEGREE_FUNCTION
    True
    """

    value: ScalarFunction
    slope: ScalarFunction
    curvature: ScalarFunction
    lam: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.lam < math.inf:
            raise ValueError(f"lam must be > 0 and finite, got {self.lam}")

    @property
    def compiled(self) -> RegularizerCode:
        """The regularizer for kernels."""
        custom = addresses_of(self.value, self.slope, self.curvature)
        return RegularizerCode(DEGREE_FUNCTION, float(self.lam), 0.0, 0.0, custom)


Regularizer = LogDegree | DegreeTarget | DegreeFunction


@kernel
def degree_value(reg: RegularizerCode, degree: float) -> float:
    """g_k at a degree."""
    if reg.code == LOG_DEGREE:
        return -math.log(degree + reg.offset)
    if reg.code == DEGREE_TARGET:
        return 0.5 * (degree - reg.offset) ** 2
    return call(reg.custom.value, degree)


@kernel
def degree_slope(reg: RegularizerCode, degree: float) -> float:
    """Derivative of g_k. For the log it is negative; the paper's appendix has the wrong sign."""
    if reg.code == LOG_DEGREE:
        return -1.0 / (degree + reg.offset)
    if reg.code == DEGREE_TARGET:
        return degree - reg.offset
    return call(reg.custom.slope, degree)


@kernel
def degree_curvature(reg: RegularizerCode, degree: float) -> float:
    """Second derivative of g_k."""
    if reg.code == LOG_DEGREE:
        return 1.0 / (degree + reg.offset) ** 2
    if reg.code == DEGREE_TARGET:
        return 1.0
    return call(reg.custom.curvature, degree)


@kernel
def weight_value(reg: RegularizerCode, w: float) -> float:
    """g_kl at a weight."""
    return (reg.lam * w + reg.l1) * w


@kernel
def weight_slope(reg: RegularizerCode, w: float) -> float:
    """Derivative of g_kl."""
    return 2.0 * reg.lam * w + reg.l1


@kernel
def best_weight(reg: RegularizerCode, cost: float, rest: float) -> float:
    """The w >= 0 that minimises cost * w + g_kl(w) + g_l(rest + w): one coordinate of the exact block step."""
    at_zero = cost + reg.l1 + degree_slope(reg, rest)
    if at_zero >= 0.0:
        return 0.0
    if reg.code == LOG_DEGREE:
        # The root of 2 lam w^2 + linear w + rho at_zero = 0, without cancellation.
        rho = rest + reg.offset
        linear = cost + 2.0 * reg.lam * rho
        root = math.sqrt(linear * linear - 8.0 * reg.lam * rho * at_zero)
        return -2.0 * rho * at_zero / (linear + root) if linear > 0.0 else (root - linear) / (4.0 * reg.lam)
    if reg.code == DEGREE_TARGET:
        return -at_zero / (2.0 * reg.lam + 1.0)
    low, high = 0.0, -at_zero / (2.0 * reg.lam)
    w = 0.0
    for _ in range(100):
        slope = cost + weight_slope(reg, w) + degree_slope(reg, rest + w)
        if slope > 0.0:
            high = w
        else:
            low = w
        step = w - slope / (2.0 * reg.lam + degree_curvature(reg, rest + w))
        if not low < step < high:
            step = 0.5 * (low + high)
        if abs(step - w) <= 1e-14 * (1.0 + w):
            return step
        w = step
    return w
