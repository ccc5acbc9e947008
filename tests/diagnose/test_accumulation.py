"""An engine whose kernel sums in FP16, as its name says: that is the cause, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from pytest_int8acc.backends.onnxruntime import OrtBackend
from pytest_int8acc.case.forms import Form, ModelForm
from pytest_int8acc.check import conclude
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.inspector import read_layers
from pytest_int8acc.graph.model import Model
from pytest_int8acc.measure import measured as measuring
from pytest_int8acc.measure.measured import measure
from pytest_int8acc.report.causes import cause_text
from pytest_int8acc.report.text import failure
from pytest_int8acc.results import CaseResult, EngineInfo, Role
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

LENGTH = 2048
MODEL = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, {LENGTH}] x) => (float[n, 8] y) {{
    gate = Relu(x)  long = MatMul(gate, w1)  bent = Relu(long)  y = MatMul(bent, w2)
}}"""
KERNEL = "sm80_xmma_gemm_f16f16_f16{}_{}_nn_n_tilesize64x64x32"


class SummingBackend(OrtBackend):
    """Builds engines in which the node ``long``, where it is in FP16, sums in FP16; or is wrong otherwise."""

    builds_engines = needs_simulation = True
    engines: tuple[EngineInfo, ...] = ()

    def __init__(self, settings: Settings, sums: str, *, wrong: bool) -> None:
        super().__init__(settings)
        self.sums, self.wrong = sums, wrong

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        assert isinstance(form, ModelForm)
        if role == Role.INT8:
            layer = {"Name": "long", "LayerType": "MatrixMultiply"}
            layer["TacticName"] = KERNEL.format(self.sums, self.sums)
            layers = read_layers(json.dumps([layer]), ["long"])
            self.engines = (EngineInfo(role, "", 1.0, False, 1, layers, low="fp16"),)
        return self._sessions.configured(_built(form.model, self.wrong))


def _built(model: Model, wrong: bool) -> Model:
    """With 16 products at a time added to a sum in FP16; or, of another fault, with a twentieth added."""
    edit, node = model.edit(), model.index.nodes["long"]
    if model.values()[node.output[0]].dtype != np.float16:
        return model
    made = [onnx.helper.make_node("MatMul", [*node.input], ["long/whole"], "long/whole")]
    left, right, parts = node.input[0], node.input[1], LENGTH // 16
    if wrong:
        edit.add_constant("long/more", np.float16(1.05))
        made.append(onnx.helper.make_node("Mul", ["long/whole", "long/more"], [*node.output], "long"))
    else:
        lefts, rights = ([f"long/{side}{i}" for i in range(parts)] for side in "lr")
        made = [
            onnx.helper.make_node("Split", [left], lefts, "long/l", axis=-1),
            onnx.helper.make_node("Split", [right], rights, "long/r", axis=0),
        ]
        total = ""
        for i, pair in enumerate(zip(lefts, rights, strict=True)):
            made.append(onnx.helper.make_node("MatMul", pair, [f"long/p{i}"], f"long/p{i}"))
            last = node.output[0] if i == parts - 1 else f"long/s{i}"
            if total:
                made.append(onnx.helper.make_node("Add", [total, f"long/p{i}"], [last], last))
            total = last if total else f"long/p{i}"
    edit.set_nodes([n for old in model.graph.node for n in (made if old.name == "long" else [old])])
    return edit.done()


def concluded(folder: Path, monkeypatch: pytest.MonkeyPatch, sums: str, *, wrong: bool) -> CaseResult:
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(MODEL)
    weights = {"w1": rng.normal(0.01, 0.003, (LENGTH, 32)), "w2": rng.normal(0, 0.3, (32, 8))}
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    for node in proto.graph.node:
        node.name = node.output[0]
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "data.npz", x=rng.normal(0.1, 0.2, (48, LENGTH)).astype(np.float32))
    spec = folder / "case.int8acc.yaml"
    spec.write_text("model: model.onnx\ninputs: data.npz\ncandidate: fp16\ncriteria: [{sqnr_db: 58}]\n")
    backend = SummingBackend(Settings(), sums, wrong=wrong)
    monkeypatch.setattr(measuring, "open_backend", lambda *_: backend)
    (case,) = load_spec(spec)
    measured = measure(case, Settings())
    try:
        return conclude(measured, folder / "fix")
    finally:
        measured.close()


def test_a_kernel_that_sums_in_fp16_is_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = concluded(tmp_path, monkeypatch, "f16", wrong=False)
    assert result.search is not None
    (culprit,) = result.search.culprits
    assert culprit.layer == "long"
    assert culprit.cause is not None
    assert (culprit.cause.kind, culprit.cause.tensor) == ("accumulation", "long")
    numbers = culprit.cause.numbers
    assert numbers["products"] == LENGTH
    assert numbers["low_sums_share"] > 0.8
    assert numbers["fp32_sums_share"] < 0.2
    assert "the engine's kernel sums 2048 products in FP16: so summed" in cause_text(culprit.cause)
    assert "long: the engine's kernel sums 2048 products in FP16" in " ".join(failure(result, 2).split())


@pytest.mark.parametrize(("sums", "wrong"), [("f32", False), ("f32", True), ("f16", True)])
def test_a_kernel_that_sums_in_fp32_or_is_wrong_otherwise_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums: str, wrong: bool
) -> None:
    result = concluded(tmp_path, monkeypatch, sums, wrong=wrong)
    assert result.search is not None
    (culprit,) = result.search.culprits
    assert culprit.cause is not None
    assert culprit.cause.kind == "engine-only"
    assert "meets the criteria in ONNX Runtime" in cause_text(culprit.cause)
