"""What must never pass: nothing in INT8, outputs that nobody judges, outputs that FP16 has lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx
import onnx.parser
import pytest
from detectors import TOP, detector
from onnx import numpy_helper
from projects import CALIBRATED, Project

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.beside import with_beside, without_beside
from pytest_int8acc.measure.caveats import shown_inside
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings

if TYPE_CHECKING:
    from pytest_int8acc.backends.protocol import Backend

OFF = Settings(search="off")
TWO = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 8] x) => (float[N, 4] y, float[N, 4] small) {
  y = Gemm(x, w)
  part = Gemm(x, v)
  small = Mul(part, tiny)
}
"""


def project(folder: Path, tiny: float = 1.0, text: str = TWO) -> Project:
    """A network of two layers with an output each; ``small`` is multiplied by ``tiny``."""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name in "wv":
        array = rng.normal(size=(8, 4)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(tiny, np.float32), "tiny"))
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "data.npz", x=rng.normal(size=(64, 8)).astype(np.float32))
    return Project(folder)


def broken(folder: Path, spec: str) -> CaseResult:
    """The second output is all zero in INT8: its weights' scale leaves nothing of them."""
    made = project(folder)
    proto = onnx.load(folder / "model.onnx")
    quantized = pairs(proto, {"w": 0.02, "v": 1e3})
    onnx.save(quantized, folder / "q.onnx")
    return made.check("int8: {model: q.onnx}\n" + spec, OFF)


def pairs(proto: onnx.ModelProto, scales: dict[str, float], read: bool = True) -> onnx.ModelProto:
    """Q/DQ on ``x`` and on these weights; where not ``read``, one pair on ``x`` that nobody reads."""
    made = onnx.ModelProto.FromString(proto.SerializeToString())
    graph, nodes = made.graph, []
    for name, scale in {"x": 0.05, **scales}.items():
        graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), f"{name}_s"))
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), f"{name}_z"))
        nodes += [
            onnx.helper.make_node(kind, [source, f"{name}_s", f"{name}_z"], [target], f"{name}{kind}")
            for kind, source, target in (
                ("QuantizeLinear", name, f"{name}_q"),
                ("DequantizeLinear", f"{name}_q", f"{name}_d"),
            )
        ]
    for node in graph.node if read else ():
        for i, name in enumerate(node.input):
            if name in ("x", *scales):
                node.input[i] = f"{name}_d"
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)
    return made


# --- nothing in INT8


def test_a_pair_that_nobody_reads_is_no_quantization(tmp_path: Path) -> None:
    made = project(tmp_path)
    onnx.save(pairs(onnx.load(tmp_path / "model.onnx"), {}, read=False), tmp_path / "q.onnx")
    with pytest.raises(ModelError, match=r"nothing is in INT8 \(read from q.onnx\).*name the quantized"):
        made.check("int8: {model: q.onnx}\n")


def test_a_plan_that_keeps_every_layer_out_of_int8_is_refused(tmp_path: Path) -> None:
    made = project(tmp_path)
    nodes = [node.name for node in made_groups(tmp_path)]
    (tmp_path / "plan.yaml").write_text(f"version: 4\nhigh: {{{', '.join(f'{n}: fp16' for n in nodes)}}}\n")
    with pytest.raises(ModelError, match=r"plan.yaml: keeps all 2 layers out of INT8"):
        made.check(CALIBRATED + "plan: plan.yaml\n")
    (tmp_path / "plan.yaml").write_text(f"version: 4\nhigh: {{{nodes[0]}: fp16}}\n")
    assert made.check(CALIBRATED + "plan: plan.yaml\n", OFF).candidate.startswith("INT8 in 1 of 2 groups")


def made_groups(folder: Path) -> list[onnx.NodeProto]:
    from pytest_int8acc.graph.load import load_model

    return [n for n in load_model(folder / "model.onnx").graph.node if n.op_type == "Gemm"]


# --- nobody judges


@pytest.mark.parametrize("criteria", ["{output: y, cosine: 0.9}", "{output: y, top1_agreement: 0.5}"])
def test_an_output_that_no_criterion_names_is_judged_by_the_default(tmp_path: Path, criteria: str) -> None:
    result = broken(tmp_path, f"criteria: [{criteria}]\n")
    assert not result.passed
    assert [o.passed for o in result.outputs] == [True, False]
    assert result.outputs[1].scores[0].note == "default limit"


def test_an_output_may_be_left_unjudged_and_that_is_told(tmp_path: Path) -> None:
    result = broken(tmp_path, "criteria: [{cosine: 0.9}]\nunjudged: [sm*]\n")
    assert result.passed
    assert "not judged, as 'unjudged' says: 'small'" in result.warnings


def test_an_unjudged_output_that_the_model_lacks_is_an_error(tmp_path: Path) -> None:
    from pytest_int8acc.errors import CriterionError

    with pytest.raises(CriterionError, match=r"unjudged: 'smal' matches no output .*did you mean 'small'"):
        broken(tmp_path, "unjudged: [smal]\n")


def test_outputs_and_labels_that_only_a_metric_may_see_are_told(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def one(outputs): return 1.0\n")
    np.save(tmp_path / "labels.npy", np.zeros(64))
    result = broken(tmp_path, "criteria: [{metric: m.py:one, min: 1}]\n")
    assert result.passed
    assert "no limit on 'y', 'small': only m.py:one may look there" in result.warnings
    labelled = broken(tmp_path, "labels: labels.npy\ncriteria: [{cosine: -1}]\n")
    assert any(w.startswith("labels: labels.npy are read by no criterion") for w in labelled.warnings)


# --- lost in FP16


def test_an_output_that_is_all_zero_in_fp16_is_an_error(tmp_path: Path) -> None:
    made = project(tmp_path, tiny=1e-9)
    with pytest.raises(ModelError, match="'small' is 0 in all samples, and not in FP32, by numbers too"):
        made.check(CALIBRATED, OFF)
    assert made.check(CALIBRATED + "baseline: fp32\ncriteria: [{sqnr_db: 10}]\n", OFF).passed
    result = project(tmp_path, tiny=0.0).check(CALIBRATED, OFF)
    assert "output 'small' is 0 in all samples: nothing is compared" in result.warnings


@pytest.mark.parametrize("builds", [True, False])
def test_engines_that_show_tensors_inside_are_told_apart(builds: bool) -> None:
    model = with_beside(detector(TOP, "float[N, K] placed"), {"scores": 1})
    backend = cast("Backend", SimpleNamespace(builds_engines=builds))
    said = list(shown_inside(model, backend))
    assert [text.partition(":")[0] for text in said] == ["criteria name 'scores' inside the model"] * builds
    assert not list(shown_inside(without_beside(model), backend))
