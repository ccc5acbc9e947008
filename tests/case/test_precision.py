"""What was asked for and what ran: the verdict's statement, red where the engine provably ran otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from case_files import write
from told_engines import DUMPS, Told, dump

from pytest_int8acc import CaseResult, Settings, load_spec
from pytest_int8acc.api import check
from pytest_int8acc.report.plain import restore, to_plain
from pytest_int8acc.report.text import failure
from pytest_int8acc.report.view import CaseView

EXAMPLE = Path(__file__).parents[2] / "example_project"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, {"network": "products()", "data": {"samples": 16}})
    return tmp_path


def judged(project: Path, spec: str, criteria: str = "[{sqnr_db: 10}]") -> CaseResult:
    path = project / "case.int8acc.yaml"
    path.write_text(f"model: model.onnx\ninputs: data.npz\n{spec}\ncriteria: {criteria}\n")
    (case,) = load_spec(path)
    result = check(case, Settings(backend="onnxruntime"))
    assert to_plain(restore(to_plain(result))) == to_plain(result)
    return result


def short(result: CaseResult) -> list[str]:
    lines = failure(CaseView(result)).splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 110
    return lines


INT8, FP16 = "int8: {calibrate: {method: minmax}}", "candidate: fp16"


@pytest.mark.parametrize(
    ("formats", "passed", "statement"),
    [
        ({"a": "int8", "b": "int8", "c": "int8", "d": "int8"}, True, "ran: 100 % in INT8"),
        ({"a": "int8", "b": "int8", "c": "fp16", "d": "int8"}, True, "ran: 90 % in INT8, 10 % in FP16"),
        ({"a": "int8", "b": "fp16", "c": "int8", "d": "int8"}, False, "ran: 75 % in INT8, 25 % in FP16"),
        ({"a": "int8", "c": "int8", "d": "int8"}, True, "ran: 75 % in INT8, 25 % untold"),
        ({"a": "fp16", "b": "fp32", "c": "fp32", "d": "fp32"}, False, "ran: 60 % in FP16, 40 % in FP32"),
    ],
)
def test_more_than_a_tenth_in_another_format_is_red(
    project: Path,
    told: Told,
    formats: Mapping[str, str],
    passed: bool,
    statement: str,
) -> None:
    told.text = dump(formats)
    result = judged(project, INT8)
    assert result.passed == passed
    assert "asked: 100 % of the MACs in INT8; " in CaseView(result).status
    assert statement in CaseView(result).status
    assert statement in CaseView(result).headline
    assert result.search is None  # no layer that leaves INT8 mends it


def test_the_failure_says_what_ran_and_what_to_do(project: Path, told: Told) -> None:
    told.text = dump({"a": "fp16", "b": "int8", "c": "int8", "d": "int8"})
    lines = short(judged(project, INT8))
    assert lines[0] == "INT8 accuracy: 60 % of the MACs asked for in INT8 ran in FP16"
    text = " ".join(lines)
    assert "Why: the scores say little about INT8: 'a' in FP16 (60 %)" in text
    assert "'realized: warn'" in text
    assert "optimization_level" in text


def test_a_candidate_in_fp16_that_ran_in_fp32_says_nothing_about_fp16(project: Path, told: Told) -> None:
    told.text, told.can_obey = dump(dict.fromkeys("abcd", "fp32")), True
    lines = short(judged(project, FP16))
    assert lines[0] == "FP16 accuracy: 100 % of the MACs asked for in FP16 ran in FP32"
    assert "tensorrt: {obey: true}" in " ".join(lines)
    told.can_obey = False
    assert "obey" not in " ".join(short(judged(project, FP16)))


def test_what_the_engine_does_not_tell_is_refuted_by_outputs_that_are_the_baseline_s(
    project: Path,
    told: Told,
) -> None:
    told.text = dump({}, {"a": "join"})
    passing = judged(project, FP16)
    assert passing.passed
    assert "does not tell the format of 100 % of the MACs asked for in FP16" in CaseView(passing).status
    told.candidate_is_baseline = True
    lines = short(judged(project, FP16))
    assert lines[0].startswith("FP16 accuracy: 100 % of the MACs asked for in FP16 did not run in it")
    assert "bit for bit" in " ".join(lines)


def test_a_candidate_proven_in_its_format_may_be_exact(project: Path, told: Told) -> None:
    told.text, told.candidate_is_baseline = dump({"d": "fp16"}), True
    assert judged(project, FP16).passed


@pytest.mark.parametrize(("policy", "warned"), [("warn", True), ("off", False)])
def test_a_spec_may_accept_another_format(project: Path, told: Told, policy: str, warned: bool) -> None:
    told.text = dump(dict.fromkeys("abcd", "fp16"))
    result = judged(project, f"{INT8}\nrealized: {policy}")
    assert result.passed
    assert ("warning: 100 % of the MACs asked for in INT8 ran in FP16" in CaseView(result).status) == warned
    assert "ran: 100 % in FP16" in CaseView(result).status


def test_near_the_limit_nothing_is_decided(project: Path, told: Told) -> None:
    """15 % is what two builds of one model may differ by."""
    told.text = dump({"a": "int8", "b": "int8", "c": "fp16", "d": "fp16"})
    result = judged(project, INT8)
    assert result.passed
    assert "warning: 15 % of the MACs asked for in INT8 ran in FP16" in CaseView(result).status


def test_missed_limits_are_told_beside_the_format(project: Path, told: Told) -> None:
    told.text = dump(dict.fromkeys("abcd", "fp16"))
    result = judged(project, INT8, "[{sqnr_db: 90}]")
    lines = short(result)
    assert "+1 more missed" in lines[0]
    assert any("missed as well: 'y' sqnr_db" in line for line in lines)


@pytest.mark.parametrize(
    ("limit", "passed", "value"), [(0.6, True, 0.6), (0.65, False, np.nan), (0.9, False, 0.85)]
)
def test_the_share_of_int8_is_judged_by_what_ran(
    project: Path,
    told: Told,
    limit: float,
    passed: bool,
    value: float,
) -> None:
    """60 % are proven, 15 % are refuted, of 25 % the engine tells nothing."""
    told.text = dump({"a": "int8", "c": "fp16", "d": "fp16"})
    result = judged(project, INT8, f"[{{sqnr_db: 10}}, {{int8_share: {limit}}}]")
    (score,) = [score for score in result.scores if score.metric == "int8_share"]
    assert score.value == pytest.approx(value, nan_ok=True)
    assert result.passed == passed


@pytest.mark.parametrize("engines", [True, False])
def test_engines_that_show_a_tensor_inside_are_said_to_be_others(
    project: Path, request: pytest.FixtureRequest, engines: bool
) -> None:
    if engines:
        request.getfixturevalue("told").text = dump(dict.fromkeys("abcd", "int8"))
    result = judged(project, INT8, "[{tensor: a_out, sqnr_db: 10}]")
    said = [text for text in (*result.warnings, *result.notes) if "inside the model" in text]
    assert [text.partition(":")[0] for text in said] == ["criteria name 'a_out' inside the model"] * engines


@pytest.mark.parametrize(
    ("name", "passed"), [("trt86_h200_digits", True), ("trt86_h200_digits_fixed", False)]
)
def test_recorded_engines_of_the_digits(tmp_path: Path, told: Told, name: str, passed: bool) -> None:
    """Of the second some layers were held in FP16, and one ran in FP32; here all are asked for in INT8."""
    told.text = (DUMPS / f"{name}.json").read_text(encoding="utf-8")
    shutil.copytree(EXAMPLE, tmp_path / "p", ignore=shutil.ignore_patterns("detector", "transformer"))
    (case,) = load_spec(tmp_path / "p" / "digits.int8acc.yaml")
    result = check(case, Settings(backend="onnxruntime", samples=64))
    contract = result.precision
    assert contract is not None
    assert contract.untold == pytest.approx(0, abs=1e-9)
    assert (contract.refuted == 0) == passed
    assert result.passed == passed
    if not passed:
        assert {layer.name: layer.ran for layer in contract.misplaced} == {
            "/block1/conv1/Conv": "fp16",
            "/block2/conv1/Conv": "fp32",
        }


def test_regions_and_contradictions_prove_nothing() -> None:
    from pytest_int8acc.case.precision import node_formats
    from pytest_int8acc.runtime.trt.inspector import read_layers

    def tensors(*types: str) -> list[dict[str, object]]:
        return [{"Name": str(i), "Dimensions": [8, 8], "Format/Datatype": t} for i, t in enumerate(types)]

    layers = [
        {"Name": "one_myl0_1", "LayerType": "kgen", "Inputs": tensors("Half", "Half"),
         "TacticName": "sm80_xmma_gemm_f16f16_f16f32", "Metadata": "[ONNX Layer: one][ONNX Layer: relu]"},
        {"Name": "attention", "LayerType": "kgen", "Inputs": tensors("Half", "Half"),
         "TacticName": "fused_gemm_f16f16", "Metadata": "[ONNX Layer: qk][ONNX Layer: av]"},
        {"Name": "quantizes", "LayerType": "gemm", "Inputs": tensors("Half", "Half"),
         "TacticName": "sm80_xmma_gemm_i8i8_i8i32", "Metadata": "[ONNX Layer: inside]"},
        {"Name": "split_1", "LayerType": "gemm", "Inputs": tensors("Half", "Half"),
         "TacticName": "gemm_f16f16", "Metadata": "[ONNX Layer: split]"},
        {"Name": "split_2", "LayerType": "gemm", "Inputs": tensors("Float", "Float"),
         "TacticName": "gemm_f32f32", "Metadata": "[ONNX Layer: split]"},
        {"Name": "q || k", "LayerType": "CaskConvolution", "Inputs": tensors("Int8"),
         "Weights": {"Type": "Int8", "Count": 64}, "TacticName": "i8i8", "Metadata": ""},
    ]  # fmt: skip
    nodes = ["one", "relu", "qk", "av", "inside", "split", "q", "k", "absent"]
    found = node_formats(read_layers(json.dumps({"Layers": layers}), nodes), set(nodes) - {"relu"})
    assert found == {"one": "fp16", "q": "int8", "k": "int8"}
