"""Coded changes and models as bytes, of the length that `dada.core.bits.coded_bits` prices.

A code is a sequence of bits, the most significant first:

1. the exponent of the unit, 8 bits, signed;
2. the form of the coordinates, 1 bit;
3. form 0: their number, and their indices in ascending order, with the fewest bits for n base predictors;
   form 1: a bitmap of n bits. The shorter form is used, form 0 if both are equal;
4. the values, in the order of the coordinates, as two's complement numbers of a given width;
5. zeros up to a whole byte.

So there is one code for each list of entries. `read_code` refuses every other one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dada.core.bits import HEADER_BITS
from dada.core.compiled import Array
from dada.peer.messages import ImplausibleError

EXPONENT_BITS = 8
# Widest values of a code: whole numbers in double precision.
WIDEST = 54


class Code(NamedTuple):
    """Entries of a change or a model: `value[c] * 2**exponent` at `coordinate[c]`, ascending."""

    coordinate: Array
    value: Array
    exponent: int


def write_code(entries: Code, n: int, width: int) -> bytes:
    """The code of entries with values of `width` bits, for n base predictors.

    >>> code = write_code(Code(np.array([2, 5]), np.array([-3, 1]), -4), n=8, width=4)
    >>> len(code), read_code(code, n=8, width=4, finest=-20)
    (4, Code(coordinate=array([2, 5]), value=array([-3,  1]), exponent=-4))
    """
    index_bits, count_bits = _widths(n)
    size = entries.coordinate.size
    has_bitmap = _has_bitmap(n, size)
    header = [_bits(np.array([entries.exponent]), EXPONENT_BITS), np.array([has_bitmap], np.uint8)]
    if has_bitmap:
        bitmap = np.zeros(n, np.uint8)
        bitmap[entries.coordinate] = 1
        where = [bitmap]
    else:
        where = [_bits(np.array([size]), count_bits), _bits(entries.coordinate, index_bits)]
    return np.packbits(np.concatenate([*header, *where, _bits(entries.value, width)])).tobytes()


def read_code(code: bytes, n: int, width: int, finest: int) -> Code:
    """The entries in a code, checked; raises `ImplausibleError`."""
    if not 2 <= width <= WIDEST:
        raise ImplausibleError(f"a code has values of {width} bits, it must be 2 to {WIDEST}")
    index_bits, count_bits = _widths(n)
    if len(code) * 8 > HEADER_BITS + n + n * width + 7:
        raise ImplausibleError(f"a code of {len(code)} bytes is too long for {n} base predictors")
    bits = np.unpackbits(np.frombuffer(code, np.uint8))
    if bits.size < HEADER_BITS + min(n, count_bits):
        raise ImplausibleError(f"a code of {len(code)} bytes is too short")
    exponent = int(_numbers(bits[:EXPONENT_BITS], EXPONENT_BITS)[0])
    if exponent < finest:
        raise ImplausibleError(f"a code has the exponent {exponent}, the finest is {finest}")
    has_bitmap, rest = bool(bits[EXPONENT_BITS]), bits[HEADER_BITS:]
    if has_bitmap:
        coordinates, rest = np.flatnonzero(rest[:n]), rest[n:]
    else:
        size, rest = int(_unsigned(rest[:count_bits], count_bits)[0]), rest[count_bits:]
        if rest.size < size * (index_bits + width):
            raise ImplausibleError(f"a code of {len(code)} bytes is too short for {size} entries")
        coordinates, rest = _unsigned(rest[: size * index_bits], index_bits, size), rest[size * index_bits :]
    size = coordinates.size
    if size == 0 or size > n or has_bitmap != _has_bitmap(n, size):
        raise ImplausibleError(f"a code has {size} entries, in a form that is not the shortest")
    if coordinates[-1] >= n or (np.diff(coordinates) <= 0).any():
        raise ImplausibleError(f"a code has coordinates that are not ascending, or beyond the {n} base predictors")
    if not size * width <= rest.size < size * width + 8 or rest[size * width :].any():
        raise ImplausibleError(f"a code of {len(code)} bytes does not end with its {size} values")
    values = _numbers(rest[: size * width], width)
    if (values == 0).any() or (values == -(1 << (width - 1))).any():
        raise ImplausibleError(f"a code has values that are zero or beyond {width} bits")
    return Code(coordinates, values, exponent)


def width_of(values: Array) -> int:
    """The fewest bits of each of these values, as `dada.core.block_steps.value_bits` counts them."""
    return int(np.abs(values).max()).bit_length() + 1


def _widths(n: int) -> tuple[int, int]:
    """Bits of an index, and of a number of entries from 0 to n."""
    return (n - 1).bit_length(), n.bit_length()


def _has_bitmap(n: int, size: int) -> bool:
    index_bits, count_bits = _widths(n)
    return n < count_bits + size * index_bits


def _bits(numbers: Array, width: int) -> Array:
    places = np.arange(width - 1, -1, -1)
    return ((numbers.astype(np.int64)[:, None] >> places) & 1).astype(np.uint8).ravel()


def _unsigned(bits: Array, width: int, size: int = 1) -> Array:
    return bits.reshape(size, width).astype(np.int64) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))


def _numbers(bits: Array, width: int) -> Array:
    unsigned = _unsigned(bits, width, bits.size // width)
    return unsigned - (unsigned >> (width - 1) << width)
