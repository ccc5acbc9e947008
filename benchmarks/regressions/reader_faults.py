"""Faults at readers that the other kinds leave out: biases, tables, masks, recurrent and rewritten layers.

Each entry has a Q/DQ model. An honest INT8 form of the same network is known, and the limit lies 6 dB below
what it reaches, so that full INT8 exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.faults import stretched
from benchmarks.regressions import ground, judge
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.ground import Ground, Place, edited, trained
from benchmarks.regressions.networks import net
from benchmarks.regressions.plant import NARROW, WIDE, Change, coarser, scaled
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model, put_constant
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.tensors import Array

_BIAS = frozenset({"int8-bias"})
_SHIFT = frozenset({"bias-shift"})
_IGNORED = frozenset({"ignored-channel"})
_MASKED = frozenset({"masked-range"})
_IDLE = frozenset({"weight-outliers"})
_AXIS = frozenset({"wrong-axis"})
_CONSTANT = frozenset({"weight-scale"})
#: Network, layer, channel that a bias so many times as large turns off for good.
_DEAD_BIASES = (
    ("cnn", "/4/conv/Conv", 3, 60.0),
    ("resnet", "/2/first/conv/Conv", 5, 100.0),
    ("tcn", "/3/first/Conv", 7, 80.0),
    ("inception", "/2/conv/Conv", 11, 60.0),
    ("unet", "/up0/ConvTranspose", 2, 100.0),
    ("mlp", "/3/Gemm", 20, 150.0),
    ("detector", "/backbone/backbone.2/conv/Conv", 9, 60.0),
)
#: Network, layer whose bias has a scale so many times too wide; the Add behind a MatMul reads its bias.
_COARSE_BIASES = (
    ("mobilenet", "/2/project/conv/Conv", 2, 60.0),
    ("convnext", "/stage2/stage2.0/depthwise/Conv", 2, 80.0),
    ("swin", "/stage2/qkv/Add", 0, 80.0),
    ("vit", "/blocks/blocks.0/out/Add", 0, 60.0),
    ("recognizer", "/point2/point2.0/conv/Conv", 2, 60.0),
)
#: Network, layer, by how many codes all its weights are too low; zero points mistaken by one do that.
_LOWERED = (
    ("cnn", "/6/conv/Conv", 2),
    ("resnet", "/3/first/conv/Conv", 1),
    ("inception", "/3/three/three.1/conv/Conv", 3),
    ("mlp", "/3/Gemm", 2),
    ("tcn", "/3/second/Conv", 3),
    ("unet", "/join1/conv/Conv", 2),
    ("mobilenet", "/4/project/conv/Conv", 3),
    ("detector", "/backbone/backbone.3/conv/Conv", 1),
)
#: Network, layer, its readers, channel that they ignore, factor.
_CHANNELS = (
    ("cnn", "/3/conv/Conv", ("/4/conv/Conv",), 6, 80.0),
    ("resnet", "/2/first/conv/Conv", ("/2/second/conv/Conv",), 9, 300.0),
    ("tcn", "/3/first/Conv", ("/3/second/Conv",), 3, 100.0),
    ("mlp", "/1/Gemm", ("/3/Gemm",), 40, 60.0),
    ("inception", "/1/five/five.0/conv/Conv", ("/1/five/five.1/conv/Conv",), 5, 150.0),
    ("unet", "/join0/conv/Conv", ("/last/Conv",), 4, 200.0),
    ("vit", "/blocks/blocks.1/norm2/LayerNormalization", ("/blocks/blocks.1/fc1/MatMul",), 11, 400.0),
    ("swin", "/stage2/norm2/LayerNormalization", ("/stage2/fc1/MatMul",), 7, 250.0),
    ("mobilenet", "/3/expand/conv/Conv", ("/3/depthwise/conv/Conv",), 13, 200.0),
)
#: Width of the attention, mask value, whether Where writes it.
_MASKS = (
    (16, -1e4, False),
    (24, -1e9, False),
    (32, -1e4, True),
    (16, -3.4e38, True),
    (24, -1e3, False),
    (32, -6e4, False),
)
#: Operator, width, hidden size, input, what becomes of how it is quantized, causes.
_RECURRENT = (
    ("LSTM", 16, 24, 0, scaled(40), WIDE),
    ("LSTM", 24, 16, 1, coarser(40), _CONSTANT),
    ("LSTM", 16, 32, 2, coarser(50), _CONSTANT),
    ("GRU", 24, 24, 0, scaled(1 / 12), NARROW),
    ("GRU", 16, 32, 2, coarser(40), _CONSTANT),
    ("RNN", 24, 24, 1, coarser(60), _CONSTANT),
    ("LSTM", 32, 16, 0, scaled(1 / 10), NARROW),
)


def entries() -> Iterator[Entry]:
    """All of this module."""
    for network, layer, channel, factor in _DEAD_BIASES:
        plant = partial(_dead_bias, network, layer, channel, factor)
        yield Entry(f"bias_dead_{network}", "bias in INT8", network, plant)
    for network, node, index, factor in _COARSE_BIASES:
        plant = partial(_coarse_bias, network, node, index, factor)
        yield Entry(f"bias_coarse_{network}", "bias in INT8", network, plant)
    for network, layer, steps in _LOWERED:
        plant = partial(_lowered, network, layer, steps)
        yield Entry(f"shift_lowered_{network}", "bias shift", network, plant)
    for arguments in _CHANNELS:
        plant = partial(_ignored, *arguments)
        yield Entry(f"ignored_{arguments[0]}", "channel that readers ignore", arguments[0], plant)
    for i, (width, mask, where) in enumerate(_MASKS):
        plant = partial(_masked, width, mask, 10 + i, where=where)
        yield Entry(f"masked_{i}", "mask value in a range", "attention", plant)
    yield from _idle_entries()
    for i, (op, width, hidden, index, change, kinds) in enumerate(_RECURRENT):
        known = partial(ground.recurrent, op, width, hidden, 60 + i)
        plant = partial(_recurrent, known, op, index, change, kinds)
        yield Entry(f"recurrent_{i}_{op.lower()}", "recurrent layer", "recurrent", plant)
    yield from _rewritten()
    yield from _healthy()


def _idle_entries() -> Iterator[Entry]:
    """Weights that nothing uses, and scales along the wrong axis."""
    for i, (rows, width, factor) in enumerate(((50, 16, 60.0), (200, 32, 200.0), (30, 24, 100.0))):
        plant = partial(_idle_rows, rows, width, factor, 20 + i)
        yield Entry(f"idle_table_{i}", "rows that nothing looks up", "table", plant)
    for i, (width, factor) in enumerate(((16, 40.0), (24, 100.0), (32, 200.0))):
        plant = partial(
            _idle_inputs, partial(ground.upsampler, width, 30 + i, idle=factor), "up/ConvTranspose"
        )
        yield Entry(f"idle_upsampler_{i}", "weights of inputs that are 0", "upsampler", plant)
    for i, (op, factor) in enumerate((("LSTM", 50.0), ("GRU", 100.0))):
        plant = partial(
            _idle_inputs, partial(ground.recurrent, op, 16, 24, 40 + i, idle=factor), f"steps/{op}"
        )
        yield Entry(f"idle_recurrent_{i}", "weights of inputs that are 0", "recurrent", plant)
    for i, (width, spread) in enumerate(((16, 2.0), (24, 1.5), (32, 3.0))):
        plant = partial(_turned_upsampler, width, spread, 50 + i)
        yield Entry(f"axis_upsampler_{i}", "weights along the wrong axis", "upsampler", plant)


def _rewritten() -> Iterator[Entry]:
    """Layers that a quantizer wrote in another form, with a fault of another kind."""
    for i, (widths, layer, factor) in enumerate(
        (((32, 48, 32), 1, 60.0), ((24, 64, 64, 24), 0, 1 / 15), ((48, 32), 0, 100.0))
    ):
        plant = partial(_gemmed, widths, 70 + i, f"layer{layer}/MatMul", factor)
        yield Entry(f"gemm_{i}", "Gemm made of MatMul", "perceptron", plant)
    for network, layer, factor in (
        ("cnn", "/5/conv/Conv", 60.0),
        ("resnet", "/1/second/conv/Conv", 1 / 12),
        ("mlp", "/3/Gemm", 80.0),
    ):
        plant = partial(_corrected, network, layer, factor)
        yield Entry(f"corrected_{network}", "corrected biases", network, plant)
    for network, layer, share in (
        ("cnn", "/3/conv/Conv", 1.0),
        ("tcn", "/2/second/Conv", 1.0),
        ("inception", "/3/three/three.1/conv/Conv", 1.5),
    ):
        plant = partial(_miscorrected, network, layer, share)
        yield Entry(f"miscorrected_{network}", "a bias corrected wrongly", network, plant)
    for i, (width, depth, factor) in enumerate(((16, 3, 60.0), (24, 4, 1 / 10))):
        plant = partial(_folded, width, depth, 80 + i, factor)
        yield Entry(f"folded_{i}", "norms folded into weights", "normed", plant)


def _healthy() -> Iterator[Entry]:
    for name, plant in {
        "bias_cnn": partial(_healthy_bias, "cnn"),
        "bias_inception": partial(_healthy_bias, "inception"),
        "table": partial(_healthy_ground, partial(ground.table, 60, 24, 90)),
        "recurrent": partial(_healthy_ground, partial(ground.recurrent, "LSTM", 16, 24, 91)),
        "upsampler": partial(_healthy_ground, partial(ground.upsampler, 16, 92)),
        "attention": partial(_healthy_ground, partial(ground.attention, 24, -1e4, 93)),
        "corrected": partial(_healthy_corrected, "cnn"),
        "gemm": partial(_healthy_gemm, (32, 48, 32), 94),
        "folded": partial(_healthy_folded, 16, 3, 95),
    }.items():
        yield Entry(f"healthy_reader_{name}", "healthy", name, plant)


_HEALTHY = Truth("healthy", int8_fix=None)


def _truth(group: str, kinds: frozenset[str], tensor: str) -> Truth:
    return Truth(causes={group: kinds}, tensors={group: frozenset({tensor})})


def _input(model: Model, node: str, index: int) -> str:
    return str(model.index.nodes[node].input[index])


def _with_constant(model: Model, name: str, array: Array) -> Model:
    editor = model.edit()
    tensor = next(t for t in editor.graph.initializer if t.name == name)
    put_constant(tensor, name, array.astype(np.float32), editor.weights)
    return editor.done()


def _dead_bias(network: str, layer: str, channel: int, factor: float) -> Planted:
    """One scale for a bias of which a channel is far below 0, so that its Relu gives 0."""
    model = net(network).model
    name = _input(model, layer, 2)
    bias = model.constants()[name].copy()
    bias[channel] = -factor * np.abs(bias).max()
    known = trained(network, _with_constant(model, name, bias))
    faulty = known.network([Place(layer, 2)])
    return known.planted(_truth(layer, _BIAS, name), honest=known.network([]), faulty=faulty)


def _coarse_bias(network: str, node: str, index: int, factor: float) -> Planted:
    known = trained(network)
    name = _input(known.model, node, index)
    faulty = edited(known.network([Place(node, index)]), (node, index), coarser(factor))
    return known.planted(_truth(node, _BIAS, name), honest=known.network([]), faulty=faulty)


def _lowered(network: str, layer: str, steps: int) -> Planted:
    """All codes of a weight too low: each output channel is shifted by a part of the sum of its inputs."""

    def lower(old: Quantization) -> Quantization:
        assert old.values is not None
        codes = old.values.astype(np.int16) - steps
        return replace(old, values=np.clip(codes, -128, 127).astype(np.int8))

    known = trained(network)
    name = _input(known.model, layer, 1)
    faulty = edited(known.network(), (layer, 1), lower)
    return known.planted(_truth(layer, _SHIFT, name), faulty=faulty)


def _ignored(network: str, layer: str, readers: tuple[str, ...], channel: int, factor: float) -> Planted:
    """A channel that sticks out, and weights of 0 wherever it is read."""
    ignored = [(reader, "in", channel, 0.0) for reader in readers]
    plain = trained(network, stretched(net(network).model, ignored))
    known = trained(network, stretched(plain.model, [(layer, "out", channel, factor)]))
    tensors = {reader: frozenset({_input(known.model, reader, 0)}) for reader in readers}
    truth = Truth(causes=dict.fromkeys(readers, _IGNORED), tensors=tensors)
    honest = known.network()
    for reader in readers:
        scale = np.array(plain.amax(_input(plain.model, reader, 0)) / 127, np.float32)
        honest = edited(honest, (reader, 0), lambda old, scale=scale: replace(old, scale=scale))
    return known.planted(truth, honest=honest, faulty=known.network())


def _masked(width: int, mask: float, seed: int, *, where: bool) -> Planted:
    """The value that masks an absent token takes the range of what goes into the Softmax."""
    known = ground.attention(width, mask, seed, where=where)
    node, index = "scores/Softmax", 0
    tensor = _input(known.model, node, index)
    values = known.values[tensor]
    least = float(np.abs(values[values > mask / 2]).max())
    honest = known.network([Place(node, index, reach=least + 8)])
    faulty = known.network([Place(node, index)])
    made = known.planted(_truth(node, _MASKED, tensor), honest=honest, faulty=faulty)
    return replace(made, baseline="fp32")  # FP16 does not hold every mask


def _idle_rows(rows: int, width: int, factor: float, seed: int) -> Planted:
    known = ground.table(rows, width, seed, idle=factor)
    return _idle(known, "words/Gather", 0)


def _idle_inputs(make: Callable[[], Ground], node: str) -> Planted:
    return _idle(make(), node, 1)


def _idle(known: Ground, node: str, index: int) -> Planted:
    """Weights that nothing uses set the scale; the honest form has that of those in use."""
    name = _input(known.model, node, index)
    weight = known.model.constants()[name]
    cut = _scale_in_use(known, node, index)

    def fitted(old: Quantization) -> Quantization:
        scale = np.broadcast_to(cut, old.scale.shape).astype(np.float32)
        fresh = replace(old, scale=np.minimum(old.scale, scale))
        return replace(fresh, values=fresh.quantize(weight))

    honest = edited(known.network(), (node, index), fitted)
    return known.planted(_truth(node, _IDLE, name), honest=honest, faulty=known.network())


def _scale_in_use(known: Ground, node: str, index: int) -> Array:
    """The scale of the weights that are used, where the first two or three slices are idle."""
    weight = known.model.constants()[_input(known.model, node, index)]
    if index == 0:
        return np.array(np.abs(weight[3:]).max() / 127)
    if node.startswith("up"):
        return np.asarray(np.abs(weight[2:]).max((0, 2, 3)) / 127)
    return np.asarray(np.abs(weight[:, :, 3:]).max((0, 2)) / 127)


def _turned_upsampler(width: int, spread: float, seed: int) -> Planted:
    """Scales of a ConvTranspose's inputs, which differ by ten to the power of ``spread``, at its outputs."""
    known = ground.upsampler(width, seed)
    name = _input(known.model, "up/ConvTranspose", 1)
    uneven = (10.0 ** np.linspace(-spread, 0, width)).astype(np.float32)[:, None, None, None]
    weight = known.model.constants()[name] * uneven
    known = replace(known, model=_with_constant(known.model, name, weight))

    def turn(old: Quantization) -> Quantization:
        scale = (np.abs(weight).max((1, 2, 3)) / 127).astype(np.float32)
        fresh = replace(old, scale=scale)
        return replace(fresh, values=fresh.quantize(weight))

    faulty = edited(known.network(), ("up/ConvTranspose", 1), turn)
    return known.planted(_truth("up/ConvTranspose", _AXIS, name), faulty=faulty)


