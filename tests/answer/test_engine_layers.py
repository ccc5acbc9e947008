"""Layers compared between engines that show their tensors; here sessions stand in for the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from pytest_int8acc import EngineError, Settings, load_spec
from pytest_int8acc.answer.diagnosis import diagnose
from pytest_int8acc.case.measured import measure
from pytest_int8acc.data import Dataset
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import EngineForm
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.open import OrtBackend
from pytest_int8acc.tensors import Feed

DIGITS = Path(__file__).parents[2] / "example_project"
HOW = "as outputs of a session"


class Showing(OrtBackend):
    """Sessions that show the float results of nodes which ``shows`` is true for."""

    def __init__(self, settings: Settings, shows: Callable[[str], bool]) -> None:
        super().__init__(settings)
        self.shows = shows

    def shows_tensors(self, form: Any) -> bool:
        return not isinstance(form, EngineForm)

    def inner_tensors(
        self, form: Any, role: Role, inputs: Dataset, feed: Feed, wanted: Sequence[str]
    ) -> tuple[Feed, str]:
        edit, types = form.model.edit(), form.model.values()
        known = {value.name for value in edit.graph.output}
        for node in edit.graph.node:
            name = node.output[0]
            if self.shows(node.op_type) and name not in known:
                kind = helper.np_dtype_to_tensor_dtype(types[name].dtype)
                edit.graph.output.append(helper.make_tensor_value_info(name, kind, None))
        return OrtEngine(edit.done())(feed), HOW


@pytest.fixture(scope="module")
def measured() -> Iterator[Any]:
    (case,) = load_spec(DIGITS / "digits_by_hand.int8acc.yaml")
    found = measure(case, Settings(backend="onnxruntime"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def layers(measured: Any) -> tuple[Any, ...]:
    """The table of a backend that shows no tensors."""
    return told(measured)[0]


def told(measured: Any, *, asked: bool = True) -> tuple[tuple[Any, ...], list[str]]:
    """The table of layers, and the notes on it."""
    changed = replace(measured, settings=measured.settings.but(layers=asked))
    assert changed.int8 is not None
    diagnosis, _ = diagnose(changed, Lab(changed, changed.int8))
    return diagnosis.layers, [note for note in diagnosis.notes if note.startswith("layers on engines")]


def shown_by(measured: Any, shows: Callable[[str], bool]) -> Any:
    return replace(measured, backend=Showing(measured.settings, shows))


def test_every_layer_is_compared_where_every_tensor_is_shown(measured, layers):
    found, notes = told(shown_by(measured, lambda _: True))
    assert [replace(line, engine_sqnr_db=None, engine_cosine=None) for line in found] == list(layers)
    for line in found:  # both are the Q/DQ model against FP16, here on the same samples
        assert line.engine_sqnr_db == pytest.approx(line.sqnr_db, abs=1), line.layer
        assert line.engine_cosine == pytest.approx(line.cosine, abs=3e-2), line.layer
    assert notes == [f"layers on engines: {len(layers)} of {len(layers)} on 32 samples; {HOW}"]


def test_a_fused_layer_is_compared_behind_what_is_fused_with_it(measured):
    found, notes = told(shown_by(measured, lambda op: op == "Relu"))
    known = [line for line in found if line.engine_sqnr_db is not None]
    assert 3 < len(known) < len(found), "a convolution before an Add is not told from the Add"
    assert notes[0].startswith(f"layers on engines: {len(known)} of {len(found)} ")


def test_where_engines_show_nothing_the_table_stays_as_it_was(measured, layers):
    assert told(measured) == (layers, [])
    built_already = EngineForm(measured.model, "engine int8.plan", path=Path("int8.plan"))
    showing = shown_by(measured, lambda _: True)
    assert told(replace(showing, candidate=built_already)) == (layers, [])


def test_an_engine_that_cannot_be_built_so_is_said_and_the_verdict_stands(measured, layers, monkeypatch):
    def refuse(*_: object) -> None:
        raise EngineError("digits (INT8): TensorRT 8.6.1 built no engine: out of memory")

    monkeypatch.setattr(Showing, "inner_tensors", refuse)
    assert told(shown_by(measured, lambda _: True)) == (
        layers,
        ["layers on engines: not compared: digits (INT8): TensorRT 8.6.1 built no engine: out of memory"],
    )


@pytest.mark.parametrize("asked", [True, False])
def test_engines_are_asked_only_where_somebody_wants_it(measured, asked):
    """A failing case builds no more engines than it must."""
    found, notes = told(shown_by(measured, lambda _: True), asked=asked)
    assert any(line.engine_sqnr_db is not None for line in found) == asked
    assert bool(notes) == asked
