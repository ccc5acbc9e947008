"""How much a quantized file asks for, told by pytest: too little is a warning, nothing an ERROR."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest
from case_files import write
from onnx import helper, numpy_helper
from plugin_support import LOAD

from benchmarks.greens import quantize


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    write(pytester.path, {"network": "products()", "data": {"samples": 16}})
    return pytester


def quantized(project: pytest.Pytester, **options: object) -> None:
    """Write ``int8.onnx``: the model with Q/DQ."""
    with np.load(project.path / "data.npz") as data:
        feed = dict(data)
    model = onnx.load(project.path / "model.onnx")
    onnx.save(quantize.quantized(model, feed, **options), project.path / "int8.onnx")  # type: ignore[arg-type]


def run(
    project: pytest.Pytester,
    int8: str = "model: int8.onnx",
    more: str = "",
    criteria: str = "[{sqnr_db: 10}]",
    *arguments: str,
) -> pytest.RunResult:
    text = f"model: model.onnx\ninputs: data.npz\nint8: {{{int8}}}\ncriteria: {criteria}\n{more}"
    (project.path / "case.int8acc.yaml").write_text(text)
    return project.runpytest(*LOAD, "--int8acc", "--int8acc-backend=onnxruntime", *arguments)


FILE = "model: int8.onnx"
SHARE = "INT8, 60 % in FP16"


@pytest.mark.parametrize(
    ("only", "int8", "criterion", "told"),
    [
        (
            "bcd",
            FILE,
            "",
            f"{SHARE}; warning: only 40 % of the MACs are quantized to INT8: accept * left out: 'a' (60 %)*",
        ),
        ("a", FILE, "", "INT8, 40 % in FP16"),
        ("bcd", FILE, ", {int8_share: 0.3}", SHARE),
        ("bcd", "calibrate: {method: minmax}, exclude: [a]", "", SHARE),
    ],
    ids=["less than half", "more than half", "a share in the spec", "what the spec excludes"],
)
def test_less_than_half_is_a_warning_unless_the_spec_accepts_it(project, only, int8, criterion, told):
    quantized(project, only=list(only))
    result = run(project, int8, criteria=f"[{{sqnr_db: 10}}{criterion}]")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"PASSED case.int8acc.yaml::case - *; ?0 % of the MACs in {told}"])


@pytest.mark.parametrize("options", [{"weights": False}, {"activations": False}])
def test_one_operand_alone_is_not_int8(project, options):
    quantized(project, **options)
    result = run(project)
    result.stdout.fnmatch_lines(["*; 0 % of the MACs in INT8, 100 % in FP16; warning: none of the MACs*"])


def test_a_share_that_is_missed_says_how_to_get_it(project):
    quantized(project, only=["b", "c", "d"])
    result = run(project, criteria="[{sqnr_db: 10}, {int8_share: 0.5}]")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*only 40 %*")
    said = "Fix: quantize both inputs of the layers left out, 'a' (60 %); or lower int8_share"
    result.stdout.fnmatch_lines(["INT8 accuracy: 'model' int8_share 0.4 < 0.5 (as asked for)", said])


def test_a_file_without_a_pair_is_an_error(project):
    (project.path / "int8.onnx").write_bytes((project.path / "model.onnx").read_bytes())
    told = "ERROR *:3:15: *int8.onnx: no QuantizeLinear or DequantizeLinear in it: this is the float *"
    run(project).stdout.fnmatch_lines([told])


def test_a_fix_of_ours_and_its_plan_are_no_warning(project):
    """One layer with a scale far too wide must leave INT8, and it has most of the multiply-accumulates."""
    proto = onnx.load(project.path / "model.onnx")
    proto.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(
            numpy_helper.to_array(proto.graph.initializer[0])
            * np.geomspace(1e-4, 1, 20)[:, None].astype("f4"),
            "a_weight",
        )
    )
    proto.graph.node.insert(0, helper.make_node("Div", ["x", "spread"], ["wide"], "spread"))
    spread = np.geomspace(1e-4, 1, 20).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(spread, "spread"))
    proto.graph.node[1].input[0] = "wide"
    onnx.save(proto, project.path / "model.onnx")
    result = run(project, "calibrate: {method: minmax}", "", "[{sqnr_db: 25}]", "--int8acc-report=out")
    result.assert_outcomes(failed=1)
    high = project.path / "out" / "case" / "high"
    for spec in (
        (f"model: {high}/fixed.onnx", ""),
        ("calibrate: {method: minmax}", f"plan: {high}/plan.yaml"),
    ):
        result = run(project, *spec)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["PASSED *; 40 % of the MACs in INT8, 60 % in FP16"])


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="needs TensorRT-RTX")
def test_obey_is_refused_where_the_model_s_own_types_are_the_engine_s(project):
    spec = "model: model.onnx\ninputs: data.npz\ncandidate: fp16\ntensorrt: {obey: true}\n"
    (project.path / "case.int8acc.yaml").write_text(spec)
    result = project.runpytest(*LOAD, "--int8acc", "--int8acc-backend=tensorrt")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["ERROR *case.int8acc.yaml:4:18: TensorRT-RTX * has no layer precisions: *leave 'obey' out"]
    )


def test_int8_that_no_output_feels_is_told(project):
    """INT8 is added with a factor of 0, as training with quantization begins."""
    weights = {"w": {"shape": [20, 100]}, "blend": 0, "x_scale": 0.03, "w_scale": 0.01}
    weights["zero"] = {"integers": 0, "type": "int8"}
    low = """net (float[n, 20] x) => (float[n, 100] y) {
        exact = MatMul(x, w)
        xq = QuantizeLinear(x, x_scale, zero)
        xd = DequantizeLinear(xq, x_scale, zero)
        wq = QuantizeLinear(w, w_scale, zero)
        wd = DequantizeLinear(wq, w_scale, zero)
        low = MatMul(xd, wd)
        part = Mul(low, blend)
        y = Add(exact, part)
    }"""
    plain = "net (float[n, 20] x) => (float[n, 100] y) { exact = MatMul(x, w) y = Identity(exact) }"
    quantized = {"int8.onnx": {"graph": low, "weights": weights}}
    write(project.path, {"graph": plain, "weights": {"w": weights["w"]}, "models": quantized})
    result = run(project)
    result.assert_outcomes(passed=1)
    assert "the outputs are the baseline's bit for bit" in " ".join(result.stdout.str().split())
