"""An output that a graph joins of parts of unlike kind is judged by its parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from joined import LAYOUTS, images, names, write_project
from plugin_support import LOAD


def run(pytester: pytest.Pytester, *args: str) -> tuple[dict[str, Any], str]:
    """Entries of report.json by case, and all that was written."""
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report", "report", *args)
    report = json.loads((pytester.path / "report/report.json").read_text())
    return {case["name"].removesuffix(".onnx"): case for case in report["cases"]}, result.stdout.str()


PARTS = {
    "channels": ["output0[:, :4], boxes", "output0[:, 4:], scores"],
    "anchors": ["output0[:, :, :4], boxes", "output0[:, :, 4:], scores"],
    "levels": ["output0[:, :, :4]", "output0[:, :, 4:], scores"],
    "reshaped": ["output0[:, :4], boxes", "output0[:, 4:], scores"],
    "sliced": ["output0[:, :2], boxes", "output0[:, 2:], scores"],
    "scaled": ["output0[:, :4], boxes", "output0[:, 4:], scores"],
    "masks": ["output0[:, :4], boxes", "output0[:, 4:7], scores", "output0[:, 7:], masks"],
    "depth": ["output0[:, :4], depth", "output0[:, 4:], normals"],
    "alike": ["output0"],
    "all_scores": ["output0"],
    "behind_conv": ["output0", "output0[:, 4:], 3 of 7 channels"],
    "behind_matmul": ["output0", "output0[:, :, 4:], 3 of 7 channels"],
    "flat": ["output0", "output0[:, 64:], 48 of 112 channels"],
    "idle": ["output0"],
    "samples": ["output0"],
}


def test_outputs_are_judged_by_what_the_graph_joins(pytester):
    for layout in LAYOUTS:
        write_project(pytester.path, layout, baseline="fp16" if layout == "flat" else "fp32")
    cases, text = run(pytester, "--int8acc-search", "off")
    assert {name: names(case) for name, case in cases.items()} == PARTS, text
    for case in cases.values():
        for output in case["outputs"]:
            assert output["part_of"] == ("output0" if "[" in output["name"] else "")


def test_scores_in_the_scale_of_boxes_are_red(pytester):
    for layout in ("channels", "anchors", "behind_conv", "behind_matmul", "flat"):
        write_project(pytester.path, layout, broken=True, baseline="fp16")
    cases, text = run(pytester, "--int8acc-search", "off")
    assert len(cases) == 5
    for case in cases.values():
        rest, scores = case["outputs"]
        assert case["verdict"] == "failed"
        (reached,) = [score["value"] for score in rest["scores"] if score["metric"] == "sqnr_db"]
        assert reached > 20
        assert f"'{scores['name']}' sqnr_db" in text


@pytest.mark.parametrize("layout", ["channels", "anchors", "behind_conv", "behind_matmul"])
def test_parts_that_share_a_scale_are_the_cause_and_the_fix_gives_the_scores_back(pytester, layout):
    # The plugin itself gives what is joined one scale, where a layer reads it.
    write_project(pytester.path, layout, broken="behind" not in layout)
    cases, text = run(pytester)
    (culprit,) = cases[layout]["search"]["culprits"]
    cause = culprit["cause"]
    assert (cause["kind"], cause["symptom"]) == ("mismatched-scales", "uneven-parts"), text
    assert cause["ablation"]["kind"] == "per-channel"
    assert cause["ablation"]["share"] > 0.9
    said = " ".join(text.split())
    assert "share one scale" in said
    assert "a scale for each part" in said
    assert "verified" in said
    (fixed,) = [path for path in cases[layout]["written"] if path.endswith(f"{layout}/fixed.onnx")]
    plain, mended = (
        scores_of(pytester.path / name, layout) for name in (f"{layout}.onnx", f"report/{fixed}")
    )
    assert sqnr_db(plain, mended) > 20


@pytest.mark.parametrize("layout", ["channels", "levels", "behind_conv"])
def test_a_layer_that_loses_one_part_is_found_proved_and_told_with_an_interval(pytester, layout):
    write_project(pytester.path, layout, weights={"class_weight": {"times": 60.0}})
    cases, text = run(pytester)
    case = cases[layout]
    scores = case["outputs"][1]
    (failed,) = [score for score in scores["scores"] if score["limit"] is not None]
    assert scores["part_of"] == "output0"
    assert failed["value"] < failed["limit"]
    assert failed["interval"]["low"] <= failed["value"] <= failed["interval"]["high"] < failed["limit"]
    makers = {node.name: node for node in onnx.load(pytester.path / f"{layout}.onnx").graph.node}
    (culprit,) = case["search"]["culprits"]
    assert "class_weight" in makers[culprit["layer"]].input, text
    assert case["search"]["minimal"]
    assert case["search"]["verified"]
    (kept,) = [
        score
        for score in case["diagnosis"]["repairs"][0]["scores"]
        if score["subject"] == scores["name"] and score["limit"] is not None
    ]
    assert kept["value"] > kept["limit"]
    assert culprit["worst_alone"]["subject"] == scores["name"]
    fixed = scores_of(pytester.path / f"report/{layout}/fixed.onnx", layout)
    assert sqnr_db(scores_of(pytester.path / f"{layout}.onnx", layout), fixed) > 20


def scores_of(path: Path, layout: str) -> np.ndarray:
    """The scores that ONNX Runtime gives as it is by default."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"image": images()})
    return output[:, :, 4:] if layout in ("anchors", "levels", "behind_matmul") else output[:, 4:]


