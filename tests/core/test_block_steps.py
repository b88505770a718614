"""The block step: the target, the solution of a block, and messages that owner and holders decode alike."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dada.core import block_steps
from dada.core.bits import coded_bits
from dada.core.block_steps import BlockStep
from dada.core.graph import CollaborationGraph
from dada.core.losses import ALL_ALIKE
from dada.core.model_steps import UserModel, make_scratch
from tests.helpers.problems import (
    block_in_numpy,
    loss_in_numpy,
    margins_in_numpy,
    random_graph,
    random_models,
    random_problem,
    rows_of,
)

FLOATS = (np.float32, np.float64)


def user_of(problem, k, alpha, neighbour_sum, dtype=np.float64, confidence=1.0, degree=1.0):
    """User k's arrays at a model, and the size of its support."""
    A = rows_of(problem, k).astype(np.int8 if dtype == np.float32 else dtype)
    used = np.flatnonzero(alpha)
    support = np.zeros(alpha.size, np.int16)
    support[: used.size] = used
    rows = slice(problem.row_start[k], problem.row_start[k + 1])
    offset = problem.offsets[rows].astype(dtype)
    weights = problem.sample_weight[rows] if problem.sample_weight.size else ALL_ALIKE
    margins = (offset + A @ alpha).astype(dtype)
    own, total = alpha.astype(dtype), neighbour_sum.astype(dtype)
    return UserModel(A, margins, own, total, support, offset, weights, confidence, degree), used.size


def scratch_of(problem, dtype=np.float64):
    return make_scratch(problem.n_predictors, int(problem.sizes.max()), np.dtype(dtype))


def send(step, finest, wanted, shared, loudest=0.0):
    """(entries, exponent, coordinates, values) of a message."""
    message = block_steps.make_message(wanted.size)
    n_entries, exponent = block_steps.encode_change(step.checked(), finest, wanted, shared, loudest, message)
    return n_entries, exponent, message.coordinate[:n_entries].copy(), message.value[:n_entries].copy()


def receive(model, sent):
    """The model after a message, by the kernels that owner and holders use."""
    n_entries, exponent, coordinate, value = sent
    message = block_steps.make_message(model.size)
    message.coordinate[:n_entries], message.value[:n_entries] = coordinate, value
    scratch = make_scratch(model.size, 1, model.dtype)
    block_steps.decode_change(message, n_entries, exponent, scratch)
    used = np.flatnonzero(model)
    support = np.zeros(model.size + n_entries, np.int32)
    support[: used.size] = used
    updated = model.copy()
    n_support = block_steps.add_to_model(updated, support, used.size, n_entries, scratch)
    assert_array_equal(np.sort(support[:n_support]), np.flatnonzero(updated))
    return updated


@pytest.mark.parametrize("loss", ["adaboost", "logistic", "huber"])
@pytest.mark.parametrize("wakeups", [0, 1, 5])
def test_a_wake_up_solves_the_block_towards_the_mean_carried_on(loss, wakeups):
    rng = np.random.default_rng(3)
    problem = random_problem(
        rng, 6, 5, beta=3.0, loss=loss, shifted=loss == "huber", weighted=True, coupling=rng.uniform(0.1, 1, 5)
    )
    graph, models, k = random_graph(rng, 6, density=1.0), random_models(rng, problem), 2
    weights = graph.to_scipy().toarray()[k]
    mean, before = weights @ models / weights.sum(), rng.normal(size=5)
    known = {"confidence": problem.confidence[k], "degree": float(weights.sum())}
    user, n_support = user_of(problem, k, models[k], weights @ models, **known)
    step = BlockStep(inner_moves=3000, momentum=0.6, theta=0.7).checked()
    previous, target = before.copy(), np.empty(5)
    # Counts of the type that the engine's have: another type would be compiled for this test alone.
    done, n_support = np.int32(wakeups), np.int32(n_support)
    block_steps.block_step(problem.settings(), step, done, user, n_support, previous, target, scratch_of(problem))
    assert_allclose(previous, mean)
    t = wakeups + 1
    y = mean + (min(0.6, (t - 2) / (t + 1)) if t > 2 else 0.0) * (mean - before)
    assert_allclose(target, 0.7 * user.alpha + 0.3 * y, rtol=1e-12)

    def block(own):
        # The graph of user k alone: one neighbour, at y.
        pulled = replace(problem, mu1=problem.mu1 * min(1.0, 0.25 * 1.12**wakeups))
        others = np.zeros_like(models)
        others[0] = y
        return block_in_numpy(pulled, CollaborationGraph.from_edges(6, [0], [k], [1.0]), others, k, own)

    # No vertex of the ball is better in first order than a tenth of the gap at the start.
    gaps = [first_order_gap(block, alpha, 3.0) for alpha in (models[k], user.alpha)]
    assert gaps[1] <= 0.1 * gaps[0] + 1e-6
    assert block(user.alpha) <= block(models[k]) + 1e-12


