"""The multiply-accumulates of a case's model, node by node."""

from __future__ import annotations

import contextlib

from pytest_int8acc.data import Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.macs import inferred_shapes, unsized, work
from pytest_int8acc.graph.model import Model
from pytest_int8acc.measure.shapes import tensor_shapes
from pytest_int8acc.runtime.onnxruntime import Sessions


def macs_of(model: Model, inputs: Dataset, sessions: Sessions) -> dict[str, float]:
    """Node to its multiply-accumulates.

    Shapes are inferred; where that does not tell them all, the model runs once. Where it cannot, as with
    operators that only TensorRT has, what has no known shape counts each weight once.

    Raises:
        DataError: The inputs cannot be read.
    """
    given, rows = _input_shapes(model, inputs)
    shapes = inferred_shapes(model, given)
    if unsized(model, shapes):
        batch = next(inputs.batches())
        with contextlib.suppress(EngineError):
            shapes |= tensor_shapes(model, batch.feed, unsized(model, {}), sessions)
            rows = batch.rows + batch.padding
    return work(model, shapes, rows)


def _input_shapes(model: Model, inputs: Dataset) -> tuple[dict[str, tuple[int, ...]], int]:
    """Shapes of the inputs and how many samples they hold.

    It is one sample where the model says its shapes, else the first batch.
    """
    batched, found = read_layout(model.inputs).batched, dict[str, tuple[int, ...]]()
    for info in model.inputs:
        sizes = [1 if i == 0 and info.name in batched else d for i, d in enumerate(info.shape or (None,))]
        if not all(isinstance(size, int) for size in sizes):
            batch = next(inputs.batches())
            return {name: array.shape for name, array in batch.feed.items()}, batch.rows + batch.padding
        found[info.name] = tuple(size for size in sizes if isinstance(size, int))
    return found, 1
