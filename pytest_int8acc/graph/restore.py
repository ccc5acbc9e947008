"""What a quantizer took from a float model, put back: rounded weights, and activations folded into ranges.

An asymmetric quantizer that ends a range at 0 leaves out the Relu before it (ONNX Runtime's
QDQRemovableActivation): the codes cut off in its place. Without the pair the network is no float model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx

from pytest_int8acc.graph.index import Index, bodies
from pytest_int8acc.graph.load import body_constants
from pytest_int8acc.graph.model import Editor, Model, put_constant
from pytest_int8acc.graph.network import Edge, Quantization
from pytest_int8acc.tensors import Array

_FOLDED = frozenset({"Relu", "Clip"})


def restore(model: Model, edges: Sequence[Edge], original: Model, weights: int) -> tuple[Model, list[str]]:
    """Put back what ``original`` has and the Q/DQ model, its pairs taken off, has not.

    A weight fits where it rounds to the very codes that the Q/DQ model holds, one step allowed for. Where
    most fit, both models hold the same weights, and one that does not fit was quantized wrongly: it is
    restored as well. Where most do not, the Q/DQ model was trained on (QAT), and its own weights are right.
    An activation is put back where every range that reads it cuts off as it does, so nothing changes in INT8.

    Args:
        model: The Q/DQ model without pairs.
        edges: Where they stood.
        original: The float model it was made from; nodes and tensors are known by name.
        weights: How many quantized constants the Q/DQ model holds.

    Returns:
        The model with what is put back, and an account of it in sentences.
    """
    fitting, others = _weights(model, edges, original)
    wrong = others if len(others) < len(fitting) else {}
    editor = model.edit()
    slots = {tensor.name: tensor for tensor in editor.graph.initializer}
    for name, weight in {**wrong, **fitting}.items():
        put_constant(slots[name], name, weight, editor.weights)
    back, lost = _restore_activations(editor, model.index, edges, original)
    notes = [f"{len(fitting)} of {weights} quantized weights have their float originals"]
    if wrong:
        notes.append(
            f"{len(wrong)} quantized weights are not those of {original.name}, rounded; out of INT8, "
            f"its own are taken: {', '.join(list(wrong)[:5])}"
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
    """Each node of ``graph`` that makes what a Relu or Clip after it makes in ``original``, and that one."""
    theirs = original.index.producer
    for node in graph.node:
        activation = theirs.get(node.output[0]) if node.output else None
        if activation is None or activation.op_type not in _FOLDED or node.op_type in _FOLDED:
            continue
        before = theirs.get(activation.input[0])
        if before is not None and before.op_type == node.op_type:
            yield node, activation


def _weights(
    model: Model, edges: Sequence[Edge], original: Model
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Float weights by the tensor they stand for: those that round to its codes, and those that do not."""
    theirs, mine = _read_constants(original), model.constants()
    fitting: dict[str, Array] = {}
    others: dict[str, Array] = {}
    for edge in edges:
        quantization = edge.quantization
        if quantization.values is None:
            continue
        weight = theirs.get((edge.node, edge.index))
        stand_in = mine[edge.tensor]
        if weight is None or weight.shape != stand_in.shape or weight.dtype != stand_in.dtype:
            continue
        (fitting if _fits(weight, quantization) else others)[edge.tensor] = weight
    return fitting, others


def _read_constants(model: Model) -> dict[tuple[str, int], Array]:
    """What each node reads at each position, where that is a constant; nodes in bodies included."""
    constants = model.constants()
    found = _read_in(model.graph, constants)
    for body in bodies(model.graph):
        known = constants
        for graph in body.graphs:
            known = known | body_constants(graph)
        found |= _read_in(body.graph, known)
    return found


def _read_in(graph: onnx.GraphProto, constants: dict[str, Array]) -> dict[tuple[str, int], Array]:
    found: dict[tuple[str, int], Array] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in constants:
                found[node.name, index] = constants[name]
    return found


def _fits(weight: Array, quantization: Quantization) -> bool:
    """Whether ``weight`` rounds to the codes of ``quantization``, one step allowed for."""
    values = quantization.values
    if values is None or not (quantization.scale > 0).all():
        return False
    codes, values = quantization.quantize(weight).astype(np.float64), values.astype(np.float64)
    return bool((np.abs(codes - values) <= quantization.format.step(values)).all())


def _restore_activations(
    editor: Editor, index: Index, edges: Sequence[Edge], original: Model
) -> tuple[list[str], list[str]]:
    """Names of the activations put back, and of those that cannot be."""
    ranges: dict[str, dict[tuple[str, int], Quantization]] = {}
    for edge in edges:
        ranges.setdefault(edge.tensor, {})[edge.node, edge.index] = edge.quantization
    constants = original.constants()
    missing = {node.output[0]: (node, gone) for node, gone in folded(editor.graph, original)}
    back: list[str] = []
    nodes: list[onnx.NodeProto] = []
    lost = []
    for node in list(editor.graph.node):
        nodes.append(node)
        _, activation = missing.get(node.output[0] if node.output else "", (node, None))
        if activation is None:
            continue
        bounds = _bounds(activation, constants)
        known = ranges.get(node.output[0], {})
        if (
            bounds
            and _read_by(index, node.output[0]) == set(known)
            and all(_cuts(quantization, *bounds) for quantization in known.values())
        ):
            nodes.append(_after(editor, node, activation, constants))
            back.append(activation.name)
        else:
            lost.append(activation.name)
    editor.set_nodes(nodes)
    return back, lost


def _after(
    editor: Editor, node: onnx.NodeProto, activation: onnx.NodeProto, constants: dict[str, Array]
) -> onnx.NodeProto:
    """``activation`` between ``node`` and those that read it."""
    restored = copy.deepcopy(activation)
    restored.name = editor.unique(activation.name)
    restored.output[0] = node.output[0]
    restored.input[0] = node.output[0] = editor.unique(activation.input[0])
    for index, name in enumerate(activation.input):
        if index and name:
            restored.input[index] = editor.add_constant(name, constants[name])
    return restored


def _read_by(index: Index, tensor: str) -> set[tuple[str, int]]:
    """Nodes and positions that read ``tensor``; what is no plain reader has a position of its own."""
    found = {(node.name, position) for node, position in index.readers(tensor)}
    return found | {("", -1)} if tensor in index.public else found


def _bounds(activation: onnx.NodeProto, constants: dict[str, Array]) -> tuple[float, float] | None:
    """Where an activation cuts off; None where that is computed at run time."""
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
    """Whether what lies beyond ``low`` and ``high`` has the code of the bound itself."""
    codes = quantization.format
    if quantization.scale.size != 1 or not quantization.scale > 0:
        return False
    scale, zero = float(quantization.scale), int(quantization.zero_point)
    below = math.isinf(low) or round(low / scale) + zero <= codes.lowest
    return below and (math.isinf(high) or round(high / scale) + zero >= codes.highest)
