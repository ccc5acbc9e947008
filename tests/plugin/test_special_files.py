"""A FIFO in place of anything that a run reads is one error at its key; nothing waits for a writer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from golden_support import MINMAX, write_model, write_project
from plugin_support import LOAD

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs os.mkfifo"),
    pytest.mark.usefixtures("quick_processes"),
]
#: Key of a spec to a case's keys; every file named fifo* is a FIFO.
CASES = {
    "inputs-npy": "inputs: fifo.npy",
    "inputs-json": "inputs: fifo.json",
    "inputs-json-in-a-folder": "inputs: documents",
    "inputs-npy-in-a-folder": "inputs: arrays",
    "inputs-script": "inputs: fifo.py:load",
    "labels-text": "labels: fifo.txt",
    "labels-json": "labels: fifo.json",
    "labels-script": "labels: fifo.py:load",
    "metric-script": "criteria: [{metric: 'fifo.py:top1', min: 0}]",
    "calibration-data": "int8: {calibrate: {data: fifo.npz}}",
    "calibration-folder": "int8: {calibrate: {data: documents}}",
    "scales": "int8: {scales: fifo.cache}",
    "model": "model: fifo.onnx",
    "weights": "model: weights.onnx\n    golden: true",
    "plan": "plan: fifo.yaml",
    "reference": "reference: fifo.npz",
    "baseline-model": "baseline: {model: fifo.onnx}",
    "quantized-model": "int8: {model: fifo.onnx}",
}
OWN = """
import pytest
from pytest_int8acc.errors import SpecError


def test_of_a_fixture(int8acc):
    with pytest.raises(SpecError, match="it is a FIFO"):
        int8acc.load("fifo.int8acc.yaml")
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    folder = pytester.path
    write_project(folder)
    write_model(folder, name="weights.onnx", external=True)
    (folder / "weights.onnx.data").unlink()
    (folder / "documents").mkdir()
    (folder / "arrays").mkdir()
    suffixes = ("npy", "npz", "json", "py", "txt", "cache", "onnx", "yaml", "int8acc.yaml")
    names = [f"fifo.{suffix}" for suffix in suffixes]
    for name in (*names, "documents/0.json", "arrays/x.npy", "weights.onnx.data"):
        os.mkfifo(folder / name)
    return folder


def test_in_place_of_what_a_spec_names(pytester: pytest.Pytester, folder: Path) -> None:
    base = {"model": "model.onnx", "inputs": "inputs.npz", "backend": "onnxruntime"}
    lines = []
    for name, text in CASES.items():
        own = {key: value for key, value in base.items() if not text.startswith(f"{key}:")}
        text += "" if text.startswith("int8:") else f"\n    {MINMAX.strip()}"
        lines.append(f"  - name: {name}\n    {text}")
        lines += [f"    {key}: {value}" for key, value in own.items()]
    (folder / "net.int8acc.yaml").write_text("cases:\n" + "\n".join(lines) + "\n")
    (folder / "test_own.py").write_text(OWN)
    arguments = ("--int8acc", "-p", "no:cacheprovider", "--int8acc-report=out")
    result = pytester.runpytest_subprocess(*LOAD, *arguments, timeout=120)
    result.assert_outcomes(passed=1, errors=len(CASES))
    report = json.loads((folder / "out" / "report.json").read_text())
    assert {case["verdict"] for case in report["cases"]} == {"error"}
    for case in report["cases"]:
        message = case["message"]
        assert message.startswith("net.int8acc.yaml:"), message
        assert any(words in message for words in ("is a FIFO", "is no file", "is no Python file")), message


def test_in_place_of_audio_for_a_first_spec(pytester: pytest.Pytester, folder: Path) -> None:
    (folder / "audio").mkdir()
    os.mkfifo(folder / "audio" / "a.wav")
    np.save(folder / "audio" / "x.npy", np.zeros((4, 8), np.float32))
    arguments = ("--int8acc-init", "model.onnx", "--int8acc-data", "audio")
    result = pytester.runpytest_subprocess(*LOAD, *arguments, timeout=60)
    assert result.ret == 0
