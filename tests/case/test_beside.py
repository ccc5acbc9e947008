"""Tensors inside the model that criteria name: which, and that they are judged as outputs are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builder import Builder
from detectors import TOP, detector, project
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from projects import Project
from zoo_networks import zoo_model

from pytest_int8acc import Case, CriterionError, Int8accError, ModelError, OutputResult, Settings, load_spec
from pytest_int8acc.api import check
from pytest_int8acc.case.forms import like
from pytest_int8acc.case.measured import measure
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import save_model, with_extra_outputs, without_extra_outputs
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.types import value_types

OFF = Settings(search="off")
#: What the candidate is.
FORMS = {
    "int8": {"int8": {"calibrate": {"data": "images.npz"}}},
    "fp8": {"int8": None, "fp8": {"calibrate": {"data": "images.npz"}}},
    "fp16": {"int8": None, "candidate": "fp16"},
    "bf16": {"int8": None, "candidate": "bf16"},
}


def judged(folder: Path, **said: object) -> dict[str, OutputResult]:
    return {output.name: output for output in check(project(folder, **said), OFF).outputs}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tensor", ["scores", "relu", "heads"])
def test_a_tensor_is_judged_as_an_output_is(tmp_path: Path, form: str, tensor: str) -> None:
    """Score for score as where the user's own export has it among its outputs."""
    limits = {"sqnr_db": 20, "cosine": 0.9, "max_abs": 1}
    inside = judged(tmp_path, criteria=[{"tensor": tensor, **limits}], **FORMS[form])
    sizes = "N, 256" if tensor == "scores" else "N, C, 16, 16"
    exported = detector(TOP, f"float[N, K] placed, float[{sizes}] {tensor}")
    said = {"model": exported, "criteria": [{"output": tensor, **limits}], **FORMS[form]}
    outside = judged(tmp_path, **said)
    assert list(inside) == list(outside) == ["placed", tensor]
    assert inside[tensor].scores == outside[tensor].scores
    assert inside["placed"].scores == outside["placed"].scores


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_tensor_that_is_an_output_is_the_output(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    made = Project(tmp_path_factory.mktemp("output"))
    proto = made.model(data.draw(st.sampled_from(["plain", "residual", "mobilenet", "unet", "mlp"])))
    made.data(proto, runs=2)
    name = load_model(made.folder / "model.onnx").outputs[0].name
    limits = f"sqnr_db: {data.draw(st.integers(0, 50))}, max_abs: {data.draw(st.floats(0, 9, width=16))}"
    int8 = "int8: {calibrate: {method: minmax}}\n"
    both = [
        made.check(f"{int8}criteria: [{{{key}: '{name}', {limits}}}]\n", OFF) for key in ("output", "tensor")
    ]
    assert both[0].outputs == both[1].outputs
    assert both[0].notes == both[1].notes


def test_a_name_with_the_signs_of_patterns_is_a_name(tmp_path: Path) -> None:
    body = TOP.replace("scores", "scores_0")
    model = detector(body, "float[N, K] placed").edit()
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["head[0]*" if name == "scores_0" else name for name in names]
    found = judged(tmp_path, model=model.done(), criteria=[{"tensor": "head[0]*", "sqnr_db": 20}])
    assert [s.metric for s in found["head[0]*"].scores if s.limit is not None] == ["sqnr_db"]


def drawn(folder: Path, tensor: str) -> Case:
    """A case of the model in a folder on data that are made up."""
    text = "model: model.onnx\ninputs: {random: {samples: 8}}\nint8: {calibrate: {}}\n"
    (folder / "case.int8acc.yaml").write_text(f"{text}criteria: [{{tensor: {tensor}, cosine: 1}}]\n")
    (case,) = load_spec(folder / "case.int8acc.yaml")
    return case


def test_a_type_that_nobody_knows_is_told(tmp_path: Path) -> None:
    b = Builder(17)
    x = b.node("Own", b.relu(b.conv(b.input("x", ["N", 3, 8, 8]), 3, 4)), outputs=["odd"])
    proto = b.model({b.node("Own", x, outputs=["y"]): ["N", 4, 8, 8]})
    for node in proto.graph.node:
        node.domain = "own" * (node.op_type == "Own")
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(CriterionError, match=r"yaml:4:21: criterion for tensor 'odd': its type is not known"):
        check(drawn(tmp_path, "odd"), OFF)


# --- other models of one case


def quantized(folder: Path, **renamed: str) -> None:
    """A Q/DQ model of the project's own, tensors renamed."""
    measured = measure(project(folder), OFF)
    measured.close()
    assert measured.int8 is not None
    editor = without_extra_outputs(apply(measured.int8.network, measured.int8.given)).edit()
    for node in editor.graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    save_model(editor.done(), folder / "q.onnx")


def test_a_quantized_model_of_the_user_s_own_is_judged_before_its_quantize_linear(tmp_path: Path) -> None:
    criteria = [{"tensor": name, "sqnr_db": 10} for name in ("relu", "scores")]
    ours = judged(tmp_path, criteria=criteria)
    quantized(tmp_path)
    theirs = judged(tmp_path, criteria=criteria, int8={"model": "q.onnx"})
    assert [o.scores for o in ours.values()] == [o.scores for o in theirs.values()]


@pytest.mark.parametrize("key", ["int8", "baseline"])
def test_another_model_without_the_tensor_is_refused(tmp_path: Path, key: str) -> None:
    quantized(tmp_path, scores="other")
    with pytest.raises(ModelError, match=r"yaml:\d+:\d+: .*q.onnx: it computes no tensor 'scores', which"):
        check(project(tmp_path, **{key: {"model": "q.onnx"}}), OFF)


def test_a_baseline_of_the_user_s_own_has_it_too(tmp_path: Path) -> None:
    quantized(tmp_path)
    found = judged(tmp_path, int8={"model": "q.onnx"}, baseline={"model": "q.onnx"}, criteria=None)
    assert list(found) == ["placed"]
    found = judged(tmp_path, int8={"model": "q.onnx"}, baseline={"model": "q.onnx"})
    assert found["scores"].scores[0].value > 35


def test_the_framework_s_output_is_still_the_one_output(tmp_path: Path) -> None:
    np.savez(tmp_path / "torch.npz", whatever=np.zeros((64, 40), np.float32))
    assert judged(tmp_path, reference="torch.npz").keys() == {"placed", "scores"}
    np.savez(tmp_path / "torch.npz", scores=np.zeros((64, 3), np.float32))
    with pytest.raises(Int8accError, match=r"'scores' has shape \(64, 3\), the model gives"):
        judged(tmp_path, reference="torch.npz")


# --- the graph alone


@pytest.mark.parametrize("name", ["plain", "residual", "unet", "attention", "conditional"])
def test_without_them_the_model_is_what_it_was(name: str) -> None:
    model = zoo_model(name)
    types = value_types(model)
    made = {t: types[t] for t in model.index.producer if types.get(t) == TensorProto.FLOAT}
    wide = with_extra_outputs(model, made)
    assert wide.extra_outputs | {o.name for o in model.outputs} == made.keys() | {
        o.name for o in model.outputs
    }
    assert wide.own_outputs == model.outputs
    assert without_extra_outputs(wide).serialize() == without_extra_outputs(model).edit().done().serialize()
    half = without_extra_outputs(to_fp16(wide).model)
    assert half.outputs == to_fp16(model).model.outputs
    assert len(half.graph.node) == len(to_fp16(model).model.graph.node)


def test_a_model_from_a_file_gets_those_of_another(tmp_path: Path) -> None:
    model = detector(TOP, "float[N, K] placed")
    wide = with_extra_outputs(model, {"scores": TensorProto.FLOAT})
    assert like(model, wide).extra_outputs == {"scores"}
    assert like(model, model) is model
