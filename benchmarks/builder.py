"""Writes ONNX networks with seeded random weights; activations stay of order one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.shape_inference
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model

OPSET, IR_VERSION = 17, 8


class Builder:
    """Collects nodes and weights; what adds a node returns the name of its output.

    A node is named by ``scope`` and what it is: ``block3/expand``.
    """

    def __init__(self, name: str, shape: Sequence[int], seed: int = 0) -> None:
        """Begin a network ``name`` whose input ``x`` has ``shape`` without the free batch dimension."""
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.scope = ""
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def const(self, array: NDArray[np.generic] | float) -> str:
        """Add an initializer; Python numbers become float32."""
        value = array if isinstance(array, np.ndarray) else np.array(array, np.float32)
        name = f"const{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def ints(self, *values: int) -> str:
        """Add a vector of int64."""
        return self.const(np.array(values, np.int64))

    def random(self, *shape: int, std: float) -> str:
        """Add a float32 initializer drawn from a normal distribution."""
        return self.const((self.rng.standard_normal(shape) * std).astype(np.float32))

    def node(self, op: str, *inputs: str, label: str = "", outputs: int = 1, **attributes: object) -> str:
        """Add a node; with several outputs the names are those returned plus ``_1``, ``_2`` ..."""
        name = f"{self.scope}/{label}" if self.scope and label else label or f"{op}{len(self._nodes)}"
        results = [f"{name}_out"] + [f"{name}_out_{i}" for i in range(1, outputs)]
        self._nodes.append(helper.make_node(op, inputs, results, name, **attributes))
        return results[0]

    def conv(
        self,
        x: str,
        cin: int,
        cout: int,
        kernel: int = 3,
        *,
        label: str,
        stride: int = 1,
        group: int = 1,
        gain: float = 1.0,
        pad: int | None = None,
    ) -> str:
        """Convolution with bias; without ``pad``, padded so that stride 1 keeps the size."""
        fan_in = cin // group * kernel * kernel
        weight = self.random(cout, cin // group, kernel, kernel, std=gain * (2 / fan_in) ** 0.5)
        return self.node(
            "Conv",
            x,
            weight,
            self.random(cout, std=0.1),
            label=label,
            strides=[stride] * 2,
            pads=[kernel // 2 if pad is None else pad] * 4,
            group=group,
        )

    def relu(self, x: str) -> str:
        """ReLU."""
        return self.node("Relu", x)

    def conv_relu(self, x: str, cin: int, cout: int, kernel: int = 3, **options: object) -> str:
        """Convolution and ReLU."""
        return self.relu(self.conv(x, cin, cout, kernel, **options))

    def linear(self, x: str, cin: int, cout: int, *, label: str, gain: float = 0.7) -> str:
        """MatMul and bias over the last dimension."""
        y = self.node("MatMul", x, self.random(cin, cout, std=gain * (2 / cin) ** 0.5), label=label)
        return self.node("Add", y, self.random(cout, std=0.1))

    def norm(self, x: str, width: int, *, label: str) -> str:
        """LayerNormalization over the last dimension."""
        scale = self.const(self.rng.uniform(0.8, 1.2, width).astype(np.float32))
        return self.node("LayerNormalization", x, scale, self.random(width, std=0.1), label=label, axis=-1)

    def head(self, x: str, channels: int, classes: int = 100) -> str:
        """Mean over the image, then Gemm."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        weight = self.random(classes, channels, std=(2 / channels) ** 0.5)
        return self.node("Gemm", flat, weight, self.random(classes, std=0.1), label="head", transB=1)

    def model(self, *outputs: str) -> Model:
        """The network in normal form, with ``outputs`` as its outputs."""
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self._nodes, self.name, [self.input], infos, self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return normalize(make_model(onnx.shape_inference.infer_shapes(proto), name=self.name))
