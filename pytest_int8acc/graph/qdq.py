"""Reads a Q/DQ model (from ModelOpt, ONNX Runtime or QAT) as a network: float model, groups and scales.

Each input of a node that reads a dequantized tensor becomes an ``Edge`` with the scale, zero point and type
of the Q/DQ pair. Quantized constants keep their codes. So a model that is built from the network without a
plan computes the same bits as the Q/DQ model, and any group of layers can be kept in high precision.

Q/DQ pairs inside If, Loop and Scan become edges of groups of their own. Their constants move to the main
graph, from where the inner graphs read them.

If the float model is given from which the Q/DQ model was made, three things are restored from it: weights
before rounding, biases before a correction, and activation functions that the quantizer removed. ONNX
Runtime removes a Relu or Clip if the codes saturate at its bounds (QDQRemovableActivation).
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP8, INT4, INT8, TARGETS, UINT4, UINT8, Format, along
from pytest_int8acc.graph.index import (
    Index,
    all_graphs,
    all_nodes,
    attribute,
    bodies,
    body_names,
    captured,
    refill,
    take_name,
)
from pytest_int8acc.graph.layout import WEIGHTED, folded_norm, match_nodes, moves_values
from pytest_int8acc.graph.load import all_constants
from pytest_int8acc.graph.model import Editor, Model, dtype_of, put_constant
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization, in_floats
from pytest_int8acc.graph.opsets import TRT_FP8
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.tensors import Array

#: Attributes that Q/DQ nodes may have. If another attribute, such as block_size, is not 0, the Q/DQ nodes
#: stay in the model as they are.
_PLAIN_ATTRIBUTES = frozenset({"axis", "saturate", "output_dtype"})
#: Operators that compute on quantized values, as in ONNX Runtime's operator format. Models with them are
#: refused.
_OPERATOR_FORMAT = frozenset(
    {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "QGemm"}
)
#: Element types of quantized values, and the name of each format in messages.
_OTHER_TYPES: Mapping[int, str] = {
    **{known.element_type: known.name.upper() for known in (*TARGETS, INT4, UINT4)},
    TensorProto.FLOAT8E5M2: "FP8 E5M2",
    TensorProto.FLOAT4E2M1: "FP4",
}
#: Operators that quantize to one format only, and the name of this format in messages.
_OTHER_OPERATORS: Mapping[str, str] = {
    "TRT_MXFP8DynamicQuantize": "MXFP8",
    "TRT_FP4DynamicQuantize": "NVFP4",
    **dict.fromkeys(TRT_FP8, FP8.name.upper()),
    "TRT_INT4DequantizeLinear": "INT4 by TensorRT's own operators",
}
#: A Q/DQ pair: the float tensor that nodes read after the pair is removed, and the quantization of the pair.
_Pair = tuple[str, Quantization]


def is_qdq(model: Model) -> bool:
    """Whether the model has a DequantizeLinear, also inside If, Loop and Scan."""
    return any(node.op_type == "DequantizeLinear" for node in all_nodes(model.graph))


def check_formats(model: Model, low: Format = INT8) -> None:
    """Raise ModelError if the model is quantized to other formats, but nowhere to ``low``."""
    types, found, expected = value_types(model), dict[str, None](), low.name.upper()
    for node in all_nodes(model.graph):
        said = _OTHER_OPERATORS.get(node.op_type, "")
        if node.op_type == "DequantizeLinear" and not said and types.get(node.input[0], 0):
            said = _OTHER_TYPES.get(types[node.input[0]], INT8.name.upper())
        if said == expected:
            return
        found.update({said: None} if said else {})
    if found:
        other = next((known.name for known in TARGETS if known.name.upper() in found), "")
        raise ModelError(
            f"{model.name}: its layers are quantized to {', '.join(found)}, and the spec asks for "
            f"{expected}: "
            + (f"write '{other}: {{model: ...}}' for this file, or " if other else "")
            + f"name a file with Q/DQ in {expected}"
        )


def read_qdq(
    model: Model, original: Model | None = None, exclude: Sequence[str] = (), low: Format = INT8
) -> Network:
    """The network of a model that has Q/DQ pairs already.

    Args:
        model: The Q/DQ model in normal form; see ``graph.load``.
        original: The float model from which the Q/DQ model was made; see ``restore``.
        exclude: fnmatch patterns of the names of nodes whose Q/DQ is removed.
        low: INT8, which stands for all integer formats, or FP8.

    Raises:
        ModelError: The model has no Q/DQ pair of the format ``low``, is in ONNX Runtime's operator format, or
            a pattern of ``exclude`` matches no node.
    """
    operators = sorted({node.op_type for node in all_nodes(model.graph)} & _OPERATOR_FORMAT)
    if operators:
        raise ModelError(
            f"{model.name}: holds {', '.join(operators)} (operator format), which TensorRT does not take; "
            "export it with QuantizeLinear and DequantizeLinear instead (quant_format=QuantFormat.QDQ)"
        )
    check_formats(model, low)
    if not is_qdq(model):
        raise ModelError(
            f"{model.name}: no QuantizeLinear or DequantizeLinear in it: this is the float model, or the "
            "quantizer gave it back as it was; quantize it anew, or let us: 'int8: {calibrate: {}}'"
        )
    reader = _Reader(model, low)
    stripped, edges = reader.strip()
    notes, fixed = [], reader.fixed
    if fixed:
        others = ", ".join(known.name.upper() for known in (*TARGETS, INT4) if known is not low)
        what = f"{len(fixed)} Q/DQ nodes stay as they are (blocked, {others}, or no pair)"
        notes.append(f"{what}: {', '.join(fixed[:5])}")
    if original is not None:
        stripped, restore_notes = restore(stripped, edges, original, reader.constants_read)
        notes += restore_notes
    groups = _grouped(stripped, edges)
    excluded = match_nodes(stripped, exclude, [group.name for group in groups])
    left_high = {group.name: excluded[group.name] for group in groups if group.name in excluded}
    kept = tuple(group for group in groups if group.name not in excluded)
    return Network(stripped, kept, left_high, tuple(notes), tuple(fixed), low)


class _Reader:
    """Removes the Q/DQ pairs of a model, also inside If, Loop and Scan.

    Names of nodes and tensors are unique in the whole model, so that one look-up serves all its graphs.
    """

    def __init__(self, model: Model, low: Format) -> None:
        self.model = model
        self.formats = frozenset(known.dtype for known in low.codes)
        self.editor = model.edit()
        self.producer = model.everywhere.producer
        self.constants = all_constants(model)
        self.pairs: dict[str, _Pair] = {}
        """The Q/DQ pair that computes each dequantized tensor, by the tensor's name."""
        self.constants_read = 0
        """The number of quantized constants."""
        self.edges: list[Edge] = []
        self.fixed: list[str] = []
        """The names of the Q/DQ nodes that stay in the model. If a node lies inside an If, Loop or Scan, the
        names of the containing nodes come before its name."""

    def strip(self) -> tuple[Model, list[Edge]]:
        """The model without Q/DQ pairs, and the edges (quantized inputs) that the pairs become."""
        paths = body_names(self.model.graph)
        graphs = list(all_graphs(self.editor.graph))
        for node in (node for graph in graphs for node in graph.node if node.op_type == "DequantizeLinear"):
            pair = self._pair(node)
            if pair is None:
                self.fixed.append(paths.get(node.name, node.name))
            else:
                self.pairs[node.output[0]] = pair
                self.constants_read += pair[1].values is not None
        # Graphs inside nodes come first, because replacing the nodes of a graph copies the graphs inside.
        for graph in reversed(graphs):
            self._rewire(graph)
        self.fixed += [paths.get(name, name) for name in _lone_quantizers(self.editor.graph)]
        return self.editor.done(), self.edges

    def _pair(self, node: onnx.NodeProto) -> _Pair | None:
        """The Q/DQ pair that ends with the DequantizeLinear ``node``; None if the node stays in the model."""
        parameters = self._parameters(node)
        if parameters is None:
            return None
        scale, zero_point, axis = parameters
        if node.input[0] in self.constants:
            codes = self.constants[node.input[0]]
            if codes.dtype != zero_point.dtype:
                return None
            self._check(node, scale, axis, codes)
            quantization = Quantization(scale, zero_point, axis, codes)
            return self._stand_in(node, quantization.dequantize()), quantization
        quantize = self.producer.get(node.input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear":
            return None
        before = self._parameters(quantize)
        if before is None or not _same(before, parameters):
            return None
        source = quantize.input[0]
        quantization = Quantization(scale, zero_point, axis)
        if source in self.constants:
            values = self.constants[source]
            self._check(quantize, scale, axis, values)
            quantization = replace(quantization, values=quantization.quantize(values))
            if source not in self.model.index.constants:
                source = self._stand_in(node, values)
        return source, quantization

    def _stand_in(self, node: onnx.NodeProto, values: Array) -> str:
        """Add a constant to the main graph in place of the output of ``node``, and return its name."""
        return self.editor.add_constant(f"{node.output[0]}_float", values)

    def _parameters(self, node: onnx.NodeProto) -> tuple[Array, Array, int | None] | None:
        """Scale, zero point and channel axis of a Q/DQ node; None if the node must stay in the model."""
        if any(a.name not in _PLAIN_ATTRIBUTES for a in node.attribute if a.i or a.type != a.INT):
            return None
        scale = self.constants.get(node.input[1])
        if len(node.input) > 2 and node.input[2]:
            zero_point = self.constants.get(node.input[2])
        else:
            zero_point = None if scale is None else np.zeros(scale.shape, self._code_type(node))
        if scale is None or zero_point is None or zero_point.dtype not in self.formats:
            return None
        if zero_point.dtype == FP8.dtype and (zero_point.any() or not attribute(node, "saturate", 1)):
            return None
        if scale.size != zero_point.size:
            raise ModelError(
                f"{self.model.name}: '{node.name}' has {scale.size} scales and {zero_point.size} zero "
                "points; expected one for each"
            )
        if scale.size == 1:
            return scale.reshape(()), zero_point.reshape(()), None
        if scale.ndim != 1:
            return None  # There is a scale per block.
        return scale, zero_point, attribute(node, "axis", 1)

    def _check(self, node: onnx.NodeProto, scale: Array, axis: int | None, values: Array) -> None:
        """Raise ModelError unless ``values`` have one channel for each scale along ``axis``."""
        there = axis is None or -values.ndim <= axis < values.ndim
        if not there or (axis is not None and values.shape[axis] != scale.size):
            raise ModelError(
                f"{self.model.name}: '{node.name}' has {scale.size} scales along axis {axis} of a tensor of "
                f"sizes {list(values.shape)}; expected one for each channel"
            )

    def _code_type(self, node: onnx.NodeProto) -> np.dtype[np.generic]:
        """The dtype of the codes of a Q/DQ node without a zero point; ONNX's default is uint8."""
        maker: onnx.NodeProto | None = node
        if node.op_type == "DequantizeLinear":
            if node.input[0] in self.constants:
                return self.constants[node.input[0]].dtype
            maker = self.producer.get(node.input[0])
        kind = 0 if maker is None else attribute(maker, "output_dtype", 0)
        return dtype_of(kind) if kind else UINT8.dtype

    def _rewire(self, graph: onnx.GraphProto) -> None:
        """Remove the Q/DQ pairs of a graph, and record an :class:`Edge` for each input that reads a pair.

        The pairs of inner graphs must have been removed before. If a dequantized tensor is an output of the
        graph, or is quantized again, an Identity replaces the pair, and the edge is the input of the
        Identity.
        """
        pairs = self.pairs
        public = {value.name for value in graph.output}.union(*map(captured, graph.node))
        quantized_again = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
        kept: list[onnx.NodeProto] = []
        for node in graph.node:
            output = node.output[0] if node.output else ""
            pair = pairs.get(output) if node.op_type == "DequantizeLinear" else None
            if pair is not None:
                if output in public or output in quantized_again:
                    name = self.editor.unique(f"{node.name}_identity")
                    kept.append(helper.make_node("Identity", [pair[0]], [output], name=name))
                    self.edges.append(Edge(name, 0, *pair))
                continue
            if node.op_type != "QuantizeLinear":
                for index, name in enumerate(node.input):
                    if name in pairs:
                        node.input[index] = pairs[name][0]
                        self.edges.append(Edge(node.name, index, *pairs[name]))
            kept.append(node)
        read = public.union(name for node in kept for name in node.input)
        droppable = ("QuantizeLinear", "Constant")
        refill(graph.node, [n for n in kept if n.op_type not in droppable or n.output[0] in read])


def _lone_quantizers(graph: onnx.GraphProto) -> list[str]:
    """Names of the QuantizeLinear nodes that are not part of a Q/DQ pair.

    Their output is an output of a graph, or is read by nodes other than DequantizeLinear.
    """
    read = {value.name for each in all_graphs(graph) for value in each.output}
    for node in all_nodes(graph):
        if node.op_type != "DequantizeLinear":
            read.update(node.input)
    quantizers = [
        node for each in all_graphs(graph) for node in each.node if node.op_type == "QuantizeLinear"
    ]
    return [node.name for node in quantizers if node.output[0] in read]


def _same(a: tuple[Array, Array, int | None], b: tuple[Array, Array, int | None]) -> bool:
    same_type = a[2] == b[2] and a[1].dtype == b[1].dtype
    return same_type and np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])


