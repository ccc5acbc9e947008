"""The samples whose class changed are listed, with both classes, the label and the margin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from plugin_support import LOAD

from benchmarks.optimizers import SAMPLES, Planted
from pytest_int8acc.scores.rows import Options, changed_classes, top_k

CLASSES, STEP = 12, 0.6
PAIR = "xq = QuantizeLinear(x, sx, z) xd = DequantizeLinear(xq, sx, z)"
WEIGHT = "wd = DequantizeLinear<axis = 1>(wq, ws, wz)"
#: One layer whose inputs have a coarse scale, so that some samples change their class.
COARSE = Planted(
    "",
    "y = MatMul(x, w)",
    f"{PAIR} {WEIGHT} y = MatMul(xd, wd)",
    (16,),
    lambda rng: {"w": rng.normal(size=(16, CLASSES))},
    axes={"w": 1},
    scales={"sx": STEP},
    limits={"top1_agreement": 0.1},
)


def both(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The outputs of the float model and of the quantized model, by NumPy."""
    x = np.load(folder / "inputs.npz")["x"].astype(np.float64)
    models = [onnx.load(folder / name).graph.initializer for name in ("model.onnx", "int8.onnx")]
    before, after = ({t.name: numpy_helper.to_array(t) for t in tensors} for tensors in models)
    codes = np.clip(np.rint(x / np.float32(STEP)), -128, 127) * np.float32(STEP)
    return x @ before["w"].astype(np.float64), codes @ (after["wq"] * after["ws"].astype(np.float64))


def run(pytester: pytest.Pytester, *options: str) -> tuple[dict[str, Any], str]:
    """The first case of report.json, and what pytest printed."""
    args = (*LOAD, "--int8acc", "--int8acc-search=off", "--int8acc-report=out", *options)
    text = pytester.runpytest(*args).stdout.str()
    case, *_ = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    return case, text


def expected(folder: Path) -> list[tuple[int, int, int]]:
    """Sample and both classes where these differ, the largest margin first."""
    before, after = both(folder)
    top, other = before.argmax(1), after.argmax(1)
    rows = np.flatnonzero(top != other)
    margins = before[rows, top[rows]] - before[rows, other[rows]]
    return [(int(i), int(top[i]), int(other[i])) for i in rows[np.argsort(-margins, kind="stable")]]


@pytest.mark.parametrize("verdict", ["passed", "failed"])
def test_changed_classes_are_listed(pytester: pytest.Pytester, verdict: str) -> None:
    limit = 0.1 if verdict == "passed" else 1.0
    COARSE.write(pytester.path, criteria=[{"top1_agreement": limit}], accept_blind="planted")
    case, text = run(pytester, "-v")
    assert case["verdict"] == verdict
    found = case["outputs"][0]["decisions"]
    wanted = expected(pytester.path)
    listed = [(d["sample"], d["baseline"], d["candidate"]) for d in found["largest"]]
    assert 3 <= len(wanted) == found["count"]
    assert listed == wanted
    assert found["samples"] == SAMPLES
    agreed = next(score for score in case["scores"] if score["metric"] == "top1_agreement")
    assert agreed["value"] == pytest.approx(1 - found["count"] / SAMPLES)
    assert [d["label"] for d in found["largest"]] == [None] * len(wanted)
    assert (found["broken"], found["mended"]) == (None, None)
    before, _ = both(pytester.path)
    for decision, (sample, top, other) in zip(found["largest"], wanted, strict=True):
        assert decision["margin"] == pytest.approx(before[sample, top] - before[sample, other], abs=1e-3)
    assert f"'y': {len(wanted)} of {SAMPLES} samples change their class" in text
    for sample, top, other in wanted[:10]:
        assert [str(sample), str(top), str(other)] in [line.split()[:3] for line in text.splitlines()]
    page = (pytester.path / "out/report.html").read_text(encoding="utf-8")
    assert f"{len(wanted)} of {SAMPLES} samples change their class" in page


def test_labels_say_who_is_right(pytester: pytest.Pytester) -> None:
    COARSE.write(pytester.path)
    before, after = both(pytester.path)
    labels = before.argmax(1)
    wanted = expected(pytester.path)
    first, second, third = (sample for sample, _, _ in wanted[:3])
    labels[second] = after[second].argmax()
    classes = {int(scores[third].argmax()) for scores in (before, after)}
    labels[third] = min(set(range(CLASSES)) - classes)
    np.save(pytester.path / "labels.npy", labels)
    said = {"labels": "labels.npy", "criteria": [{"metric": "top1", "min": 0.1}]}
    COARSE.write(pytester.path, **said)
    case, text = run(pytester, "-v")
    found = case["outputs"][0]["decisions"]
    assert [d["sample"] for d in found["largest"]] == [sample for sample, _, _ in wanted]
    assert [d["label"] for d in found["largest"]] == [labels[sample] for sample, _, _ in wanted]
    assert (found["broken"], found["mended"]) == (len(wanted) - 2, 1)
    assert f"of these the baseline is right in {len(wanted) - 2}, and INT8 in 1" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()[:1].isdigit()}
    assert [rows[str(sample)][4] for sample in (first, second, third)] == ["baseline", "INT8", "neither"]


