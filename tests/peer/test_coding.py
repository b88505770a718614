"""Codes have the length that the ledger prices, and carry exactly what was written; every other code is refused."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.core.bits import coded_bits
from dada.core.block_steps import COARSEST, BlockStep
from dada.core.model_steps import UserRows
from dada.peer.copies import MOST_SHARED, Code, ModelCopy, read_code, width_of, write_code
from dada.peer.inputs import PeerConfig
from dada.peer.messages import (
    CHANGE_MARK,
    LARGEST_COUNT,
    LARGEST_EPOCH,
    PROTOCOL_VERSION,
    BlockChange,
    CodecError,
    ImplausibleError,
    ModelSnapshot,
    decode,
    encode,
)
from dada.peer.model import OwnModel

FINEST = -20


@st.composite
def codes(draw):
    """Entries, the number of base predictors and the width of values."""
    n, width = draw(st.integers(1, 70)), draw(st.integers(2, 32))
    used = sorted(draw(st.sets(st.integers(0, n - 1), min_size=1)))
    most = (1 << (width - 1)) - 1
    value = st.integers(1, most) | st.integers(-most, -1)
    values = draw(st.lists(value, min_size=len(used), max_size=len(used)))
    return Code(np.array(used), np.array(values), draw(st.integers(FINEST, 127))), n, width


@given(codes())
def test_a_code_carries_its_entries_in_the_bits_that_the_ledger_prices(case):
    entries, n, width = case
    code = write_code(entries, n, width)
    assert len(code) == -(-coded_bits(n, entries.value.size, width) // 8)
    found = read_code(code, n, width, FINEST)
    assert (found.coordinate.tolist(), found.value.tolist()) == (entries.coordinate.tolist(), entries.value.tolist())
    assert found.exponent == entries.exponent


@given(st.integers(0, LARGEST_EPOCH), st.integers(0, LARGEST_COUNT), st.binary(max_size=9))
def test_a_change_comes_back_from_its_bytes(epoch, sequence, code):
    change = BlockChange(epoch, sequence, code)
    assert decode(encode(change)) == change


@given(st.binary(max_size=20))
def test_a_change_has_one_encoding(content):
    data = bytes([CHANGE_MARK]) + content
    try:
        change = decode(data)
    except CodecError:
        return
    assert encode(change) == data


def test_a_change_in_a_longer_form_is_refused():
    with pytest.raises(CodecError, match="longer form"):
        decode(bytes([PROTOCOL_VERSION]) + msgspec.msgpack.encode(BlockChange(1, 2, b"code")))


@given(st.binary(max_size=30), st.integers(1, 40), st.integers(0, 60))
def test_bytes_are_refused_or_are_the_only_code_of_their_entries(code, n, width):
    try:
        entries = read_code(code, n, width, FINEST)
    except ImplausibleError:
        return
    assert write_code(entries, n, width) == code
    assert entries.exponent >= FINEST


SOUND = write_code(Code(np.array([2, 5]), np.array([-3, 1]), -4), 16, 4)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (b"", "too short"),
        (SOUND[:-1], "too short"),
        (SOUND + b"\x00", "does not end|too long"),
        (SOUND[:-1] + bytes([SOUND[-1] | 1]), "does not end"),
        (bytes(100), "too long"),
        (write_code(Code(np.array([2, 5]), np.array([-3, 1]), -40), 16, 4), "exponent -40, the finest is -20"),
        (write_code(Code(np.array([5, 2]), np.array([-3, 1]), -4), 16, 4), "not ascending"),
        (write_code(Code(np.array([2, 2]), np.array([-3, 1]), -4), 16, 4), "not ascending"),
        (write_code(Code(np.array([2]), np.array([0]), -4), 16, 4), "zero or beyond"),
        (write_code(Code(np.array([2]), np.array([-8]), -4), 16, 4), "zero or beyond"),
        (write_code(Code(np.zeros(0, int), np.zeros(0, int), -4), 16, 4), "0 entries"),
    ],
)
def test_codes_of_no_sound_peer_are_refused(code, what):
    with pytest.raises(ImplausibleError, match=what):
        read_code(code, 16, 4, FINEST)


def config(**settings):
    return PeerConfig(12, beta=2.0, mu1=0.5, step="block", **settings)


def own(dtype="float32", **block):
    A = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), (5, 12))
    # Kernels take long to compile: in double precision other tests have rows of real numbers, too.
    rows = UserRows(A if dtype == "float32" else A.astype(dtype))
    return OwnModel(rows, config(dtype=dtype, block=BlockStep(**block)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_snapshot_is_the_shared_model_bit_for_bit(dtype):
    me = own(dtype, quantise_bits=5, silence=0.0, keep=0.0)
    assert me.copy_of(me.snapshot()).n_support == 0
    for _ in range(20):
        me.step(-1.0, 1.0)
        copy = me.copy_of(me.snapshot())
        np.testing.assert_array_equal(copy.alpha, me.shared.alpha)
        assert copy.number == me.shared.number
        assert len(me.snapshot().values) == 1 + -(-me.shared.snapshot_bits // 8)
        width, exponent = me.snapshot().values[0], me.shared.exponent
        units = np.ldexp(me.shared.alpha[me.shared.alpha != 0].astype(float), -exponent)
        assert (units == np.rint(units)).all()
        assert width == width_of(units.astype(int))


def test_changes_keep_a_copy_equal_to_the_shared_model():
    me, copy = own(), ModelCopy.zero(12)
    n_sent = 0
    for _ in range(40):
        change = me.step(-1.0, 1.0)
        if change is not None:
            n_sent += 1
            copy.follow_code(change, me.config, me.scratch)
        np.testing.assert_array_equal(copy.alpha, me.shared.alpha)
    assert 0 < n_sent < 40
    assert copy.sequence == me.shared.sequence == n_sent


def test_a_change_beyond_the_bound_of_shared_models_is_refused():
    large = write_code(Code(np.array([0]), np.array([127]), -3), 12, 8)
    with pytest.raises(ImplausibleError, match="exceeds 4 times beta"):
        ModelCopy.zero(12).follow_code(BlockChange(1, 1, large), config(), own().scratch)
    huge = write_code(Code(np.array([0]), np.array([-127]), COARSEST), 12, 8)
    with pytest.raises(ImplausibleError, match="exceeds 4 times beta"):
        ModelCopy.zero(12).follow_code(BlockChange(1, 1, huge), config(), own().scratch)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (b"\x01" + SOUND, "values of 1 bits"),
        (b"\x37" + SOUND, "values of 55 bits"),
        (b"\x06" + write_code(Code(np.array([1]), np.array([3]), -4), 12, 6), "values of 6 bits, but needs 3"),
        (b"\x05" + write_code(Code(np.array([1]), np.array([9]), 0), 12, 5), f"exceeds {MOST_SHARED:g} times beta"),
        (b"\x05" + write_code(Code(np.array([1]), np.array([9]), 127), 12, 5), f"exceeds {MOST_SHARED:g} times beta"),
    ],
)
def test_snapshots_of_no_sound_peer_are_refused(values, what):
    with pytest.raises(ImplausibleError, match=what):
        own().copy_of(ModelSnapshot(1, 1, b"", values))


def test_models_of_floats_are_refused_where_codes_are_sent():
    floats = ModelSnapshot(1, 1, b"\x00" * 4, np.float32(1.0).tobytes())
    with pytest.raises(ImplausibleError, match="this network sends coded models"):
        own().copy_of(floats)


def test_a_stored_block_model_is_restored_bit_for_bit():
    first, second = own("float64"), own("float64")
    for _ in range(7):
        first.step(-1.0, 1.0)
    record = first.record()
    second.restore({record.key: record.value})
    np.testing.assert_array_equal(second.model.alpha, first.model.alpha)
    np.testing.assert_array_equal(second.shared.alpha, first.shared.alpha)
    assert (second.updates, second.shared.exponent) == (7, first.shared.exponent)


def test_settings_of_block_steps_belong_to_the_learning_problem():
    digests = {PeerConfig(12, 2.0, 0.5).digest, config().digest, config(block=BlockStep(quantise_bits=6)).digest}
    assert len(digests) == 3
    with pytest.raises(ValueError, match="dtype must be one of"):
        PeerConfig(12, 2.0, 0.5, dtype="float64")
