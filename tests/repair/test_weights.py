"""Weights get other scales where those lose less: taken anew, or cut where their inputs are next to 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from repair_support import WIDE

from benchmarks.faults import outlier_channel, per_tensor_weights
from benchmarks.nets import trained
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.network import Network, Plan, Quantization
from pytest_int8acc.graph.plan import fresh_weights, moved
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.lab.values import TensorValues
from pytest_int8acc.repair.weights import weight_scales, worse_weights


def test_weights_with_scales_of_the_wrong_kind_are_found_and_mended() -> None:
    first = "/2/first/conv/Conv"
    model = outlier_channel(trained("resnet"), first, (), 4, 60)
    layout = find_groups(model)
    healthy = quantize(model, layout, dict.fromkeys(layout.activations, 0.05))
    assert worse_weights(healthy) == ()
    bad = per_tensor_weights(healthy, [first])
    (weight,) = worse_weights(bad)
    assert worse_weights(bad, ["/3/first/conv/Conv"]) == ()
    assert_mended(healthy, moved(bad, Plan(scales=fresh_weights(bad, [weight]))), weight)


@pytest.mark.parametrize("factor", [0.1, 4.0])
def test_weight_scales_off_by_a_factor_are_mended(factor: float) -> None:
    model = trained("cnn")
    layout = find_groups(model)
    healthy = quantize(model, layout, dict.fromkeys(layout.activations, 0.05))
    weight = next(e.tensor for g in healthy.groups if g.name == WIDE for e in g.edges if e.index == 1)

    def off(old: Quantization) -> Quantization:
        wide = replace(old, scale=(old.scale * factor).astype(np.float32))
        return replace(wide, values=wide.quantize(model.constants()[weight]))

    groups = tuple(
        replace(
            g,
            edges=tuple(
                replace(e, quantization=off(e.quantization)) if e.tensor == weight else e for e in g.edges
            ),
        )
        for g in healthy.groups
    )
    bad = replace(healthy, groups=groups)
    assert worse_weights(bad) == (weight,)
    assert_mended(healthy, moved(bad, Plan(scales=fresh_weights(bad, [weight]))), weight)


def assert_mended(healthy: Network, mended: Network, weight: str) -> None:
    for ours, theirs in zip(healthy.groups, mended.groups, strict=True):
        for a, b in zip(ours.edges, theirs.edges, strict=True):
            np.testing.assert_array_equal(a.quantization.scale, b.quantization.scale)
            if a.tensor == weight:
                np.testing.assert_array_equal(a.quantization.values, b.quantization.values)


def dead_columns(network: Network, group: str, columns: list[int], factor: float) -> tuple[Network, str]:
    """The network with weights a group does not use made large, and their name; a Gemm's inputs."""
    edge = next(e for g in network.groups if g.name == group for e in g.edges if e.index == 1)
    editor = network.model.edit()
    weight = network.model.constants()[edge.tensor].copy()
    weight[:, columns] *= factor
    name = editor.add_constant("wild", weight)
    for node in editor.graph.node:
        if node.name == group:
            node.input[1] = name
    model = editor.done()
    layout = find_groups(model)
    return quantize(model, layout, dict.fromkeys(layout.activations, 0.05)), name


def held_by(network: Network, maxima: np.ndarray) -> dict[str, TensorValues]:  # type: ignore[type-arg]
    (tensor,) = [e.tensor for g in network.groups if g.name == FIRST for e in g.edges if e.index == 0]
    return {tensor: TensorValues(tensor, channel_amax=maxima.astype(np.float32))}


FIRST = "/1/Gemm"
IDLE = [0, 32, 39]


@pytest.mark.parametrize("quiet", [0.0, 1e-4])
def test_weights_that_meet_next_to_nothing_do_not_set_the_range(quiet: float) -> None:
    layout = find_groups(trained("mlp"))
    healthy = quantize(trained("mlp"), layout, dict.fromkeys(layout.activations, 0.05))
    network, wild = dead_columns(healthy, FIRST, IDLE, 100)
    maxima = np.ones(network.model.constants()[wild].shape[1])
    maxima[IDLE] = quiet
    (found,) = weight_scales(network, [FIRST], held_by(network, maxima)).items()
    own = next(e.quantization for g in network.groups for e in g.edges if e.tensor == wild)
    assert found[0] == wild
    assert float(np.median(own.scale / found[1].scale)) > 20
    used = np.delete(network.model.constants()[wild], IDLE, axis=1)
    cut = moved(network, Plan(scales=dict([found])))
    codes = next(e.quantization for g in cut.groups for e in g.edges if e.tensor == wild)
    rounded = np.delete(codes.dequantize(), IDLE, axis=1)
    assert float(np.abs(rounded - used).max() / np.abs(used).max()) < 0.01


def test_weights_in_use_keep_their_range() -> None:
    layout = find_groups(trained("mlp"))
    healthy = quantize(trained("mlp"), layout, dict.fromkeys(layout.activations, 0.05))
    network, wild = dead_columns(healthy, FIRST, IDLE, 100)
    count = network.model.constants()[wild].shape[1]
    assert weight_scales(network, None, held_by(network, np.ones(count))) == {}
    assert weight_scales(network, None, {}) == {}, "what the inputs hold is not known"
    assert weight_scales(healthy, None, held_by(healthy, np.ones(count))) == {}
