"""A plan as a file: ``plan.yaml`` is written for a failed case, and read where a spec says ``plan: FILE``.

    version: 1
    model: {file: resnet50.onnx, graph: HASH, weights: HASH}
    high: {/conv5/Conv: fp16}
    scales: {/relu4/Relu_output_0: 0.0123}

The hashes tie a plan to its model; without ``model:`` nothing is compared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import get_args

import numpy as np
import onnx

from pytest_int8acc.errors import SpecError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, Precision, TensorScale
from pytest_int8acc.graph.plan import activation_scales, quantized_tensors
from pytest_int8acc.results import Rescale
from pytest_int8acc.spec.fields import closest, found
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.yaml import MAX_BYTES, Mark, Mistake, Node, parse
from pytest_int8acc.tensors import Array, did_you_mean

#: The only version of the format so far.
VERSION = 1
_KEYS = ("version", "model", "high", "scales")
_MODEL_KEYS = ("file", "graph", "weights")


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
    for tensor in (*model.inputs, *model.outputs):
        graph.update(repr(str(tensor)).encode())
    for node in model.graph.node:
        wiring = (node.op_type, node.domain, node.name, list(node.input), list(node.output))
        graph.update(repr(wiring).encode())
        for attribute in sorted(node.attribute, key=lambda a: a.name):
            graph.update(_plain(attribute).SerializeToString(deterministic=True))
    weights = hashlib.blake2b(digest_size=16)
    for name, array in sorted(model.constants().items()):
        weights.update(repr((name, str(array.dtype), array.shape)).encode())
        weights.update(_bytes(array))
    return Fingerprint(graph.hexdigest(), weights.hexdigest())


def _plain(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    copy.ClearField("doc_string")
    return copy


def _bytes(array: Array) -> memoryview | bytes:
    """The array's bytes, not copied where it lies in one piece; text for an array of strings."""
    if array.dtype == object:
        return repr(array.tolist()).encode()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def plan_text(plan: Plan, network: Network, file: str, rescales: Sequence[Rescale] = ()) -> str:
    """``plan`` as YAML with comments, as ``read_plan`` reads it.

    Args:
        plan: Of ``network``.
        network: The groups and the model that the plan is for.
        file: The model's file, for readers; not compared.
        rescales: Where new scales come from, for comments.
    """
    known = fingerprint(network.model)
    why = {r.tensor: f"  # {_comment(r.method)}, was {r.old:.6g}" for r in rescales}
    model = {"file": file, "graph": known.graph, "weights": known.weights}
    return "\n".join(
        [
            f"# Plan by pytest-int8acc for {_comment(file)}: the layers that leave INT8 so that it meets its",
            "# criteria. To guard it, name this file in the spec, by its path from there:",
            "#",
            "#     plan: plan.yaml",
            "",
            f"version: {VERSION}",
            "",
            "# The model that the plan was found for. Where its graph or weights have changed, the plan is",
            "# refused as stale; without this section nothing is compared.",
            "model:",
            *(f"  {key}: {quoted(value)}" for key, value in model.items()),
            "",
            "# Layer: the precision that it runs in instead of INT8 (fp16 or fp32).",
            *_section("high", {name: f"{precision}" for name, precision in plan.high.items()}),
            "",
            "# Tensor: the scale that takes the place of its own; one INT8 step, the range's end / 127.",
            *_section(
                "scales",
                {name: _number(float(v.scale)) + why.get(name, "") for name, v in plan.scales.items()},
            ),
            "",
        ]
    )


def quoted(text: str) -> str:
    """``text`` as a YAML scalar between double quotes, whatever it holds."""
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in json.dumps(text, ensure_ascii=False))


def _section(key: str, entries: Mapping[str, str]) -> Iterator[str]:
    yield f"{key}:" if entries else f"{key}: {{}}"
    for name, value in entries.items():
        yield f"  {quoted(name)}: {value}"


def _number(value: float) -> str:
    """``value`` in the fewest digits that give the same float32, as YAML 1.1 and 1.2 both read it.

    The first takes 1e-05 for text. Readers go by way of float64, whose second rounding may take more digits.
    """
    short = str(np.float32(value))
    text = short if np.float32(float(short)) == np.float32(value) else repr(float(np.float32(value)))
    digits, e, exponent = text.partition("e")
    return digits + ("" if "." in digits or not e else ".0") + e + exponent


def _comment(text: str) -> str:
    """``text`` without what would end a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def read_plan(path: Path, network: Network) -> Plan:
    """Read a plan, and check it against the network that it is to be applied to.

    Args:
        path: A ``plan.yaml``.
        network: Its groups and tensors are those a plan may name.

    Raises:
        SpecError: Every mistake in the file, one ``file:line:col: message`` per line, by place: no plan, a
            name that the network does not have, or a model that is not the one that the plan was found for.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{display(path)}:1:1: cannot read the plan: {error.strerror}") from None
    reader = _Reader(network)
    if not raw.strip():
        reader.mistakes.append(Mistake(Mark(1, 1), f"the file is empty; {_EXPECTED}"))
    else:
        document = parse(raw)
        reader.mistakes += document.mistakes
        if document.root is not None:
            reader.read(document.root)
    if reader.mistakes:
        lines = (f"{display(path)}:{m.line}:{m.column}: {text}" for m, text in sorted(set(reader.mistakes)))
        raise SpecError("\n".join(lines))
    return Plan(reader.high, reader.scales)


