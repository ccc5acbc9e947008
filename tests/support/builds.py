"""Engines built for tests."""

from __future__ import annotations

from typing import Any

from zoo import ZOO

from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.runtime.trt.build import BuildOptions, BuildRequest

PLAIN = normalize(make_model(ZOO["plain"](), name="plain.onnx"))


OPTIONS = BuildOptions(timeout=120)


def profiles_of(model: Model) -> dict[str, Any]:
    shapes = {i.name: tuple(d if isinstance(d, int) else 2 for d in i.shape or ()) for i in model.inputs}
    return {name: (shape, shape, shape) for name, shape in shapes.items()}


def request(model: Model = PLAIN, role: str = "INT8", **changes: Any) -> BuildRequest:
    wanted: dict[str, Any] = {"profiles": profiles_of(model), "typing": "strong", "options": OPTIONS}
    return BuildRequest(model, role, **{**wanted, **changes})
