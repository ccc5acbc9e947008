"""INT8 made by hand with plain onnx and run in plain ONNX Runtime: a second opinion on what reports claim."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from pytest_int8acc.tensors import Array, Feed

WEIGHTED = ("Conv", "Gemm", "MatMul")


def by_hand(
    proto: onnx.ModelProto, scales: Mapping[str, Array], leave: Collection[str] = ()
) -> onnx.ModelProto:
    """Q/DQ before each weighted node but those to ``leave``; weights rounded per output channel.

    ``scales``: of activations, one for a tensor, or float32 [channels] along its second axis.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    constants = {t.name: t for t in made.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        if node.op_type in WEIGHTED and node.name not in leave:
            tensor, scale = node.input[0], np.asarray(scales[node.input[0]], np.float32)
            names = [f"{node.name}/{part}" for part in ("scale", "zero", "codes", "x")]
            for name, array in zip(names, (scale, np.zeros(scale.shape, np.int8)), strict=False):
                made.graph.initializer.append(numpy_helper.from_array(array, name))
            pair = (("QuantizeLinear", tensor, names[2]), ("DequantizeLinear", names[2], names[3]))
            for kind, given, result in pair:
                inputs = [given, *names[:2]]
                nodes.append(helper.make_node(kind, inputs, [result], result, axis=1 if scale.ndim else 0))
            weight = numpy_helper.to_array(constants[node.input[1]])
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            rounded = _rounded(weight, 0 if transposed or node.op_type == "Conv" else 1)
            made.graph.initializer.append(numpy_helper.from_array(rounded, f"{node.name}/w"))
            node.input[0], node.input[1] = names[3], f"{node.name}/w"
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    return made


def _rounded(weight: Array, axis: int) -> Array:
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scale = np.abs(weight).max(others, keepdims=True) / 127
    return (np.clip(np.rint(weight / scale), -127, 127) * scale).astype(np.float32)


def run(proto: onnx.ModelProto, feed: Feed, extra: Collection[str] = ()) -> Feed:
    """Outputs, and ``extra`` tensors, in a plain session without optimization."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def sqnr_db(expected: Array, found: Array) -> float:
    """10 log10 of the energy of what is expected over that of the error."""
    return float(10 * np.log10((expected**2).sum() / ((expected - found) ** 2).sum()))
