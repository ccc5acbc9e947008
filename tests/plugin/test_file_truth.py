"""What runs in place of a user's file computes what the file does, or the case is an ERROR that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from plugin_support import LOAD

SPEC = "model: model.onnx\ninputs: data.npz\nint8: {calibrate: {method: minmax}}\n"


def project(pytester: pytest.Pytester, text: str, spec: str = SPEC, **weights: tuple[int, ...]) -> None:
    """Write a model, its data and a spec; weights are drawn in the shapes given."""
    rng = np.random.default_rng(0)
    proto = parser.parse_model(text)
    for name, shape in weights.items():
        array = (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(proto, pytester.path / "model.onnx")
    x = rng.normal(size=(8, *(d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim[1:])))
    np.savez(pytester.path / "data.npz", x=x.astype(np.float32))
    (pytester.path / "case.int8acc.yaml").write_text(spec)


def run(pytester: pytest.Pytester) -> tuple[dict[str, int], dict[str, Any], str]:
    """Outcomes, the case's entry of report.json, and all that was printed, its lines joined."""
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", "-vv")
    (entry,) = json.loads((pytester.path / "out" / "report.json").read_text())["cases"]
    return result.parseoutcomes(), entry, " ".join(result.stdout.str().split())


def breaking(monkeypatch: pytest.MonkeyPatch, op_type: str, becomes: str) -> None:
    """Let ONNX's version converter make another operator of one."""
    convert = onnx.version_converter.convert_version

    def convert_wrong(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        converted = convert(proto, opset)
        for node in converted.graph.node:
            node.op_type = becomes if node.op_type == op_type else node.op_type
        return converted

    monkeypatch.setattr(onnx.version_converter, "convert_version", convert_wrong)


OF_OPSET_6 = """
    <ir_version: 3, opset_import: ["": 6]> g (float[n, 8] x) => (float[n, 4] y) {
        h = MatMul(x, w)  r = Relu(h)  t = Tanh(r)  y = MatMul(t, v)
    }
"""


def test_a_lift_that_computes_something_else_is_an_error_that_names_the_first_tensor(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(pytester, OF_OPSET_6, w=(8, 16), v=(16, 4))
    assert run(pytester)[0] == {"passed": 1}
    breaking(monkeypatch, "Relu", "Sigmoid")
    outcomes, _, printed = run(pytester)
    assert outcomes == {"errors": 1}
    assert "'r' of Relu" in printed
    assert "export the model with opset 13 or later" in printed
    assert "case.int8acc.yaml:1:" in printed


OF_OPSET_17 = """
    <ir_version: 8, opset_import: ["": 17]> g (float[n, 8] x) => (float[n, 4] y) {
        h = MatMul(x, w)  s = Mul(h, h)  m = ReduceMean<axes=[1], keepdims=1>(s)
        q = Add(m, one)  d = Sqrt(q)  z = Div(h, d)  y = MatMul(z, v)
    }
"""


@pytest.mark.parametrize("spec", [SPEC, "fp8: {calibrate: {}}\n" + SPEC.replace("int8", "#")])
def test_a_form_of_a_newer_opset_that_computes_something_else_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    project(pytester, OF_OPSET_17, spec, w=(8, 16), v=(16, 4), one=(1,))
    assert run(pytester)[0] == {"passed": 1}
    breaking(monkeypatch, "ReduceMean", "ReduceMax")
    outcomes, _, printed = run(pytester)
    assert outcomes == {"errors": 1}
    assert "'m' of ReduceMean" in printed
    assert "please report it" in printed


def test_constants_that_are_folded_wrong_are_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]> g (float[n, 8] x) => (float[n, 4] y) {
            t = Transpose(w)  y = MatMul(x, t)
        }
    """
    project(pytester, text, w=(4, 8))
    assert run(pytester)[0] == {"passed": 1}
    evaluate = ReferenceEvaluator.run
    monkeypatch.setattr(ReferenceEvaluator, "run", lambda *given: [1 + evaluate(*given)[0]])
    outcomes, _, printed = run(pytester)
    assert outcomes == {"errors": 1}
    assert "'y' of MatMul" in printed


def test_rounding_that_grows_is_told_and_is_no_error(pytester: pytest.Pytester) -> None:
    """A BatchNormalization per element is spelled out, so its last bits differ; Floor leaves little else."""
    text = """
        <ir_version: 3, opset_import: ["": 7]> g (float[n, 64] x) => (float[n, 4] y, float[n, 64] rest)
        <float k = {1000000.0}>
        {
            b = BatchNormalization<spatial=0>(x, scale, offset, mean, variance)
            large = Mul(b, k)  whole = Floor(large)  rest = Sub(large, whole)  y = MatMul(b, v)
        }
    """
    spec = SPEC + "baseline: fp32\nunjudged: [rest]\n"
    project(pytester, text, spec, scale=(64,), offset=(64,), mean=(64,), variance=(64,), v=(64, 4))
    proto = onnx.load(pytester.path / "model.onnx")
    for tensor in proto.graph.initializer:
        if tensor.name == "variance":
            tensor.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(tensor)) + 1, "variance"))
    onnx.save(proto, pytester.path / "model.onnx")
    outcomes, entry, _ = run(pytester)
    assert outcomes == {"passed": 1}
    (note,) = (text for text in entry["notes"] if "cannot be compared with the file" in text)
    assert note.startswith("'rest' cannot be compared with the file: Sub 'rest' gives other values")


def test_the_fix_of_an_old_model_is_written(pytester: pytest.Pytester) -> None:
    text = """
        <ir_version: 4, opset_import: ["": 9]> g (float[n, 8, 6, 6] x) => (float[n, 4, 12, 12] y)
        <float[4] scales = {1, 1, 2, 2}>
        { c = Conv<pads=[1, 1, 1, 1]>(x, w)  u = Upsample<mode="linear">(c, scales)  y = Conv(u, v) }
    """
    spec = SPEC.replace("{calibrate: {method: minmax}}", "{scales: ranges.json}")
    project(pytester, text, spec + "baseline: fp32\n", w=(8, 8, 3, 3), v=(4, 8, 1, 1))
    (pytester.path / "ranges.json").write_text(json.dumps({"x": [-40, 40], "u": [-4, 4]}))
    outcomes, entry, _ = run(pytester)
    assert outcomes == {"failed": 1}
    fixed = next(Path(name) for name in entry["written"] if name.endswith("fixed.onnx"))
    resize = next(n for n in onnx.load(pytester.path / "out" / fixed).graph.node if n.op_type == "Resize")
    assert b"asymmetric" in [a.s for a in resize.attribute]


def with_near_ties(pytester: pytest.Pytester) -> None:
    """Add weights ``alike`` to the model, whose columns differ by rounding."""
    rng = np.random.default_rng(0)
    alike = 0.1 * (1 + rng.uniform(-1e-6, 1e-6, (16, 512)))
    proto = onnx.load(pytester.path / "model.onnx")
    proto.graph.initializer.append(numpy_helper.from_array(alike.astype(np.float32), "alike"))
    onnx.save(proto, pytester.path / "model.onnx")


JUDGED_ELSEWHERE = SPEC + "baseline: fp32\nunjudged: [t, i]\n"


def test_what_follows_a_jump_is_told_and_is_no_error(pytester: pytest.Pytester) -> None:
    text = """
        <ir_version: 3, opset_import: ["": 7]>
        g (float[n, 16] x) => (float[n, 4] y, float[n, 3] t, int64[n, 3] i)
        <float[16] variance = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}> {
            b = BatchNormalization<spatial=0>(x, scale, offset, mean, variance)  y = MatMul(b, v)
            s = MatMul(b, alike)  t, i = TopK<k=3>(s)
        }
    """
    project(pytester, text, JUDGED_ELSEWHERE, scale=(16,), offset=(16,), mean=(16,), v=(16, 4))
    with_near_ties(pytester)
    outcomes, entry, _ = run(pytester)
    assert outcomes == {"passed": 1}
    assert any(note.startswith("'i' cannot be compared with the file: TopK") for note in entry["notes"])


def test_what_comes_before_a_jump_is_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        <ir_version: 3, opset_import: ["": 6]> g (float[n, 8] x) => (int64[n, 1] i)
        { h = MatMul(x, w)  r = Relu(h)  s = MatMul(r, alike)  i = ArgMax<axis=1>(s) }
    """
    project(pytester, text, SPEC + "baseline: fp32\naccept_blind: all classes score the same\n", w=(8, 16))
    with_near_ties(pytester)
    breaking(monkeypatch, "Relu", "Sigmoid")
    outcomes, _, printed = run(pytester)
    assert outcomes == {"errors": 1}
    assert "'r' of Relu" in printed


def test_a_file_that_onnx_runtime_does_not_run_as_it_is_is_told_and_is_no_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = onnxruntime.InferenceSession

    def refuses_files(source: str | bytes, *args: Any, **kwargs: Any) -> onnxruntime.InferenceSession:
        if isinstance(source, str):
            raise RuntimeError("no memory")
        return session(source, *args, **kwargs)

    text = OF_OPSET_17.replace("17", "12").replace("Sqrt(q)", "Softmax(q)")
    project(pytester, text, w=(8, 16), v=(16, 4), one=(1,))
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuses_files)
    outcomes, entry, _ = run(pytester)
    assert outcomes == {"passed": 1}
    (note,) = (text for text in entry["notes"] if "not compared with the file" in text)
    assert "no memory" in note
