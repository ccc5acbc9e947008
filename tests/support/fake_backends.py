"""A backend whose builder fuses wrong: ONNX Runtime stands in for engines, with a fault planted.

Case files name with ``fuses wrong`` the nodes, and with ``right at level`` where the builder is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_int8acc import Settings, load_spec
from pytest_int8acc.case.measured import measure
from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import EngineInfo, EngineLayer, Role
from pytest_int8acc.runtime.forms import ModelForm
from pytest_int8acc.runtime.onnxruntime import OrtBackend
from pytest_int8acc.tensors import Feed


class WrongBackend(OrtBackend):
    """Engines that are wrong where a node of ``wrong`` runs in INT8 and its result is no output."""

    builds_engines = True
    needs_simulation = True
    engines: tuple[EngineInfo, ...] = ()

    def __init__(self, settings: Settings, wrong: Sequence[str] = (), right_at: int = -1) -> None:
        super().__init__(settings)
        self.wrong, self.right_at = tuple(wrong), right_at
        self.other_levels = (1, 0)
        self.opened: list[Role] = []

    def open(self, form: Any, role: Role, inputs: Dataset) -> Any:
        self.opened.append(role)
        engine = super().open(form, role, inputs)
        assert isinstance(form, ModelForm)
        layers = (EngineLayer("a + b", (*self.wrong, "behind"), "weighted", "int8"),)
        if role == Role.INT8:
            self.engines = (EngineInfo(role, "", 1.0, False, 1, layers),)
        wrong = form.level != self.right_at and any(fused(form, node) for node in self.wrong)
        return _Wrong(engine) if wrong else engine


def fused(form: ModelForm, name: str) -> bool:
    """Whether a builder would fuse a node with what reads it: in INT8, and its result no output."""
    index = form.original.index
    node = index.nodes[name]
    makers = [index.producer[tensor].op_type for tensor in node.input if tensor in index.producer]
    return "DequantizeLinear" in makers and node.output[0] not in form.shown


class _Wrong:
    """An engine with half of each output wrong."""

    def __init__(self, engine: Any) -> None:
        self.description, self._engine = engine.description, engine
        self.inputs, self.outputs = engine.inputs, engine.outputs

    def __call__(self, feed: Feed) -> Feed:
        return {
            name: np.where(np.arange(a.size).reshape(a.shape) % 2, a, -a)
            for name, a in self._engine(feed).items()
        }


def use(patch: pytest.MonkeyPatch, wrong: Sequence[str], right_at: int = -1) -> None:
    """Cases measured in this process run on a ``WrongBackend`` from now on."""
    patch.setattr(
        "pytest_int8acc.case.measured.open_backend",
        lambda case, settings, *_: WrongBackend(settings, wrong, right_at),
    )


def measured_wrong(
    spec: Path,
    wrong: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings | None = None,
    right_at: int = -1,
) -> Any:
    """A case measured by a ``WrongBackend``."""
    use(monkeypatch, wrong, right_at)
    (case,) = load_spec(spec)
    return measure(case, settings or Settings())


def weighted(model: Model) -> list[str]:
    """Convolutions and matrix products."""
    return [n.name for n in model.graph.node if n.op_type in ("Conv", "Gemm", "MatMul")]
