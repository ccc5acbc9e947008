"""Element types of a model's tensors, and what each operator's schema allows for its inputs and outputs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from pytest_int8acc.graph.index import subgraphs
from pytest_int8acc.graph.model import Model

FLOAT, FLOAT16, BFLOAT16 = (
    int(TensorProto.FLOAT),
    int(TensorProto.FLOAT16),
    int(TensorProto.BFLOAT16),
)
_HALVES = {"tensor(float16)": FLOAT16, "tensor(bfloat16)": BFLOAT16}


@dataclass(frozen=True)
class Formal:
    """One formal input or output: inputs and outputs of one node with equal ``variable`` share one type."""

    variable: str
    """A type variable such as ``T1``, or a concrete type such as ``tensor(float)``."""
    halves: frozenset[int]
    """The 16-bit types that the schema allows: FLOAT16, BFLOAT16."""


@dataclass(frozen=True)
class Signature:
    """The formals of a node's actual inputs and outputs, position by position."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]


@dataclass(frozen=True, eq=False)
class Narrow:
    """A node in the form in which it computes in FP16 or BF16; see ``narrow_nodes``."""

    node: onnx.NodeProto
    inputs: frozenset[int]
    """Positions of the inputs that it reads in FP16 or BF16."""
    outputs: frozenset[str]
    """Tensors that it makes in FP16 or BF16."""


def signature(node: onnx.NodeProto, opset: int) -> Signature | None:
    """The formals of ``node`` by ONNX's schema; None for other domains and for nodes that hold graphs."""
    if node.domain not in ("", "ai.onnx") or subgraphs(node):
        return None
    return _signature(node.op_type, opset, len(node.input), len(node.output))


@functools.cache
def _signature(op_type: str, opset: int, inputs: int, outputs: int) -> Signature | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return Signature(_spread(schema.inputs, inputs), _spread(schema.outputs, outputs))


def value_types(model: Model) -> dict[str, int]:
    """Element type (``TensorProto.FLOAT`` and so on) of each tensor of the main graph, where it is known.

    The types come from ONNX's type inference. Where it stops, one known input tells the type of all inputs
    and outputs with the same type variable, so a Conv tells the type of the tensor that an unknown operator
    gives it.

    Raises:
        ModelError: The model contradicts itself.
    """
    graph = model.inferred
    types = {t.name: int(t.data_type) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            types[value.name] = int(value.type.tensor_type.elem_type)
    for node in model.graph.node:
        if not all(name in types for name in (*node.input, *node.output) if name):
            _resolve(node, signature(node, model.opset), types)
    return types


def computes_in_half(model: Model, types: dict[str, int]) -> bool:
    """True where a node other than a Cast reads FP16 or BF16."""
    return any(
        types.get(name) in (FLOAT16, BFLOAT16)
        for node in model.graph.node
        if node.op_type != "Cast"
        for name in node.input
    )


def pairs(node: onnx.NodeProto, formals: Signature) -> Iterator[tuple[str, Formal]]:
    """Each input and output of ``node`` that is not left out, with its formal."""
    for name, formal in zip((*node.input, *node.output), (*formals.inputs, *formals.outputs), strict=True):
        if name:
            yield name, formal


def _resolve(node: onnx.NodeProto, formals: Signature | None, types: dict[str, int]) -> None:
    if formals is None:
        return
    bound = {formal.variable: types[name] for name, formal in pairs(node, formals) if name in types}
    for name, formal in pairs(node, formals):
        if name not in types and formal.variable in bound:
            types[name] = bound[formal.variable]


def _spread(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[Formal, ...]:
    """One formal per actual argument: a variadic last one covers the rest."""
    actual = (parameters[min(i, len(parameters) - 1)] for i in range(count))
    return tuple(
        Formal(parameter.type_str, frozenset(_HALVES[kind] for kind in _HALVES.keys() & parameter.types))
        for parameter in actual
    )
