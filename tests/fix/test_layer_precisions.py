"""Layers held in a precision under implicit quantization, by the builder's child and by the fix's script."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_int8acc.engines.tensorrt import worker
from pytest_int8acc.fix.files import Named, name_nodes
from pytest_int8acc.fix.scripts import postprocess
from pytest_int8acc.graph.network import Plan


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


def test_the_script_has_held_layers_fed_in_their_type(trt: Any) -> None:
    names = Named("m.onnx", True, {"conv2": "fp16"}, {}, ("Conv",), {"b": 0.5}, (), "fp16")
    script: dict[str, Any] = {}
    exec(postprocess(names), script)
    network = Network()
    script["postprocess"](network)
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


def test_what_feeds_a_held_layer_is_named_for_trtexec() -> None:
    from fixes import DIGITS, fix_of

    fix = fix_of(DIGITS, Plan({"/block1/conv2/Conv": "fp16", "/block2/conv1/Conv": "fp32"}))
    names = name_nodes(fix, Path("/tmp"))
    makers = {name: node for node in fix.float_model.graph.node for name in node.output}
    feeds = {n.name: makers[n.input[0]].name for n in fix.float_model.graph.node if n.name in names.high}
    assert names.feeding == {
        feeds["/block1/conv2/Conv"]: "fp16",
        feeds["/block2/conv1/Conv"]: "fp32",
    }
