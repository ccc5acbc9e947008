"""Reads and writes ``plan.yaml``: the precisions, scales and other changes that make a failed case pass.

The file is written for a failed case, and read if a spec names it by ``plan: FILE``. An example:

    version: 4
    model: {file: resnet50.onnx, graph: HASH, weights: HASH}
    candidate: int8
    high: {/conv5/Conv: fp16}
    scales: {/relu4/Relu_output_0: 0.0123, fc.weight: {axis: 0, scale: [0.01, 0.02]}}
    floats: {fc.bias: [0.5, -0.25]}
    moves: {/norm/LayerNormalization_output_0: [1.0, 2.5]}
    outputs: [/conv2/Conv_output_0]

A scale that is a single number is symmetric INT8 per tensor. ``zero_point`` and ``dtype`` state another
quantization. For a case in FP16 or BF16 the key ``fused: [/norm/Add_1]`` replaces ``scales`` and ``moves``.
The hashes tie a plan to its model. Without ``model:`` the model is not checked.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from pytest_int8acc.errors import SpecError, listed
from pytest_int8acc.files import readable
from pytest_int8acc.graph.formats import FORMATS, FP32, INT8, format_of
from pytest_int8acc.graph.half_network import fused
from pytest_int8acc.graph.migrate import find_site, migrate, sites
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, Precision, TensorScale
from pytest_int8acc.graph.norms import find_norms
from pytest_int8acc.graph.plan import activation_scales, computed_floats, misfit, quantized_tensors
from pytest_int8acc.names import shown
from pytest_int8acc.results.search import PLAN_VERSION
from pytest_int8acc.spec.fields import KEY, GraphName, Integer, closest, expect, found, one_of
from pytest_int8acc.spec.load import display, keys_without_value, spec_error, translated
from pytest_int8acc.spec.yaml import Mark, Mistake, Node, parse
from pytest_int8acc.tensors import Array, did_you_mean

#: Maximum length, in characters, of a line of the plan file that holds numbers.
_COLUMNS = 100
#: Maximum length, in characters, of a key that is written without a '?' in front. YAML 1.2 allows at most
#: 1024 characters (https://yaml.org/spec/1.2.2/, 7.4.3).
_MAX_KEY = 1000

_HEAD = """\
# Plan by pytest-int8acc for {model}: {changes},
# so that it meets its criteria. To guard it, name this file in the spec, by its path
# from there:
#
#     plan: plan.yaml

version: {version}

# The model that the plan was found for. Where its graph or weights have changed, the plan is
# refused as stale; without this section nothing is compared.
model:
  file: {file}
  graph: "{graph}"
  weights: "{weights}"

# What layers run in that the plan does not name.
candidate: {candidate}