_EXPECTED = f"a plan is a mapping like {{version: {VERSION}, high: {{/conv1/Conv: fp16}}}}"


class _Reader:
    """Takes a plan from its tree; mistakes gather."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.name = PurePath(network.model.name).name
        self.groups = {group.name for group in network.groups}
        self.mistakes: list[Mistake] = []
        self.high: dict[str, Precision] = {}
        self.scales: dict[str, TensorScale] = {}

    def read(self, root: Node) -> None:
        if not isinstance(root.value, dict):
            self.mistakes.append(Mistake(root.mark, f"{_EXPECTED}, found {found(root.plain())}"))
            return
        if not self._version(root):
            return
        self._known_keys(root, _KEYS)
        if self._stale(root):
            return
        self._entries(root, "high", self._group)
        self._entries(root, "scales", self._tensor)

    def _version(self, root: Node) -> bool:
        """Whether the format is one that is known here."""
        node = root.entries.get("version")
        if node is None:
            self.mistakes.append(Mistake(root.mark, f"'version' is missing: add 'version: {VERSION}'"))
        elif node.value != VERSION or isinstance(node.value, bool):
            text = (
                f"version: expected {VERSION}, found {found(node.plain())}; update pytest-int8acc to read it"
            )
            self.mistakes.append(Mistake(node.mark, text))
        return not self.mistakes

    def _known_keys(self, node: Node, known: Sequence[str]) -> None:
        for key, mark in node.keys.items():
            if key not in known:
                near = closest(key, known)
                advice = f"did you mean '{near}'?" if near else f"known here: {', '.join(known)}"
                self.mistakes.append(Mistake(mark, f"unknown key {found(key)} ({advice})"))

    def _stale(self, root: Node) -> bool:
        """Whether the plan was found for another model; says what differs."""
        node = root.entries.get("model")
        if node is None:
            return False
        if not isinstance(node.value, dict):
            text = f"model: expected a mapping {{graph: HASH, weights: HASH}}, found {found(node.plain())}"
            self.mistakes.append(Mistake(node.mark, text))
            return False
        self._known_keys(node, _MODEL_KEYS)
        now = fingerprint(self.network.model)
        wanted = {key: node.entries[key] for key in ("graph", "weights") if key in node.entries}
        changed = [key for key, child in wanted.items() if child.value != getattr(now, key)]
        if not changed:
            return False
        text = (
            f"the plan was found for another model: the {' and the '.join(changed)} of {self.name} changed "
            f"since{self._gone(root)}. Take 'plan:' out of the spec and run pytest --int8acc "
            "--int8acc-report DIR for a new plan; or, to keep this one as it is, remove its 'model:' section"
        )
        self.mistakes.append(Mistake(root.keys["model"], text))
        return True

    def _gone(self, root: Node) -> str:
        """The groups of the plan that the model no longer has."""
        named = list(root.entries["high"].entries) if "high" in root.entries else []
        gone = [name for name in named if name not in self.groups]
        if not gone:
            return ""
        listed = ", ".join(map(found, gone[:3])) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
        return f"; {len(gone)} of the plan's {len(named)} layers are not in it: {listed}"

    def _entries(self, root: Node, key: str, take: Callable[[str, Mark, Node], None]) -> None:
        node = root.entries.get(key)
        if node is None:
            return
        if not isinstance(node.value, dict):
            text = f"{key}: expected a mapping, {{}} where it is empty, found {found(node.plain())}"
            self.mistakes.append(Mistake(node.mark, text))
            return
        for name, child in node.entries.items():
            take(name, node.keys[name], child)

    def _group(self, name: str, mark: Mark, node: Node) -> None:
        if name not in self.groups:
            self.mistakes.append(Mistake(mark, self._no_group(name)))
        for precision in get_args(Precision):
            if node.value == precision:
                self.high[name] = precision
                return
        words = ", ".join(get_args(Precision))
        near = did_you_mean(str(node.value), get_args(Precision))
        text = f"{found(name)}: expected one of {words}, found {found(node.plain())}{near}"
        self.mistakes.append(Mistake(node.mark, text))

    def _no_group(self, name: str) -> str:
        if name in self.network.left_high:
            why = self.network.left_high[name]
            return f"{found(name)} is not in INT8 anyway ({why.text}); remove this line"
        near = did_you_mean(name, sorted(self.groups))
        return f"{found(name)} is no layer of {self.name} that can be INT8{near}"

    def _tensor(self, name: str, mark: Mark, node: Node) -> None:
        known = activation_scales(self.network)
        if name not in known:
            text = f"{found(name)} is no quantized tensor of {self.name}{did_you_mean(name, sorted(known))}"
            self.mistakes.append(Mistake(mark, text))
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            text = f"{found(name)}: expected a scale, a number greater than 0, found {found(node.plain())}"
            self.mistakes.append(Mistake(node.mark, text))
            return
        own = quantized_tensors(self.network).get(name)
        zero_point = None if own is None else own.zero_point
        self.scales[name] = TensorScale(np.array(value, np.float32), zero_point=zero_point)