def _recurrent(
    make: Callable[[], Ground], op: str, index: int, change: Change, kinds: frozenset[str]
) -> Planted:
    made, node = make(), f"steps/{op}"
    faulty = edited(made.network(), (node, index), change)
    return made.planted(_truth(node, kinds, _input(made.model, node, index)), faulty=faulty)


def _wrong(known: Ground, layer: str, factor: float) -> tuple[Network, Truth]:
    kinds = WIDE if factor > 1 else NARROW
    faulty = edited(known.network(), (layer, 0), scaled(factor))
    return faulty, _truth(layer, kinds, _input(known.model, layer, 0))


def _gemmed(widths: tuple[int, ...], seed: int, layer: str, factor: float) -> Planted:
    """Each MatMul and the Add behind it became a Gemm with transposed weights."""
    known = ground.perceptron(widths, seed)
    faulty, truth = _wrong(known, layer, factor)
    return known.planted(truth, faulty=as_gemm(apply(faulty)))


def as_gemm(model: Model) -> onnx.ModelProto:
    """Each MatMul with quantized weights and its Add as one Gemm, ``transB=1``, named as the MatMul."""
    proto = onnx.ModelProto.FromString(model.serialize())
    graph = proto.graph
    made = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    kept: list[onnx.NodeProto] = []
    sums = {node.input[0]: node for node in graph.node if node.op_type == "Add"}
    gone = set()
    for node in graph.node:
        if node.op_type == "MatMul" and node.output[0] in sums:
            dequantize, add = made[node.input[1]], sums[node.output[0]]
            codes = constants[dequantize.input[0]]
            array = np.ascontiguousarray(numpy_helper.to_array(codes).T)
            codes.CopyFrom(numpy_helper.from_array(array, codes.name))
            dequantize.attribute[0].i = 0
            inputs = [node.input[0], node.input[1], add.input[1]]
            kept.append(helper.make_node("Gemm", inputs, [add.output[0]], node.name, transB=1))
            gone.add(add.name)
        elif node.name not in gone:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    del graph.value_info[:]
    return proto


