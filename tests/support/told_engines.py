"""A backend on ONNX Runtime that tells of an engine, as TensorRT's inspector does, which no CPU can run.

Case files say with ``engine`` what it tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import pytest_int8acc.case.measured
from pytest_int8acc import Settings
from pytest_int8acc.data import Dataset
from pytest_int8acc.results import EngineInfo, Role
from pytest_int8acc.runtime.onnxruntime import OrtBackend
from pytest_int8acc.runtime.trt.inspector import read_layers

DUMPS = Path(__file__).parents[1] / "runtime" / "inspector_dumps"
#: How TensorRT 8.6 writes what a convolution reads and weighs, and a kernel of that kind.
_SAYS: Mapping[str, tuple[str, str, str]] = {
    "int8": (
        "Thirty-two wide channel vectorized row major Int8 format",
        "Int8",
        "sm80_xmma_fprop_i8i8_i8i32",
    ),
    "fp16": ("Channel major FP16 format where channel % 8 == 0", "Half", "sm80_xmma_fprop_f16f16_f16f32_f32"),
    "fp32": ("Row major linear FP32", "Float", "sm80_xmma_fprop_f32f32_tf32f32_f32"),
}


def dump(formats: Mapping[str, str], regions: Mapping[str, str] | None = None) -> str:
    """The inspector's JSON of an engine with a layer for each node, by its format; ``regions`` from, to."""
    layers: list[dict[str, Any]] = []
    for node, name in formats.items():
        tensor, weights, tactic = _SAYS[name]
        layers.append(
            {
                "Name": node,
                "LayerType": "CaskConvolution",
                "ParameterType": "Convolution",
                "Inputs": [{"Name": "x", "Dimensions": [1, 8], "Format/Datatype": tensor}],
                "Outputs": [{"Name": "y", "Dimensions": [1, 8], "Format/Datatype": tensor}],
                "Weights": {"Type": weights, "Count": 64},
                "TacticName": tactic,
            }
        )
    for first, last in (regions or {}).items():
        layers.append({"Name": f"{{ForeignNode[{first}...{last}]}}", "LayerType": "Myelin"})
    return json.dumps({"Layers": layers})


@dataclass
class Told:
    """What the engine of the candidate tells; may be changed between runs."""

    text: str = ""
    can_obey: bool = False
    candidate_is_baseline: bool = False
    """Whether the candidate's engine computes what the baseline's does."""
    untold: int = 0
    """Weighted layers in fused regions, whose format it does not tell."""


def said(engine: Mapping[str, Any]) -> Told:
    """As a case file has it: ``ran``, formats by node; ``regions``, first node to last; and the rest."""
    assert engine.keys() <= {"ran", "regions", "obeys", "is the baseline", "untold"}, engine.keys()
    text = dump(engine.get("ran", {}), engine.get("regions"))
    return Told(text, bool(engine.get("obeys")), bool(engine.get("is the baseline")), engine.get("untold", 0))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return tell(monkeypatch, Told())


def tell(monkeypatch: pytest.MonkeyPatch, told: Told) -> Told:
    """Cases measured in this process build such engines from now on."""

    class Telling(OrtBackend):
        builds_engines = True

        @property
        def can_obey(self) -> bool:  # type: ignore[override]
            return told.can_obey

        @property
        def engines(self) -> tuple[EngineInfo, ...]:
            info = EngineInfo(Role.INT8, "INT8", 1.0, False, 1, read_layers(told.text, self._nodes))
            return (replace(info, untold=told.untold),)

        def open(self, form: Any, role: Role, inputs: Dataset) -> Any:
            self._nodes = [node.name for node in form.model.graph.node]
            if role == Role.BASELINE:
                self._baseline = form
            shown = self._baseline if told.candidate_is_baseline and role == Role.INT8 else form
            return super().open(shown, role, inputs)

    def backend(case: object, settings: Settings, *_: object) -> OrtBackend:
        return Telling(settings)

    monkeypatch.setattr(pytest_int8acc.case.measured, "open_backend", backend)
    return told
