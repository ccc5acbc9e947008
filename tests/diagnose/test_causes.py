"""Each cause planted in a trained network and named with its tensor; a healthy network shows none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser
from zoo import ZOO, sample_feed

from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.diagnose.causes import explain
from pytest_int8acc.diagnose.ranges import survey
from pytest_int8acc.engines.bins import Bins
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.lab.statistics import reach
from pytest_int8acc.lab.sweep import EdgeMeter, FirstSamples
from pytest_int8acc.lab.values import TensorValues
from pytest_int8acc.results.causes import Cause
from pytest_int8acc.scales.calibrate import calibrate
from pytest_int8acc.scales.observed import BINS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.faults import outlier_channel, per_tensor_weights  # noqa: E402

DIGITS = ROOT / "example_project"
QUIET = {"accumulated-noise", "sensitive-op"}


@pytest.fixture(scope="module")
def digits() -> Model:
    return load_model(DIGITS / "digits.onnx")


@pytest.fixture(scope="module")
def vit() -> Model:
    return load_model(ROOT / "benchmarks" / "models" / "vit.onnx")


def images(model: Model, part: str = "validation") -> Dataset:
    samples = 100 if part == "calibration" else None
    return open_dataset(f"{part}.npz", model.inputs, base=DIGITS / "data", samples=samples)


def healthy(model: Model, data: Dataset | None = None, method: str = "minmax") -> Network:
    layout = find_groups(model)
    scales = calibrate(model, layout.activations, data or images(model, "calibration"), method=method)
    return quantize(model, layout, scales.values)


@pytest.fixture(scope="module")
def network(digits: Model) -> Network:
    return healthy(digits)


@pytest.fixture(scope="module")
def vit_network(vit: Model) -> Network:
    return healthy(vit)


def changed(network: Network, group: str, change: Callable[[Edge], Quantization]) -> Network:
    """The network with other quantizations on those edges of one group that ``change`` gives one for."""
    groups = []
    for known in network.groups:
        if known.name == group:
            edges = [replace(edge, quantization=change(edge)) for edge in known.edges]
            known = replace(known, edges=tuple(edges))
        groups.append(known)
    return replace(network, groups=tuple(groups))


def with_scale(network: Network, group: str, factor: float) -> Network:
    """The network with another scale on the activation of one group."""

    def change(edge: Edge) -> Quantization:
        q = edge.quantization
        return q if q.values is not None else replace(q, scale=np.asarray(q.scale * factor, np.float32))

    return changed(network, group, change)


def with_weights(network: Network, group: str, make: Callable[[Edge, np.ndarray], Quantization]) -> Network:
    constants = network.model.constants()

    def change(edge: Edge) -> Quantization:
        return edge.quantization if edge.quantization.values is None else make(edge, constants[edge.tensor])

    return changed(network, group, change)


def cause_of(network: Network, group: str, model: Model | None = None, **options: bool) -> Cause:
    model = model or network.model
    return explain(EdgeMeter(network, model, images(model)), [group], **options)[group]


def names(network: Network) -> list[str]:
    return [group.name for group in network.groups]


CONV = "/block2/conv2/Conv"


@pytest.mark.parametrize("factor", [2.5, 8, 60, 1000])
def test_scale_too_wide(network: Network, factor: float) -> None:
    cause = cause_of(with_scale(network, CONV, factor), CONV)
    assert cause.kind == "scale-too-wide"
    assert cause.tensor == "/block2/relu1/Relu_output_0"
    assert cause.numbers["factor"] == pytest.approx(factor, rel=0.3)
    assert cause.numbers["codes_used"] == pytest.approx(1 / factor, abs=0.15)
    assert cause.reach == pytest.approx(cause.amax * cause.numbers["factor"])  # type: ignore[operator]
    assert cause.symptom == "range-too-wide"


@pytest.mark.parametrize("factor", [3, 8, 50])
def test_saturation(network: Network, factor: float) -> None:
    cause = cause_of(with_scale(network, CONV, 1 / factor), CONV)
    assert cause.kind == "saturation"
    assert cause.numbers["clipped"] > 0.001
    assert cause.numbers["clipped_energy"] > 0.005
    assert cause.numbers["lost_db"] > 4
    assert cause.symptom == "cut-off"


@pytest.mark.parametrize(
    "quantization",
    [
        Quantization(np.array(3 / 127, np.float32), np.array(100, np.int8)),
        Quantization(np.array(3 / 127, np.float32), np.array(-100, np.int8)),
        Quantization(np.array(6 / 255, np.float32), np.array(250, np.uint8)),
    ],
)
def test_shifted_zero_point(network: Network, quantization: Quantization) -> None:
    cause = cause_of(
        changed(network, CONV, lambda e: quantization if e.quantization.values is None else e.quantization),
        CONV,
    )
    if cause.tensor and quantization.zero_point in (-100,):  # a Relu's output has nothing below 0 to lose
        assert cause.kind in QUIET | {"scale-too-wide"}
    else:
        assert cause.kind == "zero-point"
        assert cause.format == quantization.zero_point.dtype
        assert cause.numbers["zero_point"] == quantization.zero_point
        assert cause.numbers["low"] < cause.numbers["high"]


def test_unsigned_type_for_signed_values(vit: Model, vit_network: Network) -> None:
    group = next(g.name for g in vit_network.groups if "attn" in g.name or g.op_type == "MatMul")
    wanted = Quantization(np.array(0.05, np.float32), np.array(0, np.uint8))
    changed_network = changed(
        vit_network, group, lambda e: wanted if e.quantization.values is None else e.quantization
    )
    cause = cause_of(changed_network, group)
    assert cause.kind == "zero-point"
    assert (cause.format, cause.numbers["zero_point"], cause.numbers["low"]) == ("uint8", 0, 0)


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-9])
def test_zero_and_vanishing_scales(network: Network, scale: float) -> None:
    factor = 0.0 if scale == 0 else scale / 0.02
    cause = cause_of(with_scale(network, CONV, factor), CONV)
    assert (cause.kind, cause.symptom, cause.format) == ("zero-scale", "vanishing-scale", "fp16")
    assert cause.numbers["scale"] < cause.numbers["least_scale"]


def test_a_scale_that_only_fp16_loses_is_none_in_fp32(network: Network) -> None:
    low = with_scale(network, CONV, 1e-7)
    found = explain(EdgeMeter(low, network.model, images(network.model)), [CONV], rest="fp32")
    assert found[CONV].kind == "saturation"


def test_missing_scale(digits: Model) -> None:
    layout = find_groups(digits)
    scales = calibrate(digits, layout.activations, images(digits, "calibration"), method="minmax")
    kept = {t: s for t, s in scales.values.items() if t != "/block2/relu1/Relu_output_0"}
    cause = cause_of(quantize(digits, layout, kept), CONV)
    assert cause.kind == "missing-scale"
    assert cause.others == ("/block2/relu1/Relu_output_0",)


@pytest.mark.parametrize("factor", [30, 200])
def test_outlier_channel(factor: float, vit: Model) -> None:
    norm = next(n for n in vit.graph.node if n.op_type == "LayerNormalization")
    readers = [n.name for n in vit.graph.node if norm.output[0] in n.input]
    model = outlier_channel(vit, norm.name, readers, channel=5, factor=factor)
    cause = cause_of(healthy(model), readers[0])
    assert cause.kind == "activation-outliers"
    assert cause.symptom == "large-channels"
    assert next(iter(cause.channels)) == 5
    assert 1 <= cause.numbers["codes_left"] <= 127 / 8
    assert cause.numbers["channel_ratio"] > 8
    assert cause.numbers["usual_channel_db"] < cause.numbers["sqnr_db"] - 6


@pytest.mark.parametrize(("channel", "factor"), [(0, 16), (7, 300)])
def test_outlier_channel_of_few_between_convolutions(digits: Model, channel: int, factor: float) -> None:
    """A channel that makes most of the energy hides in the whole tensor what the others lose."""
    model = outlier_channel(digits, "/block2/conv1/Conv", [CONV], channel, factor)
    cause = cause_of(healthy(model), CONV)
    assert cause.kind == "activation-outliers"
    assert cause.tensor == "/block2/relu1/Relu_output_0"
    assert cause.channels == {channel: pytest.approx(cause.amax)}


def test_concat_of_parts_of_different_size(tmp_path: Path) -> None:
    network, data = inception(40, tmp_path)
    reader = next(g.name for g in network.groups for e in g.edges if e.tensor == "concat7_out")
    cause = explain(EdgeMeter(network, network.model, data), [reader])[reader]
    assert cause.kind == "mismatched-scales"
    assert (cause.symptom, cause.op_type, cause.node) == ("uneven-parts", "Concat", "concat7")
    assert cause.numbers["channel_amax"] > 8 * cause.numbers["quarter_amax"]


def test_outlier_values(network: Network) -> None:
    """One input in thousands far beyond the rest, and a range that follows it."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(64, 1000)).astype(np.float32)
    values[3, 7] = 60
    stats = TensorValues("t", Bins(60, BINS), np.abs(values).max(axis=1))
    stats.bins.add(values)
    assert stats.amax == 60
    assert stats.best_reach() < 60
    assert stats.sqnr_db(60) < 30 < stats.sqnr_db(stats.best_reach()) + 20
    assert stats.quantile(0.99) == pytest.approx(np.quantile(np.abs(values), 0.99), rel=0.01)


