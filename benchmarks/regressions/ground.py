"""Networks of readers that the trained ones lack, and what their INT8 forms are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.regressions import judge
from benchmarks.regressions.data import samples
from benchmarks.regressions.entry import Planted, Truth
from benchmarks.regressions.networks import CALIBRATION, VALIDATION, net
from benchmarks.regressions.plant import Change
from pytest_int8acc.graph.layout import find_groups, quantize, quantize_weight
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.tensors import Array, Feed

#: A limit lies this many dB below what the honest INT8 form reaches.
ROOM_DB = 6.0


@dataclass(frozen=True)
class Place:
    """An input of a node that is quantized besides those that the plugin quantizes."""

    node: str
    index: int
    axis: int | None = None
    """Of a constant with a scale for each channel."""
    reach: float | None = None
    """The honest range, where it is not the greatest magnitude."""


@dataclass(frozen=True, eq=False)
class Ground:
    """A float model with the samples that its ranges come from and those that are compared."""

    name: str
    model: Model
    calibration: Feed
    inputs: Feed
    places: tuple[Place, ...] = ()

    @cached_property
    def values(self) -> Feed:
        """Every float tensor on the calibration samples."""
        return judge.values(self.model, self.calibration)

    def amax(self, tensor: str) -> float:
        """The greatest magnitude of an activation."""
        return float(np.abs(self.values[tensor]).max())

    def network(self, places: Iterable[Place] | None = None) -> Network:
        """The honest INT8 form."""
        layout = find_groups(self.model)
        scales = {name: self.amax(name) / 127 for name in layout.activations}
        network, constants = quantize(self.model, layout, scales), self.model.constants()
        nodes = {node.name: node for node in self.model.graph.node}
        groups = {group.name: group for group in network.groups}
        for place in self.places if places is None else places:
            node = nodes[place.node]
            tensor = node.input[place.index]
            if tensor in constants:
                found = quantize_weight(constants[tensor], place.axis)
            else:
                reach = self.amax(tensor) if place.reach is None else place.reach
                found = Quantization(np.array(reach / 127, np.float32), np.zeros((), np.int8))
            group = groups.get(place.node, Group(place.node, node.op_type, (place.node,), ()))
            edges = (*group.edges, Edge(place.node, place.index, tensor, found))
            groups[place.node] = replace(group, edges=edges)
        return replace(network, groups=tuple(groups[name] for name in nodes if name in groups))

    def planted(
        self,
        truth: Truth,
        *,
        honest: Network | None = None,
        faulty: Network | onnx.ModelProto,
        model: Model | None = None,
    ) -> Planted:
        """The Q/DQ model ``faulty``, judged by what ``honest`` reaches; ``model``: another float model."""
        model = model or self.model
        candidate = apply(faulty) if isinstance(faulty, Network) else faulty.SerializeToString()
        baseline, reached = (judge.run(m, self.inputs) for m in (model, apply(honest or self.network())))
        limits = {}
        for output in baseline:
            score = judge.scores(baseline, reached, {output: {"sqnr_db": 0.0}})[output, "sqnr_db"]
            limits[output] = {"sqnr_db": round(score - ROOM_DB, 1)}
        return Planted(
            model=model,
            inputs=self.inputs,
            int8={"model": "int8.onnx"},
            limits=limits,
            truth=truth,
            candidate=candidate,
            files={"int8.onnx": candidate},
        )


def trained(name: str, model: Model | None = None) -> Ground:
    """A trained network of the corpus, or a form of it."""
    known = net(name).model if model is None else model
    parts = (samples(name, "calibration", CALIBRATION), samples(name, "validation", VALIDATION))
    return Ground(name, known, *parts)


def edited(network: Network, place: tuple[str, int], change: Change) -> Network:
    """The network with one quantized input of one node quantized otherwise."""

    def edit(edge: Edge) -> Edge:
        if (edge.node, edge.index) != place:
            return edge
        return replace(edge, quantization=change(edge.quantization))

    return replace(network, groups=tuple(replace(g, edges=tuple(map(edit, g.edges))) for g in network.groups))


@dataclass(eq=False)
class Writer:
    """Collects the nodes of a random network; what adds a node returns its output."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def const(self, name: str, array: Array) -> str:
        """An initializer."""
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def random(self, name: str, *shape: int, std: float = 0.1) -> str:
        """A float32 initializer drawn from a normal distribution."""
        return self.const(name, (std * self.rng.standard_normal(shape)).astype(np.float32))

    def node(self, op: str, name: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """A node; its outputs are called ``name:0``, ``name:1`` and so on."""
        made = [f"{name}:{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, made, name, **attributes))
        return made[0]

    def linear(self, name: str, x: str, rows: int, columns: int) -> str:
        """A MatMul and an Add."""
        weight = self.random(f"{name}.weight", rows, columns, std=rows**-0.5)
        y = self.node("MatMul", f"{name}/MatMul", x, weight)
        return self.node("Add", f"{name}/Add", y, self.random(f"{name}.bias", columns))

    def conv(self, name: str, x: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
        """A 3x3 convolution."""
        weight = self.random(f"{name}.weight", outputs, inputs, 3, 3, std=(2 / (9 * inputs)) ** 0.5)
        more = [self.random(f"{name}.bias", outputs)] if bias else []
        return self.node("Conv", f"{name}/Conv", x, weight, *more, pads=[1] * 4)

    def head(self, x: str, width: int, classes: int = 10) -> str:
        """A Gemm."""
        weight = self.random("head.weight", classes, width, std=width**-0.5)
        return self.node("Gemm", "head/Gemm", x, weight, self.random("head.bias", classes), transB=1)

    def model(self, inputs: Mapping[str, tuple[int, list[int | str]]], result: str) -> Model:
        """The network, whose output is called ``y``."""
        given = [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()]
        last = helper.make_node("Identity", [result], ["y"], "last")
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph([*self.nodes, last], "readers", given, [output], self.constants)
        opsets = [helper.make_opsetid("", 17)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return normalize(make_model(onnx.shape_inference.infer_shapes(proto), name="readers"))


def _noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def table(rows: int, width: int, seed: int, idle: float = 1.0, many: int = 3) -> Ground:
    """Tokens look up rows of a table; ``many`` rows that no token names are ``idle`` times as large."""
    w = Writer(seed)
    values = w.rng.standard_normal((rows, width)).astype(np.float32)
    values[:many] *= np.float32(idle)
    x = w.node("Gather", "words/Gather", w.const("words.weight", values), "tokens")
    y = w.node("Relu", "up/Relu", w.linear("up", x, width, 2 * width))
    x = w.node("Add", "sum/Add", x, w.linear("down", y, 2 * width, width))
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0)
    model = w.model({"tokens": (TensorProto.INT64, ["n", 12])}, w.head(x, width))
    feeds = [
        {"tokens": np.random.default_rng(seed + part).integers(many, rows, (128, 12))} for part in (1, 2)
    ]
    return Ground("table", model, feeds[0], feeds[1], (Place("words/Gather", 0),))


def upsampler(width: int, seed: int, idle: float = 1.0) -> Ground:
    """Convolution, ConvTranspose, convolution.

    Args:
        width: Channels in front of the ConvTranspose, and behind it.
        seed: Of weights and inputs.
        idle: Two channels in front of it are always 0, and their weights are this many times as large.
    """
    w = Writer(seed)
    x = w.node("Relu", "first/Relu", w.conv("first", "x", 3, width))
    weight = (w.rng.standard_normal((width, width, 2, 2)) / width**0.5).astype(np.float32)
    if idle > 1:
        weight[:2] *= np.float32(idle)
        bias = next(c for c in w.constants if c.name == "first.bias")
        array = numpy_helper.to_array(bias).copy()
        array[:2] = -50.0
        bias.CopyFrom(numpy_helper.from_array(array, "first.bias"))
    names = (w.const("up.weight", weight), w.random("up.bias", width))
    x = w.node("ConvTranspose", "up/ConvTranspose", x, *names, strides=[2, 2], kernel_shape=[2, 2])
    x = w.node("Relu", "up/Relu", x)
    x = w.conv("last", x, width, 4, bias=False)
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, x)
    return Ground("upsampler", model, *({"x": _noise(seed + part, 128, 3, 8, 8)} for part in (1, 2)))


def attention(width: int, mask: float, seed: int, *, where: bool = False) -> Ground:
    """Attention over up to 12 tokens; absent ones are masked by ``mask``, added or chosen by Where."""
    w, tokens = Writer(seed), 12
    q, k, v = (w.linear(name, "x", width, width) for name in ("query", "key", "value"))
    scores = w.node("MatMul", "scores/MatMul", q, w.node("Transpose", "key/Transpose", k, perm=[0, 2, 1]))
    scores = w.node("Div", "scores/Div", scores, w.const("root", np.array(width**0.5 / 2, np.float32)))
    value = w.const("mask", np.array(mask, np.float32))
    absent = w.node("Greater", "absent/Greater", "absent", w.const("half", np.array(0.5, np.float32)))
    if where:
        scores = w.node("Where", "scores/Where", absent, value, scores)
    else:
        ones = w.node("Cast", "absent/Cast", absent, to=TensorProto.FLOAT)
        masked = w.node("Mul", "absent/Mul", ones, value)
        scores = w.node("Add", "scores/Add", scores, masked)
    mixed = w.node("MatMul", "mixed/MatMul", w.node("Softmax", "scores/Softmax", scores, axis=-1), v)
    x = w.linear("out", mixed, width, width)
    x = w.node("ReduceMean", "mean/ReduceMean", w.node("Relu", "out/Relu", x), axes=[1], keepdims=0)
    inputs = {
        "x": (TensorProto.FLOAT, ["n", tokens, width]),
        "absent": (TensorProto.FLOAT, ["n", 1, tokens]),
    }
    model = w.model(inputs, w.head(x, width))
    feeds = []
    for part in (1, 2):
        lengths = np.random.default_rng([seed, part]).integers(4, tokens + 1, (128, 1, 1))
        absent = (np.arange(tokens)[None, None] >= lengths).astype(np.float32)
        feeds.append({"x": _noise(seed + part, 128, tokens, width), "absent": absent})
    return Ground("attention", model, *feeds)


def recurrent(op: str, width: int, hidden: int, seed: int, *, idle: float = 1.0) -> Ground:
    """A recurrent layer over 10 steps, with Q/DQ at its inputs, weights and recurrent weights.

    Weights of three inputs that are always 0 are ``idle`` times as large.
    """
    w, gates = Writer(seed), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    used = np.ones(width, np.float32)
    used[:3] = idle == 1
    x = w.node("Mul", "x/Mul", "x", w.const("used", used))
    x = w.node("Transpose", "x/Transpose", x, perm=[1, 0, 2])
    weight = (w.rng.standard_normal((1, gates * hidden, width)) / width**0.5).astype(np.float32)
    weight[:, :, :3] *= np.float32(idle)
    names = [w.const("W", weight), w.random("R", 1, gates * hidden, hidden, std=hidden**-0.5)]
    names.append(w.random("B", 1, 2 * gates * hidden))
    outputs = 3 if op == "LSTM" else 2
    w.node(op, f"steps/{op}", x, *names, outputs=outputs, hidden_size=hidden)
    axes = w.const("axes", np.array([0], np.int64))
    y = w.node("Squeeze", "last/Squeeze", f"steps/{op}:1", axes)
    model = w.model({"x": (TensorProto.FLOAT, ["n", 10, width])}, w.head(y, hidden))
    feeds = [{"x": _noise(seed + part, 128, 10, width)} for part in (1, 2)]
    places = (Place(f"steps/{op}", 0), Place(f"steps/{op}", 1, 1), Place(f"steps/{op}", 2, 1))
    return Ground("recurrent", model, *feeds, places)


def perceptron(widths: tuple[int, ...], seed: int) -> Ground:
    """MatMul, Add and Relu, several times."""
    w, x = Writer(seed), "x"
    for i, (rows, columns) in enumerate(pairwise(widths)):
        x = w.node("Relu", f"layer{i}/Relu", w.linear(f"layer{i}", x, rows, columns))
    model = w.model({"x": (TensorProto.FLOAT, ["n", widths[0]])}, w.linear("end", x, widths[-1], 10))
    return Ground("perceptron", model, *({"x": _noise(seed + part, 128, widths[0])} for part in (1, 2)))


def normed(width: int, depth: int, seed: int) -> Ground:
    """Convolutions, each with a BatchNormalization."""
    w, x, inputs = Writer(seed), "x", 3
    for i in range(depth):
        x = w.conv(f"block{i}", x, inputs, width, bias=False)
        parts = [
            w.const(f"block{i}.{name}", array.astype(np.float32))
            for name, array in (
                ("scale", w.rng.uniform(0.5, 1.5, width)),
                ("shift", 0.2 * w.rng.standard_normal(width)),
                ("mean", 0.2 * w.rng.standard_normal(width)),
                ("variance", w.rng.uniform(0.5, 2.0, width)),
            )
        ]
        x = w.node("BatchNormalization", f"block{i}/BatchNormalization", x, *parts)
        x, inputs = w.node("Relu", f"block{i}/Relu", x), width
    x = w.node("Flatten", "flat/Flatten", w.node("GlobalAveragePool", "pool/GlobalAveragePool", x))
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, w.head(x, width))
    return Ground("normed", model, *({"x": _noise(seed + part, 128, 3, 8, 8)} for part in (1, 2)))
