"""One model that tells what each node loses by itself in FP16 or BF16, on the FP32 model's own values."""

from __future__ import annotations

import copy
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.graph.extra_outputs import end_with
from pytest_int8acc.graph.formats import BF16, Format
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.types import BFLOAT16, FLOAT, FLOAT16, value_types

#: What is told of each tensor: the sum of squares of what rounding changes and of its values, the greatest
#: magnitude, and how many values other than 0 become 0.
PARTS = ("noise", "signal", "peak", "lost")


@dataclass(frozen=True, eq=False)
class AloneModel:
    """The model, and where it tells what."""

    model: Model
    measurements: Mapping[str, tuple[str, ...]]
    """Tensor that a node makes to its outputs, one for each of ``PARTS``, float32 []."""


def alone_model(model: Model, nodes: Collection[str], low: Format) -> AloneModel:
    """``model`` with a twin of each of ``nodes`` that reads rounded values, and whose results are rounded.

    Args:
        model: In FP32 and normal form; its own outputs are left out.
        nodes: Names of nodes of the main graph without graphs inside.
        low: What is rounded to.
    """
    writer = _Writer(model, BFLOAT16 if low is BF16 else FLOAT16)
    made = [made for node in model.graph.node for made in writer.around(node, node.name in nodes)]
    editor = writer.editor
    editor.set_nodes(made)
    end_with(editor, {name: TensorProto.FLOAT for names in writer.measurements.values() for name in names})
    return AloneModel(editor.done(), writer.measurements)


class _Writer:
    def __init__(self, model: Model, kind: int) -> None:
        self.editor: Editor = model.edit()
        self.kind = kind
        self.types = value_types(model)
        self.rounded: dict[str, str] = {}
        """Tensor to its rounded self."""
        self.measurements: dict[str, tuple[str, ...]] = {}
        self.zero = ""

    def around(self, node: onnx.NodeProto, has_twin: bool) -> Iterator[onnx.NodeProto]:
        """``node``, and what tells its loss."""
        yield copy.deepcopy(node)
        floats = [name for name in node.output if self.types.get(name) == FLOAT]
        if not has_twin or not floats:
            return
        twin = copy.deepcopy(node)
        twin.name = self.editor.unique(f"{node.name}/twin")
        for i, name in enumerate(node.input):
            if self.types.get(name) == FLOAT:
                if name not in self.rounded:
                    self.rounded[name] = yield from self._round(name)
                twin.input[i] = self.rounded[name]
        for i, name in enumerate(node.output):
            twin.output[i] = self.editor.unique(f"{name}/twin") if name else ""
        yield twin
        for name, own in zip(node.output, twin.output, strict=True):
            if name in floats:
                rounded = yield from self._round(own)
                yield from self._compare(name, rounded)

    def _add(self, op_type: str, *inputs: str, **said: Any) -> onnx.NodeProto:
        result = self.editor.unique(f"{inputs[0]}/{op_type}")
        return helper.make_node(op_type, list(inputs), [result], self.editor.unique(result), **said)

    def _round(self, tensor: str) -> Generator[onnx.NodeProto, None, str]:
        narrow = self._add("Cast", tensor, to=self.kind)
        wide = self._add("Cast", narrow.output[0], to=FLOAT)
        yield from (narrow, wide)
        return str(wide.output[0])

    def _compare(self, tensor: str, rounded: str) -> Iterator[onnx.NodeProto]:
        """Sums over two tensors; infinities of one sign are equal."""
        self.zero = self.zero or self.editor.add_constant("int8acc_zero", np.zeros((), np.float32))
        same, error = self._add("Equal", tensor, rounded), self._add("Sub", rounded, tensor)
        where = self._add("Where", same.output[0], self.zero, error.output[0])
        noise = self._add("ReduceSumSquare", where.output[0], keepdims=0)
        signal = self._add("ReduceSumSquare", tensor, keepdims=0)
        size = self._add("Abs", tensor)
        peak = self._add("ReduceMax", size.output[0], keepdims=0)
        gone = self._add("Equal", rounded, self.zero)
        was = self._add("Equal", tensor, self.zero)
        still = self._add("Not", was.output[0])
        both = self._add("And", gone.output[0], still.output[0])
        number = self._add("Cast", both.output[0], to=FLOAT)
        lost = self._add("ReduceSum", number.output[0], keepdims=0)
        yield from (same, error, where, noise, signal, size, peak, gone, was, still, both, number, lost)
        self.measurements[tensor] = tuple(node.output[0] for node in (noise, signal, peak, lost))
