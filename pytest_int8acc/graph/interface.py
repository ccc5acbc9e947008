"""Converts the float types of a model's inputs and outputs to those of another model, and back.

ModelOpt and other exporters also convert the inputs and outputs of a model to FP16. Such a model is compared
with a float model in FP32, so Casts are added at its inputs and outputs. A program that runs the FP16 model
would convert its data in the same way.
"""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import helper

from pytest_int8acc.graph.index import rename_inside
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.types import FLOATS


def with_interface_of(model: Model, other: Model) -> Model:
    """``model`` with a Cast at each input and output whose float type differs from that of ``other``.

    Inputs and outputs are matched by name. The output of the Cast after an FP16 input ``x`` has the name
    ``x_fp16``. The model as it is stored in its file, ``Model.file``, gets the same Casts.

    Args:
        model: Any model.
        other: The model whose input and output types are taken: FP32, FP16 and BF16.
    """
    types = _types(other)
    if not any(_differ(value, types) for value in (*model.graph.input, *model.graph.output)):
        return model
    file = None if model.file is None else _cast(model.file, types)
    return replace(_cast(model, types), file=file)


def with_own_interface(model: Model, own: Model) -> Model:
    """``model`` without the Casts of ``with_interface_of``: its inputs and outputs have the types of ``own``.

    Args:
        model: A model that was made from a result of ``with_interface_of``.
        own: The model before its inputs and outputs were converted.
    """
    types, index, editor = _types(own), model.index, model.edit()
    dropped: set[str] = set()
    names: dict[str, str] = {}
    for value, is_output in _ends(editor.graph):
        if not _differ(value, types):
            continue
        name, own_kind = value.name, types[value.name]
        cast = index.producer.get(name) if is_output else index.only_reader(name)
        kind = value.type.tensor_type.elem_type if is_output else own_kind
        if cast is not None and cast.op_type == "Cast" and cast.attribute[0].i == kind:
            value.type.tensor_type.elem_type = own_kind
            dropped.add(cast.name)
            names[cast.input[0] if is_output else cast.output[0]] = name
    if not dropped:
        return model
    editor.set_nodes([node for node in editor.graph.node if node.name not in dropped])
    rename_inside(editor.graph, names)
    return replace(editor.done(), extra_outputs=model.extra_outputs)


def _types(model: Model) -> dict[str, int]:
    values = (*model.graph.input, *model.graph.output)
    return {value.name: value.type.tensor_type.elem_type for value in values}


def _differ(value: onnx.ValueInfoProto, types: dict[str, int]) -> bool:
    """Whether ``value`` has another float type than the input or output of the same name in ``types``."""
    both = {value.type.tensor_type.elem_type, types.get(value.name)}
    return len(both) > 1 and both <= FLOATS.keys()


def _ends(graph: onnx.GraphProto) -> list[tuple[onnx.ValueInfoProto, bool]]:
    """The inputs and outputs of a graph, and for each whether it is an output."""
    return [(value, False) for value in graph.input] + [(value, True) for value in graph.output]


def _cast(model: Model, types: dict[str, int]) -> Model:
    editor = model.edit()
    graph = editor.graph
    changed = [(value, is_output) for value, is_output in _ends(graph) if _differ(value, types)]
    names = {v.name: editor.unique(f"{v.name}_{FLOATS[v.type.tensor_type.elem_type]}") for v, _ in changed}
    rename_inside(graph, names)
    editor.weights = {names.get(name, name): array for name, array in editor.weights.items()}
    own = {inner: name for name, inner in names.items()}
    before, after = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for value, is_output in changed:
        inner, kind = value.name, value.type.tensor_type.elem_type
        name = value.name = own[inner]
        value.type.tensor_type.elem_type = types[name]
        cast = editor.unique(f"{name}_cast")
        if is_output:
            after.append(helper.make_node("Cast", [inner], [name], cast, to=types[name]))
        else:
            before.append(helper.make_node("Cast", [name], [inner], cast, to=kind))
    editor.set_nodes([*before, *graph.node, *after])
    return replace(editor.done(), extra_outputs=model.extra_outputs)
