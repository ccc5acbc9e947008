"""Q/DQ that ONNX Runtime runs right and TensorRT rejects, or takes and gets wrong; INT8 read as uint8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.networks import net
from benchmarks.regressions.plant import (
    NARROW,
    by_channel,
    changed,
    from_qdq,
    from_scales,
    input_channels,
    misscaled,
    planted,
    unsigned,
    without_edges,
)
from benchmarks.regressions.quantizer import LEGAL, dynamically_quantized, quantized
from pytest_int8acc.graph.layout import quantize_weight
from pytest_int8acc.graph.network import Network

_RELU_READERS = {
    "cnn": "/4/conv/Conv",
    "resnet": "/2/second/conv/Conv",
    "tcn": "/3/second/Conv",
    "unet": "/last/Conv",
}


def entries() -> Iterator[Entry]:
    """All of this module."""
    for network, group in _RELU_READERS.items():
        yield Entry(
            f"uint8_{network}", "uint8 with zero point 0", network, partial(_unsigned, network, group)
        )
    for network in ("cnn", "mobilenet", "unet", "mlp", "detector", "recognizer", "encoder"):
        yield Entry(
            f"misread_{network}", "uint8 scales read as INT8", network, partial(_misread, network, None)
        )
    for network, factor in (("resnet", 1 / 2.008), ("vit", 1 / 2.008), ("decoder", 1 / 2.008)):
        plant = partial(_misread, network, factor)
        yield Entry(f"misread_one_{network}", "uint8 scales read as INT8", network, plant)
    for network in ("cnn", "vit"):
        yield Entry(f"asymmetric_{network}", "asymmetric", network, partial(_asymmetric, network, "QInt8"))
    yield Entry("asymmetric_uint8_resnet", "asymmetric", "resnet", partial(_asymmetric, "resnet", "QUInt8"))
    yield Entry(
        "int32_bias_cnn",
        "refused by TensorRT",
        "cnn",
        partial(_options, "cnn", "int32-bias", QuantizeBias=True),
    )
    yield Entry("int16_resnet", "refused by TensorRT", "resnet", _int16)
    yield Entry("dynamic_mlp", "refused by TensorRT", "mlp", _dynamic)
    for network, group in (("cnn", "/5/conv/Conv"), ("mlp", "/3/Gemm")):
        yield Entry(
            f"axis_consistent_{network}",
            "taken and slow or wrong",
            network,
            partial(_other_axis, network, group),
        )
    yield Entry("activation_per_channel_cnn", "taken and slow or wrong", "cnn", _per_channel)
    yield Entry("one_sided_resnet", "taken and slow or wrong", "resnet", partial(_one_sided, weight=False))
    yield Entry(
        "one_sided_weight_resnet", "taken and slow or wrong", "resnet", partial(_one_sided, weight=True)
    )


def _unsigned(network: str, group: str) -> Planted:
    known = net(network)
    truth = Truth("lint", rules=("uint8-as-int8",), int8_fix=None)
    return from_qdq(known, changed(known.network(), group, unsigned(127 / 255, 0)), truth)


def _misread(network: str, factor: float | None) -> Planted:
    """Scales of amax / 255, used with codes up to 127: values above half of the range are cut."""
    known = net(network)
    if factor is not None:
        group = known.weighted[len(known.weighted) // 2]
        return misscaled(known, {group: factor})
    scales = {name: scale * 127 / 255 for name, scale in known.scales.items()}
    return from_scales(known, scales, Truth(anywhere=NARROW))


def _asymmetric(network: str, activations: str) -> Planted:
    known = net(network)
    made = quantized(known, activations=activations, **{**LEGAL, "ActivationSymmetric": False})
    return from_qdq(known, made, Truth("lint", rules=("nonzero-zero-point",), int8_fix=None))


def _options(network: str, rule: str, **options: bool) -> Planted:
    known = net(network)
    made = quantized(known, **{**LEGAL, **options})
    return from_qdq(known, made, Truth("lint", rules=(rule,), int8_fix=None))


def _int16() -> Planted:
    known = net("resnet")
    made = quantized(known, activations="QInt16", **LEGAL)
    return from_qdq(known, made, Truth("lint", rules=("unsupported-integer",), int8_fix=None))


def _dynamic() -> Planted:
    known = net("mlp")
    truth = Truth("refused", words=("operator format", "MatMulInteger"), int8_fix=None)
    files = {"int8.onnx": dynamically_quantized(known)}
    return planted(known, {"model": "int8.onnx"}, truth, None, files=files)


def _edited(network: Network, known_rule: str, name: str) -> Planted:
    return from_qdq(net(name), network, Truth("lint", rules=(known_rule,), int8_fix=None))


def _other_axis(network: str, group: str) -> Planted:
    """Scales per input channel: right in ONNX Runtime, taken by TensorRT in silence."""
    faulty = changed(
        net(network).network(), group, lambda old: quantize_weight(old.dequantize(), 1), weight=True
    )
    return _edited(faulty, "wrong-channel-axis", network)


def _per_channel() -> Planted:
    known = net("cnn")
    change = by_channel(input_channels(known, "/6/conv/Conv"))
    return _edited(changed(known.network(), "/6/conv/Conv", change), "per-channel-activation", "cnn")


def _one_sided(weight: bool) -> Planted:
    faulty = without_edges(net("resnet").network(), "/2/first/conv/Conv", weight=weight)
    return _edited(faulty, "one-sided", "resnet")
