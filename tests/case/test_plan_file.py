"""A plan as a file: whatever it says is read back to the bit, and every mistake in it has a place."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from fixes import DIGITS, network_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mistakes import assert_told_at_places, read
from plans import plain, plans
from repair_support import KINDS, write_case
from zoo import ZOO
from zoo_networks import read_back, zoo_model, zoo_network

from pytest_int8acc import Settings, SpecError, load_spec
from pytest_int8acc.answer import conclude
from pytest_int8acc.case.measured import measure
from pytest_int8acc.case.plan_file import plan_text, read_plan
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.half_network import low_network
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.migrate import sites
from pytest_int8acc.graph.network import LeftHigh, Network, Plan, TensorScale, symmetric
from pytest_int8acc.graph.norms import find_norms
from pytest_int8acc.graph.plan import apply, computed_floats, merge, moved, quantized_tensors
from pytest_int8acc.observers.methods import CANDIDATES

NAMES = [name for name in ZOO if len(zoo_network(name).groups) > 1]
MISTAKES = read("case", "malformed_plans.txt")


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
    norms = low_network(zoo_model("layernorm_parts"), FORMATS["fp16"])
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
    with pytest.raises(SpecError, match="'nowhere' is no tensor of plain whose channels can be moved"):
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


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_plan_are_told_with_their_places(tmp_path: Path, digits: Network, mistake: str) -> None:
    text, said = MISTAKES[mistake]
    with pytest.raises(SpecError) as caught:
        read_text(tmp_path, text, replace(digits, left_high={"unfit": LeftHigh("constant")}))
    assert_told_at_places(str(caught.value), str(tmp_path / "plan.yaml"), said)


@pytest.mark.parametrize("kind", ["recalibrate", "migrate", "mixed", "high"])
def test_a_spec_guards_the_model_that_was_verified(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan.yaml of each kind of fix, named in the spec, gives the fixed model to the bit."""
    monkeypatch.delitem(CANDIDATES, "entropy")  # which takes most of the time
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
