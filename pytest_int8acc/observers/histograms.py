"""Histograms of equal bins over [-amax, amax], counted by NumPy or by the graph itself, to the same count.

The bins are those of ``numpy.histogram``, which ONNX Runtime's calibrators use: value x belongs to bin n
where edges[n] <= x < edges[n + 1] in float32, and amax to the last. A product tells the bin to within one;
what comes near an edge is compared with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pytest_int8acc.graph.model import Editor

#: ScatterND adds up from this opset on.
SCATTER_ADDS = 16
#: Ranges whose bins float32 cannot tell apart, or whose squares it cannot hold.
_LEAST_AMAX, _MOST_AMAX = 1e-30, 1e30
#: Values that are looked at together: what is made of them stays in the processor's cache.
_PIECE = 1 << 16
#: How near to an edge the product can be wrong, as a share of the number of bins: float32 at its outer end.
_NEAR = 2.0**-20


def can_count(amax: float) -> bool:
    """True where [-amax, amax] can be divided into bins."""
    return bool(_LEAST_AMAX < amax < _MOST_AMAX)


class Bins:
    """How often values occur in equal bins; 0 is counted apart."""

    def __init__(self, amax: float, size: int) -> None:
        """Count nothing yet.

        Args:
            amax: Greatest magnitude that will come, as :func:`can_count` wants it.
            size: Number of bins, a power of two up to 2**15.
        """
        self.counts = np.zeros(size, np.int64)
        self.zeros = 0
        limit = np.float32(amax)
        self.edges: NDArray[np.float32] = np.linspace(-limit, limit, size + 1, dtype=np.float32)

    @property
    def per_value(self) -> np.float32:
        """Bins in a range of 1."""
        return np.float32(self.counts.size / 2 / float(self.edges[-1]))

    def add(self, values: NDArray[np.float32]) -> None:
        """Count the values of one array; what rounding put beyond the ends belongs to the last bins."""
        flat, size = values.reshape(-1), self.counts.size
        for whole in (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE)):
            piece = whole.take(np.flatnonzero(whole != 0))  # zeros lie on an edge, and are often half of all
            self.zeros += whole.size - piece.size
            places = np.clip(piece * self.per_value, -size // 2, size // 2)
            below = np.floor(places)
            found = below.astype(np.intp)
            found += size // 2
            np.abs(places - below - np.float32(0.5), out=places)
            near = np.flatnonzero(places >= np.float32(0.5 - size * _NEAR))
            if near.size:
                found[near] = self._exactly(piece[near], found[near])
            self.counts += np.bincount(found, minlength=size)

    @property
    def with_zeros(self) -> NDArray[np.int64]:
        """Counts in which zeros have their bin, the first from 0 on."""
        counts = self.counts.copy()
        counts[counts.size // 2] += self.zeros
        return counts

    def merged(self, size: int) -> NDArray[np.int64]:
        """The histogram of fewer bins, a power of two, over the same range."""
        return np.asarray(self.counts.reshape(size, -1).sum(axis=1))

    def _exactly(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.intp]:
        """Bins of values that are known to within one."""
        last = self.counts.size - 1
        found = np.clip(found, 0, last)
        up = (values >= self.edges[found + 1]) & (found < last)
        down = (values < self.edges[found]) & (found > 0)
        return found + up - down


def add_counts(edit: Editor, tensor: str, value: str, bins: Bins) -> tuple[str, str]:
    """Add nodes that count ``value`` as ``bins`` does; returns the names of counts and zeros, both int64.

    Each row, the first axis, is counted by itself: sums in float32, which CUDA adds up, end at 2**24, and
    threads that add to the same number wait for each other.
    """
    size = bins.counts.size

    def node(op_type: str, *inputs: str, **attributes: Any) -> str:
        return add_node(edit, op_type, f"{tensor}/{op_type}", *inputs, **attributes)

    def constant(what: str, value: Any, dtype: Any = np.int64) -> str:
        return edit.add_constant(f"{tensor}/{what}", np.array(value, dtype))

    one, last = constant("one", 1), constant("last", size - 1)
    edges, lowest = constant("edges", bins.edges, np.float32), constant("lowest", 0)
    rows = node("Flatten", value, axis=1)
    guess = node("Floor", node("Mul", rows, constant("per_value", bins.per_value, np.float32)))
    guess = node("Add", node("Cast", guess, to=TensorProto.INT64), constant("half", size // 2))
    guess = node("Max", node("Min", guess, last), lowest)
    above = node("Not", node("Less", rows, node("Gather", edges, node("Add", guess, one))))
    below = node("Less", rows, node("Gather", edges, guess))
    up, down = (node("Cast", which, to=TensorProto.INT64) for which in (above, below))
    found = node("Max", node("Min", node("Sub", node("Add", guess, up), down), last), lowest)
    count = node("Gather", node("Shape", rows), lowest)
    starts = node("Mul", node("Range", lowest, count, one), constant("size", size))
    places = node("Add", found, node("Unsqueeze", starts, constant("axis", [1])))
    cells = node("Reshape", node("Mul", count, constant("bins", size)), constant("vector", [1]))
    empty = node("ConstantOfShape", cells, value=helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]))
    present = node("Not", node("Equal", rows, constant("nought", 0, np.float32)))
    weights = node("Reshape", node("Cast", present, to=TensorProto.FLOAT), constant("flat", [-1]))
    indices = node("Reshape", places, constant("single", [-1, 1]))
    added = node("ScatterND", empty, indices, weights, reduction="add")
    table = node("Cast", node("Reshape", added, constant("table", [-1, size])), to=TensorProto.INT64)
    counts = node("ReduceSum", table, constant("rows", [0]), keepdims=0)
    zeros = node("Sub", node("Size", rows), node("ReduceSum", counts, keepdims=0))
    return counts, zeros


def add_node(edit: Editor, op_type: str, preferred: str, *inputs: str, **attributes: Any) -> str:
    """Add a node of one output; returns the output's name, ``preferred`` or one like it."""
    output = edit.unique(preferred)
    edit.graph.node.append(helper.make_node(op_type, inputs, [output], output, **attributes))
    return output
