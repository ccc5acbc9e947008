"""Fixes of cases in FP16 and BF16: the files are what the report says, and other tools are told the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_files import run, written_and_run
from rtx import build
from zoo import need_opset_23

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.half import vit
from benchmarks.half.measure import LIMIT_DB


def failing(
    pytester: pytest.Pytester, network: str, low: str = "fp16", limit: float = LIMIT_DB
) -> dict[str, Any]:
    """A case that fails; its fix is in ``report/case``."""
    spec = {"candidate": low, "criteria": [{"sqnr_db": limit}]}
    return written_and_run(pytester, network=network, data={"samples": 16, "seed": 7}, spec=spec)


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_the_fixed_model_is_low_but_for_what_must_not_be(low: str, pytester: pytest.Pytester) -> None:
    entry = failing(pytester, 'half("layernorm_1000")', low, LIMIT_DB if low == "fp16" else 46)
    folder = pytester.path / "report" / "case"
    folder = folder / "high" if (folder / "high").exists() else folder  # a norm as one node is cheaper
    in_fp32 = set((folder / "fp32_nodes.txt").read_text().split())
    kept = entry["search"]["with_reserve"] or [culprit["layer"] for culprit in entry["culprits"]]
    assert set(kept) <= in_fp32
    fixed = onnx.load(folder / "fixed.onnx")
    values = onnx.shape_inference.infer_shapes(fixed).graph.value_info
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    half = onnx.TensorProto.FLOAT16 if low == "fp16" else onnx.TensorProto.BFLOAT16
    for node in fixed.graph.node:
        if node.op_type != "Cast" and types.get(node.output[0]) in (onnx.TensorProto.FLOAT, half):
            assert (types[node.output[0]] == half) == (node.name not in in_fp32), node.name
    assert entry["search"]["casts"] == sum(node.op_type == "Cast" for node in fixed.graph.node)


@pytest.mark.parametrize("part", ["layernorm_100", "rmsnorm_150"])
def test_a_norm_as_one_node_needs_no_cast(part: str, pytester: pytest.Pytester) -> None:
    if not part.startswith("layernorm"):
        need_opset_23()
    entry = failing(pytester, f'half("{part}", "transformer")')
    first = entry["diagnosis"]["repairs"][0]
    assert (first["kind"], first["fused"], first["layers"]) == ("fuse", ["part/normed"], [])
    folder = pytester.path / "report" / "case"
    kinds = [node.op_type for node in onnx.load(folder / "fixed.onnx").graph.node]
    assert kinds.count("Cast") == 2  # at the model's ends
    assert ("LayerNormalization" if part.startswith("layernorm") else "RMSNormalization") in kinds
    kinds = [node.op_type for node in onnx.load(folder / "float.onnx").graph.node]
    assert not {"Pow", "Reciprocal"} & set(kinds)
    for name in ("autocast.sh", "convert_fp16.py", "layer_precisions.txt", "commands.txt"):
        assert "float.onnx" in (folder / name).read_text()
    assert "float.onnx" not in (folder / "high" / "autocast.sh").read_text()


def test_other_tools_are_told_the_same_nodes(pytester: pytest.Pytester) -> None:
    entry = failing(pytester, 'half("exponentials")')
    names = [culprit["layer"] for culprit in entry["culprits"]]
    folder = pytester.path / "report" / "case"
    tree = ast.parse((folder / "convert_fp16.py").read_text())
    lists = {s.targets[0].id: s.value for s in tree.body if isinstance(s, ast.Assign)}
    assert sorted(ast.literal_eval(lists["NODE_BLOCK_LIST"])) == sorted(names)
    done = subprocess.run(["sh", "-n", folder / "autocast.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    script = (folder / "autocast.sh").read_text()
    precisions = (folder / "layer_precisions.txt").read_text()
    for name in names:
        assert rf"'^{name}\Z'" in script
        assert precisions.count(f"{name}:fp32") == 2


def test_runs_of_nodes_have_two_casts_and_only_norms_at_fault_are_fused(pytester: pytest.Pytester) -> None:
    model = vit.vit(image=48, width=48, blocks=2, massive={0: 400.0})
    (pytester.path / "model.onnx").write_bytes(model.serialize())
    np.savez(pytester.path / "data.npz", **{model.inputs[0].name: vit.inputs(48)})
    entry = run(pytester, {"spec": {"candidate": "fp16", "criteria": [{"sqnr_db": LIMIT_DB}]}})
    norms = ("block1/norm1", "block1/norm2", "norm")
    found = {culprit["layer"] for culprit in entry["culprits"]}
    assert found == {f"{norm}/{part}" for norm in norms for part in ("square", "variance")}
    assert entry["search"]["casts"] == 2 * 3 + 2  # around each norm's, and at the model's ends
    first = entry["diagnosis"]["repairs"][0]
    assert first["fused"] == ["block1/norm1/bias", "block1/norm2/bias", "norm/bias"]
    assert not first["layers"]


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("part", "low"), [("rmsnorm_1000", "fp16"), ("masked_softmax", "fp16"), ("layernorm_1000", "bf16")]
)
def test_tensorrt_builds_the_fix(part: str, low: str, pytester: pytest.Pytester) -> None:
    if part.startswith("rms"):
        need_opset_23()
    failing(pytester, f'half("{part}", "transformer")', low, 46)
    build((pytester.path / "report" / "case" / "fixed.onnx").read_bytes())
