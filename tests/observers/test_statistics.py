"""Sums of what a quantization does to a tensor, against float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_int8acc.graph.formats import along, format_of
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.observers.edges import EdgeStats

SYMMETRIC, ASYMMETRIC = np.zeros((), np.int8), np.array(77, np.uint8)
FP8 = np.zeros((), ml_dtypes.float8_e4m3fn)
WIDE = np.zeros((), np.int16)


@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("zero", [SYMMETRIC, ASYMMETRIC, FP8, WIDE], ids=lambda zero: zero.dtype.name)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    place=st.integers(-4, 3),
    exponent=st.integers(-14, 14),
    reach=st.sampled_from([0.1, 0.5, 1, 40]),
    per_channel=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sums_are_those_of_float64(zero, shape, place, exponent, reach, per_channel, seed):
    rng = np.random.default_rng(seed)
    batches = [(rng.standard_normal(shape) * 10.0**exponent).astype(np.float32) for _ in range(2)]
    axis = place if -len(shape) <= place < len(shape) else None
    most = float(max(np.abs(b).max() for b in batches))
    scale = np.array(most * reach / format_of(zero.dtype).levels)
    quantization = Quantization(scale.astype(np.float32), zero)
    if per_channel:
        scales = (scale * rng.uniform(0.5, 2, shape[0])).astype(np.float32)
        quantization = Quantization(scales, np.full(shape[0], zero), 0)
    found = EdgeStats(quantization)
    for batch in batches:
        found.add(batch, axis)
    values = np.stack(batches).astype(np.float64)
    one_scale, q = along(quantization.scale, quantization.axis, len(shape)).astype(np.float64), quantization
    back = np.stack(
        [q.format.dequantize(q.quantize(b), q.scale, q.zero_point, q.axis, np.float64) for b in batches]
    )
    noise, signal = (back - values) ** 2, values**2
    steps = values / one_scale + along(q.zero_point, q.axis, len(shape)).astype(np.float64)
    half = float(q.format.step(np.array(q.format.highest))) / 2
    over = np.maximum(steps - q.format.highest, q.format.lowest - steps) - half
    beyond = over > 0
    assert found.values == values.size
    assert found.signal == pytest.approx(signal.sum(), rel=1e-5)
    assert found.noise == pytest.approx(noise.sum(), rel=1e-4, abs=1e-9 * signal.sum())
    if np.abs(over).min() > 1e-3:  # at the very edge float32 decides
        assert found.clipped == beyond.sum()
        assert found.clip_noise == pytest.approx(noise[beyond].sum(), rel=1e-4, abs=1e-9 * signal.sum())
    if axis is not None and len(shape) > 1:
        others = tuple(i for i in range(values.ndim) if i != axis % len(shape) + 1)
        np.testing.assert_allclose(found.channels[0], signal.sum(axis=others), rtol=1e-5)
        np.testing.assert_allclose(
            found.channels[1], noise.sum(axis=others), rtol=1e-4, atol=1e-9 * float(signal.sum())
        )
    else:
        assert found.channels is None
