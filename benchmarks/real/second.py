"""A second opinion on a report, by plain onnx and ONNX Runtime: each claimed change is made by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from benchmarks.regressions.judge import Limits, margin, scores
from pytest_int8acc.tensors import Array, Feed

#: Inputs are moved by up to half of this share of their range; samples are drawn again as many times.
STEP, MOVES = 2.0**-10, 20

Run = Callable[[onnx.ModelProto], Feed]
Places = Mapping[str, Collection[int]]


def runner(feed: Feed, rows: int) -> Run:
    """All samples through a model, ``rows`` at a time, without optimization."""
    count = len(next(iter(feed.values())))

    def run(proto: onnx.ModelProto) -> Feed:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        parts = [
            session.run(names, {name: array[i : i + rows] for name, array in feed.items()})
            for i in range(0, count, rows)
        ]
        columns = zip(names, zip(*parts, strict=True), strict=True)
        return {name: np.concatenate(made) for name, made in columns}

    return run


def room(expected: Feed, found: Feed, limits: Limits) -> float:
    """How far the worst criterion lies inside its limit, in dB of its error; negative where it is missed."""
    return margin(scores(expected, found, limits), limits)


def freed(int8: onnx.ModelProto, plain: onnx.ModelProto, places: Places) -> onnx.ModelProto:
    """``int8`` with some inputs of some nodes read past their Q/DQ, those of weights from ``plain``."""
    made = onnx.ModelProto()
    made.CopyFrom(int8)
    producer = {name: node for node in made.graph.node for name in node.output}
    whole = {node.name: node for node in plain.graph.node}
    weights = {tensor.name: tensor for tensor in plain.graph.initializer}
    there = {tensor.name for tensor in made.graph.initializer}
    for node in made.graph.node:
        for index in places.get(node.name, ()):
            pair = producer.get(node.input[index])
            if pair is None or pair.op_type != "DequantizeLinear":
                continue
            source = whole[node.name].input[index]
            if source in weights and source not in there:
                made.graph.initializer.append(weights[source])
                there.add(source)
            node.input[index] = source
    return made


def quantized_places(int8: onnx.ModelProto) -> dict[str, set[int]]:
    """Node to the inputs that come from a DequantizeLinear."""
    made = {name for node in int8.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    found = {
        node.name: {index for index, name in enumerate(node.input) if name in made}
        for node in int8.graph.node
        if node.op_type != "QuantizeLinear"
    }
    return {name: indices for name, indices in found.items() if indices}


def in_fp16(plain: onnx.ModelProto, leave: Collection[str]) -> onnx.ModelProto:
    """What nodes read rounded to FP16 and back by Casts; not what those to ``leave`` pass to each other.

    The statistics of a BatchNormalization stay in FP32: engines and converters fold them into a factor and an
    offset for each channel, and a variance may lie far beyond FP16.
    """
    made = onnx.shape_inference.infer_shapes(plain)
    infos = (*made.graph.value_info, *made.graph.output, *made.graph.input)
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    types |= {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    nodes, halves, halved = list[onnx.NodeProto](), set[str](), set[str]()

    def half(name: str) -> str:
        if types.get(name) != TensorProto.FLOAT:
            return name
        if name not in halves:
            halves.add(name)
            down = helper.make_node("Cast", [name], [f"{name}/16"], to=TensorProto.FLOAT16)
            nodes.extend(
                [down, helper.make_node("Cast", [f"{name}/16"], [f"{name}/half"], to=TensorProto.FLOAT)]
            )
        return f"{name}/half"

    for node in made.graph.node:
        copied = onnx.NodeProto.FromString(node.SerializeToString())
        read = node.input[:1] if node.op_type == "BatchNormalization" else node.input
        for index, name in enumerate(read):
            if node.name not in leave or name in halved:
                copied.input[index] = half(name)
        if node.name not in leave:
            halved.update(node.output)
        nodes.append(copied)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def drawn(feed: Feed, seed: int) -> Array:
    """As many samples as there are, drawn with repetition: their rows."""
    count = len(next(iter(feed.values())))
    return np.random.default_rng(seed).integers(0, count, count)


def taken(outputs: Feed, rows: Array) -> Feed:
    """These rows of each."""
    return {name: array[rows] for name, array in outputs.items()}


def moved(feed: Feed, seed: int) -> Feed:
    """The float inputs moved by less than half a step."""
    rng = np.random.default_rng(seed)
    return {name: _moved(array, rng) for name, array in feed.items()}


def _moved(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    low, high = float(array.min()), float(array.max())
    steps = rng.uniform(-0.5, 0.5, array.shape) * STEP * (high - low)
    return np.clip(array + steps, low, high).astype(array.dtype)


def energy(expected: Feed, found: Feed) -> float:
    """Squared error over all outputs."""
    return sum(float(((expected[name].astype(np.float64) - found[name]) ** 2).sum()) for name in expected)