"""
_SCALES = """\
# Tensor: the scale that takes the place of its own: the range's end / {levels:g}.
# Weights are rounded with it anew; a list is one scale per channel.
"""
_FLOATS = """\
# Constant, like a bias: its float values in layers in {low}, where it is not quantized.
"""
_MOVES = """\
# Tensor: what each of its channels is divided by; the weights that read it are multiplied.
"""
_OUTPUTS = """\
# Tensors that the engine gives beside the model's outputs, so that TensorRT fuses nothing
# across them; nobody has to read them.
"""
_FUSED = """\
# Norms in parts, by their last node: each becomes one node, which computes in FP32 inside.
"""


def fingerprint(model: Model) -> dict[str, str]:
    """Hashes that tie a plan to a model: BLAKE2b in hex, one of the graph and one of the weights.

    Names of exporters and other metadata have no effect on the hashes.
    """
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
        # An array of strings is hashed by its values, because its bytes are memory addresses.
        weights.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return {"graph": graph.hexdigest(), "weights": weights.hexdigest()}


def plan_text(plan: Plan, network: Network, file: str) -> str:
    """``plan`` for ``network`` as YAML with comments, in the form that ``read_plan`` reads.

    ``file`` is the name of the model file. It is written for readers of the plan, and is not compared.
    """
    low, quantized = network.low, network.low.takes_scales
    left, other = low.name.upper(), "fp16 or fp32" if quantized else "fp32"
    changes = f"norms made one node each, and nodes that leave {left}"
    if quantized:
        changes = f"layers that leave {left}, other scales and moves"
    head = _HEAD.format(
        model=shown(file),
        changes=changes,
        version=PLAN_VERSION,
        file=quoted(file),
        candidate=low.name,
        **fingerprint(network.model),
    )
    high = f"# Layer: the precision that it runs in instead of {left} ({other}).\n"
    high += _mapping("high", {name: f" {precision}" for name, precision in plan.high.items()})
    outputs = _OUTPUTS + _list("outputs", plan.outputs)
    if not quantized:
        text = head + _FUSED + _list("fused", plan.fused) + high
        return text + outputs if plan.outputs else text
    scales = {name: _scale(chosen) for name, chosen in plan.scales.items()}
    for name, scale in activation_scales(network).items():
        if name in scales and plan.scales[name].axis is None:
            scales[name] += f"  # was {scale:.6g}"
    floats = {name: _wrapped(_listed(values.reshape(-1))) for name, values in plan.floats.items()}
    moves = {name: _wrapped(_listed(factors)) for name, factors in plan.moves.items()}
    scales_text = _SCALES.format(levels=low.levels) + _mapping("scales", scales)
    floats_text = _FLOATS.format(low=left) + _mapping("floats", floats) if floats else ""
    return head + high + scales_text + floats_text + _MOVES + _mapping("moves", moves) + outputs


def _list(key: str, names: Sequence[str]) -> str:
    items = "".join(f"\n  - {quoted(name)}" for name in names)
    return f"{key}:{items or ' []'}\n\n"


def _mapping(key: str, entries: Mapping[str, str]) -> str:
    """A section of the YAML file: ``key``, and for each name in ``entries`` the text after its colon."""
    lines = []
    for name, value in entries.items():
        text = quoted(name)
        lines.append(f"\n  {text}:{value}" if len(text) < _MAX_KEY else f"\n  ? {text}\n  :{value}")
    return f"{key}:{''.join(lines) or ' {}'}\n\n"


def quoted(text: str) -> str:
    """``text`` as a YAML scalar in double quotes.

    ``##`` is escaped, so that no CI system reads the text as a command.
    """
    text = json.dumps(text, ensure_ascii=False).replace("##", r"#\x23")
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _scale(chosen: TensorScale) -> str:
    """The scale as YAML: a single number if it is symmetric per tensor, otherwise a mapping in flow style."""
    zero_point = chosen.zero_point
    parts = {} if chosen.axis is None else {"axis": str(chosen.axis)}
    parts["scale"] = _listed(chosen.scale)
    if zero_point is not None:
        codes = format_of(zero_point.dtype)
        if zero_point.any():
            parts["zero_point"] = _listed(zero_point)
        if codes is not codes.symmetric:
            parts["dtype"] = codes.name
    if list(parts) == ["scale"]:
        return f" {parts['scale']}"
    return _wrapped("{" + ", ".join(f"{key}: {value}" for key, value in parts.items()) + "}")


def _listed(array: Array) -> str:
    """The array as YAML: a single number, or a list in flow style."""
    numbers = ", ".join(map(_number, array.reshape(-1)))
    return f"[{numbers}]" if array.ndim else numbers


def _wrapped(flow: str) -> str:
    """A YAML value in flow style, after its key or, if it is long, on lines of its own."""
    if len(flow) < _COLUMNS // 2:
        return f" {flow}"
    return "\n" + textwrap.fill(flow, _COLUMNS, initial_indent=" " * 4, subsequent_indent=" " * 5)


def _number(value: np.generic) -> str:
    """The fewest digits that give the same float32 or integer, both in YAML 1.1 and in YAML 1.2.

    YAML 1.1 reads 1e-05 as text, and 1.0e-05 as a number. Readers convert the text to float64 and then to
    float32. This second rounding may need more digits.
    """
    text = str(value)
    if isinstance(value, np.floating) and np.float32(float(text)) != value:
        text = repr(float(value))
    digits, e, exponent = text.partition("e")
    return digits + ("" if "." in digits or not e else ".0") + e + exponent


#: Maximum size of a plan file, in bytes. A plan may have a number for each channel, so it may be larger than
#: a spec.
_MAX_BYTES = 1 << 26
_EXPECTED = f"a plan is a mapping like {{version: {PLAN_VERSION}, high: {{/conv1/Conv: fp16}}}}"
#: Advice in error messages on a plan that does not fit the model or the version.
_ANEW = (
    "to make a new plan, take 'plan:' out of the spec and run the failing case again with "
    "pytest --int8acc --int8acc-report DIR"
)
_ModelKey = Literal["file", "graph", "weights"]
_CODES = [codes.name for codes in INT8.codes]
_CodeName = Annotated[
    str,
    Field(strict=True, pattern=f"^({'|'.join(_CODES)})$"),
    expect(f"one of {', '.join(_CODES)}", lambda value: did_you_mean(str(value), _CODES)),
]
#: A number that is still above 0 when it is converted to float32.
_Positive = Annotated[
    float,
    Field(strict=True, ge=FP32.smallest, le=FP32.highest),
    expect("a number greater than 0"),
]
_IS_LIST = Discriminator(lambda value: "(list)" if isinstance(value, list) else "(number)")
_OneOrMorePositive = Annotated[
    Annotated[_Positive, Tag("(number)")] | Annotated[tuple[_Positive, ...], Tag("(list)")], _IS_LIST
]
_OneOrMoreIntegers = Annotated[
    Annotated[Integer, Tag("(number)")] | Annotated[tuple[Integer, ...], Tag("(list)")], _IS_LIST
]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False), expect("a number")]
_Floats = Annotated[tuple[_Number, ...], expect("a list of numbers, one per element")]
_Factors = Annotated[tuple[_Positive, ...], expect("a list of factors, one per channel")]
_Names = Annotated[tuple[GraphName, ...], expect("a list, [] where it is empty")]
_MAPPING = expect("a mapping, {} where it is empty")


class _Scale(BaseModel):
    """The entry of a tensor under ``scales``. A number or a list alone is read as its ``scale``."""

    model_config = ConfigDict(defer_build=True, extra="forbid")

    scale: _OneOrMorePositive
    axis: Integer | None = None
    zero_point: _OneOrMoreIntegers | None = None
    dtype: _CodeName | None = None

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"scale": value}

    def chosen(self) -> TensorScale:
        """Returns the scale for a plan. Raises ValueError if the data type cannot hold a zero point."""
        scale = np.array(self.scale, np.float32)
        if self.zero_point is None and self.dtype is None:
            return TensorScale(scale, self.axis)
        codes = FORMATS[self.dtype or INT8.name]
        zero_points = np.array(self.zero_point or 0)
        beyond = (zero_points < codes.lowest) | (zero_points > codes.highest)
        if beyond.any():
            raise ValueError(f"a zero point lies beyond {codes.name}, from {codes.lowest} to {codes.highest}")
        if not zero_points.ndim:
            zero_points = np.full(scale.shape, zero_points)
        return TensorScale(scale, self.axis, zero_points.astype(codes.dtype))


class _PlanFile(BaseModel):
    """The content of a plan file."""

    model_config = ConfigDict(defer_build=True, extra="forbid")

    version: Annotated[
        int,
        Field(strict=True, ge=PLAN_VERSION, le=PLAN_VERSION),
        expect(
            str(PLAN_VERSION),
            lambda value: f": the plan was made by another version of pytest-int8acc; {_ANEW}",
        ),
    ]
    model: Annotated[
        dict[Annotated[_ModelKey, one_of(_ModelKey)], str], expect("a mapping {graph: HASH, weights: HASH}")
    ] = Field({})
    candidate: str | None = None
    high: Annotated[dict[str, Annotated[Precision, one_of(Precision)]], _MAPPING] = Field({})
    scales: Annotated[dict[str, _Scale], _MAPPING] = Field({})
    floats: Annotated[dict[str, _Floats], _MAPPING] = Field({})
    moves: Annotated[dict[str, _Factors], _MAPPING] = Field({})
    outputs: _Names = ()
    fused: _Names = ()


def read_plan(path: Path, network: Network) -> Plan:
    """Read a plan file, and check it against the network that the plan is to change.

    Raises:
        SpecError: The mistakes in the file, in order, one ``file:line:col: message`` per line. For example:
            the file is no plan, it has a name that the network does not have, or its model is another one.
    """
    try:
        with readable(path).open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{display(path)}:1:1: cannot read the plan: {error.strerror}") from None
    if not raw.strip():
        raise spec_error(path, [Mistake(Mark(1, 1), f"the file is empty; {_EXPECTED}")])
    document = parse(raw, max_bytes=_MAX_BYTES, max_nodes=len(raw))
    root, mistakes = document.root, document.mistakes
    if root is not None:
        mistakes += keys_without_value(root)
    if root is None or mistakes:
        raise spec_error(path, mistakes)
    if not isinstance(root.value, dict):
        raise spec_error(path, [Mistake(root.mark, f"{_EXPECTED}, found {found(root.plain())}")])
    try:
        file = _PlanFile.model_validate(root.plain())
    except ValidationError as error:
        raise spec_error(path, _mistakes(error, root)) from None
    mistakes += _of_another_network(file, root, network)
    if not mistakes:
        norms = {} if network.low.takes_scales else find_norms(network.model)
        what = f"last node of a norm in parts of {_file_name(network)}"
        mistakes += _unknown_items(root, "fused", norms, what)
    if not mistakes:
        plan = _plan(file, root, fused(network, file.fused), mistakes)
    if mistakes:
        raise spec_error(path, mistakes)
    return plan


def _mistakes(error: ValidationError, root: Node) -> Iterator[Mistake]:
    """Yield a mistake for each wrong value or key.

    If the version is wrong, only this mistake is yielded.
    """
    details = error.errors(include_url=False)
    of_version = [detail for detail in details if detail["loc"] == ("version",)]
    for detail in of_version or details:
        kind, loc, text = detail["type"], detail["loc"], detail["msg"]
        key, known = str(loc[-1]), _Scale.model_fields if len(loc) > 1 else _PlanFile.model_fields
        if kind == "extra_forbidden":
            near = closest(key, known)
            advice = f"did you mean '{near}'?" if near else f"known here: {', '.join(known)}"
            kind, text = KEY, f"unknown key {found(key)} ({advice})"
        elif kind == "missing":
            text = f"'{key}' is missing: add '{key}: {PLAN_VERSION if of_version else 'NUMBER'}'"
        yield from translated(kind, loc, text, root)


def _of_another_network(file: _PlanFile, root: Node, network: Network) -> Iterator[Mistake]:
    """Yield a mistake if the plan was found for another number format or another model."""
    low, model = network.low.name, _file_name(network)
    if file.candidate not in (None, low):
        text = f"candidate: the plan was found for {found(file.candidate)}, and the case is in {low}; {_ANEW}"
        yield Mistake(root.entries["candidate"].mark, text)
    now: Mapping[str, str] = fingerprint(network.model)
    changed = [key for key, value in file.model.items() if now.get(key, value) != value]
    if changed:
        groups = {group.name for group in network.groups}
        gone = [name for name in file.high if name not in groups]
        lost = f"; {len(gone)} of the plan's {len(file.high)} layers are not in it: {listed(gone)}"
        yield Mistake(
            root.keys["model"],
            f"the plan was found for another model: the {' and the '.join(changed)} of {model} changed "
            f"since{lost if gone else ''}; {_ANEW}; or, to keep this plan as it is, remove its 'model:' "
            "section",
        )


def _file_name(network: Network) -> str:
    return PurePath(network.model.name).name


def _unknown_items(root: Node, key: str, known: Mapping[str, object], what: str) -> Iterator[Mistake]:
    """Yield a mistake for each name in the list under ``key`` that is not in ``known``.

    ``what`` describes the names in ``known``. It follows the words "is no" in the message.
    """
    node = root.entries.get(key)
    for item in node.value if node is not None and isinstance(node.value, list) else ():
        if item.value not in known:
            name = str(item.value)
            yield Mistake(item.mark, f"{key}: {found(name)} is no {what}{did_you_mean(name, known)}")


def _plan(file: _PlanFile, root: Node, network: Network, mistakes: list[Mistake]) -> Plan:
    """The plan that a file describes; errors in the file are added to ``mistakes``.

    In ``network``, the norms that the plan fuses are fused already.
    """
    model, groups = _file_name(network), sorted(group.name for group in network.groups)
    empty = root.only(())
    high, scales_node, moves_node = (root.entries.get(key, empty) for key in ("high", "scales", "moves"))
    for name, mark in high.keys.items():
        if name not in groups:
            mistakes.append(Mistake(mark, _no_group(name, groups, network)))
    moved, moves, shapes = network, dict[str, Array](), _shapes(network)
    for name, given in file.moves.items():
        site, factors = find_site(moved, name), np.array(given, np.float32)
        if site is None:
            near = did_you_mean(name, sorted(sites(moved)))
            text = f"{found(name)} is no tensor of {model} whose channels can be moved{near}"
            mistakes.append(Mistake(moves_node.keys[name], text))
        elif factors.shape != (site.channels,):
            text = f"{found(name)}: expected a list of {site.channels} factors, found {factors.size}"
            mistakes.append(Mistake(moves_node.entries[name].mark, text))
        else:
            moves[name] = factors
            moved = migrate(moved, {name: factors}).network
            shapes = _shapes(moved) | shapes
    constants = dict(_floats(file, root, network, mistakes))
    scales = {}
    for name, entry in file.scales.items():
        if name not in shapes:
            text = f"{found(name)} is no quantized tensor of {model}{did_you_mean(name, sorted(shapes))}"
            mistakes.append(Mistake(scales_node.keys[name], text))
            continue
        try:
            scales[name] = entry.chosen()
            wrong = misfit(scales[name], shapes[name])
        except ValueError as error:
            wrong = str(error)
        if wrong:
            mistakes.append(Mistake(scales_node.entries[name].mark, f"{found(name)}: {wrong}"))
    floats = computed_floats(moved.model)
    mistakes += _unknown_items(root, "outputs", floats, f"tensor that {model} computes in floats")
    outputs, norms = dict.fromkeys(file.outputs), dict.fromkeys(file.fused)
    return Plan(file.high, scales, moves, tuple(outputs), tuple(norms), constants)


def _floats(
    file: _PlanFile, root: Node, network: Network, mistakes: list[Mistake]
) -> Iterator[tuple[str, Array]]:
    """Yield the float values of constants in a plan; constants that do not fit are added to ``mistakes``."""
    constants = network.model.constants()
    for name, values in file.floats.items():
        if name in constants and constants[name].size == len(values):
            yield name, np.array(values, np.float32).reshape(constants[name].shape)
            continue
        near = did_you_mean(name, sorted(constants))
        text = f"{found(name)} is no constant of {_file_name(network)} with {len(values)} elements{near}"
        mistakes.append(Mistake(root.entries["floats"].keys[name], text))


def _no_group(name: str, groups: Sequence[str], network: Network) -> str:
    low, why = network.low.name.upper(), network.left_high.get(name)
    if why is not None:
        return f"{found(name)} is not in {low} anyway ({why.text}); remove this line"
    return f"{found(name)} is no layer of {_file_name(network)} that can be {low}{did_you_mean(name, groups)}"


def _shapes(network: Network) -> dict[str, tuple[int, ...] | None]:
    """The shape of each quantized tensor, by name; None for an activation, whose shape may vary."""
    constants = network.model.constants()
    return {
        name: None if own.values is None else constants[name].shape
        for name, own in quantized_tensors(network).items()
    }
