"""What is no file, in place of all that a spec names and of folders that a run writes into: one error each.

A path may be one that no file can have. A FIFO would be read for ever, as nobody writes into it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from golden_support import BASE, MINMAX, write_model, write_project
from plugin_support import LOAD

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs symbolic links and os.mkfifo"),
    pytest.mark.usefixtures("quick_processes"),
]
PATHS = {
    "long": "a" * 5000,
    "long-folders": "/".join(["b" * 200] * 30),
    "loop": "loop",
    "through-a-file": "model.onnx/x",
    "above-the-root": "../" * 60 + "no/such/file",
    "memory": "/proc/self/mem",
}
KEYS = {
    "model": "model: {}",
    "inputs": "inputs: {}",
    "inputs-npz": "inputs: {}.npz",
    "labels": "labels: {}.npy",
    "reference": "reference: {}",
    "plan": "plan: {}",
    "scales": "int8: {{scales: {}}}",
    "quantized": "int8: {{model: {}}}",
    "calibration": "int8: {{calibrate: {{data: {}}}}}",
    "baseline": "baseline: {{model: {}}}",
    "loader": "inputs: {}.py:load",
    "metric": "criteria: [{{metric: '{}.py:m', min: 0}}]",
}
#: Name to what a case says; every file named fifo* is a FIFO, and so are those in these folders.
FIFOS = {
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
OF_A_FIXTURE = """
import pytest
from pytest_int8acc.errors import SpecError


def test_of_a_fixture(int8acc):
    with pytest.raises(SpecError, match="it is a FIFO"):
        int8acc.load("fifo.int8acc.yaml")
"""
OWN = "def test_own(int8acc_golden):\n    int8acc_golden('x', [1.0])\n"


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    report = json.loads((folder / "report.json").read_text())
    return {
        one["nodeid"].rpartition("::")[2]: (one["verdict"], one.get("message", "")) for one in report["cases"]
    }


def write_fifos(folder: Path) -> None:
    write_model(folder, name="weights.onnx", external=True)
    (folder / "weights.onnx.data").unlink()
    suffixes = ("npy", "npz", "json", "py", "txt", "cache", "onnx", "yaml", "int8acc.yaml")
    names = [f"fifo.{suffix}" for suffix in suffixes]
    for name in (*names, "documents/0.json", "arrays/x.npy", "weights.onnx.data", "audio/a.wav"):
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)


def test_in_place_of_what_a_spec_names(pytester: pytest.Pytester) -> None:
    write_project(pytester.path)
    write_fifos(pytester.path)
    (pytester.path / "loop").symlink_to("loop")
    (pytester.path / "test_own.py").write_text(OF_A_FIXTURE)
    cases = {f"{key}-{name}": text.format(path) for key, text in KEYS.items() for name, path in PATHS.items()}
    cases |= {f"fifo-{name}": text for name, text in FIFOS.items()}
    base = {
        "model": "model.onnx",
        "inputs": "inputs.npz",
        "int8": "{calibrate: {}}",
        "backend": "onnxruntime",
    }
    lines = []
    for name, text in cases.items():
        rest = [f"    {k}: {v}" for k, v in base.items() if not text.startswith(f"{k}:")]
        lines += [f"  - name: {name}", f"    {text}", *rest]
    (pytester.path / "net.int8acc.yaml").write_text("\n".join(["cases:", *lines]) + "\n")
    arguments = ("--int8acc", "--int8acc-report=out", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*LOAD, *arguments, timeout=120)
    result.assert_outcomes(passed=1, errors=len(cases))
    found = verdicts(pytester.path / "out")
    assert len(found) == len(cases)
    for name, (verdict, message) in found.items():
        assert verdict == "error", name
        assert message.startswith("net.int8acc.yaml:"), message
        assert "fault of pytest-int8acc" not in message, message
        is_named = any(words in message for words in ("is a FIFO", "is no file", "is no Python file"))
        assert is_named or not name.startswith("fifo-"), message


def test_in_place_of_audio_for_a_first_spec(pytester: pytest.Pytester) -> None:
    write_project(pytester.path)
    write_fifos(pytester.path)
    np.save(pytester.path / "audio" / "x.npy", np.zeros((4, 8), np.float32))
    arguments = ("--int8acc-init", "model.onnx", "--int8acc-data", "audio")
    assert pytester.runpytest_subprocess(*LOAD, *arguments, timeout=60).ret == 0


@pytest.mark.parametrize("kind", ["a file", "below a file", "a loop"])
def test_in_place_of_folders_that_are_written(pytester: pytest.Pytester, kind: str) -> None:
    write_project(pytester.path)
    (pytester.path / "net.int8acc.yaml").write_text(f"{BASE}{MINMAX}golden: true\n")
    (pytester.path / "test_own.py").write_text(OWN)
    (pytester.path / "file").touch()
    (pytester.path / "loop").symlink_to("loop")
    place = {"a file": "file", "below a file": "file/below", "a loop": "loop"}[kind]
    given = (f"--int8acc-report={place}", "-o", f"int8acc_goldens={place}")
    result = pytester.runpytest(*LOAD, "--int8acc", "-p", "no:cacheprovider", "--int8acc-update=all", *given)
    result.assert_outcomes(failed=1, errors=1)
    text = result.stdout.str()
    assert "fault of pytest-int8acc" not in text
    assert "INTERNALERROR" not in text
    result.stdout.fnmatch_lines(
        [f"*{place}/net/net.json: the golden cannot be *", f"int8acc: *{place}: cannot be written: *"]
    )
