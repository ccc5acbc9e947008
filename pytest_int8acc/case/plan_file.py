"""A plan as a file: ``plan.yaml`` is written for a failed case, and read where a spec says ``plan: FILE``.

    version: 4
    model: {file: resnet50.onnx, graph: HASH, weights: HASH}
    candidate: int8
    high: {/conv5/Conv: fp16}
    scales: {/relu4/Relu_output_0: 0.0123, fc.weight: {axis: 0, scale: [0.01, 0.02]}}
    moves: {/norm/LayerNormalization_output_0: [1.0, 2.5]}
    outputs: [/conv2/Conv_output_0]

A scale that is a number alone is symmetric INT8 per tensor; ``zero_point`` and ``dtype`` say otherwise. In
FP16 and BF16 ``fused: [/norm/Add_1]`` stands in the place of scales and moves. The hashes tie a plan to its
model; without ``model:`` nothing is compared.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from pytest_int8acc.graph.formats import format_of
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, TensorScale
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.names import shown
from pytest_int8acc.results.causes import Rescale
from pytest_int8acc.results.search import PLAN_VERSION
from pytest_int8acc.tensors import Array

_COLUMNS = 100
#: A longer key needs a '?' in YAML (https://yaml.org/spec/1.2.2/, 7.4.3: 1024 characters at most).
_KEY = 1000


@dataclass(frozen=True)
class Fingerprint:
    """What ties a plan to a model; BLAKE2b in hex."""

    graph: str
    """Nodes with their names, attributes and wiring; inputs and outputs."""
    weights: str
    """Every initializer."""


def fingerprint(model: Model) -> Fingerprint:
    """The hashes of a model in normal form; nothing that an exporter notes beside the graph counts."""
    graph = hashlib.blake2b(digest_size=16)
    for tensor in (*model.inputs, *model.own_outputs):
        graph.update(repr(str(tensor)).encode())
    for node in model.graph.node:
        wiring = (node.op_type, node.domain, node.name, list(node.input), list(node.output))
        graph.update(repr(wiring).encode())
        for attribute in sorted(node.attribute, key=lambda a: a.name):
            plain = onnx.AttributeProto.FromString(attribute.SerializeToString())
            plain.ClearField("doc_string")
            graph.update(plain.SerializeToString(deterministic=True))
    weights = hashlib.blake2b(digest_size=16)
    for name, array in sorted(model.constants().items()):
        weights.update(repr((name, str(array.dtype), array.shape)).encode())
        weights.update(_bytes(array))
    return Fingerprint(graph.hexdigest(), weights.hexdigest())


def _bytes(array: Array) -> memoryview | bytes:
    """The array's bytes, not copied where it lies in one piece; text for an array of strings."""
    if array.dtype == object:
        return repr(array.tolist()).encode()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def rescales(network: Network, plan: Plan) -> tuple[Rescale, ...]:
    """The activations of a plan's network that it gives another scale, one per tensor before and after."""
    own = activation_scales(network)
    return tuple(
        Rescale(tensor, "", own[tensor], float(chosen.scale))
        for tensor, chosen in plan.scales.items()
        if tensor in own
        and chosen.axis is None
        and abs(float(chosen.scale) - own[tensor]) > 1e-6 * own[tensor]
    )


def plan_text(plan: Plan, network: Network, file: str) -> str:
    """``plan``, of ``network``, as YAML with comments, as ``read_plan`` reads it.

    ``file`` names the model's file for readers; it is not compared.
    """
    left = network.low.name.upper()
    known = fingerprint(network.model)
    model = {"file": file, "graph": known.graph, "weights": known.weights}
    quantized = network.low.takes_scales
    said = (
        f"layers that leave {left}, other scales and moves"
        if quantized
        else f"norms made one node each, and nodes that leave {left}"
    )
    return "\n".join(
        [
            f"# Plan by pytest-int8acc for {shown(file)}: {said},",
            "# so that it meets its criteria. To guard it, name this file in the spec, by its path",
            "# from there:",
            "#",
            "#     plan: plan.yaml",
            "",
            f"version: {PLAN_VERSION}",
            "",
            "# The model that the plan was found for. Where its graph or weights have changed, the plan is",
            "# refused as stale; without this section nothing is compared.",
            "model:",
            *(f"  {key}: {quoted(value)}" for key, value in model.items()),
            "",
            "# What layers run in that the plan does not name.",
            f"candidate: {network.low.name}",
            "",
            *([] if quantized else _fused(plan)),
            f"# Layer: the precision that it runs in instead of {left} ({'fp16 or ' * quantized}fp32).",
            *_section("high", {name: f" {precision}" for name, precision in plan.high.items()}),
            "",
            *(_quantized(plan, network) if quantized else ()),
        ]
    )


