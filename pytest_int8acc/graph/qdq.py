"""Reads a Q/DQ model (ModelOpt, ONNX Runtime, QAT) into a Network: float model, groups, scales.

Each reader of a dequantized tensor becomes an edge with the pair's own scale, zero point and type, so
applying the empty plan gives back a model that runs bit for bit as the one read, and any group can
leave INT8. Quantized constants keep their codes. Where the float original is given, what the quantizer
took from it (rounded weights, folded activations) is put back: see ``graph.restore``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP8, INT8, INTEGERS, UINT8, Format
from pytest_int8acc.graph.groups import WEIGHTED, match_nodes, moves_values
from pytest_int8acc.graph.index import Index, attribute
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization
from pytest_int8acc.graph.restore import restore
from pytest_int8acc.graph.trt_fp8 import STANDARD
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.tensors import Array

#: Attributes that a pair may have and still be an ordinary pair; block_size=0 says what holds without it.
_PLAIN_ATTRIBUTES = frozenset({"axis", "saturate", "output_dtype"})
_OPERATOR_FORMAT = frozenset(
    {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "QGemm"}
)
#: What codes of these types are, and what TensorRT's own operators quantize to.
_OTHER_TYPES: Mapping[int, str] = {
    TensorProto.FLOAT8E4M3FN: FP8.name.upper(),
    TensorProto.FLOAT8E5M2: "FP8 E5M2",
    TensorProto.FLOAT4E2M1: "FP4",
    TensorProto.INT4: "INT4",
    TensorProto.UINT4: "UINT4",
}
_OTHER_OPERATORS: Mapping[str, str] = {
    "TRT_MXFP8DynamicQuantize": "MXFP8",
    "TRT_FP4DynamicQuantize": "NVFP4",
    **dict.fromkeys(STANDARD, FP8.name.upper()),
    "TRT_INT4DequantizeLinear": "INT4 by TensorRT's own operators",
}
#: By what groups are quantized to: what else a pair may be of.
_BESIDE = {INT8.name: "FP8, INT4", FP8.name: "INT8, INT4"}
#: The tensor that is quantized, or the float stand-in of a constant's codes; and how it is.
_Pair = tuple[str, Quantization]


def is_qdq(model: Model) -> bool:
    """True where the model has a DequantizeLinear."""
    return any(node.op_type == "DequantizeLinear" for node in model.graph.node)


def check_formats(model: Model, low: Format = INT8) -> None:
    """Raise ModelError for a model, in normal form or not, that is quantized, and nowhere to ``low``."""
    types, found, wanted = value_types(model), dict[str, None](), low.name.upper()
    for node in model.graph.node:
        said = _OTHER_OPERATORS.get(node.op_type, "")
        if node.op_type == "DequantizeLinear" and not said and types.get(node.input[0], 0):
            said = _OTHER_TYPES.get(types[node.input[0]], INT8.name.upper())
        if said == wanted:
            return
        found.update({said: None} if said else {})
    if found:
        other = next((codes.name for codes in (INT8, FP8) if codes.name.upper() in found), "")
        raise ModelError(
            f"{model.name}: quantized to {', '.join(found)}, and nothing to {wanted}, as QuantizeLinear and "
            "DequantizeLinear with constant scales; "
            + (f"name it under '{other}: {{model: ...}}'" if other else "name a model with such layers")
        )


def read_qdq(
    model: Model, original: Model | None = None, exclude: Sequence[str] = (), low: Format = INT8
) -> Network:
    """The Network of a model that holds Q/DQ pairs already.

    Args:
        model: The Q/DQ model in normal form.
        original: The float model it was made from; groups left high have its weights, and a Relu that was
            folded into a range stands again.
        exclude: fnmatch patterns of node names whose Q/DQ is taken off.
        low: INT8, with all formats of integers, or FP8.

    Raises:
        ModelError: The model has no Q/DQ pair, or none of such codes, is in ONNX Runtime's operator format,
            or a pattern of ``exclude`` matches no node.
    """
    operators = sorted({node.op_type for node in model.graph.node} & _OPERATOR_FORMAT)
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
    stripped, edges, fixed = reader.strip()
    notes = []
    if fixed:
        what = (
            f"{len(fixed)} DequantizeLinear nodes stay as they are (blocked, {_BESIDE[low.name]}, or no pair)"
        )
        notes.append(f"{what}: {', '.join(fixed[:5])}")
    if original is not None:
        stripped, told = restore(stripped, edges, original, reader.constants_read)
        notes += told
    excluded = match_nodes(stripped, exclude)
    groups = _grouped(stripped, edges)
    left_high = {group.name: excluded[group.name] for group in groups if group.name in excluded}
    kept = tuple(group for group in groups if group.name not in excluded)
    return Network(stripped, kept, left_high, tuple(notes), tuple(fixed), low)


class _Reader:
    def __init__(self, model: Model, low: Format) -> None:
        self.model = model
        self.formats = frozenset(known.dtype for known in (INTEGERS if low is INT8 else (low,)))
        self.constants = model.constants()
        self.index = model.index
        self.constants_read = 0

    def strip(self) -> tuple[Model, list[Edge], list[str]]:
        """The model without its pairs, the edges they stood on, and the nodes that had to stay."""
        editor = self.model.edit()
        pairs: dict[str, _Pair] = {}
        fixed: list[str] = []
        for node in editor.graph.node:
            if node.op_type == "DequantizeLinear":
                pair = self._pair(editor, node)
                if pair is None:
                    fixed.append(node.name)
                else:
                    pairs[node.output[0]] = pair
        self.constants_read = sum(made.values is not None for _, made in pairs.values())
        edges = self._rewire(editor, pairs)
        return editor.done(), edges, fixed

    def _pair(self, editor: Editor, node: onnx.NodeProto) -> _Pair | None:
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
            stand_in = editor.add_constant(f"{node.output[0]}_float", quantization.dequantize())
            return stand_in, quantization
        quantize = self.index.producer.get(node.input[0])
        if quantize is None or quantize.op_type != "QuantizeLinear":
            return None
        before = self._parameters(quantize)
        if before is None or not _same(before, parameters):
            return None
        source = quantize.input[0]
        quantization = Quantization(scale, zero_point, axis)
        if source in self.constants:
            self._check(quantize, scale, axis, self.constants[source])
            quantization = replace(quantization, values=quantization.quantize(self.constants[source]))
        return source, quantization

    def _parameters(self, node: onnx.NodeProto) -> tuple[Array, Array, int | None] | None:
        """Scale, zero point and channel axis; None where the node is no ordinary Q or DQ."""
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
            return None  # blocked
        return scale, zero_point, attribute(node, "axis", 1)

    def _code_type(self, node: onnx.NodeProto) -> np.dtype[np.generic]:
        """Without a zero point: of the codes themselves, otherwise of uint8 as the ONNX standard says."""
        if node.input[0] in self.constants and node.op_type == "DequantizeLinear":
            return self.constants[node.input[0]].dtype
        maker = self.index.producer.get(node.input[0]) if node.op_type == "DequantizeLinear" else node
        kind = 0 if maker is None else attribute(maker, "output_dtype", 0)
        return np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else UINT8.dtype

    def _check(self, node: onnx.NodeProto, scale: Array, axis: int | None, values: Array) -> None:
        """Raise ModelError unless ``values`` have a channel for each scale along ``axis``."""
        there = axis is None or -values.ndim <= axis < values.ndim
        if not there or (axis is not None and values.shape[axis] != scale.size):
            raise ModelError(
                f"{self.model.name}: '{node.name}' has {scale.size} scales along axis {axis} of a tensor of "
                f"sizes {list(values.shape)}; expected one for each channel"
            )

    def _rewire(self, editor: Editor, pairs: Mapping[str, _Pair]) -> list[Edge]:
        """Make every reader of a pair read its source, as an edge; drop nodes that nothing reads then.

        Where a dequantized tensor is a graph output, is read inside an If or Loop, or is quantized
        again, an Identity takes the pair's place and carries the edge.
        """
        quantized_again = {source for source, _ in pairs.values()} & set(pairs)
        edges: list[Edge] = []
        kept: list[onnx.NodeProto] = []
        for node in editor.graph.node:
            output = node.output[0] if node.output else ""
            pair = pairs.get(output) if node.op_type == "DequantizeLinear" else None
            if pair is not None:
                if output in self.index.public or output in quantized_again:
                    name = editor.unique(f"{node.name}_identity")
                    kept.append(helper.make_node("Identity", [pair[0]], [output], name=name))
                    edges.append(Edge(name, 0, *pair))
                continue
            if node.op_type != "QuantizeLinear":
                for index, name in enumerate(node.input):
                    if name in pairs:
                        node.input[index] = pairs[name][0]
                        edges.append(Edge(node.name, index, *pairs[name]))
            kept.append(node)
        read = self.index.public.union(name for node in kept for name in node.input)
        editor.set_nodes([n for n in kept if n.op_type != "QuantizeLinear" or n.output[0] in read])
        return edges


def _same(a: tuple[Array, Array, int | None], b: tuple[Array, Array, int | None]) -> bool:
    same_type = a[2] == b[2] and a[1].dtype == b[1].dtype
    return same_type and np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])


def _grouped(model: Model, edges: list[Edge]) -> list[Group]:
    """Edges by the node that leads: a weighted node, or the reader itself.

    A node that only moves a weight, or a stand-in Identity, joins the node it serves.
    """
    index = model.index
    members: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        members[_leader(edge, index)].append(edge)
    groups = []
    for name in sorted(members, key=index.order.__getitem__):
        inside = dict.fromkeys([name, *(edge.node for edge in members[name])])
        groups.append(Group(name, index.nodes[name].op_type, tuple(inside), tuple(members[name])))
    return groups


def _leader(edge: Edge, index: Index) -> str:
    node = index.nodes[edge.node]
    if edge.quantization.values is not None and moves_values(node):
        moved: onnx.NodeProto | None = node
        while moved is not None and moves_values(moved):
            moved = index.only_reader(moved.output[0])
        if moved is not None and moved.op_type in WEIGHTED:
            return moved.name
    if node.op_type == "Identity" and edge.tensor in index.producer:
        return index.producer[edge.tensor].name
    return node.name
