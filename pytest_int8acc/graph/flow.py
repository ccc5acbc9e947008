"""What the graph tells of its activations before it runs: channels, signs, and where NaN would show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx

from pytest_int8acc.graph.groups import WEIGHTED, moves_values
from pytest_int8acc.graph.index import Index, attribute, captured
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.parts import made_channels
from pytest_int8acc.graph.types import FLOAT, FLOAT16, value_types

#: Make nothing below 0 of what is not.
_KEEP_SIGN = {
    *("AveragePool", "Concat", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "MaxPool"),
    *("Reshape", "Squeeze", "Transpose", "Unsqueeze"),
}
#: Make NaN of a NaN in whichever input, wherever it lies there.
_KEEP_NAN = {
    *("Abs", "Add", "BatchNormalization", "Clip", "Concat", "Conv", "Div", "Erf", "Exp", "Flatten", "Gelu"),
    *("Gemm", "GlobalAveragePool", "Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu"),
    *("MatMul", "Mul", "Neg", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Softmax", "Sqrt"),
    *("Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze"),
}


#: Choose among values: a small change of these makes a jump.
CHOOSING = frozenset(
    {"NonMaxSuppression", "TopK", "ArgMax", "ArgMin", "Hardmax", "NonZero", "Unique", "EfficientNMS_TRT"}
    | {"BatchedNMS_TRT", "EfficientNMS_ONNX_TRT"}
)
_OF_SHAPES = frozenset({"Shape", "Size", "ConstantOfShape"})


def channel_axis(op_type: str, index: int, rank: int, mixes: bool = False) -> int | None:
    """The axis of an activation that holds its channels, which its reader sums over; None: no such axis.

    A product that ``mixes`` rows sums over these.
    """
    if rank < 2:
        return None
    if mixes and index == 1:
        return rank - 1
    if op_type in ("MatMul", "Gemm"):
        return rank - 1 if index == 0 else rank - 2
    return 1 if rank != 3 or op_type.startswith("Conv") else 2


def mixing(model: Model) -> frozenset[str]:
    """Products that take weighted means of rows, as attention does of its values: after a Softmax."""
    found = set[str]()
    for node in model.graph.node:
        before = model.index.producer.get(node.input[0]) if node.op_type == "MatMul" else None
        while before is not None and moves_values(before):
            before = model.index.producer.get(before.input[0])
        if before is not None and before.op_type == "Softmax":
            found.add(node.name)
    return frozenset(found)


def channel_axes(model: Model, tensors: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Tensor to its channel axis and its rank: by the first reader with weights, else by what makes it.

    Where that does not tell, by the first reader. Tensors are left out whose rank is not known, or whose
    channels lie on the first axis.
    """
    values, mixes, found = model.values(), mixing(model), dict[str, tuple[int, int]]()
    candidates = {t: len(shape) for t in tensors if t in values and (shape := values[t].shape) is not None}
    made = made_channels(model, candidates)
    for tensor, rank in candidates.items():
        readers = model.index.readers(tensor)
        weighted = [reader for reader in readers if reader[0].op_type in WEIGHTED]
        axis = None if weighted else made.get(tensor)
        if axis is None and readers:
            node, index = (*weighted, *readers)[0]
            axis = channel_axis(node.op_type, index, rank, node.name in mixes)
        if axis:
            found[tensor] = axis, rank
    return found


def not_negative(model: Model) -> set[str]:
    """Tensors that hold nothing below 0: of Relu, of Clip from 0 on, and of what keeps that."""
    constants, found = model.constants(), set[str]()

    def is_floored(node: onnx.NodeProto) -> bool:
        if node.op_type == "Clip":
            low = constants.get(node.input[1]) if len(node.input) > 1 else None
            return low is not None and low.size == 1 and float(low.item()) >= 0
        data = node.input if node.op_type in ("Add", "Concat") else node.input[:1]
        keeps = node.op_type in _KEEP_SIGN or node.op_type == "Add"
        return node.op_type == "Relu" or (keeps and all(name in found for name in data))

    for node in model.graph.node:
        if is_floored(node):
            found.update(node.output)
    return found


def shown_at(model: Model, outputs: Collection[str]) -> set[str]:
    """Tensors whose NaN, wherever it lies, makes NaN in one of ``outputs``; with these."""
    found = set(outputs)
    for node in reversed(model.graph.node):
        if node.op_type in _KEEP_NAN and found.intersection(node.output) and _sees_all(node):
            found.update(node.input)
    return found


def _sees_all(node: onnx.NodeProto) -> bool:
    """False for a convolution whose steps may pass values over, between windows or at the end."""
    if node.op_type != "Conv":
        return True
    strides, dilations = attribute(node, "strides", []), attribute(node, "dilations", [])
    if any(step > 1 for step in dilations) or attribute(node, "auto_pad", b"") == b"VALID":
        return all(step == 1 for step in (*strides, *dilations))
    kernel = attribute(node, "kernel_shape", [1] * len(strides))
    ends = attribute(node, "pads", [0] * 2 * len(strides))[len(strides) :]
    return all(s <= k and s - 1 <= end for s, k, end in zip(strides, kernel, ends, strict=False))


def choices(model: Model, outputs: Collection[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Nodes that turn small changes into jumps: the computed floats they choose by, the ``outputs`` behind.

    Of several in a row the first; one that none of the outputs depends on is left out.
    """
    types, index = value_types(model), model.index
    behind: dict[str, frozenset[str]] = {}
    floats: dict[str, tuple[str, ...]] = {}
    for node in model.graph.node:
        after = frozenset[str]().union(*(behind.get(name, ()) for name in {*node.input, *captured(node)}))
        if node.op_type in CHOOSING and not after:
            by = tuple(dict.fromkeys(_floats_before(node, index, types)))
            floats.update({node.name: by} if by else {})
            after = frozenset([node.name] if by else ())
        behind.update({name: after for name in node.output if name and after})
    after_of = {node: tuple(o for o in outputs if node in behind.get(o, ())) for node in floats}
    return {node: (by, after_of[node]) for node, by in floats.items() if after_of[node]}


def _floats_before(node: onnx.NodeProto, index: Index, types: Mapping[str, int]) -> Iterator[str]:
    """The computed floats that a node reads; where it reads other types, what those were made of.

    What hangs on shapes alone is none.
    """
    for name in node.input:
        before = index.producer.get(name)
        if before is None or before.op_type in _OF_SHAPES:
            continue
        if types.get(name) in (FLOAT, FLOAT16):
            yield name
        else:
            yield from _floats_before(before, index, types)