def _grouped(model: Model, edges: Sequence[Edge]) -> list[Group]:
    """The groups of the nodes that have the quantized inputs ``edges``, in topological order.

    The main node of a group is the node that has the quantized input. There are two exceptions. If this node
    only moves a weight, the main node is the convolution or matrix product after it. If this node is an
    Identity, the main node is the node before it. A group inside an If, Loop or Scan comes at the position of
    the main graph's node that contains it.
    """
    index, taken = model.index, set(model.index.nodes)
    groups = list(_groups_of(index, edges))
    places = {group.name: index.order[group.name] for group in groups}
    for body in bodies(model.graph):
        for group in _groups_of(Index(body.graph), edges):
            name = take_name(f"{body.path}{group.name}", taken)
            places[name] = index.order[body.holder]
            groups.append(Group(name, group.op_type, group.nodes, group.edges, is_inner=True))
    return sorted(groups, key=lambda group: places[group.name])


def _groups_of(index: Index, edges: Sequence[Edge]) -> Iterator[Group]:
    """The groups of the nodes in ``index`` that have quantized inputs; ``edges`` are these inputs."""
    members: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        if edge.node in index.nodes:
            members[_leader(edge, index)].append(edge)
    for name in sorted(members, key=index.order.__getitem__):
        nodes = dict.fromkeys([name, *(edge.node for edge in members[name])])
        yield Group(name, index.nodes[name].op_type, tuple(nodes), tuple(members[name]))


