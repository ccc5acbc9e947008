"""What is told before anything is calibrated; FP32 and the second run on a few samples, and on all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from projects import CALIBRATED, Project

import pytest_int8acc.case.data
from pytest_int8acc import CriterionError, DataError, ModelError, Settings, load_spec
from pytest_int8acc.api import check
from pytest_int8acc.case import preflight
from pytest_int8acc.data import open_dataset
from pytest_int8acc.graph.model import Model
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed, TensorInfo

COUNT = 64


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Samples that each form was run on, in rows; FP32 is the model without FP16 and Q/DQ."""
    counted: Counter[str] = Counter()
    plain, call = OrtEngine.__init__, OrtEngine.__call__
    kinds: dict[int, str] = {}

    def opened(self: OrtEngine, model: Model, *rest: str, **more: int) -> None:
        types = {t.data_type for t in model.graph.initializer}
        quantized = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
        half = any(t == onnx.TensorProto.FLOAT16 for t in types)
        calibrating = "y" not in {output.name for output in model.outputs}
        kinds[id(self)] = "INT8" if quantized else "FP16" if half else "maxima" if calibrating else "FP32"
        plain(self, model, *rest, **more)

    def ran(self: OrtEngine, feed: Feed) -> Feed:
        counted[kinds[id(self)]] += len(next(iter(feed.values())))
        return call(self, feed)

    monkeypatch.setattr(OrtEngine, "__init__", opened)
    monkeypatch.setattr(OrtEngine, "__call__", ran)
    return counted


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def forbidden(*_: object, **__: object) -> None:
    raise AssertionError("nothing is calibrated")


LIMIT = "criteria: [{sqnr_db: 5}]\n"


@pytest.mark.parametrize("calibrate", ["{method: entropy}", "{data: broken.npz}"])
def test_an_overflow_in_the_first_samples_is_told_before_anything_is_calibrated(
    project: Project, monkeypatch: pytest.MonkeyPatch, calibrate: str
) -> None:
    np.savez(project.folder / "data.npz", x=project.norm(COUNT, size=1000))
    np.savez(project.folder / "broken.npz", x=np.full((4, 8), 1e38, np.float32))
    monkeypatch.setattr(pytest_int8acc.case.data, "calibrate", forbidden)
    with pytest.raises(ModelError, match=r"(?s)by an overflow inside the model.*'squares' of Mul"):
        project.check(f"int8: {{calibrate: {calibrate}}}\n{LIMIT}")


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("int8: {calibrate: {data: wide.npz}}\n", DataError, "calibrate.data: wide.npz"),
        (f"{CALIBRATED}criteria: [{{output: z, sqnr_db: 5}}]\n", CriterionError, "'z'"),
        (f"{CALIBRATED}labels: labels.npy\n", DataError, "labels"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_calibrated(
    project: Project, monkeypatch: pytest.MonkeyPatch, spec: str, error: type[Exception], said: str
) -> None:
    np.savez(project.folder / "data.npz", x=project.norm(COUNT))
    np.savez(project.folder / "wide.npz", x=np.ones((4, 9), np.float32))
    np.save(project.folder / "labels.npy", np.zeros(3))
    monkeypatch.setattr(pytest_int8acc.case.data, "calibrate", forbidden)
    with pytest.raises(error, match=said):
        project.check(spec)


def test_a_passing_case_runs_fp32_and_the_second_run_on_a_few_samples(
    project: Project, rows: Counter[str]
) -> None:
    np.savez(project.folder / "data.npz", x=project.norm(COUNT))
    result = project.check(CALIBRATED + LIMIT)
    assert result.passed
    few, batch = COUNT // 16, 32  # a default session runs one batch
    assert rows == {"FP32": few, "FP16": COUNT + 2 * few, "INT8": COUNT + batch, "maxima": COUNT}
    assert {s.noise for s in result.scores if s.metric in ("sqnr_db", "cosine", "max_abs")} == {
        np.inf,
        1.0,
        0.0,
    }


def test_a_failing_case_runs_fp32_on_all_samples_once(project: Project, rows: Counter[str]) -> None:
    np.savez(project.folder / "data.npz", x=project.norm(COUNT))
    result = project.check(CALIBRATED + "criteria: [{sqnr_db: 50}]\n", Settings(search="off"))
    assert not result.passed
    assert rows["FP32"] == COUNT + COUNT // 16


def test_a_limit_that_the_baseline_misses_is_told_of_all_samples(
    project: Project, rows: Counter[str]
) -> None:
    np.savez(project.folder / "data.npz", x=project.norm(COUNT))
    result = project.check(CALIBRATED + "criteria: [{sqnr_db: 200}]\n", Settings(search="off"))
    assert any("FP16 is off already" in warning for warning in result.warnings)
    assert rows["FP32"] == 2 * COUNT + COUNT // 16


def test_a_baseline_that_does_not_repeat_itself_runs_twice_on_all_samples(
    project: Project, rows: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise is that of all samples then."""
    np.savez(project.folder / "data.npz", x=project.norm(COUNT))
    call, rng = OrtEngine.__call__, np.random.default_rng(0)

    def shaken(self: OrtEngine, feed: Feed) -> Feed:
        return {k: v + rng.normal(size=v.shape).astype(v.dtype) * 1e-3 for k, v in call(self, feed).items()}

    monkeypatch.setattr(OrtEngine, "__call__", shaken)
    result = project.check(CALIBRATED + LIMIT)
    assert rows["FP16"] == 2 * COUNT + 2 * (COUNT // 16)
    (sqnr,) = (score for score in result.scores if score.metric == "sqnr_db")
    assert 60 < (sqnr.noise or 0) < 80


def test_samples_of_a_loader_that_nobody_counted_are_looked_at_too(
    project: Project, rows: Counter[str]
) -> None:
    np.save(project.folder / "x.npy", project.norm(COUNT))
    (project.folder / "load.py").write_text(
        "import numpy as np\nfrom pathlib import Path\n\n"
        "def load():\n    for row in np.load(Path(__file__).with_name('x.npy')):\n"
        "        yield {'x': row[None]}\n"
    )
    path = project.folder / "case.int8acc.yaml"
    path.write_text(f"model: model.onnx\ninputs: load.py:load\n{CALIBRATED}{LIMIT}")
    (case,) = load_spec(path)
    assert check(case, Settings()).passed
    assert rows["FP32"] == 4


def test_engines_are_shown_whole_batches_and_sessions_a_few_samples(tmp_path: Path) -> None:
    """An engine takes the batches that it was built for."""
    np.save(tmp_path / "x.npy", np.zeros((40, 3), np.float32))
    inputs = open_dataset(
        "x.npy", (TensorInfo("x", np.dtype(np.float32), ("n", 3)),), base=tmp_path, batch=32
    )
    assert [b.rows for b in preflight._first(inputs, whole=True).batches()] == [32]
    assert [b.rows for b in preflight._first(inputs, whole=False).batches()] == [2]
