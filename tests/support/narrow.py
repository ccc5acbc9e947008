"""Small networks with Q/DQ of FP8 and INT4, and the float networks that they were made of."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from builder import Builder
from onnx import TensorProto, helper

#: Format to the dtype of its codes and the greatest of them.
CODES = {
    "fp8": (ml_dtypes.float8_e4m3fn, 448),
    "int4": (ml_dtypes.int4, 7),
    "int8": (np.int8, 127),
}
ACTIVATIONS = ("Relu", "Clip", "SiLU")


def conv_act_conv(activation: str, first: str = "", second: str = "") -> onnx.ModelProto:
    """Conv, an activation, Conv; inputs and weights of each in a format of ``CODES``, or none."""
    b = Builder(21)

    def pair(tensor: str, reach: float, to: str) -> str:
        if not to:
            return tensor
        dtype, highest = CODES[to]
        scale, zero = b.const(np.float32(reach / highest).reshape(())), b.const(np.zeros((), dtype))
        return b.node("DequantizeLinear", b.node("QuantizeLinear", tensor, scale, zero), scale, zero)

    def conv(x: str, reach: float, cin: int, cout: int, to: str) -> str:
        weight = b.random(cout, cin, 3, 3, std=(2.0 / (9 * cin)) ** 0.5)
        w = pair(b.const(weight), float(np.abs(weight).max()), to)
        return b.node("Conv", pair(x, reach, to), w, pads=[1] * 4)

    h = conv(b.input("x", ["N", 3, 8, 8]), 4.0, 3, 8, first)
    if activation == "SiLU":
        h = b.node("Mul", h, b.node("Sigmoid", h))
    else:
        h = b.node(
            activation, h, *([b.const(np.float32(0)), b.const(np.float32(6))][: 2 * (activation == "Clip")])
        )
    b.nodes.append(helper.make_node("Identity", [conv(h, 6.0, 8, 4, second)], ["y"], "out"))
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 8, 8])]
    graph = helper.make_graph(b.nodes, "narrow", b.inputs, ends, b.initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def images(samples: int) -> np.ndarray:
    """Inputs for it, within its range."""
    return np.random.default_rng(0).normal(size=(samples, 3, 8, 8)).clip(-4, 4).astype(np.float32)


def blocks(operator: str, folder: Path) -> None:
    """Write a product whose input TensorRT's own ``operator`` quantizes by blocks, and the plain one."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [32, 16], np.ones(512))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, s]) for n, s in (("x", 32), ("y", 16))]
    plain = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")], "g", ends[:1], ends[1:], [weight]
    )
    onnx.save(
        helper.make_model(plain, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]),
        folder / "model.onnx",
    )
    own = operator == "TRT_MXFP8DynamicQuantize"
    reader = (
        {"op_type": "TRT_MXFP8DequantizeLinear", "domain": "trt"} if own else {"op_type": "DequantizeLinear"}
    )
    nodes = [
        helper.make_node(operator, ["x"], ["q", "s"], "quantize", domain="trt", axis=-1, block_size=32),
        helper.make_node(
            inputs=["q", "s"], outputs=["d"], name="dequantize", axis=-1, block_size=32, **reader
        ),
        helper.make_node("MatMul", ["d", "w"], ["y"], "mm"),
    ]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("trt", 1)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, ir_version=11, opset_imports=opsets), folder / "q.onnx")
