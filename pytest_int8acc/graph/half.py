"""Converts FP32 models to FP16 or BF16, as strongly typed TensorRT engines need them.

Every operator whose ONNX schema allows the 16-bit type computes in this type. The model's inputs and outputs
keep their types; Cast nodes are added at the inputs and outputs. The inputs and outputs of graphs inside If,
Loop and Scan keep their types, too. The following remain in FP32: operators and inputs for which ONNX does
not allow the 16-bit type, operators of other domains, arithmetic on shapes (FP16 holds every integer only up
to 2048), and nodes that the caller names. BF16 needs opset 22, the first in which ONNX allows BF16 in
convolutions and pools.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import BF16, FP16, Format
from pytest_int8acc.graph.index import all_nodes, attribute, refill, subgraphs
from pytest_int8acc.graph.layout import WEIGHTED, folded_norm
from pytest_int8acc.graph.load import lift
from pytest_int8acc.graph.model import Model, put_constant, unload
from pytest_int8acc.graph.opsets import QDQ_OPSET
from pytest_int8acc.graph.qdq import is_qdq
from pytest_int8acc.graph.types import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    FLOATS,
    Narrow,
    Signature,
    computes_in_half,
    pairs,
    signature,
    value_types,
)
from pytest_int8acc.tensors import Array, did_you_mean

#: A scale is reported if rounding to FP16 changes it by more than this relative error. FP16 has few digits
#: below 2**-14. Above 2**-14, rounding changes a number by a relative error of at most 2**-11.
COARSE = 0.01
_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
#: Operators with an attribute for the type of their output. They stay in FP32.
_SELF_TYPED = frozenset({"RandomNormalLike", "RandomUniformLike", "EyeLike", "Bernoulli", "BitCast"})


@dataclass(frozen=True, eq=False)
class Fp16Model:
    """A model in FP16 or BF16, and the effects of the conversion on its constants."""

    model: Model
    wide: Model
    """The model before the conversion to 16 bits, but in the same opset as ``model``, and after
    ``combine_norms``."""
    overflows: tuple[str, ...] = ()
    """For each constant in which finite numbers became inf, a sentence with its name and its readers."""
    notes: tuple[str, ...] = ()


def to_fp16(model: Model, keep_fp32: Collection[str] = (), low: Format = FP16) -> Fp16Model:
    """``model`` in the format ``low``, FP16 or BF16, except the nodes named in ``keep_fp32``.

    The model must be in normal form; it may have Q/DQ. Names of nodes, inputs and outputs stay the same. A
    tensor with a new type keeps its name, unless it is an output. Q/DQ scales become FP16, which needs opset
    19. A scale below the smallest FP16 number, 2**-24, is raised to 2**-24. BatchNormalizations are changed
    as by ``combine_norms``. If the model computes in 16 bits already, only the nodes in ``keep_fp32`` change.

    Raises:
        ModelError: No node has a name in ``keep_fp32``, or the model cannot be converted to a newer opset.
    """
    _check_kept(model, keep_fp32)
    types = value_types(model)
    notes = []
    typed = computes_in_half(model, types)
    if typed:
        notes.append(f"{model.name} computes in FP16 already: its own types are kept")
    else:
        model = _prepared(model, low, keep_fp32)
        types = value_types(model)
    typing = _Typing(model, types, keep_fp32, FLOAT if typed else low.element_type)
    if typing.foreign and not typed:
        notes.append(f"operators that stay in FP32: {', '.join(sorted(typing.foreign))}")
    rewrite = _Rewrite(model, typing)
    return Fp16Model(rewrite.done(), model, tuple(rewrite.overflows), (*notes, *rewrite.notes))


def _check_kept(model: Model, keep_fp32: Collection[str]) -> None:
    known = model.everywhere.nodes
    for name in sorted(set(keep_fp32).difference(known)):
        raise ModelError(f"{model.name}: no node is named '{name}'{did_you_mean(name, known)}")


def _prepared(model: Model, low: Format, keep_fp32: Collection[str]) -> Model:
    """``model`` in an opset that allows the format ``low``, and after ``combine_norms``.

    BatchNormalizations named in ``keep_fp32`` are not combined.
    """
    quantized = any(node.op_type in _QDQ for node in all_nodes(model.graph))
    least = max(low.opset, QDQ_OPSET if quantized else 0)
    return combine_norms(lift(model, least), keep_fp32)


def narrow_nodes(model: Model, low: Format) -> tuple[dict[str, Narrow], dict[str, Array]]:
    """The nodes that can compute in ``low``, by name, and the FP32 values of all constants, by name.

    Raises:
        ModelError: ``model``, which is in normal form, cannot be converted to an opset that allows ``low``.
    """
    prepared, kind = _prepared(model, low, ()), low.element_type
    typing = _Typing(prepared, value_types(prepared), (), kind)
    found = {}
    for node in prepared.everywhere.nodes.values():
        if node.name in typing.bound:
            required = typing.required[node.name]
            inputs = frozenset(i for i, target in required.items() if target == kind)
            made = frozenset(name for name in node.output if typing.made.get(name) == kind)
            found[node.name] = Narrow(node, inputs, made)
    return found, prepared.constants()


class _Typing:
    """Decides in which types each tensor will be computed and read. The model is not changed here."""

    def __init__(self, model: Model, types: dict[str, int], keep_fp32: Collection[str], low: int) -> None:
        self.types = types
        """The element type of each tensor before the conversion."""
        self.made = dict(types)
        """The element type in which each tensor is computed after the conversion."""
        self.needed: dict[str, set[int]] = {}
        """The element types in which nodes read each tensor after the conversion."""
        self.required: dict[str, dict[int, int]] = {}
        """For each node, by name: input position to the element type that the node reads after the
        conversion. Inputs that may have any type are left out."""
        self.public = model.everywhere.public
        """Tensors that must keep name and type, such as outputs."""
        self.foreign: set[str] = set()
        """Operators without a usable ONNX schema, such as those of other domains."""
        self.bound: set[str] = set()
        """Names of the nodes with an input or output in the 16-bit type."""
        self._keep, self._low, self._name = frozenset(keep_fp32), low, model.name
        self._shapes = _shape_tensors(model)
        nodes = model.everywhere.nodes.values()
        for node in nodes:
            formals = signature(node, model.opset)
            self._decide(node, formals)
            if formals is None and not subgraphs(node):
                self.foreign.add(f"{node.domain}.{node.op_type}".lstrip("."))
        for name in self.public & types.keys():
            if self.made[name] in FLOATS and types[name] not in FLOATS:
                kind = TensorProto.DataType.Name(types[name])
                raise ModelError(f"{model.name}: '{name}' is declared {kind}, and the model makes floats")
            self.needed.setdefault(name, set()).add(types[name])
        for node in nodes:
            self._retype_cast(node)

    def _decide(self, node: onnx.NodeProto, formals: Signature | None) -> None:
        bound = self._bind(node, formals) if formals else {}
        if self._low in bound.values():
            self.bound.add(node.name)
        required: dict[int, int] = {}
        for i, name in enumerate(node.input):
            if name not in self.types or _takes_any(node):
                continue
            required[i] = self.types[name]
            # Input 1 of a Resize holds coordinates, which stay in FP32.
            if formals and not (node.op_type == "Resize" and i == 1):
                required[i] = bound.get(formals.inputs[i].variable, required[i])
            self.needed.setdefault(name, set()).add(required[i])
        self.required[node.name] = required
        if formals:
            for name, formal in zip(node.output, formals.outputs, strict=True):
                self.made[name] = bound.get(formal.variable, self.types.get(name, 0))
        if node.op_type == "DequantizeLinear" and bound and required[1] != self.types[node.input[1]]:
            # A DequantizeLinear whose scale is converted computes in the new type of the scale. If its
            # attribute ``output_dtype`` (opset 23) sets another type, ``_set_types`` removes the attribute.
            self.made[node.output[0]] = required[1]

    def _bind(self, node: onnx.NodeProto, formals: Signature) -> dict[str, int]:
        """The new float type of each type variable of ``formals``, a node's schema; empty if none changes."""
        kept = node.name in self._keep
        if node.op_type in _SELF_TYPED or _takes_any(node):
            return {}
        if any(name not in self.types for name, _ in pairs(node, formals)):
            # The type is unknown: a sequence, or a tensor after an operator that ONNX does not know.
            return {}
        if node.op_type == "DequantizeLinear" and self.types[node.input[0]] == TensorProto.INT32:
            return {}  # The scale of a bias is a product of two scales, and often too small for FP16.
        if not kept and not self._shapes.isdisjoint(node.output):
            return {}
        high = {FLOAT: self._low, FLOAT16: FLOAT16, BFLOAT16: BFLOAT16}
        bound = {}
        for name, formal in zip(node.input, formals.inputs, strict=True):
            required = FLOAT if kept else high.get(self.types.get(name, 0), 0)
            if name and formal.halves and self.types[name] in high and required in (FLOAT, *formal.halves):
                bound[formal.variable] = required
        for name, formal in zip(node.input, formals.inputs, strict=True):
            if name and formal.variable in bound and self.types[name] not in high:
                kind = TensorProto.DataType.Name(self.types[name])
                raise ModelError(
                    f"{self._name}: '{node.name}' ({node.op_type}) reads '{name}', which is {kind}, beside "
                    "floats; ONNX wants them of one type"
                )
        return bound

    def _retype_cast(self, node: onnx.NodeProto) -> None:
        """Let a Cast to FP32 cast to a 16-bit type instead, if its output is only read in that type.

        A Cast in arithmetic on shapes stays a Cast to FP32.
        """
        name = node.output[0] if node.output else ""
        if (
            node.op_type == "Cast"
            and self.made.get(name) == FLOAT
            and self.needed.get(name) in ({FLOAT16}, {BFLOAT16})
            and node.name not in self._keep
            and name not in self._shapes
        ):
            (self.made[name],) = self.needed[name]