def first_order_gap(function, alpha, beta):
    """Frank-Wolfe gap by central differences."""
    steps = 1e-5 * np.eye(alpha.size)
    gradient = np.array([(function(alpha + e) - function(alpha - e)) / 2e-5 for e in steps])
    return gradient @ alpha + beta * np.abs(gradient).max()


def test_a_block_is_solved_to_the_part_asked_for():
    rng = np.random.default_rng(5)
    problem = random_problem(rng, 4, 6, most_samples=9, beta=3.0)
    scratch, settings_, gaps = scratch_of(problem), problem.settings(), []
    for part in (1.0, 1e-2, 1e-8):
        user, n_support = user_of(problem, 1, np.zeros(6), np.zeros(6))
        n_support = block_steps.solve_block(settings_, user, n_support, 5000, part, scratch)
        gaps.append(first_order_gap(lambda own: one_user(problem, own), user.alpha, 3.0))
        assert_array_equal(np.sort(user.support[:n_support]), np.flatnonzero(user.alpha))
    at_zero = first_order_gap(lambda own: one_user(problem, own), np.zeros(6), 3.0)
    assert gaps[1] <= 1.01e-2 * at_zero
    assert gaps[2] <= 1e-6 * at_zero


def one_user(problem, own):
    return loss_in_numpy(problem.loss, margins_in_numpy(problem, 1, own)) + 0.5 * problem.mu1 * (own @ own)


@given(st.sampled_from(FLOATS), st.integers(0, 2**32 - 1), st.floats(0.01, 50), st.floats(0.5, 1.5))
def test_models_are_inside_the_ball_in_either_precision(dtype, seed, beta, size):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 2, 30, beta=beta)
    alpha = rng.normal(size=30) * (rng.random(30) < 0.7)
    alpha *= beta * (1.0 if size > 1 else size) / max(np.abs(alpha).sum(), 1e-9)
    user, n_support = user_of(problem, 0, alpha.astype(dtype), np.zeros(30), dtype)
    before = user.alpha.copy()
    block_steps.stay_inside(beta, user, n_support)
    assert math.fsum(np.abs(user.alpha.astype(np.float64))) <= beta
    assert_allclose(user.alpha, before, rtol=1e-6 if dtype == np.float32 else 1e-13)


sizes = st.integers(1, 40)
steps = st.tuples(st.integers(2, 32), st.sampled_from([0.0, 0.1, 0.3, 1.0])).map(
    lambda drawn: BlockStep(quantise_bits=drawn[0], keep=drawn[1], silence=0.0)
)


@given(steps, st.sampled_from(FLOATS), sizes, st.integers(0, 2**32 - 1))
def test_a_message_is_what_numpy_says(step, dtype, n, seed):
    rng = np.random.default_rng(seed)
    finest = block_steps.finest_exponent(4.0, np.dtype(dtype))
    wanted = (rng.normal(size=n) * rng.choice([0, 1e-3, 1.0], size=n)).astype(dtype)
    shared = on_grid(rng.normal(size=n), finest, dtype)
    n_entries, exponent, coordinate, value = send(step, finest, wanted, shared)
    change = wanted.astype(np.float64) - shared
    largest, levels = np.abs(change).max(), 2 ** (step.quantise_bits - 1) - 1
    unit = 2.0 ** max(finest, math.ceil(math.log2(largest / levels)) if largest > 0 else finest)
    units = np.minimum(np.floor(np.abs(change) / unit + 0.5), levels) * np.sign(change)
    sent = np.flatnonzero((units != 0) & (np.abs(change) >= step.keep * largest))
    if n_entries > 0:
        assert 2.0**exponent == unit
    assert_array_equal(coordinate, sent)
    assert_array_equal(value, units[sent])
    assert (np.abs(value) < 2.0 ** (step.quantise_bits - 1)).all()


def on_grid(values, exponent, dtype):
    return (np.round(values * 2.0**-exponent) * 2.0**exponent).astype(dtype)


@settings(max_examples=30)
@given(steps, st.sampled_from(FLOATS), sizes, st.integers(0, 2**32 - 1))
def test_copies_are_equal_in_whatever_order_messages_arrive(step, dtype, n, seed):
    rng = np.random.default_rng(seed)
    finest = block_steps.finest_exponent(4.0, np.dtype(dtype))
    owner, messages = np.zeros(n, dtype), []
    for _ in range(12):
        messages.append(send(step, finest, (rng.normal(size=n) / n).astype(dtype), owner))
        owner = receive(owner, messages[-1])
    for order in (np.arange(12), rng.permutation(12)):
        copy = np.zeros(n, dtype)
        for number in order:
            copy = receive(copy, messages[number])
        assert_array_equal(copy, owner)