@pytest.mark.parametrize("factor", [8, 100])
def test_weight_scale(network: Network, factor: float) -> None:
    def make(edge: Edge, weight: np.ndarray) -> Quantization:
        q = replace(edge.quantization, scale=np.asarray(edge.quantization.scale * factor, np.float32))
        return replace(q, values=q.quantize(weight))

    cause = cause_of(with_weights(network, CONV, make), CONV)
    assert cause.kind == "weight-scale"
    assert cause.numbers["factor"] == pytest.approx(factor)
    assert cause.numbers["scales_off"] == cause.numbers["scales"]
    assert cause.tensor == "block2.conv2.weight"


def test_weight_scale_too_narrow_and_tampered(network: Network) -> None:
    def clip(edge: Edge, weight: np.ndarray) -> Quantization:
        q = replace(edge.quantization, scale=np.asarray(edge.quantization.scale / 4, np.float32))
        return replace(q, values=q.quantize(weight))

    def tamper(edge: Edge, weight: np.ndarray) -> Quantization:
        return replace(edge.quantization, scale=np.asarray(edge.quantization.scale * 2, np.float32))

    for change in (clip, tamper):
        cause = cause_of(with_weights(network, CONV, change), CONV)
        assert cause.kind == "weight-scale"
    read = read_qdq(apply(with_weights(network, CONV, tamper)), network.model)  # the original does not fit
    assert cause_of(read, CONV, network.model).kind == "weight-scale"


