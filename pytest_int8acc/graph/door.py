"""The door for models from files: what comes through it is whole, so that the rest of graph/ may trust it.

Checked here: text, versions, element types, sizes against bytes, operators against ONNX's schemas, names made
once and before they are read. What runtimes take all the same is put right: unsorted nodes, sparse
initializers, external data of constants inside nodes and graphs.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

from pytest_int8acc.errors import ModelError, listed
from pytest_int8acc.graph.index import GRAPHS, all_graphs, all_nodes, captured, inner_names, refill, subgraphs
from pytest_int8acc.graph.model import put_constant
from pytest_int8acc.graph.stored import check_stored, densify, is_type, read_external
from pytest_int8acc.graph.trt_fp8 import STANDARD
from pytest_int8acc.tensors import Array

#: TensorRT's limit on the elements of one tensor.
_ELEMENTS = 1 << 31
#: Functions that call one another deeper, or come to more nodes when inlined, are no model of anybody.
_CALLS, _INLINED = 200, 1_000_000
_ANY = 1 << 31
#: Of whatever domain: ONNX Runtime has its own.
_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear", *STANDARD})

_Holder = onnx.GraphProto | onnx.FunctionProto
_Key = tuple[str, str, str]


def admit(proto: onnx.ModelProto, path: Path) -> dict[str, Array]:
    """Check ``proto`` of the file ``path`` and put it right, in place.

    Returns:
        The main graph's large initializers that are external data, mapped from their files, by name; the
        model holds placeholders for them.

    Raises:
        ModelError: What is wrong first.
    """
    name = str(path)
    _check_text(proto, name)
    opsets = _check_versions(proto.opset_import, name)
    if "" not in opsets:
        raise ModelError(f"{name}: imports no opset of ONNX itself; export it with opset 13 or later")
    if not 0 <= proto.ir_version < _ANY:
        raise ModelError(f"{name}: IR version {proto.ir_version}; the newest is {onnx.IR_VERSION}")
    weights: dict[str, Array] = {}
    folder = path.parent.resolve()
    for holder in _holders(proto):
        if isinstance(holder, onnx.GraphProto):
            _read_initializers(holder, folder, name, weights if holder is proto.graph else None)
            _check_values(holder, name)
        for node in holder.node:
            _read_attributes(node, folder, name)
    _check_inputs(proto.graph, name)
    for node in all_nodes(proto.graph):
        if any(said.ref_attr_name for said in node.attribute):
            raise ModelError(f"{name}: {_called(node)} refers to an attribute of a function it is not in")
    _check_nodes(proto.graph.node, opsets, proto.ir_version, name)
    for function in proto.functions:
        own = _check_versions(function.opset_import, name)
        _check_nodes(function.node, opsets | own, proto.ir_version, name)
    _check_functions(proto, name)
    _check_scales(proto.graph, name)
    for holder in (proto.graph, *proto.functions):
        _settle(holder, frozenset(), name)
    return weights


def _holders(proto: onnx.ModelProto) -> Iterator[_Holder]:
    """The main graph first, then all that hold nodes, at any depth."""
    yield from all_graphs(proto.graph)
    for function in proto.functions:
        yield function
        for node in function.node:
            for graph in subgraphs(node):
                yield from all_graphs(graph)


def _check_text(message: Message, name: str) -> None:
    """Every name in it is UTF-8: protobuf looks only when a string is asked for, and may give bytes then."""
    try:
        fields = (
            [(f, getattr(message, f.name)) for f in message.DESCRIPTOR.fields if f.name in _TENSOR_TEXT]
            if isinstance(message, TensorProto)  # its data would be copied
            else message.ListFields()
        )
        for field, value in fields:
            if field.type not in (field.TYPE_MESSAGE, field.TYPE_STRING):
                continue
            for each in (value,) if isinstance(value, str | bytes | Message) else value:
                if isinstance(each, Message):
                    _check_text(each, name)
                elif isinstance(each, bytes):
                    each.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{name}: holds a name that is not UTF-8: {error.object[:80]!r}") from None


_TENSOR_TEXT = frozenset({"name", "doc_string", "external_data", "metadata_props"})


def _check_versions(imports: Iterable[onnx.OperatorSetIdProto], name: str) -> dict[str, int]:
    """Version of each domain, ONNX's own under both of its names."""
    versions: dict[str, int] = {}
    newest = onnx.defs.onnx_opset_version()
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"{name}: imports two opsets of domain '{domain}'")
        if not 0 < entry.version < _ANY:
            raise ModelError(f"{name}: opset {entry.version} of domain '{domain}'; expected 1 or more")
        if domain == "" and entry.version > newest:
            raise ModelError(
                f"{name}: opset {entry.version}, and the installed ONNX {onnx.__version__} knows none above "
                f"{newest}; install a newer one, or export the model with an older opset"
            )
    return versions | ({"ai.onnx": versions[""]} if "" in versions else {})


