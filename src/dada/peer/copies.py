"""A model at a number, as its owner and its neighbours hold it, and its form in messages.

Steps of one move send floats: a whole model as coordinates and values, a change as a move. Block steps send whole
numbers of a unit, `2**exponent`, in the fewest bits: additions of such numbers are exact. Their code has the length
that `dada.core.bits.coded_bits` prices. It is a sequence of bits, the most significant first:

1. the exponent of the unit, 8 bits, signed;
2. the form of the coordinates, 1 bit;
3. form 0: their number, and their indices in ascending order, with the fewest bits for n base predictors;
   form 1: a bitmap of n bits. The shorter form is used, form 0 if both are equal;
4. the values, in the order of the coordinates, as two's complement numbers of a given width;
5. zeros up to a whole byte.

So there is one code for each list of entries. `read_code` refuses every other one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dada.core import block_steps as blocks
from dada.core import model_steps as steps
from dada.core.bits import HEADER_BITS, coded_bits
from dada.core.compiled import Array
from dada.peer.inputs import PeerConfig
from dada.peer.messages import (
    DICTIONARY_SIZE,
    LARGEST_COUNT,
    BlockChange,
    ImplausibleError,
    ModelDelta,
    ModelSnapshot,
    OtherDictionaryError,
)

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


# Rounding errors of sound peers, of other versions and machines too, are smaller than this relative to a bound.
SLACK = 1e-3
# A shared model may leave the l1 ball while parts of a change are unsent. Up to four times beta, sums are exact.
MOST_SHARED = 4.0


@dataclass(eq=False)
class ModelCopy:
    """A model at (epoch, sequence); `exponent` is that of its finest unit, under block steps."""

    alpha: Array
    support: Array
    n_support: int
    epoch: int
    sequence: int
    exponent: int = blocks.COARSEST

    @classmethod
    def zero(cls, n: int, epoch: int = 0, dtype: str = "float32") -> ModelCopy:
        """The zero model."""
        return cls(np.zeros(n, dtype), np.zeros(n, np.int16 if n < 2**15 else np.int32), 0, epoch, 0)

    @classmethod
    def from_snapshot(cls, snapshot: ModelSnapshot, n: int, beta: float, dtype: str = "float32") -> ModelCopy:
        """The model of floats in a message, checked."""
        kind = np.dtype(dtype).newbyteorder("<")
        if len(snapshot.coordinates) % 4 or len(snapshot.coordinates) * kind.itemsize != 4 * len(snapshot.values):
            raise ImplausibleError("a model's coordinates and values differ in number")
        coordinates = np.frombuffer(snapshot.coordinates, "<u4")
        values = np.frombuffer(snapshot.values, kind)
        if coordinates.size > n or (coordinates >= n).any():
            raise ImplausibleError(f"a model has coordinates beyond the {n} base predictors")
        if np.unique(coordinates).size != coordinates.size:
            raise ImplausibleError("a model names a coordinate twice")
        if not np.isfinite(values).all() or (values == 0).any():
            raise ImplausibleError("a model has values that are not finite or zero")
        if np.abs(values.astype(np.float64)).sum() > beta * (1 + SLACK):
            raise ImplausibleError(f"a model's l1 norm exceeds beta = {beta}")
        return cls._with(dtype, n, coordinates, values, snapshot)

    @classmethod
    def _with(cls, dtype: str, n: int, coordinates: Array, values: Array, snapshot: ModelSnapshot) -> ModelCopy:
        copy = cls.zero(n, snapshot.epoch, dtype)
        copy.alpha[coordinates] = values
        copy.support[: coordinates.size] = coordinates
        copy.n_support, copy.sequence = int(coordinates.size), snapshot.sequence
        return copy

    @property
    def number(self) -> tuple[int, int]:
        """(epoch, sequence)."""
        return self.epoch, self.sequence

    def precedes(self, number: tuple[int, int]) -> bool:
        """Whether the owner's model of that number is newer; a rebased copy precedes every model of its epoch."""
        return self.epoch <= number[0] if self.is_rebased else self.number < number

    @property
    def is_rebased(self) -> bool:
        """Whether `rebased` made this copy; no message carries it."""
        return self.sequence == LARGEST_COUNT

    @property
    def norm(self) -> float:
        """The l1 norm."""
        return float(np.abs(self.alpha[self.support[: self.n_support]].astype(np.float64)).sum())

    def rebased(self, origin: Array) -> ModelCopy:
        """The model with other coordinates; `origin` has the present one of each, or -1 for weight 0.

        Its number is the last of its epoch, because changes of the epoch may be over the old coordinates. Any whole
        model over the new ones replaces it, of the same epoch too: this peer may return to coordinates that the owner
        has kept.
        """
        target = np.full(self.alpha.size, -1)
        target[origin[origin >= 0]] = np.flatnonzero(origin >= 0)
        used = target[self.support[: self.n_support]]
        copy = ModelCopy.zero(origin.size, self.epoch, str(self.alpha.dtype))
        copy.alpha[:] = np.where(origin >= 0, self.alpha[origin], 0)
        copy.n_support = int((used >= 0).sum())
        copy.support[: copy.n_support] = used[used >= 0]
        copy.sequence, copy.exponent = LARGEST_COUNT, self.exponent
        return copy

    def snapshot(self) -> ModelSnapshot:
        """The model as floats, in the owner's order."""
        used = self.support[: self.n_support]
        values = self.alpha[used].astype(self.alpha.dtype.newbyteorder("<"))
        return ModelSnapshot(self.epoch, self.sequence, used.astype("<u4").tobytes(), values.tobytes())

    def follow(self, delta: ModelDelta, beta: float, scratch: steps.StepScratch) -> int:
        """Apply the owner's next move; returns the number of changed coordinates, listed in the scratch."""
        n = self.alpha.size
        if not (0 <= delta.j < n and (0 <= delta.away < n or delta.away in (steps.CENTRE, steps.ALL))):
            raise ImplausibleError(f"a move names coordinates beyond the {n} base predictors")
        if not 0.0 <= delta.gamma <= 1.0:
            raise ImplausibleError(f"a move has a step of {delta.gamma}, not in [0, 1]")
        if delta.away >= 0 and self.alpha[delta.away] == 0:
            raise ImplausibleError("a move takes weight from a coordinate that is zero")
        toward = beta if delta.positive else -beta
        move = steps.Move(delta.j, toward, delta.away, float(np.float32(delta.gamma)), delta.takes_all)
        self.n_support, n_changed = steps.apply_move(move, self.alpha, self.support, self.n_support, scratch)
        self.sequence = delta.sequence
        if self.norm > beta * (1 + SLACK):
            raise ImplausibleError(f"a move leaves a model whose l1 norm exceeds beta = {beta}")
        return int(n_changed)

    # -- block steps -----------------------------------------------------------------------------------------------

    @property
    def snapshot_bits(self) -> int:
        """Bits of `coded_snapshot`; none without entries, as in the engine's ledger."""
        return int(coded_bits(self.alpha.size, self.n_support, self._value_bits)) if self.n_support else 0

    @property
    def _value_bits(self) -> int:
        largest = blocks.largest_weight(self.alpha, self.support, self.n_support)
        return int(blocks.value_bits(largest, self.exponent))

    def coded_snapshot(self) -> ModelSnapshot:
        """The model as a code: the bits of a value in the first byte, then all entries, exact to the last bit."""
        if self.n_support == 0:
            return ModelSnapshot(self.epoch, self.sequence, b"", b"")
        used = np.sort(self.support[: self.n_support])
        units = np.ldexp(self.alpha[used].astype(np.float64), -self.exponent).astype(np.int64)
        width = self._value_bits
        code = write_code(Code(used, units, self.exponent), self.alpha.size, width)
        return ModelSnapshot(self.epoch, self.sequence, b"", bytes([width]) + code)

    @classmethod
    def from_code(cls, snapshot: ModelSnapshot, config: PeerConfig) -> ModelCopy:
        """The coded model in a message, checked."""
        n = config.n_predictors
        if snapshot.coordinates != config.dictionary:
            if config.agreed and len(snapshot.coordinates) in (0, DICTIONARY_SIZE):
                raise OtherDictionaryError(
                    f"a model over the dictionary {snapshot.coordinates.hex() or 'without trees'}"
                )
            raise ImplausibleError("a model of floats; this network sends coded models")
        if not snapshot.values:
            copy = cls.zero(n, snapshot.epoch, config.dtype)
            copy.sequence = snapshot.sequence
            return copy
        width = snapshot.values[0]
        coordinates, values, exponent = read_code(snapshot.values[1:], n, width, config.finest)
        if width_of(values) != width:
            raise ImplausibleError(f"a model has values of {width} bits, but needs {width_of(values)}")
        # Python's numbers do not overflow.
        if math.ldexp(1.0, exponent) * sum(abs(value) for value in values.tolist()) > MOST_SHARED * config.beta:
            raise ImplausibleError(f"a shared model's l1 norm exceeds {MOST_SHARED:g} times beta = {config.beta}")
        weights = np.ldexp(values.astype(np.float64), exponent)
        copy = cls._with(config.dtype, n, coordinates, weights, snapshot)
        copy.exponent = exponent
        return copy

    def follow_code(self, change: BlockChange, config: PeerConfig, scratch: steps.StepScratch) -> int:
        """Add the owner's next coded change; returns the number of changed coordinates, listed in the scratch."""
        width = config.block.quantise_bits
        coordinates, values, exponent = read_code(change.code, config.n_predictors, width, config.finest)
        message = blocks.CodedChange(coordinates.astype(np.int32), values.astype(np.int32))
        blocks.decode_change(message, values.size, exponent, scratch)
        if not self.add(values.size, exponent, config.beta, scratch):
            raise ImplausibleError(f"a change leaves a model whose l1 norm exceeds {MOST_SHARED:g} times beta")
        self.sequence = change.sequence
        return int(values.size)

    def add(self, n_changed: int, exponent: int, beta: float, scratch: steps.StepScratch) -> bool:
        """Add the change in the scratch, unless it leads beyond the bound of shared models."""
        at, delta = scratch.coordinate[:n_changed], scratch.delta[:n_changed].astype(np.float64)
        before = self.alpha[at].astype(np.float64)
        growth = float((np.abs(before + delta) - np.abs(before)).sum())
        if growth > 0.0 and self.norm + growth > MOST_SHARED * beta:
            return False
        self.n_support = int(blocks.add_to_model(self.alpha, self.support, self.n_support, n_changed, scratch))
        self.exponent = min(self.exponent, exponent)
        return True
