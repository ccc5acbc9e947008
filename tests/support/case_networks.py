"""Networks of case files: those of networks.yaml, of the zoo and of benchmarks/half, with their options."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper
from written_networks import network, written
from zoo import ZOO

from benchmarks.builder import Builder as HalfBuilder
from benchmarks.half.networks import build as build_half
from benchmarks.half.parts import FAULTS, HEALTHY

Array = NDArray[Any]
_WRITTEN = written(Path(__file__).with_name("networks.yaml"))


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
    said = _WRITTEN["convs"]
    text, weights = said["text"], dict(said["weights"])
    for name, shape in {"w1": (width, 4, 3, 3), "b1": (width,), "w2": (8, width, 3, 3)}.items():
        weights[name] = {**weights[name], "shape": shape}
    if uneven != 1.0:
        text = text.replace("relu2 = Relu(conv2)", "even2 = Mul(conv2, e2)\n    relu2 = Relu(even2)")
        weights["e2"] = np.ones((1, 8, 1, 1)).tolist()
    proto = network(text, weights)
    scale_channel(proto, ["w1:0", "b1:0"], ["w2:1"], channel, outlier)
    if uneven != 1.0:
        scale_channel(proto, ["w2:0", "b2:0"], [], channel, 1 / uneven)
        scale_channel(proto, ["e2:1"], [], channel, uneven)
    return proto


def squashed(
    end: str = "sigmoid", noise: float = 1.0, bias: float = 0.0, gain: float = 1.0
) -> onnx.ModelProto:
    """Two layers and an operator that hides errors: an ``end`` of networks.yaml.

    One hidden channel is ``noise`` times as large as the others, and contributes no more than they do. So
    with one scale for all channels the others get a step that is ``noise`` times as coarse. ``bias`` is added
    to all logits, which are ``gain`` times as large.
    """
    said = _WRITTEN["squashed"]
    weights = {**said["weights"], "bias": [bias] * 8}
    weights["w2"] = {**weights["w2"], "times": gain}
    if end == "reshaped":
        weights["rows"] = {"integers": [-1, 8]}
    proto = network(said["text"].replace("END", said["ends"][end]), weights)
    scale_channel(proto, ["w1:1"], ["w2:0"], 0, noise)
    return proto


def block(outlier: float = 1.0, channel: int = 3) -> onnx.ModelProto:
    """A channel of the first norm is ``outlier`` times as large."""
    proto = network(**_WRITTEN["block"])
    scale_channel(proto, ["g1"], ["w1:0"], channel, outlier)
    return proto


def attention() -> onnx.ModelProto:
    """As the file has it."""
    return network(**_WRITTEN["attention"])


def products() -> onnx.ModelProto:
    """As the file has it."""
    return network(**_WRITTEN["products"])


def detector(outputs: str = "placed", outlier: float = 1.0) -> onnx.ModelProto:
    """``outputs``: names, a comma between.

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
    said = _WRITTEN["detector"]
    proto = network(said["text"].replace("float[n, k] placed", given), said["weights"])
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
    function.__name__: function
    for function in (convs, squashed, block, attention, products, detector, zoo, half)
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
    sample and its factor; ``signs``: this value with random signs; ``even``: a factor of every other sample.
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
            array[::2] *= said.get("even", 1.0)
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
