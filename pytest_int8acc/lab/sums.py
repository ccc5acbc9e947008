"""What a convolution or matrix product loses where its kernel sums in FP16, measured on its own inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view

from pytest_int8acc.data import Dataset
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.plan import computed_floats, with_outputs
from pytest_int8acc.tensors import Array

#: Products that a tensor core's FP16 instruction adds to its FP16 sum at once: k of m16n8k16.
_AT_ONCE = 16
#: Samples, matrices of each, and rows and columns of these that are looked at.
_SAMPLES, _MATRICES, _LINES = 4, 8, 100


@dataclass(frozen=True)
class Sums:
    """SQNR in dB of a node's output against exact sums, its operands and results in FP16."""

    products: int
    """In each sum."""
    in_fp16: float
    in_fp32: float


def sums_of(model: Model, node: str, inputs: Dataset, sessions: Sessions) -> Sums | None:
    """What sums in FP16 cost a node; None where it is no Conv, Gemm or MatMul, or cannot be computed here.

    Modelled is ``mma.sync.m16n8k16`` with FP16 accumulators: 16 products are added to a sum at once, which is
    then rounded to FP16 (NVIDIA's PTX ISA, 'Multiply-and-Accumulate Instruction: mma').

    Args:
        model: In FP32; what the node reads comes from it.
        node: Its name.
        inputs: Of the model, some of which are looked at.
        sessions: Where the model runs.

    Raises:
        EngineError: The model does not run.
        DataError: The inputs cannot be read.
    """
    found, known = model.index.nodes[node], computed_floats(model)
    made = with_outputs(model, [name for name in found.input[:2] if name in known])
    batch = next(inputs.first(_SAMPLES).batches())
    held = {**model.constants(), **batch.feed, **sessions.exact(made)(batch.feed)}
    operands = [np.asarray(held[name], np.float32) for name in found.input[:2] if name in held]
    pairs = list(_products(found, *operands)) if len(operands) == 2 else []
    if not pairs:
        return None
    noises, signal = np.zeros(2), 0.0
    for left, right in pairs:
        exact = left.astype(np.float64) @ right
        for i, at_once in enumerate((_AT_ONCE, left.shape[1])):
            noises[i] += np.square(_summed(left, right, at_once) - exact).sum()
        signal += np.square(exact).sum()
    return Sums(pairs[0][0].shape[1], *(_decibels(signal, noise) for noise in noises.tolist()))


def _summed(left: Array, right: Array, at_once: int) -> Array:
    """The product of two matrices in FP16, its sums rounded after each ``at_once`` products; float64."""
    total = np.zeros((len(left), right.shape[1]))
    left, right = (FP16.round(array).astype(np.float64) for array in (left, right))
    with np.errstate(invalid="ignore"):
        for start in range(0, left.shape[1], at_once):
            part = left[:, start : start + at_once] @ right[start : start + at_once]
            total = FP16.round(total + part).astype(np.float64)
    return total


def _decibels(signal: float, noise: float) -> float:
    """SQNR; -inf where sums overflow."""
    if not math.isfinite(noise) or not signal:
        return -math.inf
    return 10 * math.log10(signal / noise) if noise else math.inf


def _products(node: onnx.NodeProto, left: Array, right: Array) -> Iterator[tuple[Array, Array]]:
    """Matrices [rows, products] and [products, columns] that a node multiplies, some lines of each."""
    if node.op_type == "MatMul" and min(left.ndim, right.ndim) > 1:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        lefts, rights = (
            np.broadcast_to(a, (*batch, *a.shape[-2:])).reshape(-1, *a.shape[-2:]) for a in (left, right)
        )
        pairs = list(zip(_some(lefts, _MATRICES), _some(rights, _MATRICES), strict=True))
    elif node.op_type == "Gemm":
        left, right = left.T if attribute(node, "transA", 0) else left, right
        pairs = [(left, right.T if attribute(node, "transB", 0) else right)]
    elif node.op_type == "Conv" and attribute(node, "auto_pad", b"NOTSET") == b"NOTSET":
        groups = attribute(node, "group", 1)
        rows = np.array_split(_patches(node, left, right.shape[2:]), groups, axis=1)
        weights = (w.reshape(len(w), -1).T for w in np.array_split(right, groups))
        pairs = [(r.reshape(len(r), -1), w) for r, w in zip(rows, weights, strict=True)][:_MATRICES]
    else:
        pairs = []
    for rows, columns in pairs:
        yield _some(rows, _LINES), _some(columns.T, _LINES).T


def _patches(node: onnx.NodeProto, x: Array, kernel: tuple[int, ...]) -> Array:
    """What a convolution's kernel meets, [places, channels, *kernel], at some places."""
    rank = len(kernel)
    strides, dilations = (attribute(node, name, [1] * rank) for name in ("strides", "dilations"))
    pads = attribute(node, "pads", [0] * 2 * rank)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    windows = sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
    steps = (slice(None, None, step) for step in (*strides, *dilations))
    windows = np.moveaxis(windows[(slice(None), slice(None), *steps)], 1, 1 + rank)
    places = windows.shape[: 1 + rank]
    chosen = np.unravel_index(_some(np.arange(math.prod(places)), _LINES), places)
    found: Array = windows[chosen]
    return found


def _some(array: Array, most: int) -> Array:
    """At most so many entries of the first axis, evenly spaced."""
    return array[:: -(-len(array) // most)]
