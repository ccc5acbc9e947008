"""The benchmark suite runs: one small case through all strategies, and what it plants is what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_backends import measured_wrong, weighted
from repair_support import planted, write_case
from timed_backends import Times, products, use

from pytest_int8acc.graph.load import load_model
from pytest_int8acc.results import EngineInfo, Role

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import engines, faster  # noqa: E402
from benchmarks.architectures import csp_tiny  # noqa: E402
from benchmarks.faults import outlier_channel  # noqa: E402
from benchmarks.nets import digits, trained  # noqa: E402
from pytest_int8acc.runtime.onnxruntime import OrtEngine  # noqa: E402
from pytest_int8acc.search.strategies import STRATEGIES  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_processes")


def test_one_case_through_all_strategies(tmp_path):
    out = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.search",
        "--cases",
        "cnn_misscaled",
        "--growth",
        "--json",
        out,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(out.read_text())["cases"]
    assert case["proven"]
    assert case["best"] == case["planted"] == ["/5/conv/Conv"]
    rows = {row["strategy"]: row for row in case["rows"]}
    assert list(rows) == list(STRATEGIES)
    assert all(row["passes"] and row["agrees"] for row in rows.values())
    assert rows["minimal"]["high"] == ["/5/conv/Conv"]
    assert rows["minimal"]["minimal"]
    assert "versions: Python" in done.stdout


@pytest.mark.parametrize(
    ("network", "producer", "consumer"),
    [
        ("cnn", "/4/conv/Conv", "/5/conv/Conv"),
        ("mobilenet", "/3/depthwise/conv/Conv", "/3/project/conv/Conv"),
        ("vit", "/blocks/blocks.1/norm2/LayerNormalization", "/blocks/blocks.1/fc1/MatMul"),
    ],
)
def test_an_outlier_channel_keeps_the_function(network, producer, consumer):
    feed = digits("validation", 16)
    model = trained(network)
    planted = outlier_channel(model, producer, [consumer], 3, 64.0)
    (before,), (after,) = (OrtEngine(m)(feed).values() for m in (model, planted))
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-4)
    assert any(not np.array_equal(planted.weights[n], model.weights[n]) for n in model.weights)


def test_a_first_spec_is_a_row(tmp_path):
    model = ROOT / "example_project" / "digits.onnx"
    command = [sys.executable, "-m", "benchmarks.first_specs", model]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].startswith(
        "| PyTorch | digits.onnx | scores of 10 classes | its own | PASSED "
    )


def test_engines_are_compared_with_the_simulation(tmp_path, monkeypatch):
    spec = write_case(tmp_path, planted("cnn"), {"sqnr_db": 20})
    wrong = weighted(load_model(tmp_path / "model.onnx"))[2]
    measured = measured_wrong(spec, [wrong], monkeypatch)
    baseline = EngineInfo(Role.BASELINE, "", 2.0, False, 1)
    result = replace(measured.result, engines=(baseline, *measured.result.engines))
    slow, fast = engines.rows("cnn", replace(measured, result=result))
    assert (slow["engine"], slow["build s"], slow["simulated"]) == ("FP16", "2", "")
    assert (fast["engine"], fast["layers in INT8"], fast["speedup"]) == ("INT8", "1 of 1", "nan")
    assert float(fast["SQNR dB"]) < 10 < float(fast["simulated"]) < float(slow["SQNR dB"])


def test_faster_plans_are_rows_that_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faster, "networks", lambda blocks: {"tiny": (lambda: csp_tiny(1), 4)})
    slow = [name for name in products(csp_tiny(1)) if name.startswith("block0/conv0")]
    times = use(monkeypatch, Times(dict.fromkeys(slow, 4.0)))
    out = tmp_path / "faster.jsonl"
    faster.main(["--out", str(out), "--tactic-sources"])
    (row,) = faster.read(out)
    assert (row["FP16 ms"], row["INT8 ms"], row["before"]) == ("9.000", "11.500", "0.78")
    assert float(row["after"]) > faster.LIMIT
    assert len(row["tried"]) == row["plans"] == len(times.built)
    assert "stay in INT8" in row["answer"]
    faster.main(["--out", str(out), "--tactic-sources"])
    assert faster.read(out) == [row]
    assert capsys.readouterr().out.count("| tiny ") == 2
