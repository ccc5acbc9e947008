"""A detector with its boxes decoded inside the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.regressions.entry import Planted, Truth
from benchmarks.regressions.networks import Net
from benchmarks.regressions.plant import from_qdq
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, Quantization

PIXELS = 640.0
_CONCAT = "/decode/Concat"


def decoded(net: Net) -> Planted:
    """Boxes in pixels and class probabilities in one tensor, whose Q/DQ has the boxes' scale."""
    model = _with_tail(net.model)
    scale = Quantization(np.array(PIXELS * 1.2 / 127, np.float32), np.zeros((), np.int8))
    edges = tuple(Edge(_CONCAT, i, name, scale) for i, name in enumerate(("pixels", "probabilities")))
    network = net.network()
    groups = (*network.groups, Group(_CONCAT, "Concat", (_CONCAT,), edges))
    kinds = frozenset({"mismatched-scales", "sensitive-op", "scale-too-wide"})
    return from_qdq(
        net,
        replace(network, model=model, groups=groups),
        Truth(causes={_CONCAT: kinds}, int8_fix=None),
        model=model,
        limits={"boxes": {"mean_abs": 12.0}, "scores": {"mean_abs": 0.02}},
    )


def _with_tail(model: Model) -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.edit().done().proto)
    graph = proto.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(PIXELS, np.float32), "image_size"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 10], np.int64), "parts"))
    graph.node.extend(
        [
            helper.make_node("Mul", ["box", "image_size"], ["pixels"], "/decode/Mul"),
            helper.make_node("Softmax", ["class"], ["probabilities"], "/decode/Softmax", axis=-1),
            helper.make_node("Concat", ["pixels", "probabilities"], ["detections"], _CONCAT, axis=1),
            helper.make_node("Split", ["detections", "parts"], ["boxes", "scores"], "/decode/Split", axis=1),
        ]
    )
    del graph.output[:]
    for name, width in (("boxes", 2), ("scores", 10)):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]))
    return normalize(replace(model, proto=proto))
