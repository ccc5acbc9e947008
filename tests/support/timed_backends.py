"""A backend that times engines: ONNX Runtime runs them, and a table says how long each product takes.

Case files have this table as ``times``, with the fields of ``Times`` and spaces in their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_int8acc import Settings
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import EngineInfo, EngineLayer, Latency, Role
from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.runtime.forms import ModelForm
from pytest_int8acc.runtime.onnxruntime import OrtBackend


@dataclass
class Times:
    """How long products take, and which engines do not build."""

    in_int8: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of a product in INT8, by the name of its node; 0.5 for others. In FP16 each takes 1 ms."""
    in_fp16: Collection[str] = ()
    """Products that a fixed engine runs in FP16, whatever its model asks for, by the names of their nodes."""
    unbuilt: Collection[frozenset[str]] = ()
    """Products in INT8 with which the builder gives up."""
    drift: float = 1.0
    """By this factor all engines get slower with each measurement."""
    told: bool = True
    """Whether the engines tell the times of their layers."""
    built: list[frozenset[str]] = field(default_factory=list)
    """The products in INT8 of each fixed engine, in the order in which they were opened, each once."""


def said(times: Mapping[str, Any]) -> Times:
    """As a case file has it."""
    fields = {key.replace(" ", "_"): value for key, value in times.items()}
    return Times(**{**fields, "unbuilt": [frozenset(low) for low in times.get("unbuilt", ())]})


class TimedBackend(OrtBackend):
    """Engines of ONNX Runtime with the times of ``Times``."""

    builds_engines = True
    times_engines = True

    def __init__(self, settings: Settings, times: Times) -> None:
        super().__init__(settings)
        self._times = times
        self._models: dict[Role, Model] = {}
        self._infos: dict[Role, EngineInfo] = {}
        self._measurements = 0

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        return tuple(self._infos.values())

    def open(self, form: Any, role: Role, inputs: Dataset) -> Any:
        assert isinstance(form, ModelForm)
        low = in_int8(form.original)
        if role == Role.FIXED and low in self._times.unbuilt:
            raise EngineError("mergeScales: Assertion failed")
        if role == Role.FIXED and low not in self._times.built:
            self._times.built.append(low)
        self._models[role] = form.original
        ran = low.difference(self._times.in_fp16) if role == Role.FIXED else low
        layers = tuple(
            EngineLayer(name, (name,), "weighted", "int8" if name in ran else "fp16")
            for name in products(form.original)
        )
        self._infos[role] = EngineInfo(role, form.description, 1.0, False, 1, layers)
        return super().open(form, role, inputs)

    def measure_latency(self, roles: Sequence[Role], inputs: Dataset) -> None:
        slower = self._times.drift**self._measurements
        self._measurements += 1
        for role in roles:
            total = slower * sum(layer.milliseconds for layer in self._layers(role))
            latency = Latency(total, 0.99 * total, 1.01 * total, 20)
            self._infos[role] = replace(self._infos[role], latency=latency)

    def layer_times(self, role: Role, inputs: Dataset) -> tuple[LayerTime, ...]:
        return self._layers(role) if self._times.told else ()

    def _layers(self, role: Role) -> tuple[LayerTime, ...]:
        low = in_int8(self._models[role])
        slow = self._times.in_int8
        names = products(self._models[role])
        return tuple(LayerTime((name,), slow.get(name, 0.5) if name in low else 1.0) for name in names)


def products(model: Model) -> list[str]:
    """Convolutions and matrix products."""
    return [node.name for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]


def in_int8(model: Model) -> frozenset[str]:
    """The products whose first input is dequantized."""
    index = model.index
    makers = {name: index.producer.get(index.nodes[name].input[0]) for name in products(model)}
    return frozenset(
        name for name, maker in makers.items() if maker is not None and maker.op_type == "DequantizeLinear"
    )


def use(monkeypatch: pytest.MonkeyPatch, times: Times) -> Times:
    """Cases of this process run on a ``TimedBackend`` from now on."""
    monkeypatch.setattr(
        "pytest_int8acc.case.measured.open_backend",
        lambda case, settings, *_: TimedBackend(settings, times),
    )
    return times
