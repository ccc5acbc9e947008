"""Finds the element types of a model's tensors, and the types that the schema of an operator allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from pytest_int8acc.graph.index import all_graphs, all_nodes, schema_of, subgraphs
from pytest_int8acc.graph.model import Model

FLOAT, FLOAT16, BFLOAT16 = (
    int(TensorProto.FLOAT),
    int(TensorProto.FLOAT16),
    int(TensorProto.BFLOAT16),
)
#: The element types of floats, and the name of each as a suffix of the names of tensors.
FLOATS = {FLOAT: "fp32", FLOAT16: "fp16", BFLOAT16: "bf16"}
HALVES = frozenset({FLOAT16, BFLOAT16})
#: The 16-bit types by their names in ONNX's schemas.
_HALF_NAMES = {"tensor(float16)": FLOAT16, "tensor(bfloat16)": BFLOAT16}


@dataclass(frozen=True)
class Formal:
    """The type of one input or output in an operator's ONNX schema."""

    variable: str
    """A type variable such as ``T1``, or a concrete type such as ``tensor(float)``.

    Inputs and outputs of one node with equal variables have equal types.
    """
    halves: frozenset[int]
    """The 16-bit types that the schema allows: FLOAT16, BFLOAT16."""


@dataclass(frozen=True)
class Signature:
    """The types of a node's inputs and outputs in the operator's schema, one for each position."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]


@dataclass(frozen=True, eq=False)
class Narrow:
    """A node that can compute in FP16 or BF16; ``half.narrow_nodes`` finds such nodes."""

    node: onnx.NodeProto
    inputs: frozenset[int]
    """The positions of the inputs that the node reads in FP16 or BF16."""
    outputs: frozenset[str]
    """The names of the outputs that the node computes in FP16 or BF16."""


def signature(node: onnx.NodeProto, opset: int) -> Signature | None:
    """The types in the schema of a node; None for operators unknown to ONNX and nodes that contain graphs."""
    if node.domain or subgraphs(node):
        return None
    return _signature(node.op_type, opset, len(node.input), len(node.output))


@functools.cache
def _signature(op_type: str, opset: int, inputs: int, outputs: int) -> Signature | None:
    schema = schema_of(op_type, opset)
    if schema is None:
        return None
    return Signature(_spread(schema.inputs, inputs), _spread(schema.outputs, outputs))


def value_types(model: Model) -> dict[str, int]:
    """The known element types, such as ``TensorProto.FLOAT``, of a model's tensors, by name.

    Tensors inside If, Loop and Scan are included.

    The types come from ONNX's type inference, which stops at unknown operators. After such operators, the
    types of a node's inputs determine the types of other inputs and outputs with the same type variable.

    Raises:
        ModelError: Types of the model contradict each other.
    """
    types: dict[str, int] = {}
    for graph in all_graphs(model.inferred):
        types.update((t.name, int(t.data_type)) for t in graph.initializer)
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
                types[value.name] = int(value.type.tensor_type.elem_type)
    for node in all_nodes(model.graph):
        if not all(name in types for name in (*node.input, *node.output) if name):
            _resolve(node, signature(node, model.opset), types)
    return types


def inner_types(model: Model) -> dict[str, int]:
    """The known element types of tensors that nodes of the main graph compute, by name; without outputs."""
    types, own = value_types(model), {value.name for value in model.graph.output}
    made = (name for node in model.graph.node for name in node.output)
    return {name: types[name] for name in made if name in types and name not in own}


def computes_in_half(model: Model, types: dict[str, int]) -> bool:
    """Whether a node other than a Cast reads FP16 or BF16, also inside If, Loop and Scan."""
    return any(
        types.get(name) in HALVES
        for node in all_nodes(model.graph)
        if node.op_type != "Cast"
        for name in node.input
    )


def pairs(node: onnx.NodeProto, formals: Signature) -> Iterator[tuple[str, Formal]]:
    """The name and the schema type of each input and output that ``node`` has."""
    for name, formal in zip((*node.input, *node.output), (*formals.inputs, *formals.outputs), strict=True):
        if name:
            yield name, formal


def _resolve(node: onnx.NodeProto, formals: Signature | None, types: dict[str, int]) -> None:
    """Add to ``types`` the types of inputs and outputs that follow from ``formals`` and from other types."""
    if formals is None:
        return
    bound = {formal.variable: types[name] for name, formal in pairs(node, formals) if name in types}
    for name, formal in pairs(node, formals):
        if name not in types and formal.variable in bound:
            types[name] = bound[formal.variable]


def _spread(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[Formal, ...]:
    """The type in the schema for each of ``count`` arguments; a variadic last parameter is repeated."""
    actual = (parameters[min(i, len(parameters) - 1)] for i in range(count))
    return tuple(
        Formal(
            parameter.type_str, frozenset(_HALF_NAMES[kind] for kind in _HALF_NAMES.keys() & parameter.types)
        )
        for parameter in actual
    )
