"""Small networks with Q/DQ of FP8 and INT4, and the float networks that they were made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from builder import Builder
from onnx import TensorProto, helper, numpy_helper
from projects import Project

from pytest_int8acc.data import open_dataset
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.layout import find_groups
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.observers.observer import Observer

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


def trt_fp8_block(opset: int) -> onnx.ModelProto:
    """A product with a bias, its input and weight in FP8 by TensorRT's own operators."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.normal(size=(16, 16)).astype(np.float32),
        "b": rng.normal(size=16).astype(np.float32),
        "scale_x": np.float32(4 / 448).reshape(()),
        "scale_w": np.full(16, 3 / 448, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x_dq", "w_dq"], ["mm"], "mm"),
        helper.make_node("Add", ["mm", "b"], ["y"], "add"),
    ]
    for name, more in (("w", {"axis": 1}), ("x", {})):
        scale = f"scale_{name}"
        nodes[:0] = [
            helper.make_node(
                "TRT_FP8QuantizeLinear",
                [name, scale],
                [f"{name}_q"],
                f"quantize_{name}",
                domain="trt",
                **more,
            ),
            helper.make_node(
                "TRT_FP8DequantizeLinear",
                [f"{name}_q", scale],
                [f"{name}_dq"],
                f"dequantize_{name}",
                domain="trt",
                **more,
            ),
        ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 16]) for name in ("x", "y")]
    told = helper.make_tensor_value_info("x_q", TensorProto.UINT8, ["N", 16])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "block", ends[:1], ends[1:], weights, value_info=[told])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("trt", 1)]
    return helper.make_model(graph, ir_version=9, opset_imports=imports)


def standard_fp8_block() -> onnx.ModelProto:
    """The same by the operators of ONNX."""
    model = trt_fp8_block(21)
    del model.opset_import[1], model.graph.value_info[:]
    for node in model.graph.node:
        if node.domain:
            node.op_type, node.domain = node.op_type.removeprefix("TRT_FP8"), ""
            node.input.append(f"zero_{node.input[1]}")
    for scale, sizes in (("scale_x", []), ("scale_w", [16])):
        zeros = [0.0] * (sizes or [1])[0]
        model.graph.initializer.append(
            helper.make_tensor(f"zero_{scale}", TensorProto.FLOAT8E4M3FN, sizes, zeros)
        )
    return model


def planted(
    folder: Path, factors: Mapping[int, float], network: str = "residual"
) -> tuple[Project, list[str]]:
    """A project whose ranges are right but for some activations, by number; and what reads those."""
    project = Project(folder)
    project.data(project.model(network), runs=12)
    model = load_model(folder / "model.onnx")
    layout = find_groups(model, low=FORMATS["fp8"])
    data = open_dataset(
        "data.npz", model.inputs, base=folder, samples=None, batch=None, rows=8, what="inputs", most=1 << 30
    )
    maxima = Observer(model, data).maxima(layout.activations)
    ranges = {tensor: held.amax for tensor, held in maxima.items()}
    wrong = {layout.activations[i]: factor for i, factor in factors.items()}
    ranges |= {tensor: ranges[tensor] * factor for tensor, factor in wrong.items()}
    (folder / "ranges.json").write_text(json.dumps(ranges))
    readers = [g for g, slots in layout.slots.items() if any(s.tensor in wrong for s in slots)]
    return project, readers
