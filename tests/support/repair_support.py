"""Cases of trained networks with faults planted, one for each kind of fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml
from onnx import helper

from benchmarks.case import assemble
from benchmarks.faults import outlier_channel
from benchmarks.nets import digits, trained
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.plan import activation_scales, apply

WIDE = "/5/conv/Conv"
NORM, READER = "/blocks/blocks.0/norm2/LayerNormalization", "/blocks/blocks.0/fc1/MatMul"
SAMPLES = 32


def planted(name: str, **faults: object) -> Network:
    """A trained network with honest ranges but for what is planted."""
    calibration = digits("calibration", SAMPLES)
    return assemble(trained(name), calibration, {"sqnr_db": 20}, **faults).network  # type: ignore[arg-type]


def outliers() -> Network:
    """A transformer with a channel that sticks out between a norm and its reader."""
    model = outlier_channel(trained("vit"), NORM, [READER], 7, 200)
    return assemble(model, digits("calibration", SAMPLES), {"sqnr_db": 20}).network


def cubed() -> Network:
    """A scale 50 times too wide; elsewhere a tensor with so long a tail that no scale suits it."""
    model, reader = trained("cnn"), "/9/conv/Conv"
    editor = model.edit()
    nodes = list(editor.graph.node)
    at = next(i for i, node in enumerate(nodes) if node.name == reader)
    tensor = nodes[at].input[0]
    nodes[at].input[0] = "cubed"
    nodes[at:at] = [
        helper.make_node("Mul", [tensor, tensor], ["squared"], "square"),
        helper.make_node("Mul", [tensor, "squared"], ["cubed"], "cube"),
    ]
    editor.set_nodes(nodes)
    faults = {"factors": {"/3/conv/Conv": 50}}
    return assemble(editor.done(), digits("calibration", SAMPLES), {"sqnr_db": 20}, **faults).network


#: Kind of the cheapest fix to the network and the limits that make it so.
KINDS: dict[str, tuple[Callable[[], Network], dict[str, float]]] = {
    "recalibrate": (lambda: planted("cnn", factors={WIDE: 50}), {"sqnr_db": 20}),
    "migrate": (outliers, {"cosine": 0.999}),
    "mixed": (lambda: planted("cnn", factors={WIDE: 50}), {"sqnr_db": 41}),
    "mixed, with room": (cubed, {"sqnr_db": 33.5}),  # no plan is within 1 dB of it, as engines may be
    "high": (lambda: planted("cnn"), {"sqnr_db": 46}),  # less than the noise of INT8 itself
}


def write_case(
    folder: Path,
    network: Network,
    limits: dict[str, float],
    form: str = "model",
    samples: int = SAMPLES,
    **more: object,
) -> Path:
    """The spec of a network whose INT8 side is a Q/DQ model, ranges in JSON, or badly calibrated."""
    save_model(network.model, folder / "model.onnx")
    np.savez(folder / "inputs.npz", **digits("validation", samples))
    np.savez(folder / "calibration.npz", **digits("calibration", SAMPLES))
    int8: dict[str, object] = {form: f"int8.{form}"}
    if form == "model":
        save_model(apply(network), folder / "int8.model")
    elif form == "scales":
        ranges = {tensor: scale * 127 for tensor, scale in activation_scales(network).items()}
        (folder / "int8.scales").write_text(json.dumps(ranges))
    else:
        int8 = {"calibrate": {"data": "calibration.npz", "method": "percentile", "percentile": 60}}
    spec = {"model": "model.onnx", "inputs": "inputs.npz", "int8": int8, "criteria": [limits], **more}
    path = folder / "case.int8acc.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path