def _leader(edge: Edge, index: Index) -> str:
    """The name of the main node of the group that a quantized input (edge) belongs to."""
    node = index.nodes[edge.node]
    if edge.quantization.is_float and node.op_type == "Add":
        return (_weighted_before(node, index) or node).name
    if edge.quantization.values is not None and moves_values(node):
        moved: onnx.NodeProto | None = node
        while moved is not None and moves_values(moved):
            moved = index.only_reader(moved.output[0])
        if moved is not None and moved.op_type in WEIGHTED:
            return moved.name
    if node.op_type == "Identity" and edge.tensor in index.producer:
        return index.producer[edge.tensor].name
    return node.name


#: A quantizer changed a bias if the bias differs from that of the float model by more than this number times
#: the greatest magnitude in the bias. Smaller differences are rounding. The key is the number of bytes of an
#: element.
_CHANGED_BIAS = {2: 2e-3, 4: 1e-4}
#: Activation functions that quantizers remove if the codes saturate at the bounds of the function.
_FOLDED = frozenset({"Relu", "Clip"})


def restore(model: Model, edges: list[Edge], original: Model, weights: int) -> tuple[Model, list[str]]:
    """Restore the float weights and the activation functions that the quantizer removed.

    A float weight fits if it rounds to the codes of the Q/DQ model, with an error of at most one code. If
    most weights fit, the two models have the same weights, and a weight that does not fit was quantized
    wrongly. Then all float weights are restored. Otherwise the Q/DQ model was trained further (QAT), and only
    weights that fit are restored. Biases that differ were corrected by the quantizer: the model gets the
    original bias, and a quantized input (edge) has the corrected values in INT8. A Relu or Clip is restored
    if the codes of all nodes that read its output saturate at its bounds. Then nothing changes in INT8.

    Args:
        model: The Q/DQ model after its Q/DQ pairs were removed.
        edges: The quantized inputs that the pairs became. Edges of corrected biases are added.
        original: The float model that was quantized. Nodes and tensors are matched by name.
        weights: The number of quantized constants in the Q/DQ model.

    Returns:
        The restored model, and sentences for the report about what was restored.
    """
    fitting, others = _weights(model, edges, original)
    wrong = others if len(others) < len(fitting) else {}
    editor = model.edit()
    slots = {tensor.name: tensor for tensor in editor.graph.initializer}
    corrected = {} if len(others) > len(fitting) else _corrected(model, edges, original)
    for name, weight in {**wrong, **fitting, **corrected}.items():
        put_constant(slots[name], name, weight, editor.weights)
    back, lost = _restore_activations(editor, model.everywhere, edges, original)
    notes = [f"{len(fitting)} of {weights} quantized weights have their float originals"]
    if wrong:
        notes.append(
            f"{len(wrong)} quantized weights are not those of {original.name}, rounded; out of INT8, "
            f"its own are taken: {', '.join(list(wrong)[:5])}"
        )
    if corrected:
        what = f"{len(corrected)} biases are not those of {original.name}, as after a bias correction"
        notes.append(
            f"{what}; out of {INT8.name.upper()}, its own are taken: {', '.join(list(corrected)[:5])}"
        )
    if back:
        what = f"{len(back)} activations that the quantizer folded into ranges are put back"
        notes.append(f"{what}: {', '.join(back[:5])}")
    if lost:
        notes.append(
            f"{len(lost)} activations of {original.name} are gone and cannot be put back, so with all "
            f"layers high it is another model: {', '.join(lost[:5])}"
        )
    return editor.done(), notes


