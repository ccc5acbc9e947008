"""The layers of an engine and their precision, from the JSON of TensorRT's engine inspector (8 to 11).

The format of the JSON is described in TensorRT's developer guide ("Engine Inspector"), in its 10 to 11
migration guide, and in TREx's dictionary of tensor formats (tools/experimental/trt-engine-explorer, until
10.16).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pytest_int8acc.errors import EngineError
from pytest_int8acc.results import EngineLayer
from pytest_int8acc.results.engines import Doubt, Kind, LayerKind

#: Key: a word in the format of a tensor. Value: the precision of a layer that reads the tensor.
_TYPES: dict[str, Kind] = {
    **dict.fromkeys(("BFLOAT16", "BF16"), "bf16"),
    **dict.fromkeys(("FLOAT16", "FP16", "HALF"), "fp16"),
    **dict.fromkeys(("FLOAT32", "FLOAT", "FP32", "TF32"), "fp32"),
    **dict.fromkeys(("FLOAT8", "FP8", "E4M3", "E5M2"), "fp8"),
    **dict.fromkeys(("INT8",), "int8"),
    **dict.fromkeys(("FLOAT64", "FLOAT4", "FP4", "BOOL", "UINT8", "UINT4"), "other"),
    **dict.fromkeys(("INT4", "INT16", "INT32", "INT64"), "other"),
}
#: Finds a word of ``_TYPES``, the longest word first: BFLOAT16 contains FLOAT16 and FLOAT.
_WORDS = re.compile("|".join(sorted(_TYPES, key=len, reverse=True)))

#: Pairs of a pattern of a kernel's name, and the precision in which such a kernel multiplies. Examples of
#: such names are ``xmma_gemm_i8i8_i8i32_f32``, ``i16832cudnn_int8``, ``tensorop_s8_``, ``f16f16_f16f32``,
#: ``h16816gemm`` and ``f32f32_tf32f32``. The first pattern that matches decides.
_TACTICS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"(?<![a-z])i8|(?<!u)int8|imma|igemm|(?<![a-z0-9])s8(?![a-z0-9])|i16832|i8816"), "int8"),
    (re.compile(r"e4m3|e5m2|fp8"), "fp8"),
    (re.compile(r"bf16"), "bf16"),
    (re.compile(r"f16f16|fp16|hmma|half|(?<![a-z])h(?:884|1688|16816)|(?<![a-z])hgemm"), "fp16"),
    (re.compile(r"tf32|f32f32|fp32|sgemm|scudnn|(?<![a-z])s1688"), "fp32"),
)

_MULTIPLIES = re.compile(r"conv(?!er)|gemm|mat_?mul|matrix_?multiply|fully_?connected")
#: Matches types that Myelin, TensorRT's compiler of fused regions, gives to layers of any kind. The kind of
#: such a layer is read from the name of its kernel.
_ANYTHING = re.compile(r"kgen|fusion|myelin")
_KERNEL_MULTIPLIES = re.compile(r"gemm|fprop|dgrad|conv(?!er)")
_QUANTIZES = re.compile(r"(?:de)?quantize(?:linear)?")
_REFORMATS = re.compile(r"reformat|copy|move|cast|convert")
_QDQ_NODE = re.compile(r"(?:quantizelinear|(?:^|[/._])(?:de)?quantize)(?:_?\d+)*$", re.IGNORECASE)
#: Myelin's names of kernels that only move or cast values.
_MYELIN_MOVES = re.compile(r"__my[a-z]*_(?:Move|Cast|Tran|Resh|Copy)+(?:_|$)")

#: Matches one entry of a layer's metadata. Entries are joined by a unit or record separator, which ``\s``
#: matches. The name of a node may contain brackets.
_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?=[\s,;+]*(?:\[|$))", re.DOTALL)
_FOREIGN = re.compile(r"\{?ForeignNode\[(.*)\.\.\.(.*)\]\}?", re.DOTALL)
_MARKS = re.compile(r"PWN\(|[(),]| \+ | \|\| ")
_PROFILE = re.compile(r" \[profile [1-9]\d*\]$")
_SUFFIX = re.compile(r"(?:_myl\d*_\d+|_clone_\d+)$")
#: Matches the beginning of the name of a layer that TensorRT added.
_ADDED = re.compile(r"__my|\(Unnamed Layer\*|\{|Reformatting |\[")
_EXPECTED = "expected the text of IEngineInspector.get_engine_information in the format JSON"


def read_layers(text: str, nodes: Collection[str] = ()) -> tuple[EngineLayer, ...]:
    """The layers of an engine.

    A weighted layer is a convolution or a matrix product. A product of two activations is called weighted as
    well, because the inspector does not distinguish it from a product with weights. A weighted layer ran in
    INT8 if an input is INT8, and its weights, its kernel or a second input is INT8 as well. The output may be
    floating point.

    Args:
        text: JSON of ``IEngineInspector.get_engine_information``. Raw control characters are accepted, since
            TensorRT 8.6 writes them. Without detailed profiling verbosity the JSON has names only. Then kind
            and precision of all layers are ``other``.
        nodes: Names of the model's nodes. Layers have only nodes of these names. If no names are given, a
            layer has all nodes that it names, and before version 10 also its constants.

    Returns:
        The layers in order. Repetitions for further optimization profiles (up to version 9) are left out.

    Raises:
        EngineError: ``text`` is not JSON of the inspector.
    """
    known = frozenset(nodes)
    layers = (_read_layer(layer, known) for layer in _layers(text))
    return tuple(layer for layer in layers if not _PROFILE.search(layer.name))


def is_region(layer: EngineLayer) -> bool:
    """Whether a layer is a region of which TensorRT up to 9 names only the first and the last node."""
    return "ForeignNode[" in layer.name


def untold_nodes(layers: Iterable[EngineLayer], weighted: Iterable[str]) -> tuple[str, ...]:
    """Convolutions and matrix products of the model that no layer of the engine names.

    Up to version 9 TensorRT names only the first and the last node of a region that Myelin compiled.

    Args:
        layers: Layers of the model's engine, from :func:`read_layers`.
        weighted: The model's convolutions and matrix products.
    """
    found = tuple(layers)
    if not any(map(is_region, found)):
        return ()
    weighted_nodes = {node for layer in found if layer.kind == "weighted" for node in layer.nodes}
    return tuple(node for node in weighted if node not in weighted_nodes)


def _layers(text: str) -> list[Any]:
    """The layers in a JSON text, which may hold an engine, a list of layers or one layer."""
    try:
        data = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the engine inspector's answer is not JSON ({error}): {_EXPECTED}") from error
    if isinstance(data, Mapping):
        data = data.get("Layers", [data] if "Name" in data else None)
    if not isinstance(data, list):
        raise EngineError(f"the engine inspector's JSON has no list 'Layers': {_EXPECTED}")
    return data


def _read_layer(layer: Any, known: frozenset[str]) -> EngineLayer:
    if not isinstance(layer, Mapping):
        name = layer if isinstance(layer, str) else ""
        return EngineLayer(name, _nodes(name, "", known), "other", "other")
    name = _text(layer, "Name")
    nodes = _nodes(name, _text(layer, "Metadata"), known)
    kind = _kind(layer, nodes)
    precision = _precision(layer, kind)
    own = () if kind == "reformat" else nodes
    return EngineLayer(name, own, kind, precision, _doubt(layer, kind, precision))


def _kind(layer: Mapping[str, Any], nodes: tuple[str, ...]) -> LayerKind:
    """The kind of a layer from its type and its parameters, or else from the name of its kernel."""
    types = " ".join(_text(layer, key) for key in ("LayerType", "ParameterType")).lower()
    if _text(layer, "Origin").upper() == "QDQ" or _QUANTIZES.search(types):
        return "qdq"
    if _REFORMATS.search(types):
        return "qdq" if _only_qdq(layer) else "reformat"
    if _MULTIPLIES.search(types) or any(True for _ in _weights(layer)):
        return "weighted"
    if _ANYTHING.search(types):
        if _KERNEL_MULTIPLIES.search(_text(layer, "TacticName").lower()):
            return "weighted"
        if _only_qdq(layer):
            return "qdq"
        if _MYELIN_MOVES.match(_text(layer, "Name")) and not nodes:
            return "reformat"
    return "other"


def _only_qdq(layer: Mapping[str, Any]) -> bool:
    """Whether a layer names ONNX nodes, and all of them quantize or dequantize."""
    nodes = _METADATA.findall(_text(layer, "Metadata")) or _parts(_SUFFIX.sub("", _text(layer, "Name")))
    return bool(nodes) and all(_QDQ_NODE.search(node) and not _ADDED.match(node) for node in nodes)


def _precision(layer: Mapping[str, Any], kind: LayerKind) -> Kind:
    """The precision in which a layer computes. For a Quantize or Dequantize layer it is the low precision."""
    inputs = [_type(tensor) for tensor in _tensors(layer, "Inputs")]
    outputs = [_type(tensor) for tensor in _tensors(layer, "Outputs")]
    if kind == "weighted":
        return _product_precision(layer, inputs, outputs)
    known = [found for found in inputs + outputs if found not in (None, "other")]
    if kind == "qdq":
        known.sort(key=lambda found: found not in ("int8", "fp8"))
    return next((found for found in known if found), "other")


def _doubt(layer: Mapping[str, Any], kind: LayerKind, precision: Kind) -> Doubt:
    """Why the precision of a layer is no proof of the precision of its products; empty if it is a proof."""
    if kind != "weighted":
        return ""
    tactic = _tactic(layer)
    weights = next((found for found in map(_type, _weights(layer)) if found), None)
    if tactic not in (None, precision) or (tactic is None and weights not in (None, precision)):
        return "contradiction"
    return "region" if _ANYTHING.search(_text(layer, "LayerType").lower()) else ""


def _tactic(layer: Mapping[str, Any]) -> Kind | None:
    """The format in the name of a layer's kernel; None if the name has no format."""
    kernel = _text(layer, "TacticName").lower()
    return next((kind for pattern, kind in _TACTICS if pattern.search(kernel)), None)


