"""Fuses LayerNorm and RMSNorm that are spelled out in several nodes to one node each.

The fused nodes compute in FP32 inside.

ONNX has LayerNormalization from opset 17 on and RMSNormalization from 23 on; their ``stash_type`` says FP32,
and so do ONNX Runtime's kernels and TensorRT's parser, whatever the types of input and output are. In a norm
that is spelled out, the squares, or their mean, overflow FP16 from inputs of about 256 on, and an epsilon
below 2**-24 becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.opsets import raise_opset
from pytest_int8acc.tensors import Array, Dim, did_you_mean

#: The first opset of each operator.
OPSETS = {"LayerNormalization": 17, "RMSNormalization": 23}


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm that is spelled out in several nodes."""

    name: str
    """The name of its last node, and of the fused node."""
    op_type: str
    """A key of ``OPSETS``."""
    x: str
    """The tensor that is normalized over its last axes."""
    epsilon: float
    scale: Array
    """float32, with the sizes of these axes."""
    bias: Array | None
    nodes: frozenset[str]
    """Names of the nodes that are no longer needed once the norm is fused, with the last node."""


def find_norms(model: Model) -> dict[str, Norm]:
    """The spelled-out norms of a model in normal form, by name, in topological order.

    LayerNorm is (x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon), and RMSNorm the same without the mean
    subtracted. A square may be a product, the root a power, and the quotient a product with a reciprocal. A
    constant scale behind it, and a constant bias behind a LayerNorm, belong to the norm where they have the
    sizes of the axes.

    Raises:
        ModelError: The model contradicts itself.
    """
    finder = _Finder(model)
    norms = filter(None, map(finder.norm, model.graph.node))
    return {norm.name: norm for norm in norms}


def fuse_norms(model: Model, names: Collection[str]) -> Model:
    """``model`` with each of these norms fused to one node, in an opset that has the operators.

    Raises:
        ModelError: A name is no norm's, or the opset cannot be lifted.
    """
    norms = find_norms(model)
    for name in names:
        if name not in norms:
            hint = did_you_mean(name, norms)
            raise ModelError(f"{model.name}: '{name}' ends no norm that could be one node{hint}")
    least = max((OPSETS[norms[name].op_type] for name in names), default=0)
    if model.opset < least:
        model = normalize(raise_opset(model, least))
        norms = find_norms(model)
    editor, nodes = model.edit(), list[onnx.NodeProto]()
    gone = {node for name in names for node in norms[name].nodes}
    for node in editor.graph.node:
        if node.name in names:
            norm = norms[node.name]
            arrays = {"scale": norm.scale} | ({} if norm.bias is None else {"bias": norm.bias})
            read = [norm.x, *(editor.add_constant(f"{norm.name}/{part}", a) for part, a in arrays.items())]
            one = helper.make_node(norm.op_type, read, node.output, norm.name, axis=-norm.scale.ndim)
            one.attribute.append(helper.make_attribute("epsilon", norm.epsilon))
            nodes.append(one)
        elif node.name not in gone:
            nodes.append(node)
    editor.set_nodes(nodes)
    return editor.done()


#: Parts of a quotient of a value and the root of the mean of its squares: value, mean, epsilon, nodes.
_Spread = tuple[str, onnx.NodeProto, float, list[onnx.NodeProto]]
#: A tensor, and the nodes that lead from it.
_Way = tuple[str, list[onnx.NodeProto]]
#: The tensor that epsilon is added to, epsilon, and the nodes from there on.
_Plus = tuple[str, float, list[onnx.NodeProto]]


