"""One case from spec to result, on models of the zoo, without pytest around it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from faulty_digits import faulty
from onnx import numpy_helper, parser
from projects import CALIBRATED, Project
from zoo import ZOO

from pytest_int8acc.check import check, conclude, steps
from pytest_int8acc.clock import Clock
from pytest_int8acc.errors import CriterionError, DataError, EngineError, Int8accError, ModelError
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.graph.to_fp16 import to_fp16
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.data(made.model())
    return made


@pytest.mark.parametrize(
    "name", ["plain", "residual", "mobilenet", "inception", "unet", "yolo", "vit_erf", "dynamic"]
)
def test_calibrated_models_pass_and_say_what_was_compared(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path)
    project.data(project.model(name))
    result = project.check(CALIBRATED + "criteria: [{sqnr_db: 12, cosine: 0.97}]\n")
    assert result.passed, [s for s in result.scores if not s.passed]
    assert result.samples == 12
    assert result.baseline == "FP16"
    assert f"INT8 in {result.int8_groups} of {result.int8_groups} groups" in result.candidate
    assert all(0 < s.value < 80 for s in result.scores if s.metric == "sqnr_db"), "INT8 leaves an error"


def test_default_criterion_is_stated(project: Project) -> None:
    result = project.check(CALIBRATED)
    judged = [s for s in result.scores if s.limit is not None]
    assert [(s.metric, s.limit, s.note) for s in judged] == [("sqnr_db", 20.0, "default limit")]


def test_bad_ranges_fail_and_good_ones_pass(project: Project) -> None:
    (project.folder / "ranges.json").write_text(json.dumps({"*": 500}))
    assert not project.check("int8: {scales: ranges.json}\n").passed
    assert project.check(CALIBRATED).passed


def test_every_output_and_metric_is_judged_before_the_case_fails(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.data(project.model("yolo"))
    (tmp_path / "metrics.py").write_text(
        "def size(outputs):\n    return float(abs(outputs['small']).sum())\n"
    )
    names = [o.name for o in ZOO["yolo"]().graph.output]
    (tmp_path / "metrics.py").write_text(
        f"def size(outputs):\n    return float(abs(outputs['{names[0]}']).sum())\n"
    )
    result = project.check(
        CALIBRATED + "criteria: [{sqnr_db: 90}, {metric: 'metrics.py:size', max_drop: 0, max: 0}]\n"
    )
    missed = {(s.subject, s.metric) for s in result.scores if not s.passed}
    assert {(name, "sqnr_db") for name in names} < missed
    assert ("metrics.py:size", "size") in missed


def test_labels_reach_the_metric_and_follow_the_samples(project: Project) -> None:
    np.save(project.folder / "labels.npy", np.arange(12))
    (project.folder / "metrics.py").write_text(
        "def count(outputs, labels):\n    (y,) = outputs.values()\n    assert len(y) == len(labels)\n"
        "    return len(labels)\n"
    )
    spec = CALIBRATED + "labels: labels.npy\ncriteria: [{metric: 'metrics.py:count', min: 12}]\n"
    assert project.check(spec).metrics[0].value == 12
    assert project.check(spec, Settings(samples=4)).metrics[0].value == 4


def test_fp32_baseline_needs_no_fp16(project: Project) -> None:
    result = project.check(CALIBRATED + "baseline: fp32\n")
    assert result.baseline == "FP32"
    assert "rest FP32" in result.candidate
    assert not [n for n in result.notes if "FP16" in n]


def test_model_of_its_own_as_baseline(project: Project) -> None:
    model = load_model(project.folder / "model.onnx")
    save_model(to_fp16(model).model, project.folder / "half.onnx")
    result = project.check(CALIBRATED + "baseline: {model: half.onnx}\n")
    assert result.baseline == "half.onnx as it is"
    assert result.passed


def test_baseline_with_another_interface_is_an_error(project: Project) -> None:
    project.model("plain", "other.onnx")
    with pytest.raises(
        ModelError, match=r"other.onnx: its (in|out)puts \(.*\) are not those of .*model.onnx"
    ):
        project.check(CALIBRATED + "baseline: {model: other.onnx}\n")


def test_existing_qdq_model_is_judged_and_can_be_excluded(project: Project) -> None:
    model = load_model(project.folder / "model.onnx")
    layout = find_groups(model)
    network = quantize(model, layout, dict.fromkeys(layout.activations, 4 / 127))
    save_model(apply(network), project.folder / "qdq.onnx")
    whole = project.check("int8: {model: qdq.onnx}\n")
    assert whole.int8_groups == len(network.groups)
    first = network.groups[0].name
    part = project.check(f"int8: {{model: qdq.onnx, exclude: ['{first}']}}\n")
    assert part.int8_groups == whole.int8_groups - 1
    assert f"1 layers stay in FP16: {first}: excluded by '{first}'" in part.notes


def test_quantized_model_as_the_float_model_is_an_error(project: Project) -> None:
    model = load_model(project.folder / "model.onnx")
    layout = find_groups(model)
    save_model(
        apply(quantize(model, layout, dict.fromkeys(layout.activations, 0.1))), project.folder / "model.onnx"
    )
    with pytest.raises(ModelError, match=r"holds Q/DQ already; 'model' wants the float model"):
        project.check(CALIBRATED)


def overflowing(project: Project, factor: float, size: float = 1.0) -> None:
    """A model whose intermediate tensor 'big' reaches about ``factor``."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2, 8] x) => (float[2, 4] y) {
            h = MatMul(x, w)
            big = Mul(h, f)
            y = Mul(big, r)
        }"""
    )
    weight = (np.random.default_rng(0).normal(size=(8, 4)) * size).astype(np.float32)
    values = {"w": weight, "f": np.float32(factor), "r": np.float32(1 / factor)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in values.items())
    onnx.save(proto, project.folder / "model.onnx")
    x = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
    np.savez(project.folder / "data.npz", x=x)


def test_fp16_overflow_is_named_and_is_no_int8_failure(project: Project) -> None:
    overflowing(project, 6e4)
    with pytest.raises(
        ModelError, match=r"(?s)in FP16 output 'y' is not finite.*'big' of Mul 'node_of_big' reaches"
    ):
        project.check(CALIBRATED)
    assert project.check(CALIBRATED + "baseline: fp32\n").passed


def test_an_epsilon_that_is_0_in_fp16_is_named(tmp_path: Path) -> None:
    """log(x * x + 1e-10), as audio models normalize: nothing overflows, and the log of 0 is -inf."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[n, 4] y) <float eps = {1e-10}>
        { [square] sq = Mul(x, x)  [add] p = Add(sq, eps)  [log] l = Log(p)  [fc] y = MatMul(l, w) }
    """
    rng = np.random.default_rng(0)
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32), "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    np.savez(tmp_path / "val.npz", x=np.r_[np.zeros((1, 4)), rng.normal(size=(7, 4))].astype(np.float32))
    path = tmp_path / "case.int8acc.yaml"
    path.write_text("model: model.onnx\ninputs: val.npz\nint8: {calibrate: {method: minmax}}\n")
    (case,) = load_spec(path)
    why = r"(?s)too small for FP16 .* 'eps' of Add 'add' is 1e-10, which is 0 in FP16\n  Log 'log' makes inf"
    with pytest.raises(ModelError, match=why):
        check(case, Settings())


def test_fp16_that_is_off_already_is_said(project: Project) -> None:
    overflowing(project, 3e-5, 0.01)  # subnormal in FP16: few digits left
    result = project.check(CALIBRATED + "criteria: [{cosine: 0.5, sqnr_db: 45}]\n")
    assert any(n.startswith("FP16 is off already: y sqnr_db") for n in result.warnings), result.warnings


def test_random_inputs_are_said(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.model()
    path = tmp_path / "case.int8acc.yaml"
    path.write_text(f"model: model.onnx\ninputs: {{random: {{samples: 4}}}}\n{CALIBRATED}")
    (case,) = load_spec(path)
    result = check(case, Settings())
    assert sum("random" in note for note in result.notes) == 1, "the calibration samples are"
    (warning,) = result.warnings
    assert warning == "inputs: the data are random, so the verdict says nothing about real data"


def test_groups_left_high_are_named_with_the_reason(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.data(project.model("grouped3"))
    result = project.check(CALIBRATED)
    assert result.high_groups == 1
    assert any("1 layers stay in FP16: conv2: 3 to 3 channels per group" in note for note in result.notes)


def test_calibration_data_of_its_own(project: Project) -> None:
    project.data(ZOO["residual"](), 2, "calibration.npz")
    result = project.check("int8: {calibrate: {data: calibration.npz, method: minmax}}\n")
    assert result.passed
    assert "4 samples" in result.candidate


def test_native_mode_runs_onnxruntimes_own_kernels(project: Project) -> None:
    exact, native = project.check(CALIBRATED), project.check(CALIBRATED, Settings(mode="native"))
    assert native.backend.endswith("native")
    assert exact.backend.endswith("exact")


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("int8: {scales: lost.cache}\n", Exception, "lost.cache"),
        ("int8: {model: lost.onnx}\n", ModelError, "lost.onnx: no such model file"),
        ("int8: {model: model.onnx}\n", ModelError, "is it the float model?"),
        ("int8: {calibrate: {data: lost.npz}}\n", DataError, r"calibrate.data: .*lost.npz"),
        (CALIBRATED + "criteria: [{output: logit, cosine: 0.9}]\n", CriterionError, "matches no output"),
        (CALIBRATED + "criteria: [{metric: 'lost.py:f', min: 0}]\n", CriterionError, "lost.py"),
        ("int8: {calibrate: {}, exclude: ['head/*']}\n", ModelError, "'head/\\*' matches no node"),
        (CALIBRATED + "onnxruntime: {provider: cuda}\n", EngineError, "CUDAExecutionProvider"),
    ],
)
def test_what_cannot_be_judged_is_an_error_that_names_it(
    project: Project, spec: str, error: type[Exception], message: str
) -> None:
    settings = Settings(provider="cuda") if "cuda" in spec else None
    with pytest.raises(error, match=message):
        project.check(spec, settings)


def test_a_cache_without_a_pools_output_gives_it_the_inputs_scale(tmp_path: Path) -> None:
    project = Project(tmp_path)
    proto = project.model("plain")
    project.data(proto)
    pool = next(node for node in proto.graph.node if node.op_type == "MaxPool")
    model = load_model(tmp_path / "model.onnx")
    needed = find_groups(model).activations
    assert pool.output[0] in needed
    listed = [pool.input[0] if name == pool.output[0] else name for name in needed]
    (tmp_path / "ranges.json").write_text(json.dumps(dict.fromkeys(listed, 8)))
    result = project.check("int8: {scales: ranges.json}\n")
    assert f"{len(needed)} of {len(needed)} tensors have a scale" in result.notes
    assert result.int8_groups == 3


def test_class_axis_holds_for_fp16_against_fp32_too(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.data(project.model("unet"))
    result = project.check(CALIBRATED + "criteria: [{top1_agreement: 0.5, axis: 1}]\n")
    assert not [warning for warning in result.warnings if "off already" in warning]


def test_an_overflow_that_does_not_reach_the_output_is_no_pass(tmp_path: Path) -> None:
    """FP16 squares become inf, and what is divided by their root 0: in the baseline and in INT8 alike."""
    project = Project(tmp_path)
    np.savez(tmp_path / "data.npz", x=project.norm(32, size=1000))
    with pytest.raises(ModelError, match=r"(?s)by an overflow inside the model.*'squares' of Mul"):
        project.check(CALIBRATED)
    assert project.check(CALIBRATED + "baseline: fp32\n").passed


def test_scales_that_cover_a_part_are_warned_of(project: Project) -> None:
    model = load_model(project.folder / "model.onnx")
    first, *rest = find_groups(model).activations
    (project.folder / "ranges.json").write_text(json.dumps({first: 4}))
    result = project.check("int8: {scales: ranges.json}\n")
    assert any("groups have no scale and are not in INT8" in warning for warning in result.warnings)
    every = result.int8_groups + result.high_groups
    assert rest
    assert f"INT8 in {result.int8_groups} of {every} groups" in result.candidate


def test_a_baseline_that_misses_the_metric_itself_is_warned_of(project: Project) -> None:
    (project.folder / "metrics.py").write_text("def half(outputs):\n    return 0.5\n")
    result = project.check(CALIBRATED + "criteria: [{metric: 'metrics.py:half', min: 0.9}]\n")
    assert "the baseline itself misses metrics.py:half: 0.5, limit 0.9" in result.warnings


def test_loader_that_changes_its_data_is_an_error_in_a_search(project: Project) -> None:
    (project.folder / "loaders.py").write_text(
        "import numpy as np\nrng = np.random.default_rng(0)\nPASSES = []\n"
        "def load():\n    PASSES.append(1)\n    feed = dict(np.load('data.npz'))\n"
        "    yield {k: v + 0.01 * np.random.default_rng().random() for k, v in feed.items()}\n"
    )
    path = project.folder / "case.int8acc.yaml"
    (project.folder / "ranges.json").write_text(json.dumps({"*": 500}))
    data = str(project.folder / "data.npz")
    text = (project.folder / "loaders.py").read_text().replace("'data.npz'", repr(data))
    (project.folder / "loaders.py").write_text(text)
    path.write_text("model: model.onnx\ninputs: loaders.py:load\nint8: {scales: ranges.json}\n")
    (case,) = load_spec(path)
    with pytest.raises(DataError, match="yields different data on each call"):
        check(case, Settings())


def test_labels_cannot_be_changed_by_a_metric(project: Project) -> None:
    np.save(project.folder / "labels.npy", np.zeros(12))
    (project.folder / "metrics.py").write_text(
        "def f(outputs, labels):\n    labels += 1\n    return float(labels.sum())\n"
    )
    spec = CALIBRATED + "labels: labels.npy\ncriteria: [{metric: 'metrics.py:f', max_drop: 0}]\n"
    (score,) = project.check(spec).metrics
    assert (score.value, score.baseline, score.noise) == (12, 12, 0)


def test_padding_on_an_axis_that_is_no_batch_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[8, 4] x) => (float[8, 8] y) {
            h = MatMul(x, w)
            y = Transpose(h)
        }"""
    )
    weight = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(1).normal(size=(13, 4)).astype(np.float32))
    with pytest.raises(DataError, match="give a multiple of 8 samples"):
        project.check(CALIBRATED)


