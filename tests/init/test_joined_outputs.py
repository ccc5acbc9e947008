"""Outputs that join boxes and scores: a first spec judges them by their parts, and by COCO's metric."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import yaml
from joined import images, network
from plugin_support import LOAD

#: Layout to the sizes of its parts, their axis, and how coco_map decodes it.
DETECTORS = {
    "channels": ([4, 3], 1, "yolov8"),
    "anchors": ([4, 3], 2, "yolov5"),
    "levels": ([4, 3], 2, "yolov5"),
    "masks": ([4, 3, 4], 1, ""),
}


def written(pytester: pytest.Pytester, layout: str, *args: str) -> tuple[str, dict[str, object]]:
    """The spec that is written for a layout, as text and as what it says."""
    onnx.save(network(layout), pytester.path / f"{layout}.onnx")
    result = pytester.runpytest(*LOAD, "--int8acc-init", f"{layout}.onnx", *args)
    assert result.ret == 0
    text = (pytester.path / f"{layout}.int8acc.yaml").read_text()
    return text, yaml.safe_load(text)


@pytest.mark.parametrize("layout", DETECTORS)
def test_parts_are_proposed_and_judged(pytester: pytest.Pytester, layout: str) -> None:
    sizes, axis, decode = DETECTORS[layout]
    text, spec = written(pytester, layout)
    (criterion,) = spec["criteria"]
    assert (criterion["output"], criterion["parts"], criterion["axis"]) == ("output0", sizes, axis)
    assert ("# - metric: coco_map" in text) == bool(decode)
    assert f"decode: {decode}" in text or not decode
    pytester.runpytest(*LOAD, "--int8acc-report", "report", f"{layout}.int8acc.yaml")
    (case,) = json.loads((pytester.path / "report/report.json").read_text())["cases"]
    assert case["verdict"] in ("passed", "failed")
    assert len(case["outputs"]) == len(sizes)


@pytest.mark.parametrize("layout", ["depth", "alike", "all_scores"])
def test_what_joins_no_scores_with_others_is_judged_as_a_whole(
    pytester: pytest.Pytester, layout: str
) -> None:
    text, spec = written(pytester, layout)
    assert "parts" not in spec["criteria"][0]
    assert "coco_map" not in text


def test_boxes_as_labels_are_judged_by_coco_map(pytester: pytest.Pytester) -> None:
    pytest.importorskip("faster_coco_eval")
    np.savez(pytester.path / "images.npz", image=images())
    boxes = np.zeros((24, 2, 5), np.float32)
    boxes[:, 0, :4] = [100, 100, 500, 500]
    boxes[:, 1, 4] = -1
    np.save(pytester.path / "labels.npy", boxes)
    _, spec = written(pytester, "channels", "--int8acc-data", "images.npz")
    assert spec["labels"] == "labels.npy"
    metric = spec["criteria"][1]
    assert metric == {"metric": "coco_map", "decode": "yolov8", "max_drop": 0.01}
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search", "off", "--int8acc-report", "report")
    (case,) = json.loads((pytester.path / "report/report.json").read_text())["cases"]
    assert case["verdict"] in ("passed", "failed")
    assert "coco_map" in [score["subject"] for score in case["scores"]]