def _fused(plan: Plan) -> Iterator[str]:
    """What a plan in FP16 or BF16 has beside its layers."""
    yield "# Norms in parts, by their last node: each becomes one node, which computes in FP32 inside."
    yield from _list("fused", plan.fused)
    if plan.outputs:
        yield "# Tensors that the engine gives beside the model's outputs."
        yield from _list("outputs", plan.outputs)


def _quantized(plan: Plan, network: Network) -> Iterator[str]:
    """What a plan in INT8 or FP8 has beside its layers."""
    was = {r.tensor: f"  # was {r.old:.6g}" for r in rescales(network, plan)}
    yield f"# Tensor: the scale that takes the place of its own: the range's end / {network.low.levels:g}."
    yield "# Weights are rounded with it anew; a list is one scale per channel."
    yield from _section("scales", {name: _scale(v) + was.get(name, "") for name, v in plan.scales.items()})
    yield ""
    yield "# Tensor: what each of its channels is divided by; the weights that read it are multiplied."
    yield from _section("moves", {name: _wrapped(_listed(v)) for name, v in plan.moves.items()})
    yield ""
    yield "# Tensors that the engine gives beside the model's outputs, so that TensorRT fuses nothing"
    yield "# across them; nobody has to read them."
    yield from _list("outputs", plan.outputs)


def _list(key: str, names: Sequence[str]) -> Iterator[str]:
    yield f"{key}:" if names else f"{key}: []"
    yield from (f"  - {quoted(name)}" for name in names)
    yield ""


def quoted(text: str) -> str:
    """``text`` as a YAML scalar between double quotes, whatever it holds, and no CI's command."""
    text = json.dumps(text, ensure_ascii=False).replace("##", r"#\x23")
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _section(key: str, entries: Mapping[str, str]) -> Iterator[str]:
    yield f"{key}:" if entries else f"{key}: {{}}"
    for name, value in entries.items():
        text = quoted(name)
        yield f"  {text}:{value}" if len(text) < _KEY else f"  ? {text}\n  :{value}"


def _scale(chosen: TensorScale) -> str:
    """A number alone where that is symmetric per tensor, otherwise a mapping in flow style."""
    zero_point = chosen.zero_point
    parts = {} if chosen.axis is None else {"axis": str(chosen.axis)}
    parts["scale"] = _listed(chosen.scale)
    if zero_point is not None and zero_point.any():
        parts["zero_point"] = _listed(zero_point)
    if zero_point is not None and not _is_symmetric(zero_point):
        parts["dtype"] = str(zero_point.dtype)
    if list(parts) == ["scale"]:
        return f" {parts['scale']}"
    return _wrapped("{" + ", ".join(f"{key}: {value}" for key, value in parts.items()) + "}")


def _is_symmetric(zero_point: Array) -> bool:
    """Whether it is of what plans have where they say nothing else."""
    codes = format_of(zero_point.dtype)
    return codes is codes.symmetric


def _listed(array: Array) -> str:
    """A scalar as it is, else a list in flow style."""
    numbers = ", ".join(map(_number, array.reshape(-1)))
    return f"[{numbers}]" if array.ndim else numbers


def _wrapped(flow: str) -> str:
    """A list or mapping in flow style behind its key, or on lines of its own where it is long."""
    if len(flow) < _COLUMNS // 2:
        return f" {flow}"
    indent = " " * 4
    lines = textwrap.wrap(flow, _COLUMNS, initial_indent=indent, subsequent_indent=indent + " ")
    return "\n" + "\n".join(lines)


def _number(value: np.generic) -> str:
    """The fewest digits that give the same float32 or integer, as YAML 1.1 and 1.2 both read them.

    The first takes 1e-05 for text. Readers go by way of float64, whose second rounding may take more digits.
    """
    text = str(value)
    if isinstance(value, np.floating) and np.float32(float(text)) != value:
        text = repr(float(value))
    digits, e, exponent = text.partition("e")
    return digits + ("" if "." in digits or not e else ".0") + e + exponent
