"""Backends on ONNX Runtime that show tensors inside their engines, or whose engines are off by a factor.

Case files name with ``shows`` the operators whose results are shown. For ``nothing`` none is built.
With ``engines off`` they say by which factor the engine of a role is off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from onnx import helper

from pytest_int8acc import EngineError, Settings
from pytest_int8acc.data import Dataset
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.onnxruntime import OrtBackend, OrtEngine
from pytest_int8acc.tensors import Feed


class ShowingBackend(OrtBackend):
    """Sessions that show the results of nodes of some operators."""

    def __init__(self, settings: Settings, shows: Collection[str]) -> None:
        super().__init__(settings)
        self.shows = shows

    def shows_tensors(self, form: Any) -> bool:
        return True

    def inner_tensors(
        self, form: Any, role: Role, inputs: Dataset, feed: Feed, wanted: Sequence[str]
    ) -> tuple[Feed, str]:
        if not self.shows:
            raise EngineError("TensorRT 8.6.1 built no engine: out of memory")
        edit, types = form.model.edit(), form.model.values()
        known = {value.name for value in edit.graph.output}
        for node in edit.graph.node:
            name = node.output[0]
            if node.op_type in self.shows and name not in known:
                kind = helper.np_dtype_to_tensor_dtype(types[name].dtype)
                edit.graph.output.append(helper.make_tensor_value_info(name, kind, None))
        return OrtEngine(edit.done())(feed), "as outputs of a session"


def use(patch: pytest.MonkeyPatch, shows: Collection[str]) -> None:
    """Cases measured in this process run on a ``ShowingBackend`` from now on."""
    patch.setattr(
        "pytest_int8acc.case.measured.open_backend",
        lambda case, settings, *_: ShowingBackend(settings, () if shows == "nothing" else shows),
    )


class OffBackend(OrtBackend):
    """Engines whose outputs are a factor too large."""

    builds_engines = needs_simulation = True

    def __init__(self, settings: Settings, factors: Mapping[str, float]) -> None:
        super().__init__(settings)
        self.factors = factors

    def open(self, form: Any, role: Role, inputs: Dataset) -> Any:
        engine, factor = super().open(form, role, inputs), self.factors.get(role.value, 1.0)
        return _Off(engine, factor)


class _Off:
    def __init__(self, engine: Any, factor: float) -> None:
        self.description, self.inputs, self.outputs = engine.description, engine.inputs, engine.outputs
        self._engine, self._factor = engine, factor

    def __call__(self, feed: Feed) -> Feed:
        return {
            name: (array * self._factor).astype(array.dtype) for name, array in self._engine(feed).items()
        }


def put_off(patch: pytest.MonkeyPatch, factors: Mapping[str, float]) -> None:
    """Cases measured in this process run on an ``OffBackend`` from now on."""
    patch.setattr(
        "pytest_int8acc.case.measured.open_backend",
        lambda case, settings, *_: OffBackend(settings, factors),
    )
