"""Fuses each LayerNorm or RMSNorm that consists of several nodes to one node.

A fused node computes in FP32 inside, even if its input and output are FP16. ONNX's default ``stash_type``
demands FP32, and ONNX Runtime's kernels and TensorRT's parser use it. In FP16, a normalization of several
nodes overflows when it squares inputs of 256 or more, and an epsilon below 2**-24 becomes 0.
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

#: The operators of fused normalizations, and the first opset that has each of them.
OPSETS = {"LayerNormalization": 17, "RMSNormalization": 23}


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalization, such as a LayerNorm, that consists of several nodes."""

    name: str
    """The name of the normalization's last node. The fused node also gets this name."""
    op_type: str
    """The operator of the fused node, a key of ``OPSETS``."""
    x: str
    """The tensor that is normalized over its last axes."""
    epsilon: float
    scale: Array
    """The scale, float32, with the sizes of the normalized axes."""
    bias: Array | None
    nodes: frozenset[str]
    """Names of the nodes that the fused node replaces."""


def find_norms(model: Model) -> dict[str, Norm]:
    """All normalizations in a model that consist of several nodes, by name, in topological order.

    The model must be in normal form; see ``graph.load``. LayerNorm is
    (x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon). RMSNorm is x / sqrt(mean(x**2) + epsilon). The
    square may be written as a product, the root as a power, and the division as a product with a reciprocal.
    A constant scale after the division, and a constant bias after a LayerNorm, belong to the normalization if
    they have the sizes of the normalized axes.

    Raises:
        ModelError: Types or shapes of the model contradict each other.
    """
    finder = _Finder(model)
    norms = filter(None, map(finder.norm, model.everywhere.nodes.values()))
    return {norm.name: norm for norm in norms}


