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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeGuard, cast, get_args

import numpy as np
import onnx

from pytest_int8acc.errors import SpecError
from pytest_int8acc.files import readable
from pytest_int8acc.graph.formats import INT8, format_of
from pytest_int8acc.graph.half_network import fused
from pytest_int8acc.graph.migrate import find_site, migrate, sites
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, Precision, TensorScale
from pytest_int8acc.graph.norms import find_norms
from pytest_int8acc.graph.plan import activation_scales, computed_floats, misfit, quantized_tensors
from pytest_int8acc.names import shown
from pytest_int8acc.results.causes import Rescale
from pytest_int8acc.results.search import PLAN_VERSION
from pytest_int8acc.spec.fields import closest, found
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.yaml import Mark, Mistake, Node, parse
from pytest_int8acc.tensors import Array, did_you_mean

_COLUMNS = 100
#: A longer key needs a '?' in YAML (https://yaml.org/spec/1.2.2/, 7.4.3: 1024 characters at most).
_KEY = 1000


@dataclass(frozen=True)
class Fingerprint:
    """Hashes that tie a plan to a model: BLAKE2b in hex."""

    graph: str
    """Of nodes with their names, attributes and wiring, and of inputs and outputs."""
    weights: str
    """Of every initializer."""


def fingerprint(model: Model) -> Fingerprint:
    """The hashes of a model in normal form; names of exporters and other metadata do not count."""
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
    """The activations to which a plan gives another scale, where both are per tensor."""
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
    """Yields the sections of a plan in FP16 or BF16 that follow its layers."""
    yield "# Norms in parts, by their last node: each becomes one node, which computes in FP32 inside."
    yield from _list("fused", plan.fused)
    if plan.outputs:
        yield "# Tensors that the engine gives beside the model's outputs."
        yield from _list("outputs", plan.outputs)


def _quantized(plan: Plan, network: Network) -> Iterator[str]:
    """Yields the sections of a plan in INT8 or FP8 that follow its layers."""
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
    """``text`` as a YAML scalar in double quotes; no CI system reads a command in it."""
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
    """Whether it has the symmetric type that a plan's scales have by default."""
    codes = format_of(zero_point.dtype)
    return codes is codes.symmetric


def _listed(array: Array) -> str:
    """A number, or a list in flow style."""
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


#: Greatest size of a plan file: it holds a number for each channel, so it may be larger than a spec.
_MAX_BYTES = 1 << 26
_KEYS = ("version", "model", "high", "scales", "moves", "outputs", "candidate", "fused")
_MODEL_KEYS = ("file", "graph", "weights")
_SCALE_KEYS = ("scale", "axis", "zero_point", "dtype")
_TYPES = {known.name: known for known in INT8.codes}


def read_plan(path: Path, network: Network) -> Plan:
    """Read a plan, and check it against the network that it is to be applied to.

    Raises:
        SpecError: Every mistake in the file, one ``file:line:col: message`` per line, by place: no plan, a
            name that the network does not have, or a model that is not the one that the plan was found for.
    """
    try:
        with readable(path).open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{display(path)}:1:1: cannot read the plan: {error.strerror}") from None
    reader = _Reader(network)
    if not raw.strip():
        reader.mistakes.append(Mistake(Mark(1, 1), f"the file is empty; {_EXPECTED}"))
    else:
        document = parse(raw, max_bytes=_MAX_BYTES, max_nodes=len(raw))
        reader.mistakes += document.mistakes
        if document.root is not None:
            reader.read(document.root)
    if reader.mistakes:
        lines = (f"{display(path)}:{m.line}:{m.column}: {text}" for m, text in sorted(set(reader.mistakes)))
        raise SpecError("\n".join(lines))
    return Plan(reader.high, reader.scales, reader.moves, tuple(reader.outputs), tuple(reader.fused))


_EXPECTED = f"a plan is a mapping like {{version: {PLAN_VERSION}, high: {{/conv1/Conv: fp16}}}}"
#: What to do about a plan that does not fit.
_ANEW = (
    "to make a new plan, take 'plan:' out of the spec and run the failing case again with "
    "pytest --int8acc --int8acc-report DIR"
)