def _corrections(known: Ground, network: Network, layers: list[str]) -> dict[str, Array]:
    """What a bias correction subtracts from each layer's bias, layer by layer."""
    found: dict[str, Array] = {}
    for layer in layers:
        output = known.model.index.nodes[layer].output[0]
        model = _biased(apply(network), known.model, found)
        model.graph.output.append(onnx.ValueInfoProto(name=output))
        values = judge.run(model.SerializeToString(), known.calibration)[output]
        error = values - known.values[output]
        found[layer] = error.mean(tuple(i for i in range(error.ndim) if i != 1))
    return found


def _biased(model: Model, original: Model, shifts: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with so much less in the biases of layers."""
    proto = onnx.ModelProto.FromString(model.serialize())
    names = {original.index.nodes[layer].input[2]: shift for layer, shift in shifts.items()}
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            array = (numpy_helper.to_array(tensor) - names[tensor.name]).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


def _biased_layers(known: Ground) -> list[str]:
    nodes = known.model.graph.node
    return [node.name for node in nodes if node.op_type in ("Conv", "Gemm") and len(node.input) > 2]


def _corrected(network: str, layer: str, factor: float) -> Planted:
    """All biases corrected for what honest INT8 does to them, as NNCF corrects them; then a wrong scale."""
    known = trained(network)
    faulty, truth = _wrong(known, layer, factor)
    shifts = _corrections(known, known.network(), _biased_layers(known))
    return known.planted(truth, faulty=_biased(apply(faulty), known.model, shifts))


def _miscorrected(network: str, layer: str, share: float) -> Planted:
    """A bias corrected by what inputs of another kind would need."""
    known = trained(network)
    name = _input(known.model, layer, 2)
    output = known.values[known.model.index.nodes[layer].output[0]]
    rng = np.random.default_rng(len(layer))
    shift = share * float(output.std()) * rng.standard_normal(output.shape[1]).astype(np.float32)
    truth = _truth(layer, _SHIFT, name)
    return known.planted(truth, faulty=_biased(apply(known.network()), known.model, {layer: shift}))


def folded(ground_: Ground) -> Ground:
    """The same with each BatchNormalization folded into the convolution before it."""
    proto = onnx.ModelProto.FromString(ground_.model.serialize())
    graph, constants = proto.graph, ground_.model.constants()
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            kept.append(node)
            continue
        conv = kept[-1]
        scale, shift, mean, variance = (constants[name] for name in node.input[1:])
        factor = scale / np.sqrt(variance + 1e-5)
        weight = constants[conv.input[1]] * factor[:, None, None, None]
        tensor = next(t for t in graph.initializer if t.name == conv.input[1])
        tensor.CopyFrom(numpy_helper.from_array(weight.astype(np.float32), conv.input[1]))
        bias = numpy_helper.from_array((shift - mean * factor).astype(np.float32), f"{conv.name}.bias")
        graph.initializer.append(bias)
        conv.input.append(bias.name)
        conv.output[0] = node.output[0]
    del graph.node[:]
    graph.node.extend(kept)
    del graph.value_info[:]
    used = {name for node in graph.node for name in node.input}
    left = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(left)
    return replace(ground_, model=normalize(make_model(onnx.shape_inference.infer_shapes(proto))))


def _folded(width: int, depth: int, seed: int, factor: float) -> Planted:
    """The float model has norms, the quantizer folded them."""
    known = ground.normed(width, depth, seed)
    low = folded(known)
    faulty, truth = _wrong(low, f"block{depth - 1}/Conv", factor)
    return low.planted(truth, faulty=faulty, model=known.model)


def _healthy_bias(network: str) -> Planted:
    """Biases in INT8 that are fine."""
    known = trained(network)
    places = [Place(layer, 2) for layer in _biased_layers(known)]
    return known.planted(_HEALTHY, honest=known.network(), faulty=_fine_biases(known, places))


def _fine_biases(known: Ground, places: list[Place]) -> Network:
    """Biases in 32 bits, at the scale of the products, as ONNX Runtime writes them."""
    network = known.network()
    groups = []
    for group in network.groups:
        edges = list(group.edges)
        for place in places:
            if place.node == group.name and len(edges) == 2:
                name = _input(known.model, place.node, 2)
                scale = (edges[0].quantization.scale * edges[1].quantization.scale).astype(np.float32)
                codes = np.rint(known.model.constants()[name] / scale).astype(np.int32)
                axis = 0 if scale.ndim else None
                zeros = np.zeros(scale.shape, np.int32)
                edges.append(Edge(place.node, 2, name, Quantization(scale, zeros, axis, codes)))
        groups.append(replace(group, edges=tuple(edges)))
    return replace(network, groups=tuple(groups))


def _healthy_ground(make: Callable[[], Ground]) -> Planted:
    known = make()
    return known.planted(_HEALTHY, faulty=known.network())


def _healthy_corrected(network: str) -> Planted:
    known = trained(network)
    shifts = _corrections(known, known.network(), _biased_layers(known))
    return known.planted(_HEALTHY, faulty=_biased(apply(known.network()), known.model, shifts))


def _healthy_gemm(widths: tuple[int, ...], seed: int) -> Planted:
    known = ground.perceptron(widths, seed)
    return known.planted(_HEALTHY, faulty=as_gemm(apply(known.network())))


def _healthy_folded(width: int, depth: int, seed: int) -> Planted:
    known = ground.normed(width, depth, seed)
    low = folded(known)
    return low.planted(_HEALTHY, faulty=low.network(), model=known.model)