def test_wrong_axis(network: Network) -> None:
    def make(edge: Edge, weight: np.ndarray) -> Quantization:
        scale = (np.abs(weight).max(axis=(0, 2, 3)) / 127).astype(np.float32)  # of the input channels
        return Quantization(scale, INT8.zeros(scale), 0, INT8.quantize(weight, scale, axis=0))

    weight = network.model.constants()["block2.conv2.weight"].copy()
    weight[:, ::2] /= 8
    edit = network.model.edit()
    edit.weights["block2.conv2.weight"] = weight
    planted = replace(network, model=edit.done())
    cause = cause_of(with_weights(planted, CONV, make), CONV)
    assert cause.kind == "wrong-axis"
    assert (cause.numbers["axis_of_scales"], cause.numbers["axis"]) == (1, 0)


def test_one_scale_for_uneven_weight_channels(digits: Model) -> None:
    edit = digits.edit()
    weight = edit.weights["block2.conv2.weight"].copy()
    weight[3] *= 60
    edit.weights["block2.conv2.weight"] = weight
    network = per_tensor_weights(healthy(edit.done()), [CONV])
    cause = cause_of(network, CONV)
    assert cause.kind == "weight-outliers"
    assert cause.symptom == "one-scale-for-channels"


def test_outlier_within_a_weight_channel(digits: Model) -> None:
    edit = digits.edit()
    weight = edit.weights["block2.conv2.weight"].copy()
    weight[:, 0, 0, 0] = 40 * np.abs(weight).max()
    edit.weights["block2.conv2.weight"] = weight
    network = healthy(edit.done())
    cause = cause_of(network, CONV)
    assert cause.kind in {"weight-outliers", "accumulated-noise"}


