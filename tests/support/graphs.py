"""Hypothesis strategies for small convolutional graphs with shared tensors, Adds and Concats."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model

CHANNELS = 4
SHAPE = (2, CHANNELS, 5, 5)


@st.composite
def float_models(draw: st.DrawFn, least: int = 2, most: int = 9) -> Model:
    """A valid float model of ``least`` to ``most`` operations, any of whose tensors may have many readers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    builder = _Builder(rng)
    for _ in range(draw(st.integers(least, most))):
        operation = draw(
            st.sampled_from(["conv", "depthwise", "add", "concat", "relu", "pool", "matmul", "norm"])
        )
        sources = [draw(st.sampled_from(builder.tensors)) for _ in range(2)]
        getattr(builder, operation)(*sources)
    builder.conv(builder.tensors[-1], "")
    outputs = {builder.tensors[-1], draw(st.sampled_from(builder.tensors[1:]))}
    return builder.model(sorted(outputs))


def feed_of(seed: int) -> dict[str, np.ndarray]:
    """A feed for any of ``float_models``."""
    return {"x": np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)}


class _Builder:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.tensors = ["x"]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.constants)}"
        array = (self.rng.normal(size=shape) * scale).astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op_type: str, inputs: list[str], **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], name=f"{op_type}_{len(self.nodes)}", **attributes)
        )
        return name

    def conv(self, a: str, _: str) -> None:
        weight = self.constant(CHANNELS, CHANNELS, 3, 3, scale=0.2)
        self.tensors.append(self.node("Conv", [a, weight, self.constant(CHANNELS)], pads=[1, 1, 1, 1]))

    def depthwise(self, a: str, _: str) -> None:
        weight = self.constant(CHANNELS, 1, 3, 3, scale=0.4)
        self.tensors.append(self.node("Conv", [a, weight], pads=[1, 1, 1, 1], group=CHANNELS))

    def add(self, a: str, b: str) -> None:
        self.tensors.append(self.node("Add", [a, b]))

    def concat(self, a: str, b: str) -> None:
        joined = self.node("Concat", [a, b], axis=1)
        weight = self.constant(CHANNELS, 2 * CHANNELS, 1, 1, scale=0.4)
        self.tensors.append(self.node("Conv", [joined, weight]))

    def relu(self, a: str, _: str) -> None:
        self.tensors.append(self.node("Relu", [a]))

    def pool(self, a: str, _: str) -> None:
        self.tensors.append(self.node("MaxPool", [a], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))

    def matmul(self, a: str, b: str) -> None:
        self.tensors.append(self.node("MatMul", [a, b]))

    def norm(self, a: str, _: str) -> None:
        parameters = [self.constant(CHANNELS), self.constant(CHANNELS)]
        self.tensors.append(self.node("InstanceNormalization", [a, *parameters]))

    def model(self, outputs: list[str]) -> Model:
        shape = list(SHAPE)
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
            self.constants,
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return normalize(make_model(proto))