def _read_initializers(
    graph: onnx.GraphProto, folder: Path, name: str, apart: dict[str, Array] | None
) -> None:
    """All initializers whole and inline, but for large ones that are external, where they may stay apart."""
    for tensor in graph.initializer:
        where = f"{name}: weight '{tensor.name}'"
        if not tensor.name:
            raise ModelError(f"{name}: an initializer has no name")
        check_stored(tensor, where)
        if tensor.data_location == TensorProto.EXTERNAL:
            _put(tensor, read_external(tensor, folder, where), apart)
    for sparse in graph.sparse_initializer:
        where = f"{name}: weight '{sparse.values.name}'"
        if not sparse.values.name:
            raise ModelError(f"{name}: a sparse initializer has no name")
        dense = densify(sparse, folder, where)
        _put(graph.initializer.add(name=sparse.values.name), dense, apart)
    del graph.sparse_initializer[:]


def _put(tensor: TensorProto, array: Array, apart: dict[str, Array] | None) -> None:
    if apart is None:
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    else:
        put_constant(tensor, tensor.name, array, apart)


def _read_attributes(node: onnx.NodeProto, folder: Path, name: str) -> None:
    """Tensors that are attributes, whole and inline; sparse ones of Constant nodes become plain."""
    for said in node.attribute:
        where = f"{name}: '{said.name}' of {_called(node)}"
        for tensor in [*said.tensors, *([said.t] if said.HasField("t") else [])]:
            check_stored(tensor, where)
            if tensor.data_location == TensorProto.EXTERNAL:
                _put(tensor, read_external(tensor, folder, where), None)
        if said.HasField("sparse_tensor") and said.name == "sparse_value":
            dense = densify(said.sparse_tensor, folder, where)
            said.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(dense)))


def _called(node: onnx.NodeProto) -> str:
    return f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"


def _check_values(graph: onnx.GraphProto, name: str) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type.elem_type
        if kind and not is_type(kind):
            raise ModelError(f"{name}: '{value.name}' has element type {kind}, which ONNX lacks")


def _check_inputs(graph: onnx.GraphProto, name: str) -> None:
    """Inputs of a known type, and of sizes that memory can hold."""
    constant = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        kind = value.type.tensor_type
        if value.name in constant or not value.type.HasField("tensor_type"):
            continue
        if not kind.elem_type:
            raise ModelError(f"{name}: input '{value.name}' has no element type")
        sizes = [dim.dim_value for dim in kind.shape.dim if dim.dim_value > 0]
        if math.prod(sizes) >= _ELEMENTS:
            raise ModelError(
                f"{name}: input '{value.name}' of sizes {sizes} is fixed at {math.prod(sizes)} elements; "
                f"expected fewer than {_ELEMENTS}"
            )


def _check_scales(graph: onnx.GraphProto, name: str) -> None:
    """Constant scales are floats, which neither ONNX's checker nor its type inference asks."""
    values = {
        node.output[0]: a.t for node in graph.node for a in node.attribute if node.op_type == "Constant"
    }
    tensors = values | {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        scale = tensors.get(node.input[1]) if node.op_type in _PAIR else None
        kind = "FLOAT" if scale is None else TensorProto.DataType.Name(scale.data_type)
        if kind != "DOUBLE" and "FLOAT" not in kind:
            raise ModelError(f"{name}: {_called(node)} has a scale of type {kind}; expected floats")


def _check_nodes(
    nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int], ir_version: int, name: str
) -> None:
    """Inputs, outputs and attributes of each node as ONNX's schema of its operator has them."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = ir_version, dict(opsets)
    for node in nodes:
        _check_node(node, name)
        try:
            _check_against_schema(node, opsets, context)
        except onnx.checker.ValidationError as error:
            line = str(error).strip().partition("\n")[0]
            raise ModelError(f"{name}: {_called(node)} is not as ONNX has it: {line}") from None
        for graph in subgraphs(node):
            _check_nodes(graph.node, opsets, ir_version, name)


def _check_node(node: onnx.NodeProto, name: str) -> None:
    """Refuse a node that ONNX's checker lets pass though no runtime can run it."""
    if not node.op_type:
        raise ModelError(f"{name}: {_called(node)} names no operator")
    if node.op_type in _PAIR and (len(node.input) < 2 or not all((*node.input[:2], *node.output[:1]))):
        raise ModelError(f"{name}: {_called(node)} wants a tensor and a scale, and makes one tensor")
    if any(said.name == "group" and said.type == said.INT and said.i < 1 for said in node.attribute):
        raise ModelError(f"{name}: {_called(node)} has fewer than 1 group")
    counts = Counter(said.name for said in node.attribute)
    if twice := [said for said, count in counts.items() if count > 1]:
        raise ModelError(f"{name}: {_called(node)} has its attribute '{twice[0]}' twice")


def _check_against_schema(
    node: onnx.NodeProto, opsets: Mapping[str, int], context: onnx.checker.C.CheckerContext
) -> None:
    """Raise onnx.checker's ValidationError where ``node`` breaks its schema, or an attribute has no form."""
    if _has_schema(node, opsets):
        onnx.checker.check_node(_without_graphs(node), context)
        return
    for said in node.attribute:
        if said.type not in GRAPHS:
            onnx.checker.check_attribute(said, context)


