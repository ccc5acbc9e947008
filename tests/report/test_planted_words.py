"""What failures of planted faults say in words: names of layers and tensors, and what was tried."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from plugin_support import LOAD

from benchmarks.greens import quantize
from benchmarks.greens.entry import Project
from benchmarks.greens.measure import entries
from pytest_int8acc.spec.load import load_spec


def told(pytester: pytest.Pytester, *arguments: str) -> tuple[dict[str, Any], str]:
    """The only case of report.json, and what pytest printed with its lines joined."""
    done = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", *arguments)
    (case,) = json.loads((pytester.path / "out/report.json").read_text())["cases"]
    return case, " ".join(done.stdout.str().split())


@pytest.fixture
def planted(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a planted entry into the test's folder, and runs it."""

    def run(name: str) -> tuple[dict[str, Any], str]:
        project = Project(Path(pytester.path))
        monkeypatch.chdir(project.folder)
        entries()[name].write(project)
        return told(pytester)

    return run


def test_an_operator_that_was_lifted_is_named_as_in_the_file(planted: Any) -> None:
    case, text = planted("c_hardmax_of_opset_11")
    assert case["diagnosis"]["other_model"]["op_type"] == "Hardmax"
    assert "'picked' (Hardmax) is the first to differ" in text


def test_a_node_that_a_converter_renamed_and_replaced_is_named_as_in_the_file(planted: Any) -> None:
    case, text = planted("c_upsample_of_opset_9")
    found = case["diagnosis"]["other_model"]
    assert (found["tensor"], found["op_type"], found["made_by"]) == ("upsample2", "Upsample", "Resize")
    assert "'upsample2' (Upsample) is the first to differ" in text
    assert "int8.onnx has Resize there" in text


def test_an_added_cast_is_named_with_what_it_changes(planted: Any) -> None:
    case, text = planted("a_stranger_whole_pixels")
    added = case["diagnosis"]["other_model"]["added"]
    assert (added["op_type"], added["tensor"], added["to"]) == ("Cast", "exact", "INT32")
    assert 0.5 < added["changed"] <= 1
    assert f"the first, '{added['node']}', casts 'exact' to INT32: " in text


def test_nan_of_the_float_model_is_told_from_that_of_fp16(planted: Any) -> None:
    case, text = planted("d_nan_in_both")
    found = case["float_nan"]
    assert (found["half"], found["in_fp32"], found["node"]) == (True, True, "lost/Where")
    assert "gives NaN there in FP32, too, from Where 'lost/Where' on" in text
    assert "mend Where 'lost/Where' of the float model" in text


def test_a_pair_at_an_output_is_not_called_a_reshape(planted: Any) -> None:
    case, text = planted("a_stranger_keypoints_with_visibility")
    (culprit,) = case["search"]["culprits"]
    assert culprit["quantizer"]["output"] == "pose"
    assert culprit["quantizer"]["op_type"] == "Concat"
    assert culprit["cause"]["symptom"] == "uneven-parts", "the output's channels lie along its last axis"
    assert "Why: the Q/DQ pair at output 'pose'" in text
    assert "leave output 'pose' unquantized" in text


def test_ranges_in_a_body_that_cut_values_off_are_told_and_mended(planted: Any) -> None:
    """The planted range is 0.2 for values to 1.6 and 2.4."""
    case, text = planted("f_stranger_steps_that_clip")
    assert {culprit["inside"] for culprit in case["search"]["culprits"]} == {"Loop"}
    assert "Why: all 2 ranges cut values off that reach 8.2 to 12 times as far" in text
    assert "Fix: use fixed.onnx, 100 % of the MACs stay in INT8: other scales for 2 tensors" in text
    assert "verified on 32 samples" in text


def test_a_range_in_a_body_that_is_far_too_wide_is_told(planted: Any) -> None:
    """The planted range is a thousand times too wide."""
    case, text = planted("f_refinement_flattened")
    (inside,) = [culprit for culprit in case["search"]["culprits"] if culprit["inside"]]
    assert inside["cause"]["tensor"] == "before", "the input of the body"
    assert inside["cause"]["numbers"]["factor"] == pytest.approx(1830, rel=0.03)
    assert inside["cause"]["ablation"]["share"] > 0.9
    assert "Why: scales too wide in 1 layer; rounding that adds up in 1 layer" in text


def test_a_metric_that_is_advised_fits_the_output_and_the_spec(
    planted: Any, pytester: pytest.Pytester
) -> None:
    case, text = planted("d_cosine_of_minus_one")
    assert case["blind"]["metric"]["metric"] == "coco_map"
    (advised,) = re.findall(r"like (\{metric: [^}]*\})", text)[:1]
    spec = pytester.path / "advised.int8acc.yaml"
    named = "model: model.onnx\ninputs: x.npz\nlabels: y.json\nint8: {calibrate: {}}\n"
    spec.write_text(f"{named}criteria:\n  - {advised}\n")
    ((criterion,),) = (read.criteria for read in load_spec(spec))
    assert (criterion.metric, criterion.decode) == ("coco_map", "yolov5")


def leaky(slope: float, hidden: str) -> onnx.ModelProto:
    """x [N, 16], a MatMul, a LeakyRelu whose result is called ``hidden``, and a Reshape."""
    rng = np.random.default_rng(7)
    weight = numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "weight")
    shape = numpy_helper.from_array(np.array([-1, 2, 4]), "shape")
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"], "product/MatMul"),
        helper.make_node("LeakyRelu", ["product"], [hidden], "act/LeakyRelu", alpha=slope),
        helper.make_node("Reshape", [hidden, "shape"], ["y"], "y/Reshape"),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 16])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 2, 4])
    graph = helper.make_graph(nodes, "leaky", [x], [y], [weight, shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("hidden", ["other", "act"])
def test_what_first_differs_is_traced_to_what_computes_it(pytester: pytest.Pytester, hidden: str) -> None:
    x = np.random.default_rng(8).standard_normal((32, 16)).astype(np.float32)
    onnx.save(leaky(0.1, "act"), pytester.path / "model.onnx")
    onnx.save(quantize.quantized(leaky(0.9, hidden), {"x": x}), pytester.path / "int8.onnx")
    np.savez(pytester.path / "x.npz", x=x)
    (pytester.path / "net.int8acc.yaml").write_text(
        "model: model.onnx\ninputs: x.npz\nint8: {model: int8.onnx}\nbaseline: fp32\n"
    )
    case, text = told(pytester)
    found = case["diagnosis"]["other_model"]
    assert found["tensor"] == "act"
    assert "'act' (LeakyRelu) is the first to differ" in text
    assert "its alpha is 0.8999999761581421 in int8.onnx, and 0.10000000149011612 in model.onnx" in text
