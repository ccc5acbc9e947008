"""Fixes of the example project."""

from __future__ import annotations

from pathlib import Path

from pytest_int8acc.fix import FixFiles
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply, fp32_nodes

EXAMPLE = Path(__file__).parents[2] / "example_project"


DIGITS, CALIBRATION = EXAMPLE / "digits.onnx", EXAMPLE / "data" / "calibration.npz"


def network_of(model: Model) -> Network:
    layout = find_groups(model)
    return quantize(model, layout, dict.fromkeys(layout.activations, 4 / 127))


def fix_of(path: Path, plan: Plan, network: Network | None = None) -> FixFiles:
    model = load_model(path)
    network = network or network_of(model)
    fixed = to_fp16(apply(network, plan), fp32_nodes(network, plan)).model
    return FixFiles(fixed, plan, network, model, path, "fp16")