def _product_precision(
    layer: Mapping[str, Any], inputs: list[Kind | None], outputs: list[Kind | None]
) -> Kind:
    weights = [found for found in map(_type, _weights(layer)) if found]
    tactic = _tactic(layer)
    # Without an execution context, inputs of dynamic shape have no format. Then weights and kernel decide.
    fed = "int8" in inputs or not any(inputs)
    operands = inputs.count("int8") > 1 if not weights and tactic is None else False
    if fed and ("int8" in weights or tactic == "int8" or operands):
        return "int8"
    for found in (*inputs, *weights, tactic, *outputs):
        if found not in (None, "int8", "other"):
            return found
    return "other"


def _type(tensor: Mapping[str, Any]) -> Kind | None:
    """The type of a tensor or of weights; None if the JSON does not have it."""
    for key in ("Datatype", "Format/Datatype", "Type", "Format"):
        found = _WORDS.search(_text(tensor, key).upper())
        if found:
            return _TYPES[found[0]]
    return None


def _tensors(layer: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    tensors = layer.get(key)
    return [t for t in tensors if isinstance(t, Mapping)] if isinstance(tensors, list) else []


def _weights(layer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The weights of a layer, ``Weights`` or ``ConvWeights``, and the largest constant of a product."""
    for key, value in layer.items():
        if key.endswith("Weights") and isinstance(value, Mapping) and value.get("Count") != 0:
            yield value
    if _MULTIPLIES.search(_text(layer, "LayerType").lower()):
        yield from sorted(_tensors(layer, "Constants"), key=_size, reverse=True)[:1]


def _size(tensor: Mapping[str, Any]) -> int:
    """The number of elements of a tensor."""
    dimensions = tensor.get("Dimensions")
    return math.prod(d for d in dimensions if isinstance(d, int)) if isinstance(dimensions, list) else 0


def _text(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    return value if isinstance(value, str) else ""


def _nodes(name: str, metadata: str, known: frozenset[str]) -> tuple[str, ...]:
    """The ONNX nodes of a layer without repetitions, from its metadata or else from its name."""
    found = _METADATA.findall(metadata) or _parts(name)
    spelled = [part if part in known else _SUFFIX.sub("", part) for part in found]
    own_parts = [part for part in spelled if (part in known if known else not _ADDED.match(part))]
    return tuple(dict.fromkeys(own_parts))


def _parts(name: str) -> list[str]:
    """The names of nodes in the name of a fused layer, such as a, b and c in ``PWN(PWN(a), b + c)``."""
    foreign = _FOREIGN.fullmatch(name)
    return [part for piece in (foreign.groups() if foreign else (name,)) for part in _split(piece)]


def _split(text: str) -> list[str]:
    """The names of nodes in ``text``, which may contain parentheses."""
    pieces, opened, start = [], [""], 0
    for mark in _MARKS.finditer(text):
        found, fusion = mark[0], opened[-1] in ("", "PWN(")
        if found == "PWN(" and not text[start : mark.start()].strip():
            opened.append(found)
            start = mark.end()
        elif found.endswith("("):
            opened.append("(")
        elif found == ")" and not fusion:
            opened.pop()
        elif opened[-1] == "PWN(" if found in ")," else fusion:
            pieces.append(text[start : mark.start()])
            start = mark.end()
            if found == ")":
                opened.pop()
    return [piece.strip() for piece in (*pieces, text[start:]) if piece.strip()]