class _Reader:
    """Reads a plan from its YAML tree, and collects all mistakes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.name = PurePath(network.model.name).name
        self.groups = {group.name for group in network.groups}
        self.mistakes: list[Mistake] = []
        self.high: dict[str, Precision] = {}
        self.scales: dict[str, TensorScale] = {}
        self.moves: dict[str, Array] = {}
        self.outputs: dict[str, None] = {}
        self.fused: dict[str, None] = {}
        self.moved = network
        """The network after the moves that were read so far."""
        self.shapes: dict[str, tuple[int, ...] | None] = {}
        """Quantized tensor, before the moves or after one, to its shape; None for activations."""

    def read(self, root: Node) -> None:
        if not isinstance(root.value, dict):
            self._say(root.mark, f"{_EXPECTED}, found {found(root.plain())}")
            return
        if not self._is_of_this_version(root):
            return
        self._known_keys(root, _KEYS)
        if self._is_of_another(root) or self._stale(root):
            return
        self._fuse(root)
        self._entries(root, "high", self._group)
        self._look_at(self.network)
        self._entries(root, "moves", self._move)
        self._entries(root, "scales", self._scale)
        what = f"tensor that {self.name} computes in floats"
        self._names(root, "outputs", computed_floats(self.moved.model), what, self.outputs)

    def _is_of_this_version(self, root: Node) -> bool:
        """Whether the plan has the known version; adds a mistake where it has not."""
        node = root.entries.get("version")
        if node is None:
            self._say(root.mark, f"'version' is missing: add 'version: {PLAN_VERSION}'")
            return False
        if _is_integer(node.value) and node.value == PLAN_VERSION:
            return True
        text = f"version: expected {PLAN_VERSION}, found {found(node.plain())}"
        cause = "the plan was made by another version of pytest-int8acc"
        self._say(node.mark, f"{text}: {cause}; {_ANEW}")
        return False

    def _known_keys(self, node: Node, known: Sequence[str]) -> None:
        for key, mark in node.keys.items():
            if key not in known:
                near = closest(key, known)
                advice = f"did you mean '{near}'?" if near else f"known here: {', '.join(known)}"
                self._say(mark, f"unknown key {found(key)} ({advice})")

    def _is_of_another(self, root: Node) -> bool:
        """Whether the plan was found for another number format; adds a mistake where it was."""
        node, low = root.entries.get("candidate"), self.network.low.name
        if node is None or node.value == low:
            return False
        text = f"candidate: the plan was found for {found(node.plain())}, and the case is in {low}"
        self._say(node.mark, f"{text}; {_ANEW}")
        return True

    def _fuse(self, root: Node) -> None:
        """Read the norms that become one node each, and go on with the network after that."""
        norms = {} if self.network.low.takes_scales else find_norms(self.network.model)
        self._names(root, "fused", norms, f"last node of a norm in parts of {self.name}", self.fused)
        self.network = self.moved = fused(self.network, self.fused)
        self.groups = {group.name for group in self.network.groups}

    def _stale(self, root: Node) -> bool:
        """Whether the plan was found for another model; adds a mistake that says what differs."""
        node = self._held(root, "model", dict, "a mapping {graph: HASH, weights: HASH}")
        self._known_keys(node, _MODEL_KEYS)
        now = fingerprint(self.network.model)
        expected = {key: node.entries[key] for key in ("graph", "weights") if key in node.entries}
        changed = [key for key, child in expected.items() if child.value != getattr(now, key)]
        if not changed:
            return False
        text = (
            f"the plan was found for another model: the {' and the '.join(changed)} of {self.name} changed "
            f"since{self._gone(root)}; {_ANEW}; or, to keep this plan as it is, remove its 'model:' section"
        )
        self._say(root.keys["model"], text)
        return True

    def _gone(self, root: Node) -> str:
        """A clause on the groups of the plan that the model no longer has; empty where it has all."""
        named = list(root.entries["high"].entries) if "high" in root.entries else []
        gone = [name for name in named if name not in self.groups]
        if not gone:
            return ""
        listed = ", ".join(map(found, gone[:3])) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        return f"; {len(gone)} of the plan's {len(named)} layers are not in it: {listed}"

    def _entries(self, root: Node, key: str, take: Callable[[str, Mark, Node], None]) -> None:
        node = self._held(root, key, dict, "a mapping, {} where it is empty")
        for name, child in node.entries.items():
            take(name, node.keys[name], child)

    def _held(self, root: Node, key: str, kind: type, expected: str) -> Node:
        """The node under ``key``; an empty node where there is none, or its type is wrong, a mistake."""
        node = root.entries.get(key)
        if node is not None and isinstance(node.value, kind):
            return node
        if node is not None:
            self._say(node.mark, f"{key}: expected {expected}, found {found(node.plain())}")
        return Node(root.mark, kind())

    def _say(self, mark: Mark, text: str) -> None:
        self.mistakes.append(Mistake(mark, text))

    def _group(self, name: str, mark: Mark, node: Node) -> None:
        if name not in self.groups:
            self._say(mark, self._no_group(name))
        known = get_args(Precision)
        if node.value in known:
            self.high[name] = cast("Precision", node.value)
        else:
            self._not_one_of(name, known, str(node.value), node)

    def _not_one_of(
        self, name: str, known: Sequence[str] | Mapping[str, object], given: str, node: Node
    ) -> None:
        expected = f"{found(name)}: expected one of {', '.join(known)}"
        text = f"{expected}, found {found(node.plain())}{did_you_mean(given, known)}"
        self._say(node.mark, text)

    def _no_group(self, name: str) -> str:
        low = self.network.low.name.upper()
        if name in self.network.left_high:
            why = self.network.left_high[name]
            return f"{found(name)} is not in {low} anyway ({why.text}); remove this line"
        near = did_you_mean(name, sorted(self.groups))
        return f"{found(name)} is no layer of {self.name} that can be {low}{near}"

    def _look_at(self, network: Network) -> None:
        constants = network.model.constants()
        for name, own in quantized_tensors(network).items():
            self.shapes.setdefault(name, None if own.values is None else constants[name].shape)

    def _move(self, name: str, mark: Mark, node: Node) -> None:
        site = find_site(self.moved, name)
        factors = None if site is None else self._positive(name, "a factor", node)
        if site is None:
            near = did_you_mean(name, sorted(sites(self.moved)))
            text = f"{found(name)} is no tensor of {self.name} whose channels can be moved{near}"
            self._say(mark, text)
        elif factors is not None and factors.shape != (site.channels,):
            found_text = f"{factors.size}" if factors.ndim else found(node.plain())
            text = f"{found(name)}: expected a list of {site.channels} factors, found {found_text}"
            self._say(node.mark, text)
        elif factors is not None:
            self.moves[name] = factors
            self.moved = migrate(self.moved, {name: factors}).network
            self._look_at(self.moved)

    def _names(
        self, root: Node, key: str, known: Mapping[str, object], what: str, taken: dict[str, None]
    ) -> None:
        """Read a list of known names into ``taken``."""
        node = self._held(root, key, list, "a list, [] where it is empty")
        for item in node.value if isinstance(node.value, list) else ():
            if isinstance(item.value, str) and item.value in known:
                taken[item.value] = None
                continue
            near = did_you_mean(item.value, known) if isinstance(item.value, str) else ""
            self._say(item.mark, f"{key}: {found(item.plain())} is no {what}{near}")

    def _scale(self, name: str, mark: Mark, node: Node) -> None:
        if name not in self.shapes:
            self._say(mark, self._no_tensor(name, self.shapes))
        before = len(self.mistakes)
        self._known_keys(node, _SCALE_KEYS)
        entries = node.entries if isinstance(node.value, dict) else {"scale": node}
        if "scale" not in entries:
            self._say(node.mark, f"{found(name)}: 'scale' is missing, a number or a list")
            return
        scale = self._positive(name, "a scale", entries["scale"])
        axis = self._axis(name, entries["axis"]) if "axis" in entries else None
        zero_point = None if scale is None else self._zero_point(name, entries, scale.shape)
        if scale is None or len(self.mistakes) > before:
            return
        self.scales[name] = TensorScale(scale, axis, zero_point)
        wrong = misfit(self.scales[name], self.shapes.get(name))
        if wrong:
            self._say(node.mark, f"{found(name)}: {wrong}")

    def _no_tensor(self, name: str, known: Iterable[str]) -> str:
        return f"{found(name)} is no quantized tensor of {self.name}{did_you_mean(name, sorted(known))}"

    def _positive(self, name: str, what: str, node: Node) -> Array | None:
        """A positive number, or a list of them, as float32; None, and a mistake, where one is not above 0."""
        items = node.value if isinstance(node.value, list) else [node]
        values = [item.value for item in items]
        for item in items:
            if not _is_positive(item.value):
                text = f"{found(name)}: expected {what}, a number greater than 0, found {found(item.plain())}"
                self._say(item.mark, text)
                return None
        return np.array(values if items is node.value else values[0], np.float32)

    def _axis(self, name: str, node: Node) -> int | None:
        if _is_integer(node.value):
            return node.value
        text = f"{found(name)}: expected an axis, an integer, found {found(node.plain())}"
        self._say(node.mark, text)
        return None

    def _zero_point(self, name: str, entries: Mapping[str, Node], shape: tuple[int, ...]) -> Array | None:
        """A scale's zero points; 0 where only their type is given, None where neither is."""
        kind, node = entries.get("dtype"), entries.get("zero_point")
        if kind is None and node is None:
            return None
        type_name = INT8.name if kind is None else str(kind.value)
        if kind is not None and type_name not in _TYPES:
            self._not_one_of(name, _TYPES, type_name, kind)
            return None
        expected = _TYPES[type_name]
        items = [] if node is None else node.value if isinstance(node.value, list) else [node]
        for item in items:
            if not (_is_integer(item.value) and expected.lowest <= item.value <= expected.highest):
                text = f"{found(name)}: expected a zero point, an integer that {expected.name} holds"
                self._say(item.mark, f"{text}, found {found(item.plain())}")
                return None
        values = np.array([item.value for item in items] or [0], expected.dtype)
        return values if node is not None and items is node.value else np.full(shape, values[0])


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    with np.errstate(over="ignore"):
        return bool(0 < np.float32(value) < np.inf)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
