"""How much a quantized file asks for, told by pytest: too little is a warning, nothing an ERROR."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from plugin_support import LOAD

from benchmarks.greens import quantize

#: Layers and their share of the multiply-accumulates in %.
SIZES = {"a": 60, "b": 25, "c": 10, "d": 5}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    nodes, weights, rng = [], [], np.random.default_rng(0)
    for name, size in SIZES.items():
        weight = (rng.normal(size=(20, size)) / 5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{name}.weight"))
        nodes.append(helper.make_node("MatMul", ["x", f"{name}.weight"], [f"{name}_out"], name))
    nodes.append(helper.make_node("Concat", [f"{name}_out" for name in SIZES], ["y"], "join", axis=1))
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in (("x", 20), ("y", 100))
    ]
    graph = helper.make_graph(nodes, "four", values[:1], values[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, pytester.path / "model.onnx")
    np.savez(pytester.path / "data.npz", x=rng.normal(size=(16, 20)).astype(np.float32))
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
            "a.weight",
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
    weight = np.random.default_rng(1).normal(size=(20, 100)).astype(np.float32)
    numbers = {"x_scale": 3 / 127, "w_scale": np.abs(weight).max() / 127, "blend": 0}
    float_layer = "exact = MatMul(x, w)"
    low_layer = """
        xq = QuantizeLinear(x, x_scale, zero)
        xd = DequantizeLinear(xq, x_scale, zero)
        wq = QuantizeLinear(w, w_scale, zero)
        wd = DequantizeLinear(wq, w_scale, zero)
        low = MatMul(xd, wd)
        part = Mul(low, blend)"""
    for file, nodes in {
        "model.onnx": f"{float_layer}\n y = Identity(exact)",
        "int8.onnx": f"{float_layer}{low_layer}\n y = Add(exact, part)",
    }.items():
        header = '<ir_version: 8, opset_import: ["" : 17]>'
        proto = parser.parse_model(f"{header} net (float[n, 20] x) => (float[n, 100] y) {{ {nodes} }}")
        proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
        if file == "int8.onnx":
            arrays = {name: np.array(number, np.float32) for name, number in numbers.items()}
            arrays["zero"] = np.array(0, np.int8)
            proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
        onnx.save(proto, project.path / file)
    result = run(project)
    result.assert_outcomes(passed=1)
    assert "the outputs are the baseline's bit for bit" in " ".join(result.stdout.str().split())
