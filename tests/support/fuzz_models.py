"""A program that runs ``pytest --int8acc`` on malformed models; a line of JSON as each test begins and ends.

In a process of its own, since what a model makes of a runtime may end the process. Of each model a case is
run, and a test that compares the model's outputs with what ONNX Runtime gives for the file itself.

Arguments: base, first seed, seed after the last, folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
from malformed_models import BASES, malformed, write_data
from plugin_support import LOAD

#: Of so many models, one is searched, explained and mended where it fails.
_SEARCHED = 10
CASE = """
- name: case-{seed}
  model: {model}
  inputs: {{random: {{samples: 2}}}}
  int8: {int8}
  search: {{when: {search}, max_seconds: 5}}
  backend: onnxruntime
"""
#: A user's test: pytest-int8acc's engine of a file gives the outputs of a session of the file.
ALIKE = """
import numpy as np
import onnx
import onnxruntime
import pytest
from builder import sample_feed


def outputs_in_onnxruntime(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    known = sample_feed(onnx.load(path, load_external_data=False))
    feed = {{value.name: known[value.name] for value in session.get_inputs()}}
    return feed, dict(zip(names, session.run(names, feed), strict=True))


@pytest.mark.parametrize("seed", range({first}, {last}))
def test_alike(seed, int8acc_engine):
    path = f"{folder}/{{seed}}.onnx"
    try:
        engine = int8acc_engine(path, "{precision}", backend="onnxruntime")
    except Exception as error:
        assert type(error).__module__ == "pytest_int8acc.errors"
        assert "fault of pytest-int8acc" not in str(error)
        return
    try:
        feed, theirs = outputs_in_onnxruntime(path)
    except Exception:  # a file that ONNX Runtime refuses is nothing to compare with
        return
    ours = engine(feed)
    for name, array in theirs.items():
        assert np.allclose(ours[name], array, rtol=1e-3, atol=1e-3, equal_nan=True), name
"""


class Recorder:
    """Tells how each test begins and ends."""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        tell(test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            tell(test=report.nodeid, when=report.when, outcome=report.outcome, text=report.longreprtext)


def main(base: str, first: int, last: int, folder: Path) -> None:
    """Attempt the malformed models of ``base`` with seeds from ``first`` up to ``last``."""
    write_data(folder)
    onnx.save(BASES["convolutions"](), folder / "float.onnx")
    (folder / "pytest.ini").write_text("[pytest]\n")
    quantized = base == "quantized"
    cases = "cases:"
    for seed in range(first, last):
        (folder / f"{seed}.onnx").write_bytes(malformed(base, seed))
        cases += CASE.format(
            seed=seed,
            model="float.onnx" if quantized else f"{seed}.onnx",
            int8=f"{{model: {seed}.onnx}}" if quantized else "{calibrate: {method: minmax}}",
            search="off" if seed % _SEARCHED else "auto",
        )
    (folder / "net.int8acc.yaml").write_text(cases)
    precision = "int8" if quantized else "fp32"
    alike = ALIKE.format(first=first, last=last, folder=folder, precision=precision)
    (folder / "test_alike.py").write_text(alike)
    report = folder / "report"
    arguments = [*LOAD, "--int8acc", f"--int8acc-report={report}", f"--rootdir={folder}", "--tb=line"]
    pytest.main([*arguments, "-q", str(folder)], plugins=[Recorder()])
    for case in json.loads((report / "report.json").read_text())["cases"]:
        limited = [score for score in case.get("scores", ()) if score["limit"] is not None]
        tell(test=case["nodeid"], verdict=case["verdict"], scores=limited)


def tell(**said: object) -> None:
    print(f"\n{json.dumps(said)}", flush=True)  # a runtime may have left a line open


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
