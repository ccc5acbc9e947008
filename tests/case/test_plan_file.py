"""A plan as a file: whatever it says is read back to the bit, and every mistake in it has a place."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from fixes import DIGITS, network_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import plain, plans
from repair_support import KINDS, write_case
from zoo import ZOO
from zoo_networks import read_back, zoo_network

from pytest_int8acc import Settings, SpecError, load_spec
from pytest_int8acc.answer import conclude, scales
from pytest_int8acc.case.measured import measure
from pytest_int8acc.case.plan_file import plan_text, read_plan
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.half_network import low_network
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.migrate import sites
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import LeftHigh, Network, Plan, TensorScale, symmetric
from pytest_int8acc.graph.norms import find_norms
from pytest_int8acc.graph.plan import apply, computed_floats, merge, moved, quantized_tensors

NAMES = [name for name in ZOO if len(zoo_network(name).groups) > 1]


@pytest.fixture(scope="module")
def digits() -> Network:
    return network_of(load_model(DIGITS))


def read_text(folder: Path, text: str, network: Network) -> Plan:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path, network)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(NAMES), st.data())
def test_a_plan_read_back_makes_the_same_model(tmp_path: Path, name: str, data: st.DataObject) -> None:
    network = zoo_network(name)
    plan = data.draw(plans(network))
    text = plan_text(plan, network, name)
    assert max(map(len, text.splitlines())) <= 110
    again = read_text(tmp_path, text, network)
    assert plain(again) == plain(plan)
    assert list(again.moves) == list(plan.moves)
    assert apply(network, again).serialize() == apply(network, plan).serialize()
    loaded = yaml.safe_load(text)  # YAML 1.1 reads it alike
    for tensor, factors in plan.moves.items():
        np.testing.assert_array_equal(np.array(loaded["moves"][tensor], np.float32), factors)


def test_every_field_of_a_plan_is_read_back(tmp_path: Path, digits: Network) -> None:
    """Where a field is new, give it a value in one of these plans, and a key in plan.yaml."""
    tensor = next(iter(sites(digits)))
    factors = np.full(sites(digits)[tensor].channels, 2, np.float32)
    made = next(iter(computed_floats(digits.model)))
    bias = digits.model.constants()["head.bias"]
    quantized = Plan(
        high={digits.groups[0].name: "fp16"},
        scales={tensor: symmetric(0.5)},
        moves={tensor: factors},
        outputs=(made,),
        floats={"head.bias": bias + np.float32(0.5)},
    )
    norms = low_network(normalize(make_model(ZOO["layernorm_parts"]())), FP16)
    narrow = Plan(fused=tuple(find_norms(norms.model))[:1])
    for plan, network in ((quantized, digits), (narrow, norms)):
        again = read_text(tmp_path, plan_text(plan, network, ""), network)
        assert plain(again) == plain(plan) == plain(merge(network, plan, Plan()))
    for part in fields(Plan):
        assert any(getattr(plan, part.name) for plan in (quantized, narrow)), part.name


@settings(deadline=None)
@given(st.floats(0, exclude_min=True, allow_infinity=False, width=32))
def test_every_float32_is_read_back(value: float) -> None:
    network = zoo_network("plain")
    tensor = next(iter(quantized_tensors(network)))
    text = plan_text(Plan(scales={tensor: symmetric(value)}), network, "")
    assert np.float32(yaml.safe_load(text)["scales"][tensor]) == np.float32(value)


def test_digits_that_two_roundings_lead_astray_are_more(tmp_path: Path) -> None:
    """7.038531e-26 is nearest to one float32, and by way of float64 becomes the one beside it."""
    network = zoo_network("plain")
    tensor = next(iter(quantized_tensors(network)))
    odd = np.nextafter(np.float32(7.038531e-26), np.float32(0))
    for value in (odd, np.float32(7.038531e-26)):
        plan = Plan(scales={tensor: TensorScale(np.array(value))})
        assert plain(read_text(tmp_path, plan_text(plan, network, ""), network)) == plain(plan)


def test_a_plan_of_many_channels_is_no_spec_too_large(tmp_path: Path) -> None:
    """A spec may have 1 MiB and 50 000 nodes."""
    network = zoo_network("plain")
    text = "version: 4\nmoves: {nowhere: [" + "1.00000000000000000, " * 55_000 + "1.0]}\n"
    with pytest.raises(SpecError, match="'nowhere' is no tensor of model whose channels can be moved"):
        read_text(tmp_path, text, network)


def test_a_scale_alone_is_symmetric_whatever_the_tensor_has(tmp_path: Path) -> None:
    own = Plan(scales={"x": TensorScale(np.array(0.5, np.float32), zero_point=np.array(7, np.uint8))})
    network = read_back(moved(zoo_network("plain"), own))
    plan = read_text(tmp_path, "version: 4\nscales: {x: 0.25}\n", network)
    found = quantized_tensors(moved(network, plan))["x"]
    assert (float(found.scale), found.zero_point.dtype, int(found.zero_point)) == (0.25, np.int8, 0)


def test_scales_may_be_written_in_every_way(tmp_path: Path, digits: Network) -> None:
    text = (
        "version: 4\nscales:\n  image: {scale: 1e-3, zero_point: 3, dtype: uint8}\n"
        "  head.weight: {axis: 0, scale: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], zero_point: 1}\n"
    )
    plan = read_text(tmp_path, text, digits)
    image, weight = plan.scales["image"], plan.scales["head.weight"]
    assert (float(image.scale), image.axis) == (pytest.approx(1e-3), None)
    assert image.zero_point is not None
    assert (int(image.zero_point), image.zero_point.dtype) == (3, np.uint8)
    assert weight.axis == 0
    assert weight.zero_point is not None
    assert weight.zero_point.tolist() == [1] * 10


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["1:1: the file is empty; a plan is a mapping like {version: 4, high: {/conv1/Conv: fp16}}"]),
        ("[1]", ["1:1: a plan is a mapping like .*, found a list"]),
        ("high: {}", ["1:1: 'version' is missing: add 'version: 4'"]),
        *(
            (
                f"version: {other}\nhih: {{}}",
                [
                    f"1:10: version: expected 4, found {said}: the plan was made by another version of "
                    "pytest-int8acc; to make a new plan, take 'plan:' out of the spec and run the failing "
                    "case again with pytest --int8acc --int8acc-report DIR"
                ],
            )
            for other, said in (
                ("3", "3"),
                ("4.5", "4.5"),
                ("x", "'x'"),
            )
        ),
        ("version: 4\nhih: {}", [r"2:1: unknown key 'hih' \(did you mean 'high'\?\)"]),
        ("version: 4\nhigh: [a]", ["2:7: high: expected a mapping, {} where it is empty, found a list"]),
        ("version: 4\nhigh:", ["2:1: 'high' has no value; give one, or remove the key"]),
        ("version: 4\nmodel: x", ["2:8: model: expected a mapping {graph: HASH, weights: HASH}, found 'x'"]),
        (
            "version: 4\nhigh: {/stem/conv/Conv: fp61}\nscales: {image: -1}\n",
            [
                r"2:25: /stem/conv/Conv: expected one of fp16, fp32, found 'fp61' \(did you mean 'fp16'",
                "3:17: image: expected a number greater than 0, found -1",
            ],
        ),
        (
            "version: 4\nhigh:\n  /head/Gem: fp16\n  unfit: fp16\nscales: {imag: 1}\n",
            [
                r"3:3: '/head/Gem' is no layer of digits.onnx that can be INT8 \(did you mean '/head/Gemm'",
                r"4:3: 'unfit' is not in INT8 anyway \(both inputs are constants\); remove this line",
                r"5:10: 'imag' is no quantized tensor of digits.onnx \(did you mean 'image'\?\)",
            ],
        ),
        ("version: 4\noutputs: x", ["2:10: outputs: expected a list, .. where it is empty, found 'x'"]),
        (
            "version: 4\noutputs: [[a], 3]",
            ["2:11: outputs: expected text, found a list", "2:16: outputs: expected text, found 3"],
        ),
        (
            "version: 4\noutputs: [/head/Gem, image, logits]",
            [
                "2:11: outputs: '/head/Gem' is no tensor that digits.onnx computes in floats",
                "2:22: outputs: 'image' is no tensor that",
                "2:29: outputs: 'logits' is no tensor that",
            ],
        ),
        ("version: 4\nhigh: {a: fp16", ["2:7: not valid YAML: the '{' that opens here lacks"]),
    ],
)
def test_mistakes_in_a_plan_are_told_with_their_places(
    tmp_path: Path, digits: Network, text: str, messages: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        read_text(tmp_path, text, replace(digits, left_high={"unfit": LeftHigh("constant")}))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        assert re.match(f".*plan.yaml:{message.replace('{', '[{]')}", line), line


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("moves: [1]", ["2:8: moves: expected a mapping, {} where it is empty, found a list"]),
        ("moves: {imag: [1]}", ["2:9: 'imag' is no tensor of digits.onnx whose channels can be moved"]),
        ("moves: {image: [1, 2]}", ["2:16: 'image': expected a list of 1 factors, found 2"]),
        ("moves: {image: 3}", ["2:16: image: expected a list of factors, one per channel, found 3"]),
        ("moves: {image: [0]}", ["2:17: image: expected a number greater than 0, found 0"]),
        ("moves: {image: [x]}", ["2:17: image: expected a number greater than 0, found 'x'"]),
        ("scales: {image: true}", ["2:17: image: expected a number greater than 0, found true"]),
        ("scales: {image: 1e-60}", ["2:17: image: expected a number greater than 0, found 1e-60"]),
        ("scales: {image: 1e60}", ["2:17: image: expected a number greater than 0, found 1e[+]60"]),
        ("scales: {image: [1, 2]}", ["2:17: 'image': one per tensor, or a list and an axis"]),
        ("scales: {image: {axis: 0}}", ["2:17: image: 'scale' is missing: add 'scale: NUMBER'"]),
        ("scales: {image: {scale: 1, axes: 0}}", [r"2:28: unknown key 'axes' \(did you mean 'axis'\?\)"]),
        ("scales: {image: {scale: 1, axis: x}}", ["2:34: axis: expected a whole number, found 'x'"]),
        (
            "scales: {image: {scale: 1, zero_point: 200}}",
            ["2:17: 'image': a zero point lies beyond int8, from -128 to 127"],
        ),
        (
            "scales: {image: {scale: 1, dtype: uint3}}",
            [r"2:35: dtype: expected one of int8, uint8, int16, uint16, int32, found 'uint3' \(did you"],
        ),
        (
            "scales: {head.weight: {scale: [1, 2], axis: 9}}",
            ["2:23: 'head.weight': axis 9 of a tensor with 2 dimensions"],
        ),
        (
            "scales: {head.weight: {scale: [1, 2], axis: 0}}",
            ["2:23: 'head.weight': 2 numbers along axis 0, which has 10"],
        ),
        ("scales: {image: {scale: 1, zero_point: [1, 2]}}", ["2:17: 'image': 2 zero points for 1 scales"]),
        (
            "scales: {x: 1, image_migrated: 1}\nmoves: {image: [2]}",
            ["2:10: 'x' is no quantized tensor of digits.onnx"],
        ),
    ],
)
def test_mistakes_in_scales_and_moves_are_told_with_their_places(
    tmp_path: Path, digits: Network, text: str, messages: list[str]
) -> None:
    test_mistakes_in_a_plan_are_told_with_their_places(tmp_path, digits, f"version: 4\n{text}\n", messages)


@pytest.mark.parametrize("kind", ["recalibrate", "migrate", "mixed", "high"])
def test_a_spec_guards_the_model_that_was_verified(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan.yaml of each kind of fix, named in the spec, gives the fixed model to the bit."""
    monkeypatch.setattr(scales, "CANDIDATES", {k: m for k, m in scales.CANDIDATES.items() if k != "entropy"})
    make, limits = KINDS[kind]
    spec = write_case(tmp_path, make(), limits, "scales" if kind == "migrate" else "model")
    concluded = conclude(measure(load_spec(spec)[0], Settings()), tmp_path / "report")
    without, fixes = spec.read_text(), [path.parent for path in (tmp_path / "report").rglob("plan.yaml")]
    assert fixes
    for folder in fixes:
        spec.write_text(f"{without}plan: {folder.relative_to(tmp_path) / 'plan.yaml'}\n")
        guarded = measure(load_spec(spec)[0], Settings())
        assert guarded.result.passed
        assert guarded.int8 is not None
        shipped = onnx.load(folder / "fixed.onnx")
        assert [entry.key for entry in shipped.metadata_props], "our own fixes are marked as such"
        del shipped.metadata_props[:]
        assert shipped == onnx.ModelProto.FromString(guarded.int8.under().model.serialize())
        if folder.name == "report":
            plan, result = guarded.int8.given, concluded.diagnosis.repairs[0]
            text = (folder / "plan.yaml").read_text()
            assert all(f"# was {scale.old:.6g}" in text for scale in result.rescales if scale.old)
            assert [s.value for s in guarded.result.scores] == [s.value for s in result.scores]
            assert (bool(plan.high), bool(plan.moves)) == (
                kind != "migrate" and kind != "recalibrate",
                kind == "migrate",
            )
