"""An engine in FP16 that is off where the same model in ONNX Runtime is not: the engine is the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pytest_int8acc import CaseResult, Settings, load_spec
from pytest_int8acc.answer import conclude
from pytest_int8acc.case import measured as measuring
from pytest_int8acc.case.measured import measure
from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import ModelForm
from pytest_int8acc.runtime.onnxruntime import OrtBackend

LENGTH = 2048
MODEL = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, {LENGTH}] x) => (float[n, 8] y) {{
    gate = Relu(x)  long = MatMul(gate, w1)  bent = Relu(long)  y = MatMul(bent, w2)
}}"""


class WrongBackend(OrtBackend):
    """Builds engines in which the node ``long``, where it is in FP16, sums in FP16 or gives 5 % too much."""

    builds_engines = needs_simulation = True

    def __init__(self, settings: Settings, *, sums_in_fp16: bool) -> None:
        super().__init__(settings)
        self.sums_in_fp16 = sums_in_fp16

    def open(self, form: Any, role: Role, inputs: Dataset) -> Any:
        assert isinstance(form, ModelForm)
        return self._sessions.configured(_built(form.model, self.sums_in_fp16))


def _built(model: Model, sums_in_fp16: bool) -> Model:
    """With 16 products at a time added to a sum in FP16, or with a twentieth added to the result."""
    edit, node = model.edit(), model.index.nodes["long"]
    if model.values()[node.output[0]].dtype != np.float16:
        return model
    made = [onnx.helper.make_node("MatMul", [*node.input], ["long/whole"], "long/whole")]
    left, right, parts = node.input[0], node.input[1], LENGTH // 16
    if not sums_in_fp16:
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


@pytest.mark.parametrize("sums_in_fp16", [True, False])
def test_an_engine_that_is_off_where_its_model_is_not_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums_in_fp16: bool
) -> None:
    result = concluded(tmp_path, monkeypatch, sums_in_fp16)
    assert result.search is not None
    (culprit,) = result.search.culprits
    assert culprit.layer == "long"
    assert culprit.cause is not None
    assert (culprit.cause.kind, culprit.cause.symptom) == ("engine-only", "engine-rounds")


def concluded(folder: Path, monkeypatch: pytest.MonkeyPatch, sums_in_fp16: bool) -> CaseResult:
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
    backend = WrongBackend(Settings(), sums_in_fp16=sums_in_fp16)
    monkeypatch.setattr(measuring, "open_backend", lambda *_: backend)
    (case,) = load_spec(spec)
    measured = measure(case, Settings())
    try:
        return conclude(measured, folder / "fix")
    finally:
        measured.close()
