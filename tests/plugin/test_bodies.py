"""Q/DQ in bodies of If, Loop and Scan is read, counted, found by the search and taken off by the fix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import body_models
import numpy as np
import onnxruntime
import pytest
from body_models import NETWORKS, write_case
from plugin_support import LOAD

#: A scale that leaves next to nothing of an activation in [-1, 1].
FLAT = {"odd": 400.0}
KINDS = pytest.mark.parametrize("network", NETWORKS)
#: A body in a body, and one whose inputs are cut along an axis.
TWO = pytest.mark.parametrize("network", ["if-in-loop", "scan"])


def run(pytester: pytest.Pytester, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What pytest prints, and the case in report.json."""
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", *arguments)
    (case,) = json.loads((pytester.path / "out" / "report.json").read_text())["cases"]
    return "\n".join(result.outlines), case


def sqnr_db(folder: Path, model: str, network: str) -> float:
    """Of a file's outputs against those of model.onnx, both by ONNX Runtime as it is by default."""
    feed = {"x": body_models.samples(network)}
    plain, other = (
        onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for name in ("model.onnx", model)
    )
    return float(10 * np.log10(np.square(plain).sum() / np.square(plain - other).sum()))


@KINDS
def test_healthy_bodies_pass_and_count_as_int8(pytester: pytest.Pytester, network: str) -> None:
    write_case(pytester.path, network, {})
    _, case = run(pytester, "-v")
    layers = 6 if "if" in network else 4
    assert case["verdict"] == "passed"
    assert (case["int8_groups"], case["high_groups"]) == (layers, 0)
    assert case["precision"]["asked"] == {"int8": pytest.approx(1)}
    assert case["warnings"] == []


def test_a_body_in_float_counts_as_often_as_it_runs(pytester: pytest.Pytester) -> None:
    """Two layers outside are in INT8, two inside run three times each in float; inside no shape is known."""
    write_case(pytester.path, "loop", {}, left_out=("even", "odd"))
    text, case = run(pytester)
    assert case["verdict"] == "passed"
    assert case["precision"]["asked"]["int8"] == pytest.approx(2 / 8)
    assert "only 25 % of the MACs are quantized to INT8" in " ".join(text.split())


@KINDS
def test_the_layer_of_a_body_is_found_named_and_mended(pytester: pytest.Pytester, network: str) -> None:
    write_case(pytester.path, network, FLAT)
    text, case = run(pytester)
    name = f"{NETWORKS[network]}odd" + ("_then" if "if" in network else "")
    (culprit,) = case["search"]["culprits"]
    assert (culprit["layer"], culprit["op_type"]) == (name, "MatMul")
    assert culprit["inside"] == {"if": "If", "scan": "Scan"}.get(network, "Loop")
    assert case["search"]["minimal"]
    assert case["search"]["verified"]
    assert "INT8 is not the cause" not in text
    assert f"Why: MatMul '{name}' is at fault: scale " in text
    fixed = min(pytester.path.glob("out/**/fixed.onnx"), key=lambda path: len(path.parts))
    assert sqnr_db(pytester.path, "int8.onnx", network) < 10
    assert sqnr_db(pytester.path, str(fixed.relative_to(pytester.path)), network) > 12


@TWO
def test_weights_and_scales_from_around_a_body_are_read(pytester: pytest.Pytester, network: str) -> None:
    write_case(pytester.path, network, FLAT, outside=True, opset=13, spec={"baseline": "fp32"})
    _, case = run(pytester)
    assert [c["layer"].partition("_")[0] for c in case["search"]["culprits"]] == [f"{NETWORKS[network]}odd"]
    assert case["search"]["verified"]
    assert case["search"]["fixed_pairs"] == []


@TWO
def test_nothing_is_innocent_while_a_pair_is_not_understood(pytester: pytest.Pytester, network: str) -> None:
    write_case(pytester.path, network, FLAT, strange="odd")
    text, case = run(pytester, "-vv")
    pairs = case["search"]["fixed_pairs"]
    assert f"{NETWORKS[network]}odd" in pairs[0]
    assert not case["search"]["found"]
    assert not re.search("INT8 is not|every layer out of INT8", text)
    assert re.search(r"Fix: none found: .*Q/DQ", text)


@TWO
def test_a_pair_that_is_not_understood_is_a_caution_of_a_case_that_passes(
    pytester: pytest.Pytester, network: str
) -> None:
    write_case(pytester.path, network, {}, strange="odd")
    text, case = run(pytester)
    (warning,) = [line for line in case["warnings"] if "no pair" in line]
    assert case["verdict"] == "passed"
    assert f"{NETWORKS[network]}odd" in warning
    (line,) = [line for line in text.splitlines() if line.startswith("PASSED")]
    assert "Q/DQ in a body of If, Loop or Scan is no pair" in text
    assert "warning" in line


def test_a_pair_that_stays_is_told_beside_a_layer_that_is_found(pytester: pytest.Pytester) -> None:
    write_case(pytester.path, "loop", {"last": 4000.0}, strange="odd")
    text, case = run(pytester)
    assert [culprit["layer"] for culprit in case["search"]["culprits"]] == ["last"]
    assert "Caution: 1 Q/DQ node stays as it is" in text


def test_plan_and_exclude_take_a_layer_of_a_body(pytester: pytest.Pytester) -> None:
    (pytester.path / "plan.yaml").write_text("version: 4\nhigh:\n  loop/odd: fp16\n")
    for spec in (
        {"plan": "plan.yaml"},
        {"int8": {"model": "int8.onnx", "exclude": ["loop/odd"]}},
        {"int8": {"model": "int8.onnx", "exclude": ["*odd"]}},
    ):
        write_case(pytester.path, "loop", FLAT, spec=spec)
        _, case = run(pytester)
        assert case["verdict"] == "passed", spec
        assert (case["int8_groups"], case["high_groups"]) == (3, 1)


def test_a_model_quantized_in_bodies_alone_is_a_quantized_model(pytester: pytest.Pytester) -> None:
    write_case(pytester.path, "loop", FLAT)
    plain = body_models.Models("loop").model()
    low = body_models.Models("loop", ranges={**body_models.FIT, **FLAT}).model()
    (loop,) = (node for node in low.graph.node if node.op_type == "Loop")
    (place,) = (i for i, node in enumerate(plain.graph.node) if node.op_type == "Loop")
    plain.graph.node[place].CopyFrom(loop)
    (pytester.path / "int8.onnx").write_bytes(plain.SerializeToString())
    _, case = run(pytester)
    assert case["int8_groups"] == 2
    assert [culprit["layer"] for culprit in case["search"]["culprits"]] == ["loop/odd"]
    assert case["search"]["verified"]
    (pytester.path / "model.onnx").write_bytes(plain.SerializeToString())
    text, _ = run(pytester)
    assert "holds Q/DQ already" in text
