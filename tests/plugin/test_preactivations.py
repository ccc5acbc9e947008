"""Noise that a Softmax or Sigmoid hides, on engines and in a first spec; more is in tests/cases/hidden."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from case_files import facts, run, write
from fake_backends import WrongBackend
from plugin_support import LOAD


def test_on_engines_the_simulation_is_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines get no further outputs."""
    opened = []

    class Engines(WrongBackend):
        def open(self, form: Any, role: Any, inputs: Any) -> Any:
            opened.append([output.name for output in form.model.outputs])
            return super().open(form, role, inputs)

    monkeypatch.setattr(
        "pytest_int8acc.case.measured.open_backend", lambda case, settings, *_: Engines(settings)
    )
    said = {
        "network": "squashed(noise=100, bias=-3)",
        "data": {"samples": 64},
        "spec": {"criteria": [{"output": "probs", "max_abs": 0.5}]},
        "options": ["--int8acc-search=off"],
    }
    write(pytester.path, said)
    assert facts(run(pytester, said))["hides errors of"] == {"probs": "tensor"}
    assert opened == [["probs"], ["probs"]]


def test_a_first_spec_judges_the_input(pytester: pytest.Pytester) -> None:
    ends = ("sigmoid", "softmax", "logsoftmax", "reshaped")
    for end in ends:
        folder = pytester.mkdir(end)
        write(folder, {"network": f"squashed({end!r})", "data": {"samples": 64}})
        (folder / "model.onnx").rename(pytester.path / f"{end}.onnx")
    written = ("--int8acc-init", *(f"{end}.onnx" for end in ends))
    assert pytester.runpytest(*LOAD, *written, f"--int8acc-data={ends[0]}/data.npz").ret == 0
    for end in ends:
        judges = r"- tensor: logits +# the \w+ of 'probs' hides its errors\n +cosine: 0.99\n +sqnr"
        assert re.search(judges, (pytester.path / f"{end}.int8acc.yaml").read_text())
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search=off", "--int8acc-report=out")
    cases = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    assert len(cases) == len(ends)
    for case in cases:
        assert {score["subject"] for score in case["scores"] if score["limit"]} == {"probs", "logits"}
        assert facts(case)["hidden tensors"] == {}