def _takes_any(node: onnx.NodeProto) -> bool:
    """Whether the input of ``node`` may be FP32, FP16 or BF16 without an effect on the output's type."""
    return node.op_type in ("Cast", "Shape", "Size") and not node.domain


def _shape_tensors(model: Model) -> set[str]:
    """Names of tensors that are computed only from shapes and constants.

    Outputs of convolutions and matrix products, and of look-ups in constant tables, are left out, because
    they hold features.
    """
    constant = set(model.everywhere.constants)
    shapes: set[str] = set()
    for node in model.everywhere.nodes.values():
        names = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size"):
            shapes.update(node.output)
        elif node.op_type == "Constant":  # only inside If, Loop or Scan
            constant.update(node.output)
        elif not names or subgraphs(node) or node.op_type in WEIGHTED | _QDQ | {"Einsum"}:
            continue
        elif constant.issuperset(names):
            constant.update(node.output)
        elif node.op_type.startswith("Gather") and names[0] in constant:
            continue
        elif all(name in constant or name in shapes for name in names):
            shapes.update(node.output)
    return shapes


class _Rewrite:
    """Converts a model's constants to new types, and adds one Cast for each tensor needed in two types."""

    def __init__(self, model: Model, typing: _Typing) -> None:
        self.overflows: list[str] = []
        self.notes: list[str] = []
        self._typing = typing
        self._editor = model.edit()
        self._names: dict[tuple[str, int], str] = {}
        self._readers, self._scales = _readers(model, typing)
        self._constants = model.constants()

    def done(self) -> Model:
        """The rewritten model."""
        for tensor in list(self._editor.graph.initializer):
            self._convert_constant(tensor)
        self._editor.rewrite(self._retyped, self._first_casts)
        return self._editor.done()

    def _first_casts(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        """Casts of the inputs of a graph, and of the constants of a graph inside an If, Loop or Scan."""
        constants = graph.initializer if graph is not self._editor.graph else ()
        for value in (*graph.input, *constants):
            yield from self._casts(value.name, keeps_name=True)

    def _retyped(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """``node`` with inputs and outputs of its new types, and Casts of its outputs."""
        typing, required = self._typing, self._typing.required[node.name]
        outputs = list(node.output)
        for i, name in enumerate(node.input):
            target = required.get(i, typing.made.get(name, 0))
            node.input[i] = self._names.get((name, target), name)
        _set_types(node, typing)
        yield node
        for i, name in enumerate(outputs):
            yield from self._casts(name, keeps_name=name in typing.public)
            node.output[i] = self._names.get((name, typing.made.get(name, 0)), name)

    def _casts(self, name: str, *, keeps_name: bool) -> Iterator[onnx.NodeProto]:
        """Casts of a tensor to all types in which nodes need it, except the type in which it is computed.

        With ``keeps_name``, the tensor in its type before the conversion keeps the name. Otherwise the tensor
        in the type in which it is computed keeps the name.
        """
        typing = self._typing
        made, before = typing.made.get(name, 0), typing.types.get(name, 0)
        if made not in FLOATS:
            return
        bearer = before if keeps_name else made
        for target in {made, *typing.needed.get(name, ())}:
            own = target == bearer
            self._names[name, target] = name if own else self._editor.unique(f"{name}_{FLOATS[target]}")
        for target in sorted(typing.needed.get(name, set()) - {made}):
            source, result = self._names[name, made], self._names[name, target]
            label = self._editor.unique(f"Cast_{name}_{FLOATS[target]}")
            yield helper.make_node("Cast", [source], [result], name=label, to=target)

    def _convert_constant(self, tensor: onnx.TensorProto) -> None:
        name, before = tensor.name, int(tensor.data_type)
        needed = self._typing.needed.get(name, {before})
        for target in needed - {before}:
            values = self._convert(name, target)
            if before in needed:
                copy = self._editor.add_constant(f"{name}_{FLOATS[target]}", values)
                self._names[name, target] = copy
            else:
                self._editor.weights.pop(name, None)
                put_constant(tensor, name, values, self._editor.weights)
                self._typing.made[name] = target
            unload(self._constants[name])

    def _convert(self, name: str, target: int) -> Array:
        values = self._constants[name]
        if target == FLOAT:
            return np.asarray(values, np.float32)
        if target == BFLOAT16:
            return BF16.round(values)
        half = to_half(name, values, self._readers.get(name, []), is_scale=name in self._scales)
        if half.overflow and name in self._readers:
            self.overflows.append(half.overflow)
        if half.note:
            self.notes.append(half.note)
        return half.values


def _readers(model: Model, typing: _Typing) -> tuple[dict[str, list[str]], set[str]]:
    """The names of the nodes that read each tensor in FP16, by tensor; and the names of the Q/DQ scales.

    A Clip that reads a tensor as its bound is left out, because a bound that becomes inf does no harm.
    """
    readers: dict[str, list[str]] = {}
    scales: set[str] = set()
    for node in model.everywhere.nodes.values():
        for i, target in typing.required[node.name].items():
            if target == FLOAT16 and not (node.op_type == "Clip" and i > 0):
                readers.setdefault(node.input[i], []).append(node.name)
        if node.op_type in _QDQ:
            scales.add(node.input[1])
    return readers, scales


def _set_types(node: onnx.NodeProto, typing: _Typing) -> None:
    """Set the type attribute of a Cast (``to``) or DequantizeLinear (``output_dtype``) as in ``typing``."""
    made = typing.made.get(node.output[0]) if node.output else None
    for said in list(node.attribute):
        if (node.op_type, said.name) == ("Cast", "to") and made:
            said.i = made
        elif (node.op_type, said.name) == ("DequantizeLinear", "output_dtype") and said.i != made:
            node.attribute.remove(said)


@dataclass(frozen=True, eq=False)
class HalfConstant:
    """A constant in FP16, with sentences about numbers that rounding changed strongly."""

    values: Array
    overflow: str = ""
    """A sentence about finite numbers that became inf; empty if there are none. It names the constant and the
    nodes that read it."""
    note: str = ""
    """A sentence about a Q/DQ scale that changed by more than ``COARSE``, or was raised because it would be
    0, or about a constant whose numbers all became 0; empty otherwise."""


def to_half(name: str, values: Array, readers: Sequence[str], *, is_scale: bool) -> HalfConstant:
    """``values`` (float32, any shape) rounded to float16; numbers that are too large for FP16 become inf.

    With ``is_scale``, the values are Q/DQ scales: a scale that would become 0 is raised to 2**-24, because
    TensorRT accepts only positive scales. Sentences name the constant, ``name``, and the nodes that read it,
    ``readers``.
    """
    wide = np.asarray(values)
    half = FP16.round(wide)
    if not wide.size:
        return HalfConstant(half)
    who = f"'{name}' (read by {', '.join(readers)})"
    extent = max(-wide.min(), wide.max())  # abs() is avoided, because it would copy the weight.
    note = ""
    if is_scale:
        note = _scale_note(who, wide, half)
        half = _positive(wide, half)
    elif 0 < extent < FP16.smallest and not half.any():
        note = f"{who}: all numbers vanish in FP16 (largest {extent:g}, FP16 ends at 2**-24)"
    return HalfConstant(half, "" if extent <= FP16.highest else _overflow(who, wide, half), note)


def scale_in(scale: Array, dtype: DTypeLike) -> Array:
    """Q/DQ scales converted to ``dtype``, float16 or float32; scales above 0 stay above 0."""
    if dtype == np.float16 and scale.dtype == np.float32:
        return _positive(scale, FP16.round(scale))
    return scale.astype(dtype, copy=False)


def _positive(wide: Array, half: Array) -> Array:
    """The FP16 scales ``half``; those that rounding from ``wide`` made 0 become the smallest FP16 number."""
    return np.where((half == 0) & (wide > 0), np.float16(FP16.smallest), half)


def _scale_note(who: str, wide: Array, half: Array) -> str:
    """A sentence about the scale ``who``, whose numbers ``wide`` are rounded to ``half``.

    The result is empty if no number becomes 0, and none changes by more than ``COARSE``.
    """
    vanished = (half == 0) & (wide > 0)
    if vanished.any():
        return f"scale {who}: {_count_of(vanished)} below what FP16 holds, raised to 2**-24"
    normal = np.isfinite(half) & (wide > 0)
    change = np.abs(half[normal] / wide[normal] - 1).max(initial=0)
    if change > COARSE:
        return f"scale {who}: changes by up to {change:.1%} in FP16, which has few digits below 2**-14"
    return ""


def _overflow(who: str, wide: Array, half: Array) -> str:
    lost = np.isinf(half) & np.isfinite(wide)
    if not lost.any():
        return ""
    largest = np.abs(wide[lost]).max()
    return f"{who}: {_count_of(lost)} beyond {FP16.highest:g} become inf in FP16 (largest {largest:g})"


def _count_of(mask: Array) -> str:
    return f"{np.count_nonzero(mask)} of {mask.size} numbers"


def combine_norms(model: Model, keep: Collection[str]) -> Model:
    """``model`` with mean, variance and epsilon of each BatchNormalization folded into its scale and bias.

    The mean becomes 0, the variance 1, and epsilon 0. TensorRT's parser (onnx-tensorrt) also folds them in
    FP32, so a variance that FP16 cannot hold does no harm. Nodes named in ``keep``, nodes in training mode,
    and nodes whose parameters are not FP32 constants do not change.
    """
    constants, combined = model.constants(), dict[str, list[Array]]()
    for node in model.everywhere.nodes.values():
        if node.op_type != "BatchNormalization" or node.domain or node.name in keep:
            continue
        arrays = [constants[name] for name in node.input[1:] if name in constants]
        if [array.dtype for array in arrays] == [np.float32] * 4 and not attribute(node, "training_mode", 0):
            combined[node.name] = arrays
    if not combined:
        return model
    editor = model.edit()
    for node in all_nodes(editor.graph):
        if node.name not in combined:
            continue
        factor, offset = folded_norm(node, combined[node.name])
        zeros = np.zeros_like(factor)
        parts = {"scale": factor, "bias": offset, "mean": zeros, "variance": zeros + 1}
        for index, (part, array) in enumerate(parts.items(), 1):
            node.input[index] = editor.add_constant(f"{node.name}/{part}", array.astype(np.float32))
        kept = [a for a in node.attribute if a.name != "epsilon"]
        refill(node.attribute, [*kept, helper.make_attribute("epsilon", 0.0)])
    return editor.done()


def half_nodes(model: Model) -> tuple[str, ...]:
    """Names of the nodes whose layer precision must be set so that TensorRT runs an FP32 model in FP16.

    In a model with Q/DQ, these are only the convolutions and matrix products without dequantized inputs. If
    the precision of a layer that TensorRT fuses with Q/DQ were set, the INT8 kernel would be split.
    """
    narrow, _ = narrow_nodes(model, FP16)
    nodes = [node for node in model.graph.node if node.name in narrow]
    if not is_qdq(model):
        return tuple(node.name for node in nodes)
    dequantized = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return tuple(
        node.name for node in nodes if node.op_type in WEIGHTED and dequantized.isdisjoint(node.input)
    )
