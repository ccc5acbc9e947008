"""Builds ONNX models node by node, with seeded weights that keep activations of order one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.tensors import Feed

Dim = int | str
IR_VERSION = {**dict.fromkeys(range(11, 19), 8), 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}


class Builder:
    """Collects nodes and initializers; every method that adds a node returns its output's name."""

    def __init__(self, opset: int = 17, *, named: bool = True, prefix: str = "") -> None:
        self.opset = opset
        self.named = named
        self.prefix = prefix
        self.rng = np.random.default_rng(opset)
        self.inputs: list[onnx.ValueInfoProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def input(self, name: str, shape: Sequence[Dim], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def const(self, array: NDArray[np.generic] | Sequence[float], name: str = "") -> str:
        value = np.asarray(array, np.float32) if not isinstance(array, np.ndarray) else array
        name = name or f"{self.prefix}const{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def random(self, *shape: int, std: float) -> NDArray[np.float32]:
        return (self.rng.standard_normal(shape) * std).astype(np.float32)

    def weight(self, *shape: int, fan_in: int, gain: float = 1.0, name: str = "") -> str:
        name = name or f"{self.prefix}weight{len(self.initializers)}"
        return self.const(self.random(*shape, std=gain * (2.0 / fan_in) ** 0.5), name)

    def node(self, op: str, *inputs: str, outputs: Sequence[str] = (), **attributes: object) -> str:
        label = f"{self.prefix}{op.lower()}{len(self.nodes)}"
        names = list(outputs) or [f"{label}_out"]
        node = helper.make_node(op, inputs, names, name=label if self.named else "", **attributes)
        self.nodes.append(node)
        return names[0]

    def conv(
        self,
        x: str,
        cin: int,
        cout: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        group: int = 1,
        rank: int = 2,
        bias: bool = True,
        gain: float = 1.0,
        dilation: int = 1,
    ) -> str:
        fan_in = cin // group * kernel**rank
        inputs = [x, self.weight(cout, cin // group, *[kernel] * rank, fan_in=fan_in, gain=gain)]
        if bias:
            inputs.append(self.const(self.random(cout, std=0.1)))
        pad = dilation * (kernel // 2)
        return self.node(
            "Conv",
            *inputs,
            kernel_shape=[kernel] * rank,
            strides=[stride] * rank,
            pads=[pad] * (2 * rank),
            dilations=[dilation] * rank,
            group=group,
        )

    def batchnorm(self, x: str, channels: int) -> str:
        scale = self.const(self.rng.uniform(0.8, 1.2, channels).astype(np.float32))
        variance = self.const(self.rng.uniform(0.8, 1.2, channels).astype(np.float32))
        shift, mean = (self.const(self.random(channels, std=0.1)) for _ in range(2))
        return self.node("BatchNormalization", x, scale, shift, mean, variance)

    def relu(self, x: str) -> str:
        return self.node("Relu", x)

    def linear(self, x: str, cin: int, cout: int, *, gain: float = 0.7) -> str:
        y = self.node("MatMul", x, self.weight(cin, cout, fan_in=cin, gain=gain))
        return self.node("Add", y, self.const(self.random(cout, std=0.1)))

    def layernorm(self, x: str, channels: int) -> str:
        scale = self.const(self.rng.uniform(0.8, 1.2, channels).astype(np.float32))
        return self.node(
            "LayerNormalization", x, scale, self.const(self.random(channels, std=0.1)), axis=-1, epsilon=1e-5
        )

    def head(self, x: str, channels: int, classes: int = 10) -> str:
        pooled = self.node("Flatten", self.node("GlobalAveragePool", x))
        weight = self.weight(classes, channels, fan_in=channels)
        return self.node("Gemm", pooled, weight, self.const(self.random(classes, std=0.1)), transB=1)

    def graph(self, outputs: dict[str, Sequence[Dim]], name: str = "main") -> onnx.GraphProto:
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()]
        return helper.make_graph(self.nodes, name, self.inputs, infos, self.initializers)

    def model(self, outputs: dict[str, Sequence[Dim]]) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(
            self.graph(outputs), opset_imports=opsets, ir_version=IR_VERSION[self.opset], producer_name="zoo"
        )


def sample_feed(model: onnx.ModelProto, seed: int = 0, batch: int = 2) -> Feed:
    """Random inputs for ``model``: symbolic first dimensions become ``batch``, other symbolic ones 16."""
    rng = np.random.default_rng(seed)
    feed: Feed = {}
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        shape = [d.dim_value if d.HasField("dim_value") else (16 if i else batch) for i, d in enumerate(dims)]
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if dtype.kind == "b":
            feed[info.name] = np.asarray(rng.integers(0, 2, shape), np.bool_)
        elif dtype.kind == "i":
            feed[info.name] = np.asarray(rng.integers(0, 8, shape), dtype)
        else:
            feed[info.name] = rng.standard_normal(shape).astype(dtype)
    return feed