def sqnr_db(plain: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(np.square(plain).sum() / np.square(plain - other).sum()))


WHOLE, SMALL = PARTS["behind_conv"]
BOXES, SCORES = PARTS["channels"]
TOP1 = {"output": "output0", "axis": 1, "top1_agreement": 0.1}
OFF = {"criteria": [{"output": "output0", "parts": "off"}]}
#: Case to its layout, what its spec says, and the limits of all outputs that are judged.
LIMITS: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, float]]]] = {
    "relative": (
        "behind_conv",
        {"criteria": [{"output": "output0", "cosine": 0.9, "max_abs": 100}]},
        {WHOLE: {"cosine": 0.9, "max_abs": 100}, SMALL: {"cosine": 0.9}},
    ),
    "in-its-unit": (
        "behind_conv",
        {"criteria": [{"output": "output0", "max_abs": 100}]},
        {WHOLE: {"max_abs": 100}, SMALL: {"sqnr_db": 20}},
    ),
    "of-its-own": (
        "behind_conv",
        {"criteria": [{"output": "output0[:, 4:]", "mean_abs": 0.5}]},
        {WHOLE: {"sqnr_db": 20}, SMALL: {"mean_abs": 0.5}},
    ),
    "per-sample": (
        "behind_conv",
        {"criteria": [{"output": "output0", "sqnr_db": 15, "per": "sample"}]},
        {WHOLE: {"per_sample_sqnr_db": 15}, SMALL: {"sqnr_db": 15}},
    ),
    "classes-of-one-unit": ("behind_conv", {"criteria": [TOP1]}, {WHOLE: {"top1_agreement": 0.1}}),
    "classes-among-scores": (
        "channels",
        {"criteria": [TOP1]},
        {BOXES: {"sqnr_db": 20}, SCORES: {"top1_agreement": 0.1}},
    ),
    "named-parts": (
        "channels",
        {"criteria": [{"output": "output0", "parts": [2, 2, 3], "axis": 1, "cosine": 0.9}]},
        {name: {"cosine": 0.9} for name in ("output0[:, :2], boxes", "output0[:, 2:4], boxes", SCORES)},
    ),
    "added-to-a-part": (
        "channels",
        {
            "criteria": [
                {"output": "output0", "sqnr_db": 15},
                {"output": "output0[:, :4]", "max_abs": 100},
                {"output": "output0[:, 4:], scores", "mean_abs": 0.5},
            ]
        },
        {BOXES: {"sqnr_db": 15, "max_abs": 100}, SCORES: {"sqnr_db": 15, "mean_abs": 0.5}},
    ),
    "off": ("channels", OFF, {"output0": {"sqnr_db": 20}}),
    "off-in-its-unit": ("behind_conv", OFF, {"output0": {"sqnr_db": 20}}),
    "unjudged": ("channels", {"unjudged": ["output0"]}, {"output0": {}}),
}


