"""A metric whose library is not installed; what else a spec may name is in tests/cases/metrics."""

from __future__ import annotations

import pytest
from plugin_support import LOAD

SPEC = """model: model.onnx
inputs: inputs.npz
labels: labels.npy
int8: {calibrate: {method: minmax}}
criteria: [{metric: wer, decode: decode.py:texts, max: 1}]
"""


def test_a_missing_library_is_an_error_at_the_metric(
    digits: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_int8acc.scores.tasks.find_spec", lambda name: None)
    (digits.path / "decode.py").write_text("def texts(outputs):\n    return ['one'] * 64\n")
    (digits.path / "digits.int8acc.yaml").write_text(SPEC)
    result = digits.runpytest(*LOAD, "--int8acc")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["digits.int8acc.yaml:5:21: metric wer needs jiwer, which is not installed: pip install jiwer"]
    )
