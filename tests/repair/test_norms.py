"""Norms in parts that FP16 breaks, mended as one node each, with the fewest nodes in FP32 beside."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from rtx import build
from zoo import need_opset_23

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.half import vit  # noqa: E402
from benchmarks.half.measure import LIMIT_DB, Judge  # noqa: E402
from benchmarks.half.networks import build as network_of  # noqa: E402
from benchmarks.half.networks import inputs  # noqa: E402
from benchmarks.half.parts import FAULTS  # noqa: E402
from pytest_int8acc.check import conclude  # noqa: E402
from pytest_int8acc.errors import EngineError, SpecError  # noqa: E402
from pytest_int8acc.graph.load import load_model  # noqa: E402
from pytest_int8acc.graph.model import Model, save_model  # noqa: E402
from pytest_int8acc.lab.lab import Lab  # noqa: E402
from pytest_int8acc.measure.measured import measure  # noqa: E402
from pytest_int8acc.repair.norms import fuse_norms  # noqa: E402
from pytest_int8acc.repair.precision import find_precision  # noqa: E402
from pytest_int8acc.report.text import failure  # noqa: E402
from pytest_int8acc.results import CaseResult  # noqa: E402
from pytest_int8acc.settings import Settings  # noqa: E402
from pytest_int8acc.spec.load import load_spec  # noqa: E402

HEAD = "model: model.onnx\ninputs: data.npz\n"


def put(folder: Path, fault: str, network: str = "mlp") -> None:
    save(folder, network_of(network, FAULTS[fault]), inputs(network))


def save(folder: Path, model: Model, x: np.ndarray) -> None:
    save_model(model, folder / "model.onnx")
    np.savez(folder / "data.npz", x=x)


def concluded(
    folder: Path, low: str = "fp16", more: str = "", limit: float = LIMIT_DB, report: str = "report"
) -> CaseResult:
    spec = folder / "case.int8acc.yaml"
    spec.write_text(f"{HEAD}candidate: {low}\ncriteria: [{{sqnr_db: {limit}}}]\n{more}")
    (case,) = load_spec(spec)
    measured = measure(case, Settings())
    try:
        return conclude(measured, folder / report)
    finally:
        measured.close()


def both(b, x: str, width: int) -> str:
    """A norm in parts, then a softmax without its maximum taken off."""
    b.scope = "part/norm"
    h = FAULTS["layernorm_1000"](b, x, width)
    b.scope = "part/softmax"
    return FAULTS["exponentials"](b, h, width)


@pytest.mark.parametrize("fault", ["layernorm_100", "layernorm_1000", "rmsnorm_150", "small_squares"])
@pytest.mark.parametrize("network", ["mlp", "transformer"])
def test_a_norm_as_one_node_needs_no_node_in_fp32(fault: str, network: str, tmp_path: Path) -> None:
    if not fault.startswith("layernorm"):
        need_opset_23()
    put(tmp_path, fault, network)
    result = concluded(tmp_path)
    if result.passed:
        pytest.skip("FP16 is right here")
    assert result.diagnosis is not None
    first, second = result.diagnosis.repairs
    assert (first.kind, first.fused, first.layers, first.verified) == ("fuse", ("part/normed",), (), True)
    assert (second.kind, second.fused) == ("high", ())
    fixed = load_model(tmp_path / "report" / "fixed.onnx")
    kinds = [node.op_type for node in fixed.graph.node]
    assert kinds.count("Cast") == 2  # at the model's ends
    assert ("RMSNormalization" if fault.startswith(("rms", "small")) else "LayerNormalization") in kinds
    judge = Judge(load_model(tmp_path / "model.onnx"), inputs(network))
    (score,) = (s for s in first.scores if s.metric == "sqnr_db")
    assert judge.score(fixed) == pytest.approx(score.value, abs=1e-3)


def test_nodes_beside_norms_stay_in_fp32(tmp_path: Path) -> None:
    model = network_of("mlp", both)
    save(tmp_path, model, inputs("mlp"))
    result = concluded(tmp_path)
    assert result.diagnosis is not None
    first, second = result.diagnosis.repairs
    assert first.fused == ("part/norm/normed",)
    assert first.layers
    assert all(name.startswith("part/softmax/") for name in first.layers)
    assert set(first.layers) < set(second.layers)
    assert "make 1 norm in parts one node each, 4 layers in FP32" in failure(result)
    assert concluded(tmp_path, more="plan: report/plan.yaml\n", report="again").passed


def test_only_the_norms_at_fault_are_fused(tmp_path: Path) -> None:
    save(tmp_path, vit.vit(image=48, width=48, blocks=2, massive={0: 400.0}), vit.inputs(48))
    result = concluded(tmp_path)
    assert result.diagnosis is not None
    first = result.diagnosis.repairs[0]
    assert first.fused == ("block1/norm1/bias", "block1/norm2/bias", "norm/bias")
    assert not first.layers


def test_other_tools_convert_the_model_with_its_norms_as_one_node(tmp_path: Path) -> None:
    put(tmp_path, "layernorm_1000")
    concluded(tmp_path)
    folder = tmp_path / "report"
    kinds = [node.op_type for node in onnx.load(folder / "float.onnx").graph.node]
    assert "LayerNormalization" in kinds
    assert "Pow" not in kinds
    for name in ("autocast.sh", "convert_fp16.py", "layer_precisions.txt", "commands.txt"):
        assert "float.onnx" in (folder / name).read_text()
    assert "float.onnx" not in (folder / "high" / "autocast.sh").read_text()


def test_a_plan_with_high_groups_within_a_norm_leaves_it_as_it_is(tmp_path: Path) -> None:
    save(tmp_path, network_of("mlp", both), inputs("mlp"))
    (tmp_path / "own.yaml").write_text(
        "version: 4\nhigh: {part/norm/square: fp32, part/norm/variance: fp32}\n"
    )
    result = concluded(tmp_path, more="plan: own.yaml\n")
    assert result.diagnosis is not None
    assert all(not way.fused for way in result.diagnosis.repairs)


def test_where_the_fused_model_does_not_build_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "layernorm_1000")
    spec = tmp_path / "case.int8acc.yaml"
    spec.write_text(f"{HEAD}candidate: fp16\ncriteria: [{{sqnr_db: {LIMIT_DB}}}]\n")
    (case,) = load_spec(spec)
    measured = measure(case, Settings())
    assert measured.int8 is not None
    lab = Lab(measured, measured.int8)
    outcome, _ = find_precision(lab)

    def refused(plan: object) -> None:
        raise EngineError("no kernel for LayerNormalization")

    monkeypatch.setattr(lab, "prove", refused)
    notes: list[str] = []
    assert not list(fuse_norms(lab, outcome, notes))
    assert notes == ["norms cannot be one node each: no kernel for LayerNormalization"]
    measured.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fused: [part/norm]", "3:9: fused: 'part/norm' is no last node of a norm in parts of model.onnx"),
        ("fused: {}", "3:8: fused: expected a list, .* found an empty mapping"),
        ("fused: [part/normed]\nhigh: {part/square: fp32}", "4:8: 'part/square' is no layer of model.onnx"),
        ("candidate: bf16", "3:12: candidate: the plan was found for 'bf16', and the case is in fp16; to"),
        ("candidate: int8", "3:12: candidate: the plan was found for 'int8', and the case is in fp16; to"),
    ],
)
def test_mistakes_in_a_plan_are_told_at_their_place(text: str, message: str, tmp_path: Path) -> None:
    put(tmp_path, "layernorm_1000")
    (tmp_path / "plan.yaml").write_text(f"# a comment\nversion: 4\n{text}\n")
    with pytest.raises(SpecError, match=message):
        concluded(tmp_path, more="plan: plan.yaml\n")


@pytest.mark.rtx
@pytest.mark.parametrize("fault", ["layernorm_1000", "rmsnorm_1000"])
def test_tensorrt_builds_it(fault: str, tmp_path: Path) -> None:
    if not fault.startswith("layernorm"):
        need_opset_23()
    put(tmp_path, fault, "transformer")
    result = concluded(tmp_path)
    assert result.diagnosis is not None
    assert result.diagnosis.repairs[0].fused
    build((tmp_path / "report" / "fixed.onnx").read_bytes())