class _Finder:
    """Looks for norms by their last nodes."""

    def __init__(self, model: Model) -> None:
        self.index = model.index
        self.constants = model.constants()
        self.shapes = {name: info.shape for name, info in model.values().items()}

    def norm(self, quotient: onnx.NodeProto) -> Norm | None:
        """The norm whose division is the node ``quotient``, with its scale and bias.

        None where there is none.
        """
        spread = next(self._spreads(quotient), None)
        axes = None if spread is None else self._axes(spread[1])
        if spread is None or axes is None:
            return None
        x, _, epsilon, path = spread
        op_type, centre = "RMSNormalization", self._centre(x, axes)
        if centre is not None:
            op_type, (x, nodes) = "LayerNormalization", centre
            path += nodes
        shape = self.shapes.get(x)
        sizes = None if shape is None else shape[len(shape) - axes :]
        path.append(quotient)
        scale = self._constant_behind(path, "Mul", sizes, axes)
        if scale is None:
            if sizes is None or not all(isinstance(size, int) for size in sizes):
                return None  # of what size its scale has to be is not known
            scale = np.ones([size for size in sizes if isinstance(size, int)], np.float32)
        bias = self._constant_behind(path, "Add", scale.shape, axes) if centre is not None else None
        return Norm(path[-1].name, op_type, x, epsilon, scale, bias, self._unneeded(path))

    def _constant_behind(
        self, path: list[onnx.NodeProto], op_type: str, sizes: Sequence[Dim] | None, axes: int
    ) -> Array | None:
        """The constant that the only reader of the path's result multiplies or adds.

        That node joins the path.
        """
        made = path[-1].output[0]
        reader = self.index.only_reader(made)
        if reader is None or reader.op_type != op_type or reader.domain:
            return None
        array = self.constants.get(reader.input[1 - list(reader.input).index(made)])
        if array is None or array.dtype != np.float32 or array.ndim < axes:
            return None
        known = array.shape[array.ndim - axes :]
        rank = len(self.shapes.get(made) or ()) or axes
        if array.size != math.prod(known) or array.ndim > rank or 1 in known:
            return None
        if any(isinstance(s, int) and s != k for s, k in zip(sizes or (), known, strict=False)):
            return None
        path.append(reader)
        return array.reshape(known)

    def _spreads(self, node: onnx.NodeProto) -> Iterator[_Spread]:
        """Each reading of a node as a value divided by the root of the mean of its squares."""
        if node.op_type not in ("Div", "Mul") or node.domain or len(node.input) != 2:
            return
        for value, divisor in _orders(node):
            found = self._root(divisor) if node.op_type == "Div" else self._inverse_root(divisor)
            for variance, epsilon, path in () if found is None else self._plus_epsilon(*found):
                mean = self._made(variance, "ReduceMean")
                square = None if mean is None else self._square(mean.input[0])
                if mean is not None and square is not None and self._are_same(square[0], value):
                    yield value, mean, epsilon, [*square[1], mean, *path]

    def _root(self, tensor: str) -> _Way | None:
        """The tensor whose square root this tensor is, and the nodes between them."""
        node = self._made(tensor, "Sqrt") or self._power(tensor, 0.5)
        return None if node is None else (node.input[0], [node])

    def _inverse_root(self, tensor: str) -> _Way | None:
        """The tensor whose inverse square root this tensor is, and the nodes between them."""
        node = self._made(tensor, "Reciprocal", "Div")
        if node is not None and (node.op_type == "Reciprocal" or self._scalar(node.input[0]) == 1.0):
            found = self._root(node.input[-1])
            return None if found is None else (found[0], [*found[1], node])
        power = self._power(tensor, -0.5)
        return None if power is None else (power.input[0], [power])

    def _plus_epsilon(self, tensor: str, path: list[onnx.NodeProto]) -> Iterator[_Plus]:
        """Each reading of a tensor as a sum with an epsilon above 0."""
        node = self._made(tensor, "Add")
        for variance, added in () if node is None else _orders(node):
            epsilon = self._scalar(added)
            if node is not None and epsilon is not None and 0 < epsilon < np.inf:
                yield variance, epsilon, [node, *path]

    def _square(self, tensor: str) -> _Way | None:
        """The tensor whose square this tensor is, and the nodes, with the Sub before them."""
        node = self._power(tensor, 2.0) or self._made(tensor, "Mul")
        if node is None or (node.op_type == "Mul" and node.input[0] != node.input[1]):
            return None
        return node.input[0], [*self._makers(node.input[0]), node]

    def _centre(self, tensor: str, axes: int) -> _Way | None:
        """The tensor of which this tensor is the difference to its mean over these axes, and the nodes."""
        node = self._made(tensor, "Sub")
        mean = None if node is None else self._made(node.input[1], "ReduceMean")
        if node is None or mean is None or mean.input[0] != node.input[0] or self._axes(mean) != axes:
            return None
        return node.input[0], [mean, node]

    def _axes(self, mean: onnx.NodeProto) -> int | None:
        """The number of axes of a mean over the last axes that keeps them; None for any other mean."""
        given = attribute(mean, "axes", None)
        if given is None and len(mean.input) > 1 and mean.input[1] in self.constants:
            given = self.constants[mean.input[1]].reshape(-1).tolist()
        shape = self.shapes.get(mean.input[0])
        if not given or not attribute(mean, "keepdims", 1) or (shape is None and max(given) >= 0):
            return None
        last = sorted(axis - len(shape or ()) if axis >= 0 else axis for axis in given)
        return len(last) if last == list(range(-len(last), 0)) else None

    def _are_same(self, one: str, other: str) -> bool:
        """Whether two tensors are the same difference. Some exporters write the Sub twice."""
        nodes = [self._made(tensor, "Sub") for tensor in (one, other)]
        return one == other or (None not in nodes and len({tuple(node.input) for node in nodes if node}) == 1)

    def _unneeded(self, path: Sequence[onnx.NodeProto]) -> frozenset[str]:
        """Names of the nodes of a path that only nodes of the path read, and of its last node."""
        gone = {path[-1].name}
        for node in sorted(path, key=lambda node: -self.index.order[node.name]):
            readers = [reader.name for name in node.output for reader, _ in self.index.readers(name)]
            if self.index.public.isdisjoint(node.output) and gone.issuperset(readers):
                gone.add(node.name)
        return frozenset(gone)

    def _makers(self, tensor: str) -> list[onnx.NodeProto]:
        node = self.index.producer.get(tensor)
        return [] if node is None or node.op_type != "Sub" else [node]

    def _made(self, tensor: str, *op_types: str) -> onnx.NodeProto | None:
        """The node that makes a tensor, where it is of one of these types."""
        node = self.index.producer.get(tensor)
        return node if node is not None and not node.domain and node.op_type in op_types else None

    def _power(self, tensor: str, exponent: float) -> onnx.NodeProto | None:
        node = self._made(tensor, "Pow")
        return node if node is not None and self._scalar(node.input[1]) == exponent else None

    def _scalar(self, tensor: str) -> float | None:
        """A constant of one number."""
        array = self.constants.get(tensor)
        return None if array is None or array.size != 1 else float(array.reshape(()))


def _orders(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """The two operands in each order that gives the same result."""
    one, other = node.input
    yield one, other
    if node.op_type != "Div":
        yield other, one
