"""Cases in FP16 and BF16: planted faults found and mended, what is harmless not blamed, the fix guarded."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from plugin_support import LOAD
from projects import Project
from rtx import build

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.half import vit  # noqa: E402
from benchmarks.half.measure import LIMIT_DB, measure, run  # noqa: E402
from benchmarks.half.networks import NETWORKS, inputs  # noqa: E402
from benchmarks.half.networks import build as network_of  # noqa: E402
from benchmarks.half.parts import FAULTS, HEALTHY  # noqa: E402
from pytest_int8acc.check import check, conclude  # noqa: E402
from pytest_int8acc.errors import ModelError, SpecError  # noqa: E402
from pytest_int8acc.goldens import Goldens  # noqa: E402
from pytest_int8acc.graph.formats import FORMATS  # noqa: E402
from pytest_int8acc.graph.load import load_model  # noqa: E402
from pytest_int8acc.graph.low_network import low_network  # noqa: E402
from pytest_int8acc.graph.model import save_model  # noqa: E402
from pytest_int8acc.measure.measured import measure as measured_of  # noqa: E402
from pytest_int8acc.report.text import failure  # noqa: E402
from pytest_int8acc.results import CaseResult  # noqa: E402
from pytest_int8acc.settings import Settings  # noqa: E402
from pytest_int8acc.spec.load import load_spec  # noqa: E402

#: Each fault in one network, all networks among them; the corpus as a whole is ``python -m benchmarks.half``.
SOME = [(list(NETWORKS)[i % len(NETWORKS)], name) for i, name in enumerate(FAULTS)]
LIMITS = f"criteria: [{{sqnr_db: {LIMIT_DB}}}]\n"


def planted(folder: Path, fault: str = "layernorm_1000", network: str = "mlp") -> Project:
    save_model(network_of(network, {**FAULTS, **HEALTHY}[fault]), folder / "model.onnx")
    np.savez(folder / "data.npz", x=inputs(network))
    return Project(folder)


@pytest.mark.parametrize(("network", "fault"), SOME)
def test_what_must_stay_in_fp32_is_named_and_nothing_else(network: str, fault: str, tmp_path: Path) -> None:
    record = measure(network, fault, FAULTS[fault], tmp_path)
    assert record.found in record.truths
    if record.passed:
        assert record.fp16_db >= LIMIT_DB
    else:
        assert record.verified
        assert record.proven


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("part", HEALTHY)
def test_what_is_harmless_is_not_blamed(network: str, part: str, tmp_path: Path) -> None:
    result = run(network_of(network, HEALTHY[part]), inputs(network), tmp_path)
    assert result.passed
    assert result.search is None
    assert not result.warnings


def test_a_harmless_infinity_beside_a_fault_is_not_blamed(tmp_path: Path) -> None:
    def both(b, x, width):
        b.scope = "part/gelu"
        h = HEALTHY["gelu"](b, x, width)
        b.scope = "part/norm"
        return FAULTS["layernorm_100"](b, h, width)

    record = measure("mlp", "both", both, tmp_path)
    assert record.truths == (frozenset({"part/norm/square", "part/norm/variance"}),)
    assert record.found == record.truth


def test_bf16_overflows_nowhere_and_loses_digits(tmp_path: Path) -> None:
    result = run(network_of("mlp", FAULTS["layernorm_1000"]), inputs("mlp"), tmp_path, "bf16")
    (score,) = (s for s in result.scores if s.metric == "sqnr_db")
    assert 30 < score.value < LIMIT_DB
    assert result.search is not None
    assert result.search.verified
    kinds = {culprit.cause.kind for culprit in result.search.culprits if culprit.cause is not None}
    assert kinds <= {"rounding", "cancellation"}


def failed(project: Project, spec: str, settings: Settings | None = None) -> CaseResult:
    """The result with its files in ``report``."""
    file = project.folder / "case.int8acc.yaml"
    file.write_text("model: model.onnx\ninputs: data.npz\n" + spec)
    (case,) = load_spec(file)
    measured = measured_of(case, settings or Settings())
    try:
        return conclude(measured, project.folder / "report")
    finally:
        measured.close()


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_the_fix_is_written_and_its_plan_guards_it(low: str, tmp_path: Path) -> None:
    project = planted(tmp_path)
    limits = LIMITS if low == "fp16" else "criteria: [{sqnr_db: 46}]\n"
    result = failed(project, f"candidate: {low}\n{limits}")
    assert result.search is not None
    high = {*result.search.kept, *result.search.joined}
    network = low_network(load_model(tmp_path / "model.onnx"), FORMATS[low])
    in_fp32 = {node for group in network.groups if group.name in high for node in group.nodes}
    folder = tmp_path / "report" / "high"  # a norm as one node is cheaper
    assert set((folder / "fp32_nodes.txt").read_text().split()) == in_fp32
    fixed = onnx.load(folder / "fixed.onnx")
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in onnx.shape_inference.infer_shapes(fixed).graph.value_info
    }
    half = onnx.TensorProto.FLOAT16 if low == "fp16" else onnx.TensorProto.BFLOAT16
    for node in fixed.graph.node:
        if node.op_type != "Cast" and types.get(node.output[0]) in (onnx.TensorProto.FLOAT, half):
            assert (types[node.output[0]] == half) == (node.name not in in_fp32), node.name
    casts = sum(node.op_type == "Cast" for node in fixed.graph.node)
    assert result.search.casts == casts
    guarded = project.check(f"candidate: {low}\nplan: {folder}/plan.yaml\n{limits}")
    assert guarded.passed
    assert {s.metric: s.value for s in guarded.scores} == {s.metric: s.value for s in result.search.fixed}


def test_other_tools_are_told_the_same_nodes(tmp_path: Path) -> None:
    result = failed(planted(tmp_path, "exponentials"), f"candidate: fp16\n{LIMITS}")
    assert result.search is not None
    names = [culprit.layer for culprit in result.search.culprits]
    folder = tmp_path / "report"
    tree = ast.parse((folder / "convert_fp16.py").read_text())
    (block,) = (
        s.value for s in tree.body if isinstance(s, ast.Assign) and s.targets[0].id == "NODE_BLOCK_LIST"
    )
    assert sorted(ast.literal_eval(block)) == sorted(names)
    done = subprocess.run(["sh", "-n", folder / "autocast.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    script = (folder / "autocast.sh").read_text()
    precisions = (folder / "layer_precisions.txt").read_text()
    for name in names:
        assert rf"'^{name}\Z'" in script
        assert precisions.count(f"{name}:fp32") == 2


@pytest.mark.rtx
@pytest.mark.parametrize("fault", ["layernorm_1000", "masked_softmax"])
@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_tensorrt_builds_the_fix(fault: str, low: str, tmp_path: Path) -> None:
    result = failed(
        planted(tmp_path, fault, "transformer"), f"candidate: {low}\ncriteria: [{{sqnr_db: 46}}]\n"
    )
    if result.passed:
        pytest.skip("BF16 is right here")
    build((tmp_path / "report" / "fixed.onnx").read_bytes())


def test_the_failure_speaks_of_fp16(tmp_path: Path) -> None:
    result = failed(planted(tmp_path), f"candidate: fp16\n{LIMITS}")
    lines = failure(result).splitlines()
    assert lines[0].startswith("FP16 accuracy: ")
    assert "Fix: use fixed.onnx: make 1 norm in parts one node each, all in FP16" in lines[2]
    assert "Another way: keep 4 layers in FP32" in failure(result, 1)
    assert "Layers at fault (put any one of them back into FP16, and the criteria fail):" in lines
    assert any("part/square (Pow): reaches" in line and "FP16 ends at 65504" in line for line in lines)
    assert "INT8" not in failure(result, 2)
    assert result.candidate == "FP16 in 14 of 14 groups, rest FP32"
    assert result.baseline == "FP32"


@pytest.mark.parametrize("strategy", ["bisect", "linear", "worst-first", "forward"])
def test_the_other_strategies_find_a_plan_too(strategy: str, tmp_path: Path) -> None:
    result = planted(tmp_path, "layernorm_100").check(
        f"candidate: fp16\n{LIMITS}", Settings(strategy=strategy)
    )
    assert result.search is not None
    assert result.search.verified
    layers = {culprit.layer for culprit in result.search.culprits}
    assert layers >= {"part/square", "part/variance"}


def test_a_run_of_nodes_has_two_casts_and_no_island_of_one_remains(tmp_path: Path) -> None:
    model = vit.vit(image=48, width=48, blocks=2, massive={0: 400.0})
    search = run(model, vit.inputs(48), tmp_path).search
    assert search is not None
    assert search.verified
    norms = ("block1/norm1", "block1/norm2", "norm")
    found = {culprit.layer for culprit in search.culprits}
    assert found == {f"{norm}/{part}" for norm in norms for part in ("square", "variance")}
    assert search.casts == 2 * 3 + 2  # around each norm's, and at the model's ends


def test_certified_by_built_models(tmp_path: Path) -> None:
    result = planted(tmp_path, "layernorm_100").check(f"candidate: fp16\n{LIMITS}", Settings(certify=True))
    assert result.search is not None
    assert result.search.certificate is not None
    assert result.search.certificate.passed


# --- what such a case cannot have


@pytest.mark.parametrize("flag", ["calibrations", "layers", "reduce"])
def test_what_is_for_int8_only_is_one_error_at_its_place(flag: str, tmp_path: Path) -> None:
    said = f"case.int8acc.yaml:3:12: candidate: fp16: --int8acc-{flag} is for INT8 and FP8"
    with pytest.raises(SpecError, match=said):
        planted(tmp_path).check("candidate: fp16\n", Settings(**{flag: True}))


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_native_mode_on_the_cpu_which_computes_in_fp32_is_refused(low: str, tmp_path: Path) -> None:
    said = f"case.int8acc.yaml:3:12: candidate: {low}: in mode native ONNX Runtime computes it in FP32"
    with pytest.raises(SpecError, match=said):
        planted(tmp_path).check(f"candidate: {low}\n{LIMITS}", Settings(mode="native"))


def test_a_model_in_fp16_already_is_told_at_its_place(tmp_path: Path) -> None:
    failed(planted(tmp_path), f"candidate: fp16\n{LIMITS}")
    (tmp_path / "report" / "fixed.onnx").rename(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"yaml:1:8: .*computes in FP16 or BF16 already"):
        Project(tmp_path).check("candidate: fp16\n")


def test_a_plan_that_leaves_nothing_low_is_refused(tmp_path: Path) -> None:
    project = planted(tmp_path, "plain")
    names = [n.name for n in onnx.load(tmp_path / "model.onnx").graph.node]
    (tmp_path / "plan.yaml").write_text("version: 4\nhigh: {first: fp16}\n")
    with pytest.raises(ModelError, match="keeps layers in fp16; what leaves FP16 here runs in fp32"):
        project.check("candidate: fp16\nplan: plan.yaml\n")
    high = ", ".join(f"{name}: fp32" for name in names if "Relu" not in name)
    (tmp_path / "plan.yaml").write_text(f"version: 4\nhigh: {{{high}}}\n")
    with pytest.raises(ModelError, match=r"keeps all 6 layers out of FP16, so the baseline would be"):
        project.check("candidate: fp16\nplan: plan.yaml\n")


# --- goldens, and pytest-xdist


@pytest.mark.parametrize("baseline", ["golden: true\n", "baseline: golden\n"])
def test_goldens_of_fp32_are_kept_to(baseline: str, tmp_path: Path) -> None:
    planted(tmp_path, "plain")
    spec = tmp_path / "case.int8acc.yaml"
    spec.write_text(f"model: model.onnx\ninputs: data.npz\ncandidate: fp16\n{baseline}{LIMITS}")
    (case,) = load_spec(spec)
    recorded = check(case, Settings(), Goldens(update="all"))
    assert recorded.recorded
    again = check(case, Settings())
    assert again.passed
    assert "FP32" in again.golden + again.baseline


@pytest.mark.parametrize("workers", [("-n0",), ("-n2",)], ids=["n0", "n2"])
def test_from_the_command_line(workers: tuple[str, ...], pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    planted(pytester.path, "layernorm_100")
    for low in ("fp16", "bf16"):
        text = f"model: model.onnx\ninputs: data.npz\ncandidate: {low}\ncriteria: [{{sqnr_db: 40}}]\n"
        (pytester.path / f"{low}.int8acc.yaml").write_text(text)
    result = pytester.runpytest(*LOAD, *workers, "--int8acc", "--int8acc-report=report")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "FP16 accuracy: * sqnr_db * < 40*",
            "Why: values beyond the format in 2 layers*",
            "Fix: use fixed.onnx: make 1 norm in parts one node each, all in FP16; *, verified",
            "  part/square (Pow): reaches *, FP16 ends at 65504",
            "PASSED bf16.int8acc.yaml::bf16 - *",
        ]
    )
    entry = next(
        c for c in json.loads((pytester.path / "report/report.json").read_text())["cases"] if c["culprits"]
    )
    assert entry["low"] == "fp16"
    assert entry["plan"] == {"part/square": "fp32", "part/variance": "fp32"}
    assert (pytester.path / "report/fp16/convert_fp16.py").is_file()