def test_outlier_weights_of_inputs_that_are_always_0(digits: Model) -> None:
    """They make most of the weight's energy and nothing of its output: what counts is lost."""
    first = next(n for n in digits.graph.node if CONV in n.name)
    edit = digits.edit()
    for name, channels in (("block2.conv1.weight", (2, 9)), ("block2.conv1.bias", (2, 9))):
        tensor = edit.weights.get(name)
        if tensor is None:
            slot = next(t for t in edit.graph.initializer if t.name == name)
            tensor = numpy_helper.to_array(slot).copy()
            tensor[list(channels)] = 0
            slot.CopyFrom(numpy_helper.from_array(tensor, name))
        else:
            edit.weights[name] = tensor = tensor.copy()
            tensor[list(channels)] = 0
    weight = edit.weights["block2.conv2.weight"].copy()
    weight[:, [2, 9]] = 50 * np.abs(weight).max()
    edit.weights["block2.conv2.weight"] = weight
    network = healthy(edit.done())
    assert first.input[1] == "block2.conv2.weight"
    cause = cause_of(network, CONV)
    assert cause.kind == "weight-outliers"
    assert cause.symptom == "large-idle-weights"
    assert cause.numbers["amax_in_use"] < (cause.amax or 0) / 2
    assert cause.numbers["sqnr_db"] < 20


def inception(factor: float, folder: Path) -> tuple[Network, Dataset]:
    """The zoo's Inception with the first of the joined branches ``factor`` times smaller."""
    proto = ZOO["inception"]()
    concat = next(n for n in proto.graph.node if n.op_type == "Concat")
    made = {n.output[0]: n for n in proto.graph.node}
    conv = made[made[concat.input[0]].input[0]]
    for name in conv.input[1:]:
        tensor = next(t for t in proto.graph.initializer if t.name == name)
        array = numpy_helper.to_array(tensor) / factor
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    feeds = [sample_feed(proto, seed, 2) for seed in range(8)]
    np.savez(folder / "data.npz", x=np.concatenate([feed["x"] for feed in feeds]))
    model = normalize(make_model(proto))
    data = open_dataset("data.npz", model.inputs, base=folder)
    return healthy(model, data), data


def test_tensors_that_share_a_scale_at_a_concat(tmp_path: Path) -> None:
    network, data = inception(40, tmp_path)
    reader = next(g.name for g in network.groups for e in g.edges if e.tensor == "relu3_out" and e.index == 0)
    cause = explain(EdgeMeter(network, network.model, data), [reader])[reader]
    assert cause.kind == "mismatched-scales"
    assert (cause.symptom, cause.op_type) == ("range-of-partner", "Concat")
    assert len(cause.others) == 1


def test_products_of_attention_are_not_blamed_for_what_any_layer_loses(
    vit: Model, vit_network: Network
) -> None:
    """Their inputs keep 33 dB and more, as those of other layers do."""
    products = [g.name for g in vit_network.groups if all(e.quantization.values is None for e in g.edges)]
    found = explain(EdgeMeter(vit_network, vit, images(vit)), products)
    assert products
    assert {found[name].kind for name in products} == {"accumulated-noise"}
    assert min(found[name].numbers["sqnr_db"] for name in products) > 30


def test_a_mask_takes_all_codes_of_a_softmax(tmp_path: Path) -> None:
    """What is masked is all that INT8 keeps: 143 dB of it, and nothing of the rest."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 6] x, bool[n, 6] m) => (float[n, 6] y) <float low = {-1e9}>
        { w = Where(m, x, low)  [softmax] y = Softmax(w) }
    """
    model = normalize(make_model(parser.parse_model(text)))
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(40, 6)).astype(np.float32), rng.random((40, 6)) < 0.7
    np.savez(tmp_path / "x.npz", x=x, m=mask)
    edge = Edge("softmax", 0, "w", Quantization(np.array(1e9 / 127, np.float32), np.zeros((), np.int8)))
    network = Network(model, (Group("softmax", "Softmax", ("softmax",), (edge,)),))
    found = explain(
        EdgeMeter(network, model, open_dataset("x.npz", model.inputs, base=tmp_path)), ["softmax"]
    )
    assert found["softmax"].kind == "sensitive-op"
    assert (found["softmax"].tensor, found["softmax"].amax) == ("w", 1e9)
    assert found["softmax"].masked


def test_layer_norm_in_int8_is_sensitive(vit: Model, vit_network: Network) -> None:
    norm = next(n for n in vit.graph.node if n.op_type == "LayerNormalization")
    scale = np.array(0.03, np.float32)
    edge = Edge(norm.name, 0, norm.input[0], Quantization(scale, np.zeros((), np.int8)))
    group = replace(vit_network.groups[0], name=norm.name, op_type=norm.op_type, nodes=(norm.name,))
    network = replace(vit_network, groups=(replace(group, edges=(edge,)), *vit_network.groups))
    cause = cause_of(network, norm.name)
    assert cause.kind in {"sensitive-op", "saturation", "scale-too-wide"}
    amax = cause.amax or 0.0
    fitting = replace(edge, quantization=replace(edge.quantization, scale=np.array(amax / 127, np.float32)))
    network = replace(network, groups=(replace(group, edges=(fitting,)), *vit_network.groups))
    assert cause_of(network, norm.name).kind == "sensitive-op"


