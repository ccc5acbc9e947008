"""Shapes of tensors as they run: ONNX's shape inference stops where a shape is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import TensorProto, helper

from pytest_int8acc.graph.extra_outputs import end_with
from pytest_int8acc.graph.macs import leading_outputs
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.tensors import Feed


def tensor_shapes(
    model: Model, feed: Feed, tensors: Iterable[str], sessions: Sessions = CPU
) -> dict[str, tuple[int, ...]]:
    """Tensor to its shape in one run of the model.

    Args:
        model: In float; runs as it is.
        feed: One batch: an array per input.
        tensors: Of the main graph: inputs, constants, or what its nodes make.
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
    """Group name to the shape of its leading node's output, in words; empty where ``shapes`` has none."""
    leading = leading_outputs(network)
    found = {group.name: shapes.get(leading.get(group.name, "")) for group in network.groups}
    return {group: "" if shape is None else str(list(shape)) for group, shape in found.items()}
