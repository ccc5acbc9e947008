"""Networks of case files: a few layers with seeded weights; nodes bear the names of what they make."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from zoo import ZOO

from benchmarks.builder import Builder as HalfBuilder
from benchmarks.half.networks import build as build_half
from benchmarks.half.parts import FAULTS, HEALTHY

Array = NDArray[Any]
HEAD = '<ir_version: 8, opset_import: ["": 17]> '
CONVS = """net (float[n, 4, 8, 8] x) => (float[n, 6] logits) {
    conv1 = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    relu1 = Relu(conv1)
    conv2 = Conv<pads = [1, 1, 1, 1]>(relu1, w2, b2)
    relu2 = Relu(conv2)
    conv3 = Conv<pads = [1, 1, 1, 1]>(relu2, w3, b3)
    relu3 = Relu(conv3)
    pooled = AveragePool<kernel_shape = [4, 4], strides = [4, 4]>(relu3)
    flat = Flatten(pooled)
    logits = Gemm<transB = 1>(flat, w4, b4)
}"""
BLOCK = """net (float[n, 6, 16] x) => (float[n, 6, 8] logits) {
    norm1 = LayerNormalization(x, g1, h1)
    fc1 = MatMul(norm1, w1)
    bias1 = Add(fc1, b1)
    gate = Erf(bias1)
    more = Add(gate, one)
    gelu = Mul(bias1, more)
    fc2 = MatMul(gelu, w2)
    sum = Add(x, fc2)
    norm2 = LayerNormalization(sum, g2, h2)
    logits = MatMul(norm2, w3)
}"""
DETECTOR = """net (float[n, 8, 16, 16] image) => (float[n, k] placed) {
    mixed = Conv<pads = [1, 1, 1, 1]>(image, w1)
    relu = Relu(mixed)
    heads = Conv(relu, w2)
    boxes = Reshape(heads, flat)
    scores = ReduceMean<axes = [1], keepdims = 0>(boxes)
    best, place = TopK<axis = 1>(scores, count)
    placed = Cast<to = 1>(place)
}"""
ATTENTION = """net (float[n, 6, 16] x) => (float[n, 6, 8] logits) {
    norm1 = LayerNormalization(x, g1, h1)
    query = MatMul(norm1, wq)
    key = MatMul(norm1, wk)
    value = MatMul(norm1, wv)
    query_split = Reshape(query, heads)
    key_split = Reshape(key, heads)
    value_split = Reshape(value, heads)
    queries = Transpose<perm = [0, 2, 1, 3]>(query_split)
    keys = Transpose<perm = [0, 2, 3, 1]>(key_split)
    values = Transpose<perm = [0, 2, 1, 3]>(value_split)
    scores = MatMul(queries, keys)
    scaled = Mul(scores, third)
    weights = Softmax(scaled)
    mixed = MatMul(weights, values)
    turned = Transpose<perm = [0, 2, 1, 3]>(mixed)
    joined = Reshape(turned, whole)
    out = MatMul(joined, wo)
    sum = Add(x, out)
    norm2 = LayerNormalization(sum, g2, h2)
    logits = MatMul(norm2, w3)
}"""


def network(text: str, weights: Mapping[str, Any]) -> onnx.ModelProto:
    """A model from ONNX's text form, without its header.

    ``weights``: by name a number, a list of them (constants), ``{shape: [...], times: 1.0}`` (seeded, so that
    what they make is of order one) or ``{integers: [...]}``.
    """
    proto = parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text)
    rng = np.random.default_rng(0)
    for name, said in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(_weight(said, rng), name))
    for node in proto.graph.node:
        node.name = node.name or node.output[0]
    return proto


def _weight(said: Any, rng: np.random.Generator) -> Array:
    if isinstance(said, Mapping) and "integers" in said:
        return np.array(said["integers"], np.int64)
    if not isinstance(said, Mapping):
        return np.array(said, np.float32)
    shape = said["shape"]
    # The first axis is taken for the output's, as Conv and Gemm with transB have it.
    array = rng.standard_normal(shape) * (2 / max(np.prod(shape[1:]), 1)) ** 0.5
    for axis, factors in said.get("slices", {}).items():
        for index, factor in factors.items():
            np.moveaxis(array, int(axis), 0)[index] *= factor
    return (array * said.get("times", 1.0)).astype(np.float32)


def scale_channel(
    proto: onnx.ModelProto, makers: Collection[str], readers: Collection[str], channel: int, factor: float
) -> None:
    """Enlarge a channel in the weights of ``makers`` and undo it in those of ``readers``: the function stays.

    Weights are named with the channel's axis: ``w1:0``. Only what is positively homogeneous lies between.
    """
    for names, by in ((makers, factor), (readers, 1 / factor)):
        for name, _, axis in (text.partition(":") for text in names):
            change(proto, name, {channel: by}, int(axis or 0))


def change(proto: onnx.ModelProto, name: str, factors: Mapping[int, float], axis: int = 0) -> None:
    """Multiply slices of a weight."""
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    array = np.moveaxis(numpy_helper.to_array(tensor).copy(), axis, 0)
    for index, factor in factors.items():
        array[index] *= np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(np.moveaxis(array, 0, axis)), name))


def convs(outlier: float = 1.0, channel: int = 3, width: int = 8, uneven: float = 1.0) -> onnx.ModelProto:
    """Three convolutions and a Gemm; a channel of ``relu1`` is ``outlier`` times as large, undone by conv2.

    One output channel of ``conv2`` has weights ``uneven`` times smaller, which a Mul behind it undoes.
    """
    shapes: dict[str, Any] = {"w1": (width, 4, 3, 3), "b1": (width,), "w2": (8, width, 3, 3), "b2": (8,)}
    shapes |= {"w3": (8, 8, 3, 3), "b3": (8,), "w4": (6, 32), "b4": (6,)}
    # Small biases, so that outputs are of their samples and not alike for all.
    weights: dict[str, Any] = {
        name: {"shape": shape, "times": 0.1 if name[0] == "b" else 1.0} for name, shape in shapes.items()
    }
    text = CONVS
    if uneven != 1.0:
        text = CONVS.replace("relu2 = Relu(conv2)", "even2 = Mul(conv2, e2)\n    relu2 = Relu(even2)")
        weights["e2"] = np.ones((1, 8, 1, 1)).tolist()
    proto = network(text, weights)
    scale_channel(proto, ["w1:0", "b1:0"], ["w2:1"], channel, outlier)
    if uneven != 1.0:
        scale_channel(proto, ["w2:0", "b2:0"], [], channel, 1 / uneven)
        scale_channel(proto, ["e2:1"], [], channel, uneven)
    return proto


def block(outlier: float = 1.0, channel: int = 3) -> onnx.ModelProto:
    """A norm, two products with a GELU between; a channel of the norm is ``outlier`` times as large."""
    weights: dict[str, Any] = {"one": 1.0}
    weights |= {name: [1.0] * 16 for name in ("g1", "g2")} | {name: [0.0] * 16 for name in ("h1", "h2")}
    for name, shape in {"w1": (16, 24), "b1": (24,), "w2": (24, 16), "w3": (16, 8)}.items():
        weights[name] = {"shape": shape, "times": 0.5 if name == "b1" else 1.0}
    proto = network(BLOCK, weights)
    scale_channel(proto, ["g1"], ["w1:0"], channel, outlier)
    return proto


def attention() -> onnx.ModelProto:
    """Self-attention of two heads behind a norm."""
    weights: dict[str, Any] = {"third": 0.35}
    weights |= {"heads": {"integers": [0, 6, 2, 8]}, "whole": {"integers": [0, 6, 16]}}
    weights |= {name: [1.0] * 16 for name in ("g1", "g2")} | {name: [0.0] * 16 for name in ("h1", "h2")}
    weights |= {name: {"shape": (16, 16)} for name in ("wq", "wk", "wv", "wo")} | {"w3": {"shape": (16, 8)}}
    return network(ATTENTION, weights)


def detector(outputs: str = "placed", outlier: float = 1.0) -> onnx.ModelProto:
    """Boxes of two convolutions, and a TopK that chooses among their scores.

    ``outputs``: names, a comma between.
    A channel of ``relu`` is ``outlier`` times as large, which ``heads`` undoes.
    """
    shapes = {
        "placed": "n, k",
        "best": "n, k",
        "scores": "n, 256",
        "relu": "n, 16, 16, 16",
        "heads": "n, 4, 16, 16",
    }
    given = ", ".join(f"float[{shapes[name]}] {name}" for name in outputs.split(","))
    weights: dict[str, Any] = {"w1": {"shape": (16, 8, 3, 3)}, "w2": {"shape": (4, 16, 1, 1)}}
    weights |= {"flat": {"integers": [0, 4, 256]}, "count": {"integers": [40]}}
    proto = network(DETECTOR.replace("float[n, k] placed", given), weights)
    scale_channel(proto, ["w1:0"], ["w2:1"], 5, outlier)
    return proto


def zoo(name: str) -> onnx.ModelProto:
    """A network of tests/support/zoo.py."""
    return ZOO[name]()


def half(part: str, name: str = "mlp", then: str = "") -> onnx.ModelProto:
    """A network of benchmarks/half with a part in its middle that FP16 computes wrong, or only seems to.

    ``then``: a second part behind it; the nodes of both are named by their parts.
    """
    parts = {**FAULTS, **HEALTHY}

    def both(b: HalfBuilder, x: str, width: int) -> str:
        for which in (part, then):
            b.scope = f"part/{which}"
            x = parts[which](b, x, width)
        return x

    model = build_half(name, both if then else parts[part])
    return onnx.load_model_from_string(model.serialize())


BUILDERS: Mapping[str, Callable[..., onnx.ModelProto]] = {
    function.__name__: function for function in (convs, block, attention, detector, zoo, half)
}


def built(call: str) -> onnx.ModelProto:
    """The network of a text such as ``convs(outlier=40)``."""
    node = ast.parse(call, mode="eval").body
    if isinstance(node, ast.Name):
        return BUILDERS[node.id]()
    assert isinstance(node, ast.Call), f"{call}: write builder(name=value)"
    assert isinstance(node.func, ast.Name)
    arguments = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    return BUILDERS[node.func.id](*map(ast.literal_eval, node.args), **arguments)


def samples(proto: onnx.ModelProto, said: Mapping[str, Any], seed: int) -> dict[str, Array]:
    """Inputs for a network, standard normal.

    ``samples``: how many; ``times``: their size; ``rows``: a factor by sample; ``channel``: a place in each
    sample and its factor; ``signs``: this value with random signs.
    """
    rng = np.random.default_rng(said.get("seed", seed))
    count = said.get("samples", 24)
    feed: dict[str, Array] = {}
    constants = {tensor.name for tensor in proto.graph.initializer}
    for info in (i for i in proto.graph.input if i.name not in constants):
        dims = info.type.tensor_type.shape.dim
        sizes = [d.dim_value if d.HasField("dim_value") else 8 for d in dims]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if not sizes:
            feed[info.name] = np.array(True, dtype)
        elif dtype.kind == "f":
            array = rng.standard_normal([count, *sizes[1:]]) * said.get("times", 1.0)
            if "signs" in said:
                array = np.sign(array) * said["signs"]
            if "channel" in said:
                place, factor = said["channel"]
                array[(slice(None), *place)] *= factor
            for row, factor in said.get("rows", {}).items():
                array[row] *= factor
            feed[info.name] = array.astype(dtype)
        else:
            feed[info.name] = rng.integers(0, 8, [count, *sizes[1:]]).astype(dtype)
    return feed


def held(proto: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """All float tensors of the model for these inputs, in plain ONNX Runtime."""
    shown = onnx.shape_inference.infer_shapes(proto)
    known = {value.name for value in shown.graph.output}
    extra = [v for v in shown.graph.value_info if v.name not in known]
    shown.graph.output.extend(v for v in extra if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    size = next((i.shape[0] for i in session.get_inputs() if i.shape), None)
    rows = len(next(array for array in feed.values() if array.ndim))
    step = size if isinstance(size, int) else rows
    parts: list[dict[str, Array]] = []
    for start in range(0, rows - step + 1, step):
        piece = {name: a[start : start + step] if a.ndim else a for name, a in feed.items()}
        parts.append(dict(zip(names, session.run(names, piece), strict=True)))
    floats = {name: array for name, array in feed.items() if array.dtype == np.float32 and array.ndim}
    return {
        name: np.concatenate([part[name] for part in parts]) for name in names if parts[0][name].ndim
    } | floats