def fuse_norms(model: Model, names: Collection[str]) -> Model:
    """``model`` with the normalizations ``names`` fused to one node each, in an opset that has such nodes.

    Raises:
        ModelError: No normalization has one of the names, or the model cannot be converted to the opset.
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
    editor = model.edit()
    gone = {node for name in names for node in norms[name].nodes}

    def replaced(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        if node.name in names:
            norm = norms[node.name]
            arrays = {"scale": norm.scale} | ({} if norm.bias is None else {"bias": norm.bias})
            read = [norm.x, *(editor.add_constant(f"{norm.name}/{part}", a) for part, a in arrays.items())]
            one = helper.make_node(norm.op_type, read, node.output, norm.name, axis=-norm.scale.ndim)
            one.attribute.append(helper.make_attribute("epsilon", norm.epsilon))
            yield one
        elif node.name not in gone:
            yield node

    editor.rewrite(replaced)
    return editor.done()


#: A power of a tensor: the tensor, the exponent, and the nodes that compute the power.
_Power = tuple[str, float, list[onnx.NodeProto]]


@dataclass(frozen=True, eq=False)
class _Quotient:
    """A value divided by the root of the mean of its squares plus epsilon."""

    value: str
    mean: onnx.NodeProto
    """The ReduceMean of the squares."""
    epsilon: float
    nodes: list[onnx.NodeProto]
    """The nodes that compute the quotient."""


class _Finder:
    """Finds normalizations that consist of several nodes, from their last nodes backwards."""

    def __init__(self, model: Model) -> None:
        self.index = model.everywhere
        self.constants = model.constants()
        self.shapes = {name: info.shape for name, info in model.values().items()}

    def norm(self, node: onnx.NodeProto) -> Norm | None:
        """The normalization whose division is ``node``, with its scale and bias; None for other nodes."""
        found = next(self._quotients(node), None)
        axes = None if found is None else self._axes(found.mean)
        if found is None or axes is None:
            return None
        x, op_type, path = found.value, "RMSNormalization", found.nodes
        centre = self._made(x, "Sub")
        mean = None if centre is None else self._made(centre.input[1], "ReduceMean")
        is_centred = mean is not None and self._axes(mean) == axes
        if centre is not None and mean is not None and is_centred and mean.input[0] == centre.input[0]:
            x, op_type, path = centre.input[0], "LayerNormalization", [mean, centre, *path]
        shape = self.shapes.get(x)
        sizes = None if shape is None else shape[len(shape) - axes :]
        scale = self._constant_behind(path, "Mul", sizes, axes)
        if scale is None:
            known = [size for size in sizes or () if isinstance(size, int)]
            if len(known) < axes:
                return None
            scale = np.ones(known, np.float32)
        bias = self._constant_behind(path, "Add", scale.shape, axes) if x != found.value else None
        return Norm(path[-1].name, op_type, x, found.epsilon, scale, bias, self._unneeded(path))

    def _constant_behind(
        self, path: list[onnx.NodeProto], op_type: str, sizes: Sequence[Dim] | None, axes: int
    ) -> Array | None:
        """The constant operand of the node after ``path``, which must have the operator ``op_type``.

        The node, a Mul or Add, is appended to ``path``. The result is None if there is no such node, if other
        nodes also read the output of ``path``, or if the constant does not have the ``sizes`` of the
        normalized axes.
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

    def _quotients(self, node: onnx.NodeProto) -> Iterator[_Quotient]:
        """The ways to read a node as x / sqrt(mean(x**2) + epsilon), where x is any tensor."""
        if node.op_type not in ("Div", "Mul") or node.domain:
            return
        for value, divisor in _orders(node):
            root = self._power(divisor)
            if root is None or root[1] != (0.5 if node.op_type == "Div" else -0.5):
                continue
            plus = self._made(root[0], "Add")
            for variance, added in () if plus is None else _orders(plus):
                mean, epsilon = self._made(variance, "ReduceMean"), self._scalar(added)
                if plus is None or mean is None or epsilon is None or not 0 < epsilon < np.inf:
                    continue
                square = self._power(mean.input[0])
                if square is not None and square[1] == 2 and self._are_same(square[0], value):
                    centre = self._made(square[0], "Sub")
                    before = [] if centre is None else [centre]
                    nodes = [*before, *square[2], mean, plus, *root[2], node]
                    yield _Quotient(value, mean, epsilon, nodes)

    def _power(self, tensor: str) -> _Power | None:
        """``tensor`` as a power of another tensor; None if no node computes ``tensor`` as a power."""
        node = self._made(tensor, "Sqrt", "Pow", "Mul", "Reciprocal", "Div")
        if node is None:
            return None
        if node.op_type == "Sqrt":
            return node.input[0], 0.5, [node]
        if node.op_type == "Pow":
            exponent = self._scalar(node.input[1])
            return None if exponent is None else (node.input[0], exponent, [node])
        if node.op_type == "Mul":
            return (node.input[0], 2.0, [node]) if node.input[0] == node.input[1] else None
        if node.op_type == "Div" and self._scalar(node.input[0]) != 1.0:
            return None
        inverse = self._power(node.input[-1])
        return None if inverse is None else (inverse[0], -inverse[1], [*inverse[2], node])

    def _axes(self, mean: onnx.NodeProto) -> int | None:
        """The number of axes that a ReduceMean reduces.

        None if these are not the last axes, or if the ReduceMean does not keep them (``keepdims``).
        """
        given = attribute(mean, "axes", None)
        if given is None and len(mean.input) > 1 and mean.input[1] in self.constants:
            given = self.constants[mean.input[1]].reshape(-1).tolist()
        shape = self.shapes.get(mean.input[0])
        if not given or not attribute(mean, "keepdims", 1) or (shape is None and max(given) >= 0):
            return None
        last = sorted(axis - len(shape or ()) if axis >= 0 else axis for axis in given)
        return len(last) if last == list(range(-len(last), 0)) else None

    def _are_same(self, one: str, other: str) -> bool:
        """Whether two tensors are the same, or are computed by two Sub nodes with the same inputs."""
        nodes = [self._made(tensor, "Sub") for tensor in (one, other)]
        return one == other or (None not in nodes and len({tuple(node.input) for node in nodes if node}) == 1)

    def _unneeded(self, path: Sequence[onnx.NodeProto]) -> frozenset[str]:
        """Names of the nodes of ``path`` that a fused node can replace.

        These are the last node, and each node whose outputs only such nodes read.
        """
        gone = {path[-1].name}
        for node in sorted(path, key=lambda node: -self.index.order[node.name]):
            readers = [reader.name for name in node.output for reader, _ in self.index.readers(name)]
            if self.index.public.isdisjoint(node.output) and gone.issuperset(readers):
                gone.add(node.name)
        return frozenset(gone)

    def _made(self, tensor: str, *op_types: str) -> onnx.NodeProto | None:
        """The node that computes a tensor; None unless its operator is one of ``op_types``."""
        node = self.index.producer.get(tensor)
        return node if node is not None and not node.domain and node.op_type in op_types else None

    def _scalar(self, tensor: str) -> float | None:
        """The value of a constant of one element; None for other tensors."""
        array = self.constants.get(tensor)
        return None if array is None or array.size != 1 else float(array.reshape(()))


def _orders(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """The two operands of a node, in each order that gives the same result."""
    one, other = node.input
    yield one, other
    if node.op_type != "Div":
        yield other, one
