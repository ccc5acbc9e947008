"""The three kinds of form: a model to build, an engine, a model that TensorRT quantizes itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from projects import Project

from pytest_int8acc import Settings
from pytest_int8acc.case.forms import baseline_form, candidate_form, load_float
from pytest_int8acc.runtime.forms import EngineForm, ImplicitForm, ModelForm

IMPLICIT = "int8: {implicit: {calibrate: {algorithm: minmax}, cache: a.cache}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.data(made.model())
    return made


def test_an_engine_is_a_form_of_its_own(project: Project) -> None:
    case = project.case("baseline: {engine: a.engine}\nint8: {engine: b.engine}\n")
    model = load_float(case)
    baseline, (candidate, int8) = (
        baseline_form(case, model),
        candidate_form(case, model, Settings(), implicit=True),
    )
    assert isinstance(baseline, EngineForm)
    assert isinstance(candidate, EngineForm)
    assert int8 is None, "nothing is known of its layers"
    assert (baseline.path, baseline.description) == (project.folder / "a.engine", "engine a.engine")
    assert (candidate.path, candidate.half) == (project.folder / "b.engine", False)


def test_implicit_quantization_stays_so_only_where_the_backend_does_it(project: Project) -> None:
    case = project.case(IMPLICIT)
    model = load_float(case)
    form, int8 = candidate_form(case, model, Settings(), implicit=True)
    assert isinstance(form, ImplicitForm)
    assert int8 is None
    assert form.half, "the builder may take FP16 where it does not take INT8"
    assert (form.algorithm, form.cache) == ("minmax", project.folder / "a.cache")
    assert form.samples is not None
    held = form.holding({"conv": "fp16"}, project.folder / "b.cache")
    assert (held.samples, held.cache, held.held) == (None, project.folder / "b.cache", {"conv": "fp16"})
    explicit, int8 = candidate_form(case, model, Settings(), implicit=False)
    assert isinstance(explicit, ModelForm)
    assert int8 is not None
    assert int8.under().description == explicit.description
