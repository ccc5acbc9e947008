"""Boards: one model for every plan of a network."""

from __future__ import annotations

import numpy as np
import pytest
from written_networks import network

from pytest_int8acc.graph.instrument import split_groups
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.lab.board import Board
from pytest_int8acc.runtime.onnxruntime import CPU

#: Scales of so many take more than 1024 bytes and are kept beside the graph.
CHANNELS = 300


def product() -> Network:
    """One product of [n, CHANNELS] with a weight."""
    text = f"product (float[n, {CHANNELS}] x) => (float[n, 4] y) {{ [mm] y = MatMul(x, w) }}"
    header = '<ir_version: 8, opset_import: ["": 19]> '
    model = make_model(network(header + text, {"w": {"shape": [CHANNELS, 4]}}))
    return quantize(model, find_groups(model), {"x": 0.02})


@pytest.mark.parametrize("rest", ["fp16", "fp32"])
def test_scales_of_many_channels_become_inputs(rest: str) -> None:
    """The constants in whose place they come are no longer asked for when the model is written."""
    network = product()
    feed = {"x": np.random.default_rng(1).normal(size=(2, CHANNELS)).astype(np.float32)}
    taken, pieces = split_groups(network, ["mm"], {"x": (2, CHANNELS)})
    others = [piece.other for piece in pieces["mm"] if piece.channels == CHANNELS]
    assert others
    split, whole = Board(taken, rest, CPU), Board(network, rest, CPU)
    found = split.run(feed, split.setting(others))
    np.testing.assert_array_equal(found["y"], whole.run(feed, whole.setting([]))["y"])


def test_a_setting_cannot_change() -> None:
    setting = Board(product(), "fp32", CPU).setting([])
    for array in setting.inputs.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(TypeError):
        setting.inputs["other"] = np.zeros(1)  # type: ignore[index]