def _has_schema(node: onnx.NodeProto, opsets: Mapping[str, int]) -> bool:
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 0), node.domain)
    except onnx.defs.SchemaError:
        return False
    return not schema.deprecated


def _without_graphs(node: onnx.NodeProto) -> onnx.NodeProto:
    """``node``, its graphs left empty: they read names from around them, which the checker would miss."""
    if not subgraphs(node):
        return node
    shallow = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name)
    shallow.input.extend(node.input)
    shallow.output.extend(node.output)
    empty = onnx.GraphProto(name="graph")
    for said in node.attribute:
        kept = onnx.AttributeProto(name=said.name, type=said.type, g=empty, graphs=[empty])
        kept.ClearField("graphs" if said.type == onnx.AttributeProto.GRAPH else "g")
        shallow.attribute.append(kept if said.type in GRAPHS else said)
    return shallow


def _check_functions(proto: onnx.ModelProto, name: str) -> None:
    """Local functions end: none calls itself, and inlined they stay of a size that can be held."""
    functions: dict[_Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        if functions.setdefault(_key(function, function.name), function) is not function:
            raise ModelError(f"{name}: two functions are called '{function.name}'")
    sizes: dict[_Key, int] = {}

    def size(nodes: Iterable[onnx.NodeProto], callers: tuple[_Key, ...]) -> int:
        inner = (size(graph.node, callers) for node in nodes for graph in subgraphs(node))
        return sum(1 + called(node, callers) for node in nodes) + sum(inner)

    def called(node: onnx.NodeProto, callers: tuple[_Key, ...]) -> int:
        key = _key(node, node.op_type)
        if key not in functions:
            return 0
        if key in callers or len(callers) > _CALLS:
            raise ModelError(f"{name}: function '{node.op_type}' calls itself, or {_CALLS} others deep")
        if len(node.input) > len(functions[key].input) or len(node.output) > len(functions[key].output):
            raise ModelError(f"{name}: {_called(node)} gives or takes more than its function does")
        if key not in sizes:
            sizes[key] = size(functions[key].node, (*callers, key))
        return sizes[key]

    total = sum(size(f.node, (key,)) for key, f in functions.items()) + size(proto.graph.node, ())
    if functions and total > _INLINED:
        raise ModelError(f"{name}: its functions come to {total} nodes inlined; expected {_INLINED} at most")


def _key(holder: onnx.FunctionProto | onnx.NodeProto, called: str) -> _Key:
    return "" if holder.domain == "ai.onnx" else holder.domain, called, holder.overload


def _settle(holder: _Holder, around: frozenset[str], name: str) -> None:
    """Each name is made once, here or ``around``, and nodes come to stand behind what they read.

    ``around`` are the names that a graph inside a node may read from outside.
    """
    given, outputs = ([getattr(v, "name", v) for v in values] for values in (holder.input, holder.output))
    constant = [tensor.name for tensor in getattr(holder, "initializer", ())]
    made = [name for node in holder.node for name in node.output if name]
    once = Counter([*given, *set(constant).difference(given), *made]) | Counter(constant)
    if "" in once:
        raise ModelError(f"{name}: an input has no name")
    if twice := [tensor for tensor, count in (once | Counter(outputs)).items() if count > 1]:
        raise ModelError(f"{name}: {listed(twice)} defined more than once in one graph")
    known = around.union(once)
    for node in holder.node:
        if missing := [tensor for tensor in node.input if tensor and tensor not in known]:
            raise ModelError(f"{name}: {_called(node)} reads '{missing[0]}', which nothing makes")
        for graph in subgraphs(node):
            _settle(graph, known, name)
    if missing := [tensor for tensor in outputs if tensor not in known]:
        raise ModelError(f"{name}: nothing makes the output '{missing[0]}'")
    _sort(holder, name)


def _sort(holder: _Holder, name: str) -> None:
    """Nodes in topological order, as close to their old order as that allows (Kahn's algorithm)."""
    nodes = list(holder.node)
    maker = {tensor: i for i, node in enumerate(nodes) for tensor in node.output if tensor}
    reads = [{*node.input, *(captured(node) - inner_names(node))} for node in nodes]
    before = [{maker[tensor] for tensor in tensors if tensor in maker} for tensors in reads]
    if all(max(needed, default=-1) < i for i, needed in enumerate(before)):
        return
    after: dict[int, list[int]] = {i: [] for i in range(len(nodes))}
    for i, needed in enumerate(before):
        for j in needed:
            after[j].append(i)
    ready, order = [i for i, needed in enumerate(before) if not needed], []
    while ready:
        order.append(done := heapq.heappop(ready))
        for i in after[done]:
            before[i].discard(done)
            if not before[i]:
                heapq.heappush(ready, i)
    if len(order) < len(nodes):
        stuck = [_called(node) for i, node in enumerate(nodes) if i not in set(order)]
        raise ModelError(f"{name}: {'; '.join(stuck[:5])} read one another in a circle")
    refill(holder.node, [nodes[i] for i in order])
