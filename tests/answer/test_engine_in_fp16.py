"""An engine in FP16 that is off where the same model in ONNX Runtime is not: the engine is the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from written_networks import network

from pytest_int8acc import Settings, load_spec
from pytest_int8acc.answer import conclude
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
    """Builds engines in which the node ``long``, where it is in FP16, sums in FP16."""

    builds_engines = needs_simulation = True

    def open(self, form: Any, role: Role, inputs: Dataset) -> Any:
        assert isinstance(form, ModelForm)
        return self._sessions.configured(_built(form.model))


def _built(model: Model) -> Model:
    """With 16 products at a time added to a sum in FP16."""
    edit, node = model.edit(), model.index.nodes["long"]
    if model.values()[node.output[0]].dtype != np.float16:
        return model
    left, right, parts = node.input[0], node.input[1], LENGTH // 16
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


def test_an_engine_that_is_off_where_its_model_is_not_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    weights = {"w1": rng.normal(0.01, 0.003, (LENGTH, 32)), "w2": rng.normal(0, 0.3, (32, 8))}
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    onnx.save(network(MODEL, arrays), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=rng.normal(0.1, 0.2, (48, LENGTH)).astype(np.float32))
    spec = tmp_path / "case.int8acc.yaml"
    spec.write_text("model: model.onnx\ninputs: data.npz\ncandidate: fp16\ncriteria: [{sqnr_db: 58}]\n")
    target = "pytest_int8acc.case.measured.open_backend"
    monkeypatch.setattr(target, lambda *_: WrongBackend(Settings()))
    (case,) = load_spec(spec)
    measured = measure(case, Settings())
    result = conclude(measured, tmp_path / "fix")
    measured.close()
    assert result.search is not None
    (culprit,) = result.search.culprits
    assert culprit.layer == "long"
    assert culprit.cause is not None
    assert (culprit.cause.kind, culprit.cause.symptom) == ("engine-only", "engine-rounds")
