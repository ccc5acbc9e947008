"""Paths that no file can have, in place of all that a spec names and of folders that a run writes into."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from golden_support import BASE, MINMAX, write_project
from plugin_support import LOAD

pytestmark = pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
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
OWN = "def test_own(int8acc_golden):\n    int8acc_golden('x', [1.0])\n"


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    report = json.loads((folder / "report.json").read_text())
    return {
        one["nodeid"].rpartition("::")[2]: (one["verdict"], one.get("message", "")) for one in report["cases"]
    }


def test_in_place_of_what_a_spec_names(pytester: pytest.Pytester) -> None:
    write_project(pytester.path)
    (pytester.path / "loop").symlink_to("loop")
    base = {
        "model": "model.onnx",
        "inputs": "inputs.npz",
        "int8": "{calibrate: {}}",
        "backend": "onnxruntime",
    }
    cases = []
    for key, text in KEYS.items():
        for name, path in PATHS.items():
            rest = [f"    {k}: {v}" for k, v in base.items() if not text.startswith(f"{k}:")]
            cases.append("\n".join([f"  - name: {key}-{name}", f"    {text.format(path)}", *rest]))
    (pytester.path / "net.int8acc.yaml").write_text("cases:\n" + "\n".join(cases) + "\n")
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", "-p", "no:cacheprovider")
    found = verdicts(pytester.path / "out")
    assert len(found) == len(KEYS) * len(PATHS)
    for name, (verdict, message) in found.items():
        assert verdict == "error", name
        assert message.startswith("net.int8acc.yaml:"), message
        assert "fault of pytest-int8acc" not in message, message


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