def test_the_list_is_bounded(pytester: pytest.Pytester) -> None:
    COARSE.write(pytester.path)
    inputs = np.load(pytester.path / "inputs.npz")["x"]
    np.savez(pytester.path / "inputs.npz", x=np.tile(inputs, (60, 1)))
    case, text = run(pytester, "-v")
    found = case["outputs"][0]["decisions"]
    assert found["count"] == 60 * len(expected(pytester.path)) // 60
    assert found["count"] > 100 == len(found["largest"])
    listed = [d["margin"] for d in found["largest"]]
    assert listed == sorted(listed, reverse=True)
    assert f"... and {found['count'] - 10} more (report.json has up to 100)" in text
    page = (pytester.path / "out/report.html").read_text(encoding="utf-8")
    assert f"and {found['count'] - 100} more" in page


@pytest.mark.parametrize("each", [1, 2])
def test_samples_that_are_files_are_named(pytester: pytest.Pytester, each: int) -> None:
    COARSE.write(pytester.path, inputs="folder")
    inputs = np.load(pytester.path / "inputs.npz")["x"]
    (pytester.path / "folder").mkdir()
    for number in range(0, len(inputs), each):
        np.save(pytester.path / f"folder/cat{number}.npy", inputs[number : number + each])
    case, text = run(pytester, "-v")
    largest = case["outputs"][0]["decisions"]["largest"]
    assert [d["sample"] for d in largest] == [sample for sample, _, _ in expected(pytester.path)]
    files = [f"cat{d['sample']}.npy" if each == 1 else "" for d in largest]
    assert [d["file"] for d in largest] == files
    assert (files[0] in text.split()) == (each == 1)


@pytest.mark.parametrize(
    ("said", "listed"),
    [
        ({"criteria": [{"sqnr_db": 1}]}, False),
        ({"criteria": [{"top5_agreement": 0.1}]}, True),
        ({"criteria": [{"metric": "top5", "min": 0.1}], "labels": "labels.npy"}, True),
        ({"criteria": [{"metric": "f1", "min": 0.01}], "labels": "labels.npy"}, True),
        ({"criteria": [{"metric": "metric.py:one", "min": 0}]}, False),
    ],
    ids=["sqnr", "top5_agreement", "top5", "f1", "own"],
)
def test_which_outputs_are_judged_by_class(
    pytester: pytest.Pytester, said: dict[str, Any], listed: bool
) -> None:
    (pytester.path / "metric.py").write_text("def one(outputs):\n    return 1.0\n")
    np.save(pytester.path / "labels.npy", np.arange(SAMPLES) % CLASSES)
    COARSE.write(pytester.path, **said)
    case, text = run(pytester, "-v")
    found = case["outputs"][0]["decisions"]
    assert (found is not None) == listed
    assert ("change their class" in text) == listed


def test_nothing_is_listed_if_no_class_changes(pytester: pytest.Pytester) -> None:
    COARSE.write(pytester.path, baseline={"model": "int8.onnx"})
    case, text = run(pytester, "-v")
    found = case["outputs"][0]["decisions"]
    assert (found["count"], found["samples"], found["largest"]) == (0, SAMPLES, [])
    assert "change their class" not in text


def test_a_map_of_classes_is_no_decision(pytester: pytest.Pytester) -> None:
    planted = Planted(
        "",
        "y = Conv(x, w)",
        f"{PAIR} wd = DequantizeLinear<axis = 0>(wq, ws, wz) y = Conv(xd, wd)",
        (4, 3, 3),
        lambda rng: {"w": rng.normal(size=(6, 4, 1, 1))},
        axes={"w": 0},
        scales={"sx": STEP},
    )
    planted.write(pytester.path, criteria=[{"top1_agreement": 0.1, "axis": 1}])
    case, _ = run(pytester)
    assert case["outputs"][0]["decisions"] is None


def test_class_ids_are_compared_as_they_are(pytester: pytest.Pytester) -> None:
    """The model ends in ArgMax; a metric of labels reads its ids."""
    np.save(pytester.path / "labels.npy", np.arange(SAMPLES) % CLASSES)
    COARSE.write(pytester.path, labels="labels.npy", criteria=[{"metric": "top1", "min": 0}])
    wanted = expected(pytester.path)
    for name in ("model.onnx", "int8.onnx"):
        model = onnx.load(pytester.path / name)
        model.graph.node[-1].output[0] = "scores"
        model.graph.node.append(helper.make_node("ArgMax", ["scores"], ["y"], "last", axis=1, keepdims=0))
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.INT64, ["N"]))
        onnx.save(model, pytester.path / name)
    case, _ = run(pytester)
    found = case["outputs"][0]["decisions"]
    assert sorted((d["sample"], d["baseline"], d["candidate"]) for d in found["largest"]) == sorted(wanted)
    assert {d["margin"] for d in found["largest"]} == {None}


#: Few different values, so that classes often tie.
SCORES = arrays(np.float32, (5, 3), elements=st.sampled_from([0.0, 1.0, 2.0, float("nan"), float("inf")]))


@given(b=SCORES, c=SCORES)
def test_what_counts_as_changed_is_what_top1_agreement_counts(b: NDArray[Any], c: NDArray[Any]) -> None:
    with np.errstate(all="ignore"):
        found = changed_classes(b, c, -1)
        rows = top_k(1)(b, c, len(b), Options(), 0.0)
    assert found[:, 0].tolist() == np.flatnonzero(rows[:, 0] < rows[:, 1]).tolist()
    assert (found[:, 1] != found[:, 2]).all()
    assert (found[:, 3] >= 0).all()
