"""Numbers as readers of tables want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dada.experiments.published import Published

NOTHING = "–"


def accuracy(mean: float | None, std: float | None = None) -> str:
    """A percentage with two digits, and its standard deviation where there is one.

    >>> accuracy(95.567, 0.214), accuracy(70.0), accuracy(None)
    ('95.57 ± 0.21', '70.00', '–')
    """
    if mean is None:
        return NOTHING
    # A deviation that would be shown as zero is one of rounding: a method without chance.
    return f"{mean:.2f}" if not std or std < 0.005 else f"{mean:.2f} ± {std:.2f}"


def published(value: Published | None) -> str:
    """A published accuracy."""
    return NOTHING if value is None else accuracy(value.mean, value.std)


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many digits behind the point."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference with its sign.

    >>> signed(-0.314)
    '-0.31'
    """
    return NOTHING if value is None else f"{value:+.2f}"


def settings(values: Mapping[str, Any]) -> str:
    """Hyper-parameters in one line.

    >>> settings({"beta": 10.0, "mu": 0.001})
    'beta 10, mu 0.001'
    """
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or NOTHING


def bits(value: float | None) -> str:
    """An amount of bits.

    >>> bits(2_872_320), bits(512.0)
    ('2.87 Mbit', '512 bit')
    """
    if value is None:
        return NOTHING
    for factor, unit in ((1e9, "Gbit"), (1e6, "Mbit"), (1e3, "kbit")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} bit"
