"""What backends say that they can do, and what they refuse before anything is built."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from projects import CALIBRATED, Project

from pytest_int8acc import Case, EngineError, Settings
from pytest_int8acc.case.forms import candidate_form
from pytest_int8acc.data import open_dataset
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import EngineForm, ImplicitForm, ModelForm
from pytest_int8acc.runtime.open import OrtBackend
from pytest_int8acc.runtime.trt.backend import TrtBackend
from pytest_int8acc.runtime.trt.platform import Platform

SETTINGS = Settings(no_cache=True)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    project = Project(tmp_path)
    project.data(project.model("plain"))
    return project.case(CALIBRATED)


@pytest.fixture
def model(case: Case) -> Model:
    return load_model(case.path(case.model))


@pytest.fixture(params=[(8, 6, 1), (10, 13, 0)], ids=str)
def tensorrt(case: Case, request: pytest.FixtureRequest) -> Iterator[TrtBackend]:
    made = TrtBackend(Platform("tensorrt", request.param, "a GPU", (8, 9)), case, SETTINGS)
    yield made
    made.close()


def implicit(model: Model, cache: Path) -> ImplicitForm:
    return ImplicitForm(model, "implicit", algorithm="minmax", samples=None, cache=cache)


def test_onnx_runtime_builds_nothing_and_its_mode_changes_outputs() -> None:
    backend: Any = OrtBackend(SETTINGS.but(mode="native"))
    assert not any((backend.builds_engines, backend.times_engines, backend.quantizes_implicitly))
    assert not backend.needs_simulation
    assert backend.output_settings == {"mode": "native"}


def test_engines_of_tensorrt_tell_of_themselves_and_are_simulated_beside(tensorrt: Any) -> None:
    assert all((tensorrt.builds_engines, tensorrt.times_engines, tensorrt.quantizes_implicitly))
    assert tensorrt.needs_simulation
    assert tensorrt.output_settings == {"mode": "engine"}


@pytest.mark.parametrize(("own", "others"), [(None, (1, 0)), (5, (1, 0)), (1, (0,)), (0, ())])
def test_levels_below_the_case_s_own_can_be_built(
    case: Case, own: int | None, others: tuple[int, ...]
) -> None:
    said = case.tensorrt.model_copy(update={"optimization_level": own})
    case = case.model_copy(update={"tensorrt": said})
    made = TrtBackend(Platform("tensorrt", (10, 13, 0), "a GPU", (8, 9)), case, SETTINGS)
    model = load_model(Path(__file__).parents[2] / "example_project" / "digits.onnx")
    form = ModelForm.in_full(model)
    assert made.other_levels == others
    with np.load(Path(model.name).parent / "data" / "validation.npz") as data:
        np.savez(case.file.parent / "image.npz", image=data["image"][:4])
    inputs = open_dataset("image.npz", model.inputs, base=case.file.parent)
    for level in (None, *others):
        request = made._request(dataclasses.replace(form, level=level), Role.FIXED, inputs)
        assert request.options.builder.get("optimization_level") == (own if level is None else level)
    made.close()
    assert OrtBackend(SETTINGS).other_levels == ()


def test_tensors_are_shown_of_engines_that_are_built_here(tensorrt: Any, model: Model) -> None:
    engine = EngineForm(model, "an engine", path=Path("a.engine"))
    assert tensorrt.shows_tensors(ModelForm.in_full(model))
    assert not tensorrt.shows_tensors(engine)
    assert not OrtBackend(SETTINGS).shows_tensors(ModelForm.in_full(model))


def test_onnx_runtime_refuses_an_engine_at_once(model: Model) -> None:
    backend = OrtBackend(SETTINGS, "no NVIDIA GPU is seen")
    backend.check(ModelForm.in_full(model))
    with pytest.raises(MissingBackendError, match=r"a\.engine: a TensorRT engine, and no NVIDIA GPU is seen"):
        backend.check(EngineForm(model, "an engine", path=Path("a.engine")))


def test_files_that_are_not_there_are_missed_before_anything_is_built(
    tensorrt: TrtBackend, model: Model, tmp_path: Path
) -> None:
    tensorrt.check(ModelForm.in_full(model))
    with pytest.raises(EngineError, match=r"b\.engine: the engine cannot be read: No such file"):
        tensorrt.check(EngineForm(model, "an engine", path=tmp_path / "b.engine"))
    with pytest.raises(EngineError, match=r"b\.cache: the calibration cache cannot be read: No such file"):
        tensorrt.check(implicit(model, tmp_path / "b.cache"))
    (tmp_path / "b.cache").write_bytes(b"TRT-8601-MinMaxCalibration\n")
    tensorrt.check(implicit(model, tmp_path / "b.cache"))


def test_a_candidate_that_cannot_run_is_refused_before_the_baseline_is_opened(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("nothing is opened")

    monkeypatch.setattr(OrtBackend, "open", opened)
    project = Project(case.file.parent)
    with pytest.raises(MissingBackendError, match="a TensorRT engine"):
        project.check("int8: {engine: a.engine}\n", Settings(backend="onnxruntime"))


def test_flags_choose_types_below_tensorrt_10_and_under_implicit_quantization(
    tensorrt: TrtBackend, model: Model
) -> None:
    halved = ModelForm.halved(model, "FP16")
    deployed, by_flags = tensorrt.deployed(halved)
    assert by_flags == (tensorrt.platform.version < (10,))
    assert (deployed is halved.model) == (not by_flags)
    half = {tensor.dtype.name for tensor in deployed.values().values()} >= {"float16"}
    assert half != by_flags, "what flags halve is handed over as it was before"
    assert tensorrt.deployed(implicit(model, Path("a.cache")))[1]


def test_obey_holds_what_computes_in_fp16_but_not_what_q_dq_make_int8(case: Case, model: Model) -> None:
    plain, obeys = (
        TrtBackend(Platform("tensorrt", (8, 6, 1), "a GPU", (8, 9)), c, SETTINGS)
        for c in (case, obeying(case))
    )
    assert plain.can_obey
    assert not obeys.can_obey
    inputs = open_dataset("data.npz", model.inputs, base=case.file.parent)
    nodes = [node.name for node in model.graph.node]
    half = ModelForm.halved(model, "FP16", in_fp32=nodes[:1])
    assert plain._request(half, Role.INT8, inputs).precisions == {nodes[0]: "fp32"}
    held = obeys._request(half, Role.INT8, inputs).precisions
    assert held == {**dict.fromkeys(nodes, "fp16"), nodes[0]: "fp32"}
    assert obeys._request(ModelForm.in_full(model), Role.BASELINE, inputs).precisions == {}
    _, int8 = candidate_form(case, model, SETTINGS, implicit=False)
    assert int8 is not None
    first = int8.network.groups[0].name
    mixed = int8.under(Plan({first: "fp16"}))
    assert obeys._request(mixed, Role.INT8, inputs).precisions == {first: "fp16"}
    for backend in (plain, obeys):
        backend.close()


@pytest.mark.parametrize(("version", "refused"), [((8, 6, 1), True), ((10, 0, 1), False)])
def test_bf16_wants_strong_typing(case: Case, model: Model, version: tuple[int, ...], refused: bool) -> None:
    case = case.model_copy(update={"candidate": "bf16"})
    backend = TrtBackend(Platform("tensorrt", version, "a GPU", (8, 9)), case, SETTINGS)
    with pytest.raises(EngineError, match="has no BF16") if refused else contextlib.nullcontext():
        backend.check(ModelForm.in_full(model))
    backend.close()


def obeying(case: Case) -> Case:
    return case.model_copy(update={"tensorrt": case.tensorrt.model_copy(update={"obey": True})})
