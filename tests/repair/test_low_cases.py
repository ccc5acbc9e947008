"""Cases in FP16 and BF16: planted faults found and mended, what is harmless not blamed, the fix guarded."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from projects import Project
from rtx import build

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.half import vit  # noqa: E402
from benchmarks.half.measure import LIMIT_DB, measure, run  # noqa: E402
from benchmarks.half.networks import NETWORKS, inputs  # noqa: E402
from benchmarks.half.networks import build as network_of  # noqa: E402
from benchmarks.half.parts import FAULTS, HEALTHY  # noqa: E402
from pytest_int8acc.check import conclude  # noqa: E402
from pytest_int8acc.graph.formats import FORMATS  # noqa: E402
from pytest_int8acc.graph.load import load_model  # noqa: E402
from pytest_int8acc.graph.low_network import low_network  # noqa: E402
from pytest_int8acc.graph.model import save_model  # noqa: E402
from pytest_int8acc.measure.measured import measure as measured_of  # noqa: E402
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


def test_a_harmless_infinity_beside_a_fault_is_not_blamed(tmp_path: Path) -> None:
    def both(b, x, width):
        b.scope = "part/gelu"
        h = HEALTHY["gelu"](b, x, width)
        b.scope = "part/norm"
        return FAULTS["layernorm_100"](b, h, width)

    record = measure("mlp", "both", both, tmp_path)
    assert record.truths == (frozenset({"part/norm/square", "part/norm/variance"}),)
    assert record.found == record.truth


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


def test_a_run_of_nodes_has_two_casts_and_no_island_of_one_remains(tmp_path: Path) -> None:
    model = vit.vit(image=48, width=48, blocks=2, massive={0: 400.0})
    search = run(model, vit.inputs(48), tmp_path).search
    assert search is not None
    assert search.verified
    norms = ("block1/norm1", "block1/norm2", "norm")
    found = {culprit.layer for culprit in search.culprits}
    assert found == {f"{norm}/{part}" for norm in norms for part in ("square", "variance")}
    assert search.casts == 2 * 3 + 2  # around each norm's, and at the model's ends


# --- what such a case cannot have


# --- goldens, and pytest-xdist