@given(steps, st.sampled_from(FLOATS), sizes, st.integers(0, 2**32 - 1))
def test_a_snapshot_is_a_message_that_gives_the_same_bits(step, dtype, n, seed):
    rng = np.random.default_rng(seed)
    finest, owner = block_steps.finest_exponent(4.0, np.dtype(dtype)), np.zeros(n, dtype)
    exponents = []
    for _ in range(5):
        sent = send(step, finest, (rng.normal(size=n) / n).astype(dtype), owner)
        owner = receive(owner, sent)
        exponents += [sent[1]] if sent[0] else []
    if not exponents:
        return
    coordinate = np.flatnonzero(owner)
    units = owner[coordinate].astype(np.float64) / 2.0 ** min(exponents)
    assert_array_equal(units, np.round(units))
    bits = block_steps.value_bits(float(np.abs(owner).max()), min(exponents))
    assert (np.abs(units) < 2.0 ** (bits - 1)).all()
    if bits <= 32:
        snapshot = coordinate.size, min(exponents), coordinate, units.astype(np.int64)
        assert_array_equal(receive(np.zeros(n, dtype), snapshot), owner)


@pytest.mark.parametrize("quantise_bits", [2, 4, 6, 8, 32])
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_a_message_leaves_out_is_sent_later(quantise_bits, dtype):
    rng = np.random.default_rng(quantise_bits)
    step = BlockStep(quantise_bits=quantise_bits, keep=0.5, silence=0.0)
    finest, wanted = block_steps.finest_exponent(1.0, np.dtype(dtype)), (rng.normal(size=50) / 50).astype(dtype)
    shared, total, number = np.zeros(50, dtype), np.zeros(50), 0
    while (sent := send(step, finest, wanted, shared))[0] > 0:
        _, exponent, coordinate, value = sent
        total[coordinate] += value * 2.0**exponent
        shared, number = receive(shared, sent), number + 1
        assert number < 200
    assert number > 1
    assert_array_equal(total, shared)
    assert np.abs(shared.astype(np.float64) - wanted).max() <= 0.5 * 2.0**finest


def test_a_change_below_the_silence_of_the_own_model_is_not_sent():
    step, finest = BlockStep(silence=0.1), block_steps.finest_exponent(1.0, np.dtype(np.float64))
    wanted = np.array([0.0, 0.05, -0.01])
    assert send(step, finest, wanted, np.zeros(3), loudest=0.5)[0] == 0
    assert send(step, finest, wanted, np.zeros(3), loudest=0.49)[0] > 0
    assert send(BlockStep(silence=0.0), finest, wanted, wanted.copy(), loudest=0.0)[0] == 0


def test_entries_far_below_the_largest_wait():
    step, finest = BlockStep(keep=0.2, silence=0.0), block_steps.finest_exponent(1.0, np.dtype(np.float64))
    coordinate = send(step, finest, np.array([0.1, -1.0, 0.19, 0.21]), np.zeros(4))[2]
    assert_array_equal(coordinate, [1, 3])


def packed(n, quantise_bits, exponent, coordinate, value):
    """A message as a string of bits: exponent, form, coordinates, values."""
    width = (n - 1).bit_length()
    as_indices = format(len(coordinate), f"0{n.bit_length()}b")
    as_indices += "".join(format(int(j), f"0{width}b") if width else "" for j in coordinate)
    as_bitmap = "".join("1" if j in set(coordinate.tolist()) else "0" for j in range(n))
    form = len(as_bitmap) < len(as_indices)
    values = "".join(format(int(v) % 2**quantise_bits, f"0{quantise_bits}b") for v in value)
    return format(exponent % 256, "08b") + str(int(form)) + (as_bitmap if form else as_indices) + values


@given(steps, st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_the_price_is_the_length_of_an_actual_encoding(step, n, seed):
    rng = np.random.default_rng(seed)
    wanted = rng.normal(size=n) * (rng.random(n) < rng.random()) ** 2
    n_entries, exponent, coordinate, value = send(
        step, block_steps.finest_exponent(4.0, np.dtype(np.float64)), wanted, np.zeros(n)
    )
    bits = packed(n, step.quantise_bits, exponent, coordinate, value)
    assert coded_bits(n, n_entries, step.quantise_bits) == len(bits)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"inner_moves": 0}, "inner_moves must be >= 1"),
        ({"quantise_bits": 1}, "quantise_bits must be in 2..32, got 1"),
        ({"quantise_bits": 33}, "quantise_bits must be in 2..32, got 33"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"theta": 0.0}, "theta must be in"),
        ({"keep": 1.5}, "keep must be in"),
        ({"silence": 1.0}, "silence must be in"),
    ],
)
def test_settings_out_of_range_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        BlockStep(**settings_).checked()
