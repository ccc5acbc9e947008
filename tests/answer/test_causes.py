"""Causes that a case on a CPU cannot show; those that it can are in tests/cases/causes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_int8acc.answer.ablations import established
from pytest_int8acc.answer.causes import explain
from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.observers.edges import EdgeMeter
from pytest_int8acc.observers.methods import calibrate
from pytest_int8acc.results.causes import Cause

ROOT = Path(__file__).parents[2]


DIGITS = ROOT / "example_project"


@pytest.fixture(scope="module")
def digits() -> Model:
    return load_model(DIGITS / "digits.onnx")


def images(model: Model, part: str = "validation") -> Dataset:
    samples = 100 if part == "calibration" else None
    return open_dataset(f"{part}.npz", model.inputs, base=DIGITS / "data", samples=samples)


def healthy(model: Model, data: Dataset | None = None, method: str = "minmax") -> Network:
    layout = find_groups(model)
    scales = calibrate(model, layout.activations, data or images(model, "calibration"), method=method)
    return quantize(model, layout, scales.values)


@pytest.fixture(scope="module")
def network(digits: Model) -> Network:
    return healthy(digits)


def changed(network: Network, group: str, change: Callable[[Edge], Quantization]) -> Network:
    """The network with other quantizations on those edges of one group that ``change`` gives one for."""
    groups = []
    for known in network.groups:
        if known.name == group:
            edges = [replace(edge, quantization=change(edge)) for edge in known.edges]
            known = replace(known, edges=tuple(edges))
        groups.append(known)
    return replace(network, groups=tuple(groups))


def with_scale(network: Network, group: str, factor: float) -> Network:
    """The network with another scale on the activation of one group."""

    def change(edge: Edge) -> Quantization:
        q = edge.quantization
        return q if q.values is not None else replace(q, scale=np.asarray(q.scale * factor, np.float32))

    return changed(network, group, change)


def cause_of(network: Network, group: str, model: Model | None = None, **options: bool) -> Any:
    model = model or network.model
    return explain(EdgeMeter(network, model, images(model)), [group], **options)[group]


CONV = "/block2/conv2/Conv"


def test_missing_scale(digits: Model) -> None:
    layout = find_groups(digits)
    scales = calibrate(digits, layout.activations, images(digits, "calibration"), method="minmax")
    kept = {t: s for t, s in scales.values.items() if t != "/block2/relu1/Relu_output_0"}
    cause = cause_of(quantize(digits, layout, kept), CONV)
    assert cause.kind == "missing-scale"
    assert cause.others == ("/block2/relu1/Relu_output_0",)


def test_engine_and_noise_are_named_only_where_told(network: Network) -> None:
    assert cause_of(network, CONV).kind == "accumulated-noise"
    assert cause_of(network, CONV, engine_only=True).kind == "engine-only"
    assert cause_of(network, CONV, unstable=True).kind == "non-determinism"
    wide = with_scale(network, CONV, 60)
    assert cause_of(wide, CONV, unstable=True).kind == "scale-too-wide"
    assert cause_of(wide, CONV, engine_only=True).kind == "engine-only"


def test_a_layer_that_causes_no_loss_has_no_cause_by_a_trial() -> None:
    """So it is where the output is the index of the greatest value, which no single layer changes."""

    class NoLoss:
        halved = may_go_on = True
        cost = None

        def loss(self, group: str) -> float:
            return 0.0

        as_it_is = in_fp32 = loss

        def alone(self) -> NoLoss:
            return self

    likely = Cause("accumulated-noise", "noise-adds-up")
    assert established(NoLoss(), "conv", [], likely, lambda *_: None) is None