def folded(graph: onnx.GraphProto, original: Model) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """Nodes of ``graph`` after which a Relu or Clip of ``original`` is missing, with this Relu or Clip."""
    theirs = original.everywhere.producer
    for node in all_nodes(graph):
        activation = theirs.get(node.output[0]) if node.output else None
        if activation is None or activation.op_type not in _FOLDED or node.op_type in _FOLDED:
            continue
        before = theirs.get(activation.input[0])
        if before is not None and before.op_type == node.op_type:
            yield node, activation


def _weights(
    model: Model, edges: Sequence[Edge], original: Model
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The weights that quantized constants have in ``original``: those that round to the codes, and others.

    The keys are the names of the constants in ``model``.
    """
    theirs, mine = _read_constants(original, model), model.constants()
    fitting: dict[str, Array] = {}
    others: dict[str, Array] = {}
    for edge in edges:
        quantization = edge.quantization
        if quantization.values is None:
            continue
        weight = theirs.get((edge.node, edge.index))
        stand_in = mine[edge.tensor]
        if weight is None or weight.shape != stand_in.shape:
            continue
        weight = weight.astype(stand_in.dtype, copy=False)
        (fitting if _fits(weight, quantization) else others)[edge.tensor] = weight
    return fitting, others


def _corrected(model: Model, edges: list[Edge], original: Model) -> dict[str, Array]:
    """The biases that the quantizer changed, by name, with the values that they have in ``original``.

    For each bias, a quantized input (edge) with the changed values is added to ``edges``.
    """
    theirs, mine, index = _read_constants(original, model), model.constants(), model.everywhere
    quantized = {(edge.node, edge.index) for edge in edges}
    layers = {node for node, _ in quantized}
    found: dict[str, Array] = {}
    for node in index.nodes.values():
        layer = node if node.op_type != "Add" else _weighted_before(node, index)
        for position, name in enumerate(node.input):
            is_bias = position == 2 or node.op_type == "Add"
            if layer is None or layer.name not in layers or not is_bias or (node.name, position) in quantized:
                continue
            bias, own = theirs.get((node.name, position)), mine.get(name)
            if bias is None or own is None or bias.shape != own.shape or index.only_reader(name) is None:
                continue
            least = _CHANGED_BIAS.get(own.dtype.itemsize, np.inf) * float(np.abs(bias).max(initial=0))
            if np.abs(own - bias).max(initial=0) > least:
                found[name] = bias.astype(own.dtype)
                edges.append(Edge(node.name, position, name, in_floats(own)))
    return found


def _weighted_before(add: onnx.NodeProto, index: Index) -> onnx.NodeProto | None:
    """The convolution or matrix product whose output an Add reads; None if there is none, or several."""
    makers = [index.producer[name] for name in add.input if name in index.producer]
    return makers[0] if len(makers) == 1 and makers[0].op_type in WEIGHTED else None


def _read_constants(original: Model, model: Model) -> dict[tuple[str, int], Array]:
    """The constants of ``original`` that nodes of ``model`` read, by node name and input position.

    Nodes inside If, Loop and Scan are included. If the quantizer rewrote a layer, constants are converted. A
    Gemm that was a MatMul and an Add gets their weight and bias. A convolution that was followed by a
    BatchNormalization gets a weight and a bias into which the BatchNormalization is folded.
    """
    constants = original.constants()
    found = _read_in(original.everywhere, constants)
    for node in model.everywhere.nodes.values():
        twin = _twin(node, original)
        if twin is None:
            continue
        weight = constants.get(twin.input[1])
        if node.op_type == "Gemm" and twin.op_type == "MatMul" and weight is not None and weight.ndim == 2:
            found[node.name, 1] = weight.T if attribute(node, "transB", 0) else weight
            add = original.everywhere.only_reader(twin.output[0])
            biases = [constants[n] for n in add.input if n in constants] if add is not None else []
            if len(node.input) > 2 and biases:
                found[node.name, 2] = biases[0].reshape(-1)
        elif weight is not None and twin.op_type == "Conv":
            norm = original.everywhere.only_reader(twin.output[0])
            if (
                norm is not None
                and norm.op_type == "BatchNormalization"
                and norm.name not in model.everywhere.nodes
            ):
                bias = constants.get(twin.input[2]) if len(twin.input) > 2 else None
                folded_in = _with_norm(norm, weight, bias, constants)
                found.update({(node.name, i): array for i, array in enumerate(folded_in, 1)})
    return found


def _twin(node: onnx.NodeProto, original: Model) -> onnx.NodeProto | None:
    """The layer of ``original`` from which the convolution or matrix product ``node`` was made, or None.

    The layer has the same name as ``node``, or computes the tensor of the same name, perhaps with an Add or
    BatchNormalization after it.
    """
    if node.op_type not in WEIGHTED:
        return None
    nodes, producer = original.everywhere.nodes, original.everywhere.producer
    twin = nodes.get(node.name) or producer.get(node.output[0])
    if twin is not None and twin.op_type in ("Add", "BatchNormalization"):
        makers = [producer[name] for name in twin.input if name in producer]
        twin = makers[0] if len(makers) == 1 else None
    return twin if twin is not None and twin.op_type in WEIGHTED else None


def _with_norm(
    norm: onnx.NodeProto, weight: Array, bias: Array | None, constants: Mapping[str, Array]
) -> tuple[Array, ...]:
    """Weight and bias of a convolution into which the BatchNormalization ``norm`` after it is folded.

    The result is empty if parameters of the BatchNormalization are not constants.
    """
    if any(name not in constants for name in norm.input[1:]):
        return ()
    factor, offset = folded_norm(norm, [constants[name] for name in norm.input[1:]])
    if bias is not None:
        offset = offset + bias * factor
    return (weight * along(factor, 0, weight.ndim)).astype(weight.dtype), offset.astype(weight.dtype)


def _read_in(index: Index, constants: dict[str, Array]) -> dict[tuple[str, int], Array]:
    found: dict[tuple[str, int], Array] = {}
    for node in index.nodes.values():
        for position, name in enumerate(node.input):
            if name in constants:
                found[node.name, position] = constants[name]
    return found


def _fits(weight: Array, quantization: Quantization) -> bool:
    """Whether ``weight`` rounds to the codes in ``quantization``, with an error of at most one code."""
    values = quantization.values
    if values is None or not (quantization.scale > 0).all():
        return False
    codes, values = quantization.quantize(weight).astype(np.float64), values.astype(np.float64)
    return bool((np.abs(codes - values) <= quantization.format.step(values)).all())


def _restore_activations(
    editor: Editor, index: Index, edges: Sequence[Edge], original: Model
) -> tuple[list[str], list[str]]:
    """Add each Relu or Clip of ``original`` that the quantizer removed to the model in ``editor`` again.

    A function is restored only if the codes of all nodes that read its output saturate at its bounds.

    Returns:
        The names of the restored functions, and of the functions that cannot be restored.
    """
    ranges: dict[str, dict[tuple[str, int], Quantization]] = {}
    for edge in edges:
        ranges.setdefault(edge.tensor, {})[edge.node, edge.index] = edge.quantization
    constants = original.constants()
    missing = {node.output[0]: (node, gone) for node, gone in folded(editor.graph, original)}
    back: list[str] = []
    lost: list[str] = []

    def restored(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        yield node
        _, activation = missing.get(node.output[0] if node.output else "", (node, None))
        if activation is None:
            return
        bounds = _bounds(activation, constants)
        known = ranges.get(node.output[0], {})
        if (
            bounds
            and _read_by(index, node.output[0]) == set(known)
            and all(_cuts(quantization, *bounds) for quantization in known.values())
        ):
            yield _after(editor, node, activation, constants)
            back.append(activation.name)
        else:
            lost.append(activation.name)

    editor.rewrite(restored)
    return back, lost


def _after(
    editor: Editor, node: onnx.NodeProto, activation: onnx.NodeProto, constants: dict[str, Array]
) -> onnx.NodeProto:
    """A copy of ``activation``, connected between ``node`` and the nodes that read the output of ``node``."""
    restored = copy.deepcopy(activation)
    restored.name = editor.unique(activation.name)
    restored.output[0] = node.output[0]
    restored.input[0] = node.output[0] = editor.unique(activation.input[0])
    for index, name in enumerate(activation.input):
        if index and name:
            restored.input[index] = editor.add_constant(name, constants[name])
    return restored


def _read_by(index: Index, tensor: str) -> set[tuple[str, int]]:
    """Name and input position of each node that reads a tensor.

    ``("", -1)`` is added if the tensor is an output, or a graph inside a node reads it.
    """
    found = {(node.name, position) for node, position in index.readers(tensor)}
    return found | {("", -1)} if tensor in index.public else found


def _bounds(activation: onnx.NodeProto, constants: dict[str, Array]) -> tuple[float, float] | None:
    """The lower and upper bound of a Relu or Clip; None if a bound is computed at run time."""
    if activation.op_type == "Relu":
        return 0.0, math.inf
    found = [-math.inf, math.inf]
    for index, name in enumerate(activation.input[1:]):
        if name and name not in constants:
            return None
        if name:
            found[index] = float(constants[name].reshape(()))
    return found[0], found[1]


def _cuts(quantization: Quantization, low: float, high: float) -> bool:
    """Whether a Clip to ``low`` and ``high`` changes no code.

    This is so if codes saturate at these bounds or before them.
    """
    codes = quantization.format
    if quantization.scale.size != 1 or not quantization.scale > 0:
        return False
    scale, zero = float(quantization.scale), int(quantization.zero_point)
    below = math.isinf(low) or round(low / scale) + zero <= codes.lowest
    return below and (math.isinf(high) or round(high / scale) + zero >= codes.highest)