def test_an_output_of_zeros_is_warned_of(tmp_path: Path) -> None:
    project = Project(tmp_path)
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 3] y) {
            h = MatMul(x, w)
            y = Sub(h, h)
        }"""
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((5, 4), np.float32))
    assert project.check(CALIBRATED).warnings == ("output 'y' is 0 in all samples: nothing is compared",)


def test_a_float_baseline_of_its_own_is_not_blamed_for_fp16_overflow(project: Project) -> None:
    """Another training whose outputs differ, with values beyond 65504: a warning, no talk of FP16."""
    overflowing(project, 6e4)
    proto = onnx.load(project.folder / "model.onnx")
    (weight,) = [t for t in proto.graph.initializer if t.name == "w"]
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), "w"))
    onnx.save(proto, project.folder / "other.onnx")
    result = project.check(CALIBRATED + "baseline: {model: other.onnx}\n")
    assert any(warning.startswith("other.onnx as it is is off already") for warning in result.warnings)


def test_calibration_data_are_looked_at_as_far_as_they_are_used(tmp_path: Path) -> None:
    project = Project(tmp_path)
    proto = project.model("plain")
    project.data(proto, runs=40)
    project.data(proto, runs=40, file="calibration.npz")
    spec = "int8: {{calibrate: {{data: calibration.npz, method: minmax{}}}}}\ncriteria: [{{sqnr_db: 5}}]\n"
    few = project.check(spec.format(", samples: 6"))
    assert "data-few-samples" in {finding.rule for finding in few.findings}
    enough = project.check(spec.format(""))
    assert "data-few-samples" not in {finding.rule for finding in enough.findings}


def broken(*_: object) -> None:
    raise EngineError("out of memory")


@pytest.fixture
def failing(tmp_path: Path) -> Measured:
    return faulty(tmp_path, "residual", 60, 2, 22)


@pytest.mark.parametrize(
    ("function", "step"), [("diagnose", "diagnosis"), ("repair", "repair"), ("write_fix", "fix as files")]
)
def test_a_step_that_fails_takes_nothing_away(
    failing: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, step: str
) -> None:
    whole = conclude(failing, tmp_path / "whole")
    monkeypatch.setattr(steps, function, broken)
    result = conclude(failing, tmp_path / "part")
    assert result.warnings == (*whole.warnings, f"no {step}: out of memory")
    assert result.search is not None
    assert whole.search is not None
    assert result.search.verified
    assert [c.layer for c in result.search.culprits] == [c.layer for c in whole.search.culprits]
    assert result.search.fixed == whole.search.fixed
    assert (result.outputs, result.passed) == (whole.outputs, False)
    assert (result.diagnosis is None or result.diagnosis.met is None) is (function == "diagnose")
    repairs = result.diagnosis.repairs if result.diagnosis else ()
    assert [r.kind for r in repairs] == ([] if function == "repair" else ["recalibrate", "high"])
    assert bool(result.written) is (function != "write_fix")
    if function == "repair":
        fix = load_model(tmp_path / "part" / "fixed.onnx")  # what the search found is written all the same
        assert fix.serialize() == load_model(tmp_path / "whole" / "high" / "fixed.onnx").serialize()


def test_a_folder_that_cannot_be_written_takes_nothing_away(failing: Measured, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file where the folder should be")
    result = conclude(failing, tmp_path / "report" / "case")
    (warning,) = [w for w in result.warnings if w.startswith("no ")]
    assert warning.startswith(f"no fix as files: {tmp_path / 'report' / 'case'}: cannot be written: ")
    assert result.search is not None
    assert result.search.verified
    assert result.diagnosis is not None
    assert result.diagnosis.repairs[0].verified
    assert result.written == ()


def test_ctrl_c_before_the_first_step_leaves_the_search_out(
    failing: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "Lab", interrupted)
    case = replace(failing, clock=Clock())
    result = conclude(case)
    assert result.stopped is not None
    assert (result.stopped.kind, result.stopped.left_out) == ("interrupted", ("search",))
    assert (result.outputs, result.passed, result.search) == (failing.result.outputs, False, None)


def test_a_search_that_fails_leaves_the_verdict_and_the_diagnosis(
    failing: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "find_precision", broken)
    result = conclude(failing)
    assert result.warnings == (*failing.result.warnings, "no search: out of memory")
    assert result.search is None
    assert result.diagnosis is not None
    assert result.diagnosis.met is False
    assert result.diagnosis.stages
    assert result.outputs == failing.result.outputs


def test_data_that_differ_on_each_reading_are_no_warning(
    failing: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> None:
        raise DataError("yields different data on each call")

    monkeypatch.setattr(steps, "repair", changed)
    with pytest.raises(DataError, match="different data"):
        conclude(failing)
    assert issubclass(DataError, Int8accError)