def test_engine_and_noise_are_named_only_where_told(network: Network) -> None:
    assert cause_of(network, CONV).kind == "accumulated-noise"
    assert cause_of(network, CONV, engine_only=True).kind == "engine-only"
    assert cause_of(network, CONV, unstable=True).kind == "non-determinism"
    wide = with_scale(network, CONV, 60)
    assert cause_of(wide, CONV, unstable=True).kind == "scale-too-wide"
    assert cause_of(wide, CONV, engine_only=True).kind == "engine-only"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("digits", "topk"),
        ("digits", "mse"),
        ("digits", "percentile"),
        ("vit", "minmax"),
    ],
)
def test_healthy_networks_have_no_loud_cause(request: pytest.FixtureRequest, name: str, method: str) -> None:
    model: Model = request.getfixturevalue(name)
    network = healthy(model, method=method)
    found = explain(EdgeMeter(network, model, images(model)), names(network))
    assert {cause.kind for cause in found.values()} <= QUIET


@pytest.mark.parametrize(
    ("name", "group"), [("vit", "/blocks/blocks.2/fc2/MatMul"), ("resnet", "/4/4.2/Gemm")]
)
def test_what_entropy_cuts_off_on_purpose_is_no_cause(name: str, group: str) -> None:
    """Ranges by entropy, the default, lose up to 6 dB of what mse keeps, and 30 dB are left."""
    model = load_model(ROOT / "benchmarks" / "models" / f"{name}.onnx")
    network = healthy(model)
    edge = next(
        e for g in network.groups if g.name == group for e in g.edges if e.quantization.values is None
    )
    scales = calibrate(model, [edge.tensor], images(model, "calibration"), method="entropy")
    entropy = with_scale(network, group, scales.values[edge.tensor] / float(edge.quantization.scale))
    cause = cause_of(entropy, group)
    assert cause.kind in QUIET
    assert cause_of(with_scale(network, group, 0.3), group).kind == "saturation"


def test_histogram_numbers_and_ranges(network: Network) -> None:
    cause = cause_of(with_scale(network, CONV, 60), CONV)
    assert cause.histogram is not None
    assert len(cause.histogram.counts) == 64
    assert len(cause.histogram.edges) == 65
    assert cause.histogram.edges[-1] == pytest.approx(cause.amax)
    meter = EdgeMeter(with_scale(network, CONV, 60), network.model, images(network.model))
    stats = {r.tensor: r for r in survey(meter)}
    assert stats[cause.tensor].reach == pytest.approx(cause.reach)
    assert sum(r.lost_db > 4 for r in stats.values()) <= 2


def test_samples_are_bounded(digits: Model) -> None:
    few = FirstSamples(images(digits), digits, 10)
    assert few.samples == 10
    assert [batch.rows for batch in few.batches()] == [10]
    assert reach(Quantization(np.array(2, np.float32), np.array(0, np.int8))) == 254


def test_relus_that_a_quantizer_took_away(digits: Model, tmp_path: Path) -> None:
    """Asymmetric quantizers fold a Relu into a range: tensors are measured on the float model."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter([batch.feed for batch in images(digits, "calibration").batches()])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    quantize_static(str(DIGITS / "digits.onnx"), str(tmp_path / "qdq.onnx"), Reader())
    network = read_qdq(load_model(tmp_path / "qdq.onnx"))
    assert sum(node.op_type == "Relu" for node in network.model.graph.node) < 3
    found = explain(EdgeMeter(network, digits, images(digits)), names(network))
    assert {cause.kind for cause in found.values()} <= QUIET | {"weight-outliers"}
    assert not [r for r in survey(EdgeMeter(network, digits, images(digits))) if r.lost_db > 4]


def test_unknown_group_is_one_message(network: Network) -> None:
    with pytest.raises(ModelError, match=r"no group '/block2/conv2/Con' \(did you mean"):
        cause_of(network, "/block2/conv2/Con")
