"""Faults inside transformers and of depthwise convolutions: where their INT8 breaks, place by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.faults import per_tensor_weights, stretched
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.inner import inner
from benchmarks.regressions.networks import Net, calibrated, net
from benchmarks.regressions.plant import (
    NARROW,
    WIDE,
    changed,
    coarser,
    from_qdq,
    from_scales,
    mistaken,
    scaled,
    wild_dead_input,
)
from pytest_int8acc.graph.model import Model

_OUTLIERS = frozenset({"activation-outliers"})
_WILD = frozenset({"weight-outliers"})
_CONSTANT = frozenset({"weight-scale"})


@dataclass(frozen=True)
class Block:
    """Names in one block of a transformer; query, key and value as node and first channel."""

    query: tuple[str, int]
    key: tuple[str, int]
    value: tuple[str, int]
    scores: str
    """The product of query and key."""
    mixed: str
    """The product of the softmax and value."""
    out: str
    first: str
    """The layer before GELU or SiLU."""
    second: str


def _packed(prefix: str, width: int, inside: str = "qkv/MatMul", out: str = "proj/MatMul") -> Block:
    """Query, key and value from one product."""
    parts = [(f"{prefix}/{inside}", width * part) for part in range(3)]
    layers = (f"{prefix}/{out}", f"{prefix}/fc1/MatMul", f"{prefix}/fc2/MatMul")
    return Block(*parts, f"{prefix}/MatMul", f"{prefix}/MatMul_1", *layers)


def block(network: str, number: int) -> Block:
    """One block of a network of ours with attention."""
    if network == "recognizer":
        return _packed(f"/blocks/blocks.{number}", 48)
    if network == "swin":
        return _packed(f"/stage1/stage1.{number}", 32) if number < 2 else _packed("/stage2", 48)
    if network == "encoder":
        at = f"/layers.{number}/self_attn"
        parts = [(f"{at}/MatMul", 48 * part) for part in range(3)]
        layers = [f"/layers.{number}/linear{i}/MatMul" for i in (1, 2)]
        return Block(*parts, f"{at}/MatMul_1", f"{at}/MatMul_2", f"{at}/Gemm", *layers)
    at = f"/blocks.{number}" if network == "decoder" else f"/blocks/blocks.{number}"
    names = ("gate", "down") if network == "decoder" else ("fc1", "fc2")
    parts = [(f"{at}/{name}/MatMul", 0) for name in ("query", "key", "value")]
    layers = [f"{at}/{name}/MatMul" for name in ("out", *names)]
    return Block(*parts, f"{at}/MatMul", f"{at}/MatMul_1", *layers)


#: Network, block, input of a product (scores: query, key; mixed: weights, value), factor on its scale.
_PRODUCTS: tuple[tuple[str, int, str, float], ...] = (
    ("vit", 1, "query", 60),
    ("vit", 2, "weights", 40),
    ("vit", 0, "value", 1 / 10),
    ("encoder", 0, "key", 50),
    ("encoder", 1, "value", 1 / 10),
    ("encoder", 2, "weights", 100),
    ("decoder", 0, "query", 1 / 12),
    ("decoder", 1, "value", 60),
    ("decoder", 0, "weights", 1 / 8),
    ("recognizer", 0, "key", 1 / 100),
    ("recognizer", 1, "weights", 1 / 100),
    ("recognizer", 1, "value", 1000),
    ("swin", 0, "query", 100),
    ("swin", 1, "value", 1 / 8),
    ("swin", 2, "weights", 1 / 6),
)
#: Network, block, channels of query that are enlarged and of key that are divided by it, factor. Rotary
#: positions turn two channels into each other.
_SCORES: tuple[tuple[str, int, tuple[int, ...], float], ...] = (
    ("vit", 0, (5,), 100),
    ("encoder", 1, (7,), 150),
    ("decoder", 1, (2, 8), 100),
    ("recognizer", 0, (20,), 1000),
    ("swin", 2, (13,), 200),
)
#: Network, block, channel of value that the layer after attention divides again, factor.
_VALUES = (
    ("vit", 1, 9, 100),
    ("encoder", 2, 30, 100),
    ("decoder", 0, 17, 60),
    ("recognizer", 1, 3, 1000),
    ("swin", 1, 22, 100),
)
#: Network, norm, its readers, channel, factor.
_NORMS: tuple[tuple[str, str, tuple[str, ...], int, float], ...] = (
    ("vit", "/blocks/blocks.1/norm1/LayerNormalization", ("query", "key", "value"), 12, 150),
    ("decoder", "/blocks.0/norm1/Mul_1", ("query", "key", "value"), 31, 100),
    ("decoder", "/blocks.1/norm2/Mul_1", ("gate", "up"), 5, 60),
    ("decoder", "/norm/Mul_1", ("/MatMul",), 40, 80),
    ("recognizer", "/blocks/blocks.0/norm1/LayerNormalization", ("qkv",), 8, 300),
    ("recognizer", "/blocks/blocks.1/norm2/LayerNormalization", ("fc1",), 21, 200),
    ("recognizer", "/norm/LayerNormalization", ("/head/MatMul",), 10, 200),
    ("swin", "/stage1/stage1.1/norm1/LayerNormalization", ("qkv",), 4, 100),
    ("swin", "/stage2/norm2/LayerNormalization", ("fc1",), 19, 80),
    ("swin", "/merge_norm/LayerNormalization", ("/merge/MatMul",), 77, 150),
    ("convnext", "/stage1/stage1.0/norm/LayerNormalization", ("fc1",), 6, 100),
    ("convnext", "/stage2/stage2.1/norm/LayerNormalization", ("fc1",), 25, 60),
)
#: Network, layer before GELU or SiLU, its reader, channel, factor.
_ACTIVATED: tuple[tuple[str, str, tuple[str, ...], int, float], ...] = (
    ("vit", "/blocks/blocks.1/fc1/MatMul", ("/blocks/blocks.1/fc2/MatMul",), 50, 100),
    ("encoder", "/layers.1/linear1/MatMul", ("/layers.1/linear2/MatMul",), 11, 150),
    ("recognizer", "/blocks/blocks.0/fc1/MatMul", ("/blocks/blocks.0/fc2/MatMul",), 70, 100),
    ("swin", "/stage1/stage1.0/fc1/MatMul", ("/stage1/stage1.0/fc2/MatMul",), 33, 200),
    ("convnext", "/stage2/stage2.0/fc1/MatMul", ("/stage2/stage2.0/fc2/MatMul",), 100, 100),
    ("decoder", "/blocks.0/up/MatMul", ("/blocks.0/down/MatMul",), 60, 100),
    ("decoder", "/blocks.1/up/MatMul", ("/blocks.1/down/MatMul",), 14, 300),
    (
        "efficient",
        "/blocks/blocks.1/expand/conv/Conv",
        ("/blocks/blocks.1/depthwise/conv/Conv",),
        20,
        100,
    ),
    ("recognizer", "/point1/point1.0/conv/Conv", ("/depthwise2/depthwise2.0/conv/Conv",), 9, 100),
)
#: Network, nodes and inputs that read the value before GELU or SiLU, or before a norm, factor on its scale.
_BEFORE: Mapping[str, tuple[str, tuple[tuple[str, int], ...], float]] = {
    "gelu_vit": ("vit", (("/blocks/blocks.0/Mul_1", 0),), 60),
    "gelu_encoder": ("encoder", (("/layers.1/Mul", 0),), 1 / 10),
    "gelu_swin": ("swin", (("/stage1/stage1.1/Mul_3", 0),), 80),
    "gelu_convnext": ("convnext", (("/stage2/stage2.0/Mul", 0),), 1 / 8),
    "silu_recognizer": ("recognizer", (("/blocks/blocks.1/Mul_5", 0),), 60),
    "silu_decoder": ("decoder", (("/blocks.0/Mul_10", 0),), 1 / 12),
    "silu_efficient": ("efficient", (("/blocks/blocks.2/Mul", 0),), 50),
    "gate_efficient": ("efficient", (("/blocks/blocks.3/Mul_3", 0),), 40),
    "norm_vit": ("vit", (("/blocks/blocks.2/norm1/LayerNormalization", 0),), 50),
    "norm_encoder": ("encoder", (("/layers.0/norm1/LayerNormalization", 0),), 1 / 10),
    "norm_recognizer": ("recognizer", (("/blocks/blocks.0/norm2/LayerNormalization", 0),), 80),
    "norm_swin": ("swin", (("/merge_norm/LayerNormalization", 0),), 1 / 8),
    "norm_convnext": ("convnext", (("/stage1/stage1.1/norm/LayerNormalization", 0),), 60),
}
#: Network, Add, the input that is wrong, factor on its scale; both inputs are quantized.
_SUMS = (
    ("vit", "/blocks/blocks.1/Add", 0, 60),
    ("encoder", "/layers.1/Add", 1, 50),
    ("decoder", "/blocks.0/Add_8", 0, 1 / 10),
    ("decoder", "/blocks.1/Add_9", 1, 60),
    ("swin", "/stage1/stage1.1/Add_2", 0, 1 / 12),
    ("swin", "/stage2/Add_4", 1, 80),
    ("convnext", "/stage1/stage1.0/Add_1", 0, 60),
    ("recognizer", "/blocks/blocks.0/Add_4", 1, 1 / 10),
)
#: Network, the one reader of a tensor that takes it at another scale, factor.
_ONE_READER = (
    ("vit", "/blocks/blocks.0/value/MatMul", 60),
    ("vit", "/blocks/blocks.2/key/MatMul", 1 / 12),
    ("decoder", "/blocks.0/key/MatMul", 1 / 12),
    ("decoder", "/blocks.1/up/MatMul", 60),
    ("decoder", "/blocks.0/value/MatMul", 80),
)
#: Network, node and input that reads an embedding or a position, factor on its scale, kinds.
_EMBEDDED = (
    ("encoder", "/Add", 0, 60, WIDE),
    ("encoder", "/Add", 0, 1 / 10, NARROW),
    ("encoder", "/Add", 1, 40, _CONSTANT),
    ("encoder", "/words/Gather", 0, 50, _CONSTANT),
    ("decoder", "/words/Gather", 0, 40, _CONSTANT),
    ("vit", "/Add", 0, 60, WIDE),
    ("vit", "/Add", 1, 60, _CONSTANT),
    ("encoder", "/Add", 1, 1 / 10, _CONSTANT | NARROW),
)
#: Network, norm whose channel becomes 0, its reader, channel, factor on the greatest weight.
_UNUSED = (
    ("vit", "/blocks/blocks.1/norm2/LayerNormalization", "/blocks/blocks.1/fc1/MatMul", 30, 50),
    ("decoder", "/blocks.0/norm1/Mul_1", "/blocks.0/value/MatMul", 11, 50),
    ("recognizer", "/blocks/blocks.0/norm2/LayerNormalization", "/blocks/blocks.0/fc1/MatMul", 2, 100),
    ("swin", "/stage2/norm2/LayerNormalization", "/stage2/fc1/MatMul", 44, 50),
    ("convnext", "/stage1/stage1.1/norm/LayerNormalization", "/stage1/stage1.1/fc1/MatMul", 15, 50),
)
#: Depthwise convolution whose weights get one scale, what divides its outlier again, channel, factor.
_DEPTHWISE: Mapping[str, tuple[str, tuple[str, ...], int, float]] = {
    "mobilenet": ("/3/depthwise/conv/Conv", ("/3/project/conv/Conv",), 7, 100),
    "recognizer": ("/depthwise1/depthwise1.0/conv/Conv", ("/point1/point1.0/conv/Conv",), 6, 100),
    "efficient": (
        "/blocks/blocks.2/depthwise/conv/Conv",
        ("/blocks/blocks.2/squeeze/Conv", "/blocks/blocks.2/project/conv/Conv"),
        40,
        100,
    ),
}


def entries() -> Iterator[Entry]:
    """All of this module."""
    for network, number, place, factor in _PRODUCTS:
        plant = partial(_product, network, number, place, factor)
        name = f"product_{network}{number}_{place}"
        yield Entry(name, "scale in a product of activations", network, plant)
    for network, number, channels, factor in _SCORES:
        plant = partial(_scores, network, number, channels, factor)
        yield Entry(f"scores_{network}{number}", "outlier in a product of activations", network, plant)
    for network, number, channel, factor in _VALUES:
        plant = partial(_values, network, number, channel, factor)
        yield Entry(f"value_{network}{number}", "outlier in a product of activations", network, plant)
    for i, (network, norm, readers, channel, factor) in enumerate(_NORMS):
        at = norm.rsplit("/", 2)[0]
        names = tuple(r if r.startswith("/") else f"{at}/{r}/MatMul" for r in readers)
        plant = partial(_outlier, network, norm, names, channel, factor)
        yield Entry(f"normed_{network}_{i}", "outlier after a norm", network, plant)
    for i, (network, first, readers, channel, factor) in enumerate(_ACTIVATED):
        plant = partial(_outlier, network, first, readers, channel, factor)
        yield Entry(f"activated_{network}_{i}", "outlier after GELU or SiLU", network, plant)
    yield from _inner()
    for network, group, factor in _ONE_READER:
        name = f"reader_{network}_{group.split('/')[-2]}_{factor:.2g}"
        yield Entry(name, "one reader of a shared tensor", network, partial(_reader, network, group, factor))
    for network, norm, reader, channel, factor in _UNUSED:
        plant = partial(_unused, network, norm, reader, channel, factor)
        yield Entry(f"unused_{network}", "wild weights of an unused channel", network, plant)
    for network, arguments in _DEPTHWISE.items():
        plant = partial(_depthwise, network, *arguments)
        yield Entry(f"depthwise_{network}", "depthwise weights per tensor", network, plant)


def _inner() -> Iterator[Entry]:
    """Q/DQ at inputs that the plugin leaves alone."""
    for name, (network, places, factor) in _BEFORE.items():
        kind = "scale before a norm" if name.startswith("norm") else "scale before GELU, SiLU or Softmax"
        yield Entry(f"before_{name}", kind, network, partial(_before, network, places, factor))
    for network, add, index, factor in _SUMS:
        name = f"sum_{network}{add.replace('/', '_').lower()}_{index}"
        yield Entry(name, "scale in a residual sum", network, partial(_sum, network, add, index, factor))
    for i, (network, node, index, factor, kinds) in enumerate(_EMBEDDED):
        plant = partial(_embedded, network, (node, index), factor, kinds)
        yield Entry(f"embedded_{network}_{i}", "embeddings and positions", network, plant)


def _product(network: str, number: int, place: str, factor: float) -> Planted:
    known, at = net(network), block(network, number)
    group = at.scores if place in ("query", "key") else at.mixed
    slot = known.layout.slots[group][place in ("key", "value")]
    return mistaken(known, {slot.tensor: factor})


def _scores(network: str, number: int, channels: tuple[int, ...], factor: float) -> Planted:
    """Channels of query so much larger, those of key so much smaller: the scores stay."""
    at = block(network, number)
    (query, q), (key, k) = at.query, at.key
    up = [(query, "out", q + c, factor) for c in channels]
    down = [(key, "out", k + c, 1 / factor) for c in channels]
    known = calibrated(network, stretched(net(network).model, [*up, *down]))
    return from_scales(known, known.scales, Truth(causes={at.scores: _OUTLIERS}))


def _values(network: str, number: int, channel: int, factor: float) -> Planted:
    at = block(network, number)
    value, first = at.value
    changes = [(value, "out", first + channel, factor), (at.out, "in", channel, 1 / factor)]
    known = calibrated(network, stretched(net(network).model, changes))
    return from_scales(known, known.scales, Truth(causes=dict.fromkeys((at.mixed, at.out), _OUTLIERS)))


def _outlier(network: str, first: str, readers: tuple[str, ...], channel: int, factor: float) -> Planted:
    known = calibrated(network, _enlarged(net(network), first, readers, channel, factor))
    return from_scales(known, known.scales, Truth(causes=dict.fromkeys(readers, _OUTLIERS)))


def _enlarged(known: Net, first: str, readers: tuple[str, ...], channel: int, factor: float) -> Model:
    down = [(name, "in", channel, 1 / factor) for name in readers]
    return stretched(known.model, [(first, "out", channel, factor), *down])


def _before(network: str, places: tuple[tuple[str, int], ...], factor: float) -> Planted:
    kinds = WIDE if factor > 1 else NARROW
    return inner(net(network), dict.fromkeys(places, scaled(factor)), kinds)


def _sum(network: str, add: str, index: int, factor: float) -> Planted:
    kinds = frozenset({"mismatched-scales"}) | (WIDE if factor > 1 else NARROW)
    return inner(net(network), {(add, index): scaled(factor), (add, 1 - index): None}, kinds)


def _embedded(network: str, place: tuple[str, int], factor: float, kinds: frozenset[str]) -> Planted:
    change = coarser(factor) if kinds >= _CONSTANT else scaled(factor)
    return inner(net(network), {place: change}, kinds)


def _reader(network: str, group: str, factor: float) -> Planted:
    known, kinds = net(network), WIDE if factor > 1 else NARROW
    return from_qdq(known, changed(known.network(), group, scaled(factor)), Truth(causes={group: kinds}))


def _unused(network: str, norm: str, reader: str, channel: int, factor: float) -> Planted:
    """A norm gives 0 in one channel, whose weights are the greatest."""
    model = wild_dead_input(
        stretched(net(network).model, [(norm, "out", channel, 0.0)]), reader, [channel], factor
    )
    known = calibrated(network, model)
    return from_qdq(known, known.network(), Truth(causes={reader: _WILD}))


def _depthwise(network: str, first: str, readers: tuple[str, ...], channel: int, factor: float) -> Planted:
    known = calibrated(network, _enlarged(net(network), first, readers, channel, factor))
    causes = {first: _WILD, **dict.fromkeys(readers, _OUTLIERS)}
    return from_qdq(known, per_tensor_weights(known.network(), [first]), Truth(causes=causes))
