"""What outputs are taken for, and what is done where a model chooses among boxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Builder
from init_projects import dense, detector, only_case, recurrent, saved
from plugin_support import LOAD
from zoo import ZOO

from pytest_int8acc import Settings
from pytest_int8acc.api import check
from pytest_int8acc.case.measured import measure
from pytest_int8acc.init import write_spec

CLASSES = [
    pytest.param(dense(1000), id="gemm"),
    pytest.param(dense(10, "logits"), id="a-name-that-says-so"),
    pytest.param(dense(4, last="Softmax"), id="softmax"),
    pytest.param(dense(12, last="LogSoftmax"), id="logsoftmax"),
    pytest.param(dense(3, "y+", last="Softmax"), id="softmax-beside-others"),
    pytest.param(ZOO["weight_path"](), id="matmul"),
]
NO_CLASSES = [
    pytest.param(dense(10), "10 numbers may be coordinates of points", id="five-points"),
    pytest.param(dense(1000, "landmarks"), "'landmark' in a name", id="a-name-that-denies-it"),
    pytest.param(dense(136), "136 numbers may be coordinates of points", id="68-points"),
    pytest.param(dense(512), "512 numbers may be an embedding", id="embedding"),
    pytest.param(dense(4), "4 numbers may be coordinates", id="box"),
    pytest.param(dense(1000, "y+"), "beside other outputs", id="beside-others"),
    pytest.param(dense(12, last="Relu"), "an embedding, features or boxes", id="another-operator"),
    pytest.param(ZOO["unet"](), "a depth map", id="map"),
]


@pytest.mark.parametrize("proto", CLASSES)
def test_classes_are_judged_by_their_top_one(tmp_path: Path, proto) -> None:
    spec = write_spec(saved(tmp_path, proto))
    assert only_case(spec).criteria[0].top1_agreement == 0.99  # type: ignore[union-attr]
    assert "# a guess: " in spec.read_text()


@pytest.mark.parametrize(("proto", "doubt"), NO_CLASSES)
def test_what_may_be_no_classes_is_left_to_the_user(tmp_path: Path, proto, doubt: str) -> None:
    spec = write_spec(saved(tmp_path, proto))
    assert only_case(spec).criteria[0].top1_agreement is None  # type: ignore[union-attr]
    line = next(line for line in spec.read_text().splitlines() if "# top1_agreement: 0.99" in line)
    assert doubt in line
    spec.write_text(spec.read_text().replace("    # top1_agreement", "    top1_agreement", 1))
    assert only_case(spec).criteria[0].top1_agreement == 0.99  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["landmarks_68", "face-landmark"])
def test_the_file_s_name_is_asked_too(tmp_path: Path, name: str) -> None:
    case = only_case(write_spec(saved(tmp_path, dense(1000), f"{name}.onnx")))
    assert case.criteria[0].top1_agreement is None  # type: ignore[union-attr]


def test_the_axis_of_classes_is_the_softmax_s(tmp_path: Path) -> None:
    proto = ZOO["unet"]()
    logits = proto.graph.output[0]
    proto.graph.node.add(op_type="Softmax", input=[logits.name], output=["p"]).attribute.add(
        name="axis", i=1, type=2
    )
    logits.name = "p"
    case = only_case(write_spec(saved(tmp_path, proto)))
    assert (case.criteria[0].axis, case.criteria[0].top1_agreement) == (1, 0.99)  # type: ignore[union-attr]
    assert measure(case, Settings(samples=2, search="off")).result.samples == 2


def test_a_softmax_of_its_parts_is_one(tmp_path: Path) -> None:
    b = Builder(17)
    power = b.node("Exp", b.linear(b.input("x", ["N", 8]), 8, 64))
    total = b.node("Unsqueeze", b.node("ReduceSum", power, b.ints(1), keepdims=0), b.ints(1))
    y = b.node("Div", power, total, outputs=["y"])
    case = only_case(write_spec(saved(tmp_path, b.model({y: ["N", 64]}))))
    assert case.criteria[0].top1_agreement == 0.99  # type: ignore[union-attr]


def test_a_state_is_told_from_a_result(tmp_path: Path) -> None:
    text = write_spec(saved(tmp_path, recurrent())).read_text()
    assert "the state that the next run takes" in text.partition("output: stateN")[2].partition("output: ")[0]
    told = text.partition("output: p")[2].partition("output: ")[0]
    assert "probabilities, each for itself (the last operator is Sigmoid)" in told


def test_a_detector_is_judged_by_what_it_chooses_by(pytester: pytest.Pytester) -> None:
    saved(pytester.path, detector())
    said = "*the model chooses by NonMaxSuppression; model.int8acc.yaml judges what it chooses by*"
    pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx").stdout.fnmatch_lines([said])
    case = only_case(pytester.path / "model.int8acc.yaml")
    assert [c.tensor for c in case.criteria] == ["all_boxes", "all_scores"]  # type: ignore[union-attr]
    assert case.unjudged == ("kept",)
    result = check(case, Settings(samples=8))
    assert result.passed
    assert [o.name for o in result.outputs] == ["kept", "all_boxes", "all_scores"]


def test_a_class_that_is_chosen_is_judged_by_its_scores(tmp_path: Path) -> None:
    b = Builder(17)
    x = b.node("Flatten", b.node("GlobalAveragePool", b.relu(b.conv(b.input("x", ["N", 3, 8, 8]), 3, 8))))
    scores = b.node("Gemm", x, b.weight(12, 8, fan_in=8), transB=1, outputs=["scores"])
    best = b.node("Cast", b.node("ArgMax", scores, axis=1), to=1, outputs=["best"])
    case = only_case(write_spec(saved(tmp_path, b.model({best: ["N", 1], scores: ["N", 12]}))))
    assert [(c.output, c.tensor) for c in case.criteria] == [("scores", None)]  # type: ignore[union-attr]
    assert case.unjudged == ("best",)


def test_what_is_chosen_of_the_inputs_alone_is_compared(tmp_path: Path) -> None:
    b = Builder(17)
    x = b.input("x", ["N", 16])
    last = b.node("ArgMax", x, axis=1, keepdims=0)
    y = b.node("Gather", b.linear(x, 16, 4), last, axis=0, outputs=["y"])
    case = only_case(write_spec(saved(tmp_path, b.model({y: ["N", 4]}))))
    assert ([c.output for c in case.criteria], case.unjudged) == (["y"], ())  # type: ignore[union-attr]


def test_a_model_that_chooses_nothing_is_not_cut(tmp_path: Path) -> None:
    spec = write_spec(saved(tmp_path, ZOO["yolo"]()))
    assert "chooses by" not in spec.read_text()
    assert only_case(spec).unjudged == ()
