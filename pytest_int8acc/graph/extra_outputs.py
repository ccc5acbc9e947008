"""Tensors inside a model given beside its outputs, to be compared; and the model without them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnx import helper

from pytest_int8acc.graph.index import refill
from pytest_int8acc.graph.model import Editor, Model


def giving(model: Model, tensors: Mapping[str, int]) -> Model:
    """The model with further outputs that its nodes make; element types are for those it does not know."""
    shaped = {v.name: v for v in model.inferred.value_info if v.type.tensor_type.elem_type}
    editor = model.edit()
    for name, kind in tensors.items():
        editor.graph.output.append(shaped.get(name) or helper.make_tensor_value_info(name, kind, None))
    return editor.done()


def end_with(editor: Editor, types: Mapping[str, int]) -> None:
    """Make ``types``, name to ONNX element type, the only outputs; what they do not need is then not run."""
    refill(editor.graph.output, [helper.make_tensor_value_info(n, t, None) for n, t in types.items()])


def with_extra_outputs(model: Model, tensors: Mapping[str, int]) -> Model:
    """As ``giving``, the outputs marked as none of the user's; what is an output already stays what it is."""
    own = {output.name for output in model.outputs}
    added = {name: kind for name, kind in tensors.items() if name not in own}
    if not added:
        return model
    return replace(giving(model, added), extra_outputs=model.extra_outputs.union(added), file=model.file)


def without_extra_outputs(model: Model) -> Model:
    """The model with the user's outputs alone, and without Casts that only the others needed."""
    if not model.extra_outputs:
        return model
    index, editor = model.index, model.edit()
    unread = {name for name in model.extra_outputs if not index.readers(name) and name not in index.captured}
    casts = (n.op_type == "Cast" and n.output[0] in unread for n in editor.graph.node)
    editor.set_nodes([n for n, dead in zip(editor.graph.node, list(casts), strict=True) if not dead])
    refill(editor.graph.output, [v for v in editor.graph.output if v.name not in model.extra_outputs])
    return replace(editor.done(), extra_outputs=frozenset())
