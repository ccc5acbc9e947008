"""Finds the shapes of tensors and counts multiply-accumulates (MACs), by a run of the model if needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from onnx import TensorProto, helper

from pytest_int8acc.data import Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.macs import inferred_shapes, leading_outputs, sized_tensors, work
from pytest_int8acc.graph.model import Model, end_with
from pytest_int8acc.graph.network import Network
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.tensors import Feed


def tensor_shapes(
    model: Model, feed: Feed, tensors: Iterable[str], sessions: Sessions = CPU
) -> dict[str, tuple[int, ...]]:
    """Run the model once, and return the shape of each tensor by name.

    Args:
        model: The model, which is not changed.
        feed: One batch: an array per input.
        tensors: Names of tensors of the main graph.
        sessions: Opens the model.

    Raises:
        EngineError: The model does not run.
    """
    tensors = list(tensors)
    if not tensors:
        return {}
    editor = model.edit()
    names = {tensor: editor.unique(f"{tensor}/shape") for tensor in tensors}
    editor.graph.node.extend(
        helper.make_node("Shape", [tensor], [name], editor.unique(f"Shape_{tensor}"))
        for tensor, name in names.items()
    )
    end_with(editor, dict.fromkeys(names.values(), TensorProto.INT64))
    found = sessions.exact(editor.done(), optimized=False)(feed)
    return {tensor: tuple(found[name].tolist()) for tensor, name in names.items()}


def group_shapes(network: Network, shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The shape of each layer's output, by layer name, as text; empty if unknown.

    The output is the first output of the layer's main node, such as a convolution.
    """
    leading = leading_outputs(network)
    found = {group.name: shapes.get(leading.get(group.name, "")) for group in network.groups}
    return {group: "" if shape is None else str(list(shape)) for group, shape in found.items()}


def macs_of(model: Model, inputs: Dataset, sessions: Sessions) -> dict[str, float]:
    """Returns the number of MACs of each node, by node name.

    If shape inference does not find all shapes, the model runs once. A model with operators that only
    TensorRT has cannot run here. Then a node without a known shape counts as one MAC per weight.

    Raises:
        DataError: The inputs cannot be read.
    """
    given, rows = _input_shapes(model, inputs)
    shapes = inferred_shapes(model, given)
    needed = sized_tensors(model)
    if any(name not in shapes for name in needed):
        batch = next(inputs.batches())
        with contextlib.suppress(EngineError):
            shapes |= tensor_shapes(model, batch.feed, needed, sessions)
            rows = batch.rows + batch.padding
    return work(model, shapes, rows)


def _input_shapes(model: Model, inputs: Dataset) -> tuple[dict[str, tuple[int, ...]], int]:
    """The shapes of the inputs, and the number of samples in them.

    The shapes are those of one sample if the model declares them, otherwise those of the first batch.
    """
    batched, found = read_layout(model.inputs).batched, dict[str, tuple[int, ...]]()
    for info in model.inputs:
        sizes = [1 if i == 0 and info.name in batched else d for i, d in enumerate(info.shape or (None,))]
        if not all(isinstance(size, int) for size in sizes):
            batch = next(inputs.batches())
            return {name: array.shape for name, array in batch.feed.items()}, batch.rows + batch.padding
        found[info.name] = tuple(size for size in sizes if isinstance(size, int))
    return found, 1
