"""Layers held in a precision under implicit quantization, by the builder's child and by the fix's script."""

from __future__ import annotations

import re
import runpy
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from fixes import DIGITS, fix_of

from pytest_int8acc.fix import write_fix
from pytest_int8acc.graph.network import Plan, symmetric
from pytest_int8acc.runtime import worker


@dataclass(frozen=True)
class Kind:
    name: str


FLOAT, HALF, INT32 = Kind("FLOAT"), Kind("HALF"), Kind("INT32")


@dataclass(eq=False)
class Tensor:
    name: str
    dtype: Kind = FLOAT
    dynamic_range: tuple[float, float] | None = None


@dataclass(eq=False)
class Layer:
    """One of TensorRT's, as far as a precision needs it."""

    name: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    type: Kind = Kind("CONVOLUTION")
    precision: Kind | None = None
    metadata: str = ""
    output_types: dict[int, Kind] = field(default_factory=dict)

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))

    def get_input(self, i: int) -> Tensor | None:
        return self.inputs[i]

    def get_output(self, i: int) -> Tensor:
        return self.outputs[i]

    def set_output_type(self, i: int, kind: Kind) -> None:
        self.output_types[i] = kind


class Network:
    """x → conv1 → relu1 → conv2 → relu2, whose second convolution also reads constants and an integer."""

    num_inputs = 1

    def __init__(self) -> None:
        x, a, b, c, d = (Tensor(name) for name in ("x", "a", "b", "c", "d"))
        weights, size = Tensor("weights"), Tensor("size", INT32)
        self.layers = [
            Layer("weights", [], [weights], Kind("CONSTANT")),
            Layer("size", [x], [size], Kind("SHAPE")),
            Layer("conv1", [x], [a]),
            Layer("relu1", [a], [b], Kind("ACTIVATION")),
            Layer("conv2", [b, weights, size, None], [c]),
            Layer("relu2", [c], [d], Kind("ACTIVATION")),
        ]
        self.inputs = [x]

    num_layers = property(lambda self: len(self.layers))

    def get_layer(self, i: int) -> Layer:
        return self.layers[i]

    def get_input(self, i: int) -> Tensor:
        return self.inputs[i]

    def get_flag(self, flag: object) -> bool:
        return False

    def told(self) -> dict[str, tuple[Kind | None, dict[int, Kind]]]:
        """What was said of each layer."""
        said = {layer.name: (layer.precision, layer.output_types) for layer in self.layers}
        return {name: both for name, both in said.items() if both != (None, {})}


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.SimpleNamespace(float16=HALF, float32=FLOAT, NetworkDefinitionCreationFlag=object())
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(worker, "_tensorrt", lambda: module)
    return module


#: The network above, as an ONNX model.
MODEL = """<ir_version: 8, opset_import: ["": 17]> net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] d)
    <float[4, 4, 1, 1] weights = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
    a = Conv(x, weights)
    b = Relu(a)
    c = Conv(b, weights)
    d = Relu(c)
}"""


def test_the_script_has_held_layers_fed_in_their_type(trt: Any, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(MODEL)
    for node, name in zip(proto.graph.node, ("conv1", "relu1", "conv2", "relu2"), strict=True):
        node.name = name
    onnx.save(proto, tmp_path / "model.onnx")
    plan = Plan({"conv2": "fp16"}, {"b": symmetric(0.5)})
    write_fix(tmp_path / "fix", fix_of(tmp_path / "model.onnx", plan))
    network = Network()
    runpy.run_path(str(tmp_path / "fix" / "postprocess.py"))["postprocess"](network)
    assert network.told() == {"relu1": (None, {0: HALF}), "conv2": (HALF, {0: HALF})}
    assert network.layers[3].outputs[0].dynamic_range == (-63.5, 63.5)


@pytest.mark.parametrize("implicit", [True, False])
def test_the_builder_has_held_layers_fed_in_their_type(
    trt: Any, monkeypatch: pytest.MonkeyPatch, implicit: bool
) -> None:
    """In a network with Q/DQ the DequantizeLinear before a layer stays as it is."""
    import polygraphy.backend.trt

    def set_precisions(func: Any, wanted: dict[str, Kind]) -> None:
        for layer in func[1].layers:
            layer.precision = wanted.get(layer.name)

    monkeypatch.setattr(polygraphy.backend.trt, "set_layer_precisions", set_precisions)
    network = Network()
    assert worker._hold_precisions(network, {"conv2": "fp32", "gone": "fp16"}, fed=implicit) == ["gone"]
    fed = {"relu1": (None, {0: FLOAT})} if implicit else {}
    assert network.told() == {**fed, "conv2": (FLOAT, {})}


def test_what_feeds_a_held_layer_is_named_for_trtexec(tmp_path: Path) -> None:
    held = {"/block1/conv2/Conv": "fp16", "/block2/conv1/Conv": "fp32"}
    write_fix(tmp_path, fix_of(DIGITS, Plan(held)))  # type: ignore[arg-type]
    nodes = {node.name: node for node in onnx.load(DIGITS).graph.node}
    makers = {name: node.name for node in nodes.values() for name in node.output}
    feeds = {makers[nodes[name].input[0]]: precision for name, precision in held.items()}
    (line,) = re.findall(r"--layerOutputTypes=(\S+)", (tmp_path / "layer_precisions.txt").read_text())
    assert dict(word.rsplit(":", 1) for word in line.strip("'\"").split(",")) == feeds