def limits(case: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Limits by output and metric."""
    return {
        output["name"]: {s["metric"]: s["limit"] for s in output["scores"] if s["limit"] is not None}
        for output in case["outputs"]
    }


def test_which_limits_the_parts_have(pytester):
    for name, (layout, said, _) in LIMITS.items():
        write_project(pytester.path, layout, name=name, **said).rename(pytester.path / f"{name}.int8acc.yaml")
    cases, _ = run(pytester, "--int8acc-search", "off")
    assert {name: limits(case) for name, case in cases.items()} == {
        name: expected for name, (_, _, expected) in LIMITS.items()
    }


def test_scores_of_small_channels_are_accepted_by_a_golden(pytester):
    write_project(pytester.path, "behind_conv", criteria=[{"regression": {"sqnr_db": 0.5}}])
    run(pytester, "--int8acc-search", "off", "--int8acc-update=missing")
    cases, text = run(pytester, "--int8acc-search", "off")
    assert names(cases["behind_conv"]) == PARTS["behind_conv"], text
    for output in cases["behind_conv"]["outputs"]:
        (limited,) = [s for s in output["scores"] if s["limit"] is not None]
        assert "accepted" in limited["note"]


MISTAKES = {
    "sum": (
        "parts: [4, 4]\n    axis: 1",
        "8:12: parts of output 'output0': 4 + 4 is 8, but axis 1 of its shape",
    ),
    "axis": ("parts: [4, 3]", "axis 1 has: write 'axis: 1'"),
    "samples": ("parts: [8, 8]\n    axis: 0", "counts the samples"),
    "no axis": ("parts: [4, 3]\n    axis: 5", "there is no axis 5 in its shape [N, 7, 16]"),
    "one": (
        "parts: [7]",
        "8:12: parts: expected sizes along 'axis', like [4, 80], or off, found 1: one part is the whole",
    ),
    "word": ("parts: none", "8:12: parts: expected sizes along 'axis', like [4, 80], or off, found 'none'"),
    "zero": ("parts: [0, 7]", "8:13: parts: expected a whole number of at least 1, found 0"),
    "twice": (
        "parts: [4, 3]\n    axis: 1\n  - output: output0\n    parts: [3, 4]\n    axis: 1",
        "11:12: parts of output 'output0': another criterion names others; name them once",
    ),
}


def test_parts_that_do_not_fit_are_an_error_with_its_place(pytester):
    path = write_project(pytester.path)
    head = "model: channels.onnx\ninputs: images.npz\nbaseline: fp32\nint8:\n  calibrate: {method: minmax}\n"
    for mistake, (said, _) in MISTAKES.items():
        spec = path.with_name(f"{mistake.replace(' ', '-')}.int8acc.yaml")
        spec.write_text(f"{head}criteria:\n  - output: output0\n    {said}\n")
    path.unlink()
    args = ("--int8acc", "--int8acc-report=report", "--continue-on-collection-errors")
    assert "Traceback" not in pytester.runpytest(*LOAD, *args).stdout.str()
    report = json.loads((pytester.path / "report/report.json").read_text())
    told = {one["nodeid"].partition(".")[0]: one["message"] for one in report["cases"] + report["errors"]}
    for mistake, (_, expected) in MISTAKES.items():
        assert expected in " ".join(told[mistake.replace(" ", "-")].split())


def test_a_golden_of_the_whole_says_how_its_parts_are_accepted(pytester):
    path = write_project(
        pytester.path, criteria=[{"regression": {"sqnr_db": 0.5}}, {"output": "output0", "parts": "off"}]
    )
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search", "off", "--int8acc-update=missing")
    whole = path.read_text()
    path.write_text(whole.replace("- output: output0\n  parts: 'off'\n", ""))
    assert path.read_text() != whole
    cases, _ = run(pytester, "--int8acc-search", "off")
    notes = " ".join(cases["channels"]["notes"])
    assert "accepts 'output0' as a whole, which is judged by its parts now" in notes
    assert "--int8acc-update=all" in notes
    judged = limits(cases["channels"])
    assert judged[SCORES] == {"sqnr_db": 20}, "the default limit, until their scores are accepted"
    assert len(judged["output0"]) == 1
    run(pytester, "--int8acc-search", "off", "--int8acc-update=all")
    cases, _ = run(pytester, "--int8acc-search", "off")
    assert names(cases["channels"]) == ["output0[:, :4], boxes", "output0[:, 4:], scores"]
    assert all("as a whole" not in note for note in cases["channels"]["notes"])
    for output in cases["channels"]["outputs"]:
        (limited,) = [s for s in output["scores"] if s["limit"] is not None]
        assert "accepted" in limited["note"]
