"""A model in which chosen products are summed in a narrow format, as some kernels of engines sum them.

A tensor core adds 16 products at once to its sum, which is then rounded: ``mma.sync.m16n8k16`` with FP16
accumulators (NVIDIA's PTX ISA, 'Multiply-and-Accumulate Instruction: mma'). A Loop does so here in FP32, with
a pair of Casts after each step: along the axis that is summed of a product of matrices; along the channels of
a convolution, at one tap of its kernel after the other, as kernels for channels that lie last do.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.graph.formats import BF16, Format
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.switchboard import open_switch
from pytest_int8acc.graph.types import BFLOAT16, FLOAT, FLOAT16

#: Products that are added to a sum at once.
AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class SummingModel:
    """The model, with a switch for each node: True where it sums in the narrow format."""

    model: Model
    switch: str
    """The input that takes them, bool [nodes], in the order in which they were named."""


def summing_model(model: Model, nodes: Sequence[str], low: Format) -> SummingModel:
    """``model`` with a switch for each of ``nodes``, all of which ``can_sum_low``.

    Args:
        model: In FP32, or with narrower formats spelled out in it (see graph/emulate.py).
        nodes: Names of nodes of the main graph.
        low: FP16 or BF16.
    """
    editor = model.edit()
    switch, switches, split = open_switch(editor, nodes)
    writer = _Writer(editor, BFLOAT16 if low is BF16 else FLOAT16)
    made = [split]
    by_node = dict(zip(nodes, switches, strict=True))
    for node in model.graph.node:
        if node.name in by_node:
            made.extend(writer.switched(copy.deepcopy(node), by_node[node.name]))
        else:
            made.append(node)
    editor.set_nodes(made)
    return SummingModel(editor.done(), switch)


def can_sum_low(model: Model, node: onnx.NodeProto) -> bool:
    """Whether a node is a MatMul or Gemm of matrices, or a Conv without groups and of 16 channels or more."""
    if node.op_type == "Gemm":
        return bool(attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0)
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    if node.op_type == "Conv":
        plain = attribute(node, "auto_pad", b"NOTSET") == b"NOTSET" and attribute(node, "group", 1) == 1
        return bool(plain) and shapes.get(node.input[1], (0, 0))[1] >= AT_ONCE
    known = {name: info.shape for name, info in model.values().items()} | shapes
    return node.op_type == "MatMul" and all(len(known.get(name) or ()) > 1 for name in node.input)


class _Writer:
    """Writes nodes whose products are summed otherwise."""

    def __init__(self, editor: Editor, kind: int) -> None:
        self.editor, self.kind = editor, kind
        self.constants = {t.name: tuple(t.dims) for t in editor.graph.initializer}

    def switched(self, node: onnx.NodeProto, switch: str) -> Iterator[onnx.NodeProto]:
        """``node``, and its result summed otherwise where its switch says so."""
        result = node.output[0]
        whole = node.output[0] = self.editor.unique(f"{result}/whole")
        yield node
        nodes: list[onnx.NodeProto] = []
        shape = self._add(nodes, "Shape", whole)
        total = self._add(nodes, "ConstantOfShape", shape)
        on = self._add(nodes, "Cast", switch, to=TensorProto.INT64)
        for left, right, axes in self._pairs(nodes, node, shape):
            total = self._summed(nodes, (total, left, right), on, axes)
        if len(node.input) > 2 and node.input[2]:
            total = self._add(nodes, "Add", total, self._bias(nodes, node))
        nodes.append(helper.make_node("Where", [switch, total, whole], [result], self.editor.unique(result)))
        yield from nodes

    def _pairs(
        self, nodes: list[onnx.NodeProto], node: onnx.NodeProto, shape: str
    ) -> Iterator[tuple[str, str, tuple[int, int]]]:
        """What is multiplied, one pair after the other, and along which axes of both it is summed."""
        left, right = node.input[:2]
        if node.op_type == "Conv":
            yield from self._taps(nodes, node, shape)
            return
        if node.op_type == "Gemm":
            left, right = (
                self._add(nodes, "Transpose", name, perm=[1, 0]) if attribute(node, which, 0) else name
                for name, which in ((left, "transA"), (right, "transB"))
            )
        yield left, right, (-1, -2)

    def _taps(
        self, nodes: list[onnx.NodeProto], node: onnx.NodeProto, shape: str
    ) -> Iterator[tuple[str, str, tuple[int, int]]]:
        """What each tap of a kernel meets, and its weights, [out, in, 1, ...]."""
        x, weight = node.input[:2]
        kernel = self.constants[weight][2:]
        rank = len(kernel)
        strides, dilations = (attribute(node, name, [1] * rank) for name in ("strides", "dilations"))
        pads = attribute(node, "pads", [0] * 2 * rank)
        if any(pads):
            padded = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
            x = self._add(nodes, "Pad", x, self._integers(padded))
        places = self._add(nodes, "Slice", shape, self._integers([2]), self._integers([2 + rank]))
        last = self._add(nodes, "Sub", places, self._integers([1]))
        span = self._add(nodes, "Mul", last, self._integers(strides))
        axes = self._integers(range(2, 2 + rank))
        for tap in itertools.product(*map(range, kernel)):
            start = [at * step for at, step in zip(tap, dilations, strict=True)]
            end = self._add(nodes, "Add", span, self._integers([at + 1 for at in start]))
            met = self._add(nodes, "Slice", x, self._integers(start), end, axes, self._integers(strides))
            ends = self._integers([at + 1 for at in tap])
            yield met, self._add(nodes, "Slice", weight, self._integers(tap), ends, axes), (1, 1)

    def _bias(self, nodes: list[onnx.NodeProto], node: onnx.NodeProto) -> str:
        """The third input, as it is added to the result."""
        if node.op_type != "Conv":
            return str(node.input[2])
        rank = len(self.constants[node.input[1]]) - 2
        return self._add(nodes, "Reshape", node.input[2], self._integers([-1, *[1] * rank]))

    def _summed(
        self, nodes: list[onnx.NodeProto], inputs: tuple[str, str, str], on: str, axes: tuple[int, int]
    ) -> str:
        """A sum with the products of two tensors added to it, some at a time; unchanged where it is off."""
        total, left, right = inputs
        size = self._add(nodes, "Shape", left)
        length = self._add(nodes, "Gather", size, self._integers([axes[0]]))
        more = self._add(nodes, "Add", length, self._integers([AT_ONCE - 1]))
        steps = self._add(nodes, "Div", more, self._integers([AT_ONCE]))
        trips = self._add(nodes, "Mul", steps, on)
        body = self._body(left, right, axes)
        made = self.editor.unique(f"{left}/summed")
        nodes.append(
            helper.make_node("Loop", [trips, "", total], [made], self.editor.unique(made), body=body)
        )
        return made

    def _body(self, left: str, right: str, axes: tuple[int, int]) -> onnx.GraphProto:
        """One step: the next products are added, and the sum is rounded."""
        unique, nodes = self.editor.unique, list[onnx.NodeProto]()
        step, going, total = unique("step"), unique("going"), unique("total")
        at = self._add(nodes, "Mul", step, self._integers([AT_ONCE]))
        end = self._add(nodes, "Add", at, self._integers([AT_ONCE]))
        pair = [
            self._add(nodes, "Slice", name, at, end, self._integers([axis]))
            for name, axis in zip((left, right), axes, strict=True)
        ]
        part = self._add(nodes, "Conv" if axes == (1, 1) else "MatMul", *pair)
        more = self._add(nodes, "Add", total, part)
        narrow = self._add(nodes, "Cast", more, to=self.kind)
        wide = self._add(nodes, "Cast", narrow, to=FLOAT)
        on = self._add(nodes, "Identity", going)
        value = helper.make_tensor_value_info
        taken = [value(step, TensorProto.INT64, []), value(going, TensorProto.BOOL, [])]
        given = [value(on, TensorProto.BOOL, []), value(wide, FLOAT, None)]
        return helper.make_graph(nodes, unique("sums"), [*taken, value(total, FLOAT, None)], given)

    def _integers(self, values: Sequence[int]) -> str:
        return self.editor.add_constant("int8acc_at", np.array(list(values), np.int64))

    def _add(self, nodes: list[onnx.NodeProto], op_type: str, *inputs: str, **said: Any) -> str:
        """Add a node; the name of its result."""
        result: str = self.editor.unique(f"{inputs[0]}/{op_type}")
        nodes.append(helper.make_node(op_type, list(inputs), [result], self.editor.unique(result), **said))
        return result
