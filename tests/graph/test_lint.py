"""Every rule of lint is seen in a model that breaks it, and in none that keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builder import Builder
from lint_cases import CASES, make
from onnx import helper
from onnxruntime.quantization import QuantType
from quantize_static import TENSORRT
from quantize_static import by_onnxruntime as written
from zoo import ZOO
from zoo_networks import zoo_model

from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.lint import lint, lint_scales
from pytest_int8acc.graph.lint.rules import RULES
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.plan import apply


def rules(findings: Iterable[Any]) -> set[str]:
    return {finding.rule for finding in findings}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_is_seen_where_it_is_broken(case: str) -> None:
    broken, _ = CASES[case]
    found = lint(make_model(broken))
    assert rules(found) == {case.split()[0]}
    names = {node.name or f"node_of_{node.output[0]}" for node in broken.graph.node}
    for finding in found:
        assert finding.subject in names
        assert finding.severity == RULES[finding.rule].severity
        assert finding.text
        assert finding.remedy


@pytest.mark.parametrize("case", CASES)
def test_its_healthy_twin_is_clean(case: str) -> None:
    assert lint(make_model(CASES[case][1])) == ()


def test_every_rule_has_a_case() -> None:
    elsewhere = {
        "other-weights",
        "folded-activation",
        "equal-scales",
        "missing-scale",
        "not-parsed",
        "added-not-parsed",
    }
    assert {case.split()[0] for case in CASES} | elsewhere == set(RULES)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("nonzero-zero-point uint8", "uint8 with zero point 128: "),
        ("nonpositive-scale weight", "1 of 8 scales are 0: "),
        ("scale-length", "4 scales for 8 channels along axis 0: "),
        ("mixed-types add", "Add reads FP32 ('x') and FP16 ('h'): "),
        ("wrong-channel-axis gemm", "the weight of Gemm 'node_of_y' has scales along axis 1, not 0: "),
        ("grouped-channels depthwise", "6 to 6 channels per group"),
        ("unequal-concat-scales", "scales from 0.03 to 0.05 meet in it: "),
        ("fp16-scale-range", "8 of 8 scales, like 1e-09: "),
        ("coarse-fp16-scale", "8 of 8 scales, like 1.78814e-07, stored in FP16, off by up to 17%: "),
        ("unequal-pair", "quantized with scale 0.03 and dequantized with 0.05, 1.67 times it: "),
    ],
)
def test_a_finding_has_its_numbers(case: str, text: str) -> None:
    found = lint(make_model(CASES[case][0]))
    assert any(text in finding.text for finding in found), found


def test_the_model_is_left_as_it_was() -> None:
    model = make_model(ZOO["weight_path"]())
    before = model.proto.SerializeToString()
    lint(model)
    assert model.proto.SerializeToString() == before


def test_errors_come_first() -> None:
    found = lint(make_model(make("{pair} y = Conv(xd, wf, b)", z=np.int8(1))))
    assert [f.rule for f in found] == ["nonzero-zero-point", "one-sided"]


def network_of(name: str, scale: float | None = None) -> Network:
    model = zoo_model(name)
    layout = find_groups(model)
    shared = set().union(*layout.shared)
    scales = {
        t: scale or (0.06 if t in shared else 0.02 + 0.01 * i) for i, t in enumerate(layout.activations)
    }
    return quantize(model, layout, scales)


def modelopt_style(network: Network) -> Model:
    """The network with one pair for each tensor, and weights in floating point before a pair of their own."""
    editor = network.model.edit()
    pairs: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    edges = {(e.node, e.index): e for g in network.groups for e in g.edges}
    for node in editor.graph.node:
        for index, name in enumerate(node.input):
            edge = edges.get((node.name, index))
            if edge is None:
                continue
            if name not in pairs:
                q = edge.quantization
                parameters = [
                    editor.add_constant("scale", q.scale),
                    editor.add_constant("zero", q.zero_point),
                ]
                axis = {} if q.axis is None else {"axis": q.axis}
                pairs[name] = f"{name}_DequantizeLinear_Output"
                for op, source, result in (
                    ("QuantizeLinear", name, f"{name}_quantized"),
                    ("DequantizeLinear", f"{name}_quantized", pairs[name]),
                ):
                    nodes.append(
                        helper.make_node(op, [source, *parameters], [result], f"{name}_{op}", **axis)
                    )
            node.input[index] = pairs[name]
        nodes.append(node)
    editor.set_nodes(nodes)
    return editor.done()


@pytest.mark.parametrize("name", ZOO)
def test_what_our_quantizer_makes_is_clean(name: str) -> None:
    network = network_of(name)
    assert lint_scales(network) == ()
    for model in (apply(network), to_fp16(apply(network)).model):
        assert lint(model, float_model=network.model) == ()


@pytest.mark.parametrize("name", ZOO)
def test_what_modelopt_makes_is_clean(name: str) -> None:
    model = modelopt_style(network_of(name))
    assert lint(model) == ()
    assert lint(to_fp16(model).model) == ()


def by_onnxruntime(name: str, folder: Path, **options: object) -> Model:
    return make_model(onnx.load(written(name, folder, **options)))


def test_onnxruntimes_defaults_are_refused(tmp_path: Path) -> None:
    found = lint(by_onnxruntime("residual", tmp_path))
    assert {"nonzero-zero-point", "int32-bias"} <= {f.rule for f in found if f.severity == "error"}


def test_onnxruntimes_uint8_is_seen(tmp_path: Path) -> None:
    options = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}
    found = lint(by_onnxruntime("plain", tmp_path, **options))
    assert {"nonzero-zero-point", "uint8-as-int8"} <= rules(found)


def test_onnxruntimes_options_for_tensorrt_leave_needless_pairs(tmp_path: Path) -> None:
    extra = TENSORRT
    for name, expected in (
        ("residual_downsample", {"needless-add-input"}),
        ("silu", {"breaks-silu"}),
        ("plain", set()),
    ):
        model = by_onnxruntime(name, tmp_path, per_channel=True, extra_options=extra)
        assert rules(lint(model)) == expected, name


def test_other_weights_are_seen() -> None:
    network = network_of("residual")
    other = Builder(17)
    other.rng = np.random.default_rng(99)
    float_model = network.model.edit()
    for tensor in float_model.graph.initializer:
        if tensor.name in float_model.weights:
            shape = float_model.weights[tensor.name].shape
            float_model.weights[tensor.name] = other.random(*shape, std=0.1)
    found = lint(apply(network), float_model=float_model.done())
    assert rules(found) == {"other-weights"}


def test_an_activation_that_a_quantizer_left_out_is_named() -> None:
    model = zoo_model("mobilenet")
    (relu, *_) = [node for node in model.graph.node if node.op_type in ("Relu", "Clip")]
    layout = find_groups(model)
    whole = apply(quantize(model, layout, dict.fromkeys(layout.activations, 0.03)))
    assert rules(lint(whole, float_model=model)) == set()
    editor = whole.edit()
    kept = [node for node in editor.graph.node if node.name != relu.name]
    for node in kept:
        node.output[:] = [relu.output[0] if name == relu.input[0] else name for name in node.output]
    editor.set_nodes(kept)
    (found,) = lint(editor.done(), float_model=model)
    assert found.rule == "folded-activation"
    assert f"'{relu.name}' of the float model is gone: the range of '{relu.output[0]}'" in found.text


def test_a_batchnormalization_folded_in_is_no_other_weight() -> None:
    network = network_of("residual")
    editor = network.model.edit()
    for name, array in editor.weights.items():
        factors = np.linspace(0.1, 3, array.shape[0], dtype=np.float32).reshape(-1, *[1] * (array.ndim - 1))
        editor.weights[name] = array * factors
    assert lint(apply(network), float_model=editor.done()) == ()


def test_one_scale_everywhere_is_seen() -> None:
    (finding,) = lint_scales(network_of("mobilenet", 50 / 127))
    assert finding.rule == "equal-scales"
    assert "all 8 activations have the scale 0.393701, a range of 50: " in finding.text


def test_tensors_that_must_agree_may_have_one_scale() -> None:
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 8, 8, 8]), 8, 8))
    parts = [x]
    for _ in range(4):
        parts.append(b.relu(b.conv(parts[-1], 8, 8)))
    y = b.conv(b.node("Concat", *parts, axis=1), 40, 8)
    model = normalize(make_model(b.model({y: [2, 8, 8, 8]})))
    layout = find_groups(model)
    network = quantize(model, layout, dict.fromkeys(layout.activations, 0.05))
    assert lint_scales(network) == ()


def test_a_tensor_that_is_moved_counts_once() -> None:
    b = Builder(17)
    x, results = b.relu(b.conv(b.input("x", [2, 8, 8, 8]), 8, 8)), []
    for _ in range(4):
        x = b.node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        results.append(b.conv(x, 8, 8))
    model = normalize(make_model(b.model({name: [2, 8, 8, 8] for name in results})))
    layout = find_groups(model)
    assert len(layout.activations) == 5
    assert lint_scales(quantize(model, layout, dict.fromkeys(layout.activations, 0.05))) == ()


def test_scales_by_hand_are_checked() -> None:
    model = zoo_model("plain")
    layout = find_groups(model)
    tensors = layout.activations
    scales = dict.fromkeys(tensors, 0.05) | {tensors[0]: 0.0, tensors[1]: 1e-9}
    del scales[tensors[2]]
    found = {f.rule: f.subject for f in lint_scales(quantize(model, layout, scales))}
    missing = next(name for name, slots in layout.slots.items() if slots[0].tensor == tensors[2])
    assert found == {
        "nonpositive-scale": tensors[0],
        "fp16-scale-range": tensors[1],
        "missing-scale": missing,
    }
