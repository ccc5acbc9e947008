"""The forms of one model that a case compares: FP32 reference, FP16 baseline, INT8 candidate."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pytest_int8acc.case.plan_file import read_plan
from pytest_int8acc.data import Dataset, RandomSource, open_dataset
from pytest_int8acc.engines.remote import store_of
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.groups import Layout, find_groups, origins
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, Precision
from pytest_int8acc.graph.plan import apply, fp32_nodes, guard, merge
from pytest_int8acc.graph.qdq import is_qdq, read_qdq
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.graph.to_fp16 import Fp16Model, to_fp16
from pytest_int8acc.scales import Scales
from pytest_int8acc.scales.calibrate import calibrate
from pytest_int8acc.scales.load import load_scales
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.int8 import (
    Algorithm,
    BaselineModel,
    Calibration,
    CalibrationMethod,
    ImplicitCalibration,
    Source,
)
from pytest_int8acc.spec.int8 import RandomSource as RandomSpec
from pytest_int8acc.spec.models import Case

logger = logging.getLogger("pytest_int8acc")


@dataclass(frozen=True, eq=False)
class Form:
    """A model as it will run, and what the report says of it."""

    model: Model
    description: str
    notes: tuple[str, ...] = ()
    overflows: tuple[str, ...] = ()
    """Constants that FP16 cannot hold."""
    single: Model | None = None
    """The same before it was halved, for a TensorRT that halves by itself; None where nothing was halved."""
    fp32: frozenset[str] = frozenset()
    """Nodes that were not halved."""
    engine: Path | None = None
    """A TensorRT engine that is built already and runs in place of ``model``, which tells its interface."""
    implicit: ImplicitForm | None = None
    """How TensorRT quantizes ``model`` by itself."""

    @property
    def half(self) -> bool:
        """Whether it computes in FP16."""
        return self.single is not None or any(t.dtype == np.float16 for t in self.model.values().values())


@dataclass(frozen=True, eq=False)
class ImplicitForm:
    """Implicit quantization: TensorRT below 11 calibrates or reads a cache, and chooses what runs in INT8."""

    algorithm: Algorithm
    samples: Dataset | None
    """Calibration samples; None where the cache must be there."""
    cache: Path | None
    """The cache to read; written where it is not there and ``samples`` are."""
    high: Mapping[str, Precision] = field(default_factory=dict)
    """Node to the precision that it is held in."""


@dataclass(frozen=True, eq=False)
class Int8Form:
    """The INT8 side of a case before a plan: its network, and where its scales come from."""

    network: Network
    source: str
    rest: Precision
    """What is not INT8 runs in this."""
    notes: tuple[str, ...] = ()
    whole: Network | None = None
    """``network`` with the groups that the case's own plan keeps high; None where the case has no plan."""
    given: Plan = field(default_factory=Plan)
    """The case's own plan."""

    @property
    def every(self) -> Network:
        """The network that ``complete`` plans are plans of."""
        return self.network if self.whole is None else self.whole

    def complete(self, plan: Plan | None = None) -> Plan:
        """``plan`` over the case's own one."""
        return merge(self.given, plan or Plan())

    def under(self, plan: Plan | None = None) -> Form:
        """The candidate with ``plan`` over the case's own; by default all else that can be is INT8."""
        network, plan = self.every, self.complete(plan)
        mixed = apply(network, plan)
        count = len(network.groups) - len(plan.high)
        every = len(network.groups) + len(network.left_high)
        description = f"INT8 in {count} of {every} groups, {self.source}, rest {self.rest.upper()}"
        if self.rest == "fp32":
            return Form(mixed, description, self.notes)
        fp32 = fp32_nodes(network, plan)
        halved = to_fp16(mixed, fp32)
        notes = (*self.notes, *halved.notes)
        return Form(halved.model, description, notes, halved.overflows, mixed, frozenset(fp32))


@dataclass(frozen=True, eq=False)
class Fix:
    """A plan that was built and met the criteria."""

    int8: Int8Form
    """The case's own, or one with weights quantized anew or migrated; ``under(plan)`` gives the form."""
    plan: Plan
    form: Form


def load_float(case: Case) -> Model:
    """The case's float model; ModelError where it cannot be read, or is quantized already."""
    model = load_model(case.path(case.model))
    if is_qdq(model):
        raise ModelError(
            f"{model.name}: holds Q/DQ already; 'model' wants the float model it was made from, and "
            "this one belongs under 'int8: {model: ...}'"
        )
    return model


def baseline_form(case: Case, model: Model) -> Form:
    """What INT8 is compared with."""
    if isinstance(case.baseline, BaselineModel):
        if case.baseline.engine is not None:
            path = case.path(case.baseline.engine)
            return Form(model, f"engine {case.baseline.engine}", engine=path)
        assert case.baseline.model is not None  # the spec demands one of both
        own = load_model(case.path(case.baseline.model))
        return Form(own, f"{case.baseline.model} as it is")
    if case.baseline == "fp32":
        return Form(model, "FP32")
    halved: Fp16Model = to_fp16(model)
    return Form(halved.model, "FP16", halved.notes, halved.overflows, model)


def int8_form(case: Case, model: Model, settings: Settings, cache: Path | None = None) -> Int8Form:
    """The network of the case's INT8 side, with scales from where the spec says.

    Implicit quantization becomes explicit here.

    Args:
        case: Any but one whose INT8 side is an engine.
        model: The case's float model.
        settings: Where calibration runs, and where its ranges are kept.
        cache: What TensorRT's calibrator left; None takes the spec's, or calibrates in its manner.

    Raises:
        Int8accError: A model, the calibration data or a scale file is at fault.
    """
    rest: Precision = "fp32" if case.baseline == "fp32" else "fp16"
    if case.int8.model is not None:
        network = read_qdq(load_model(case.path(case.int8.model)), original=model, exclude=case.int8.exclude)
        notes = (*network.notes, *_left_high(network, rest))
        return _guarded(case, Int8Form(network, f"read from {case.int8.model}", rest, notes))
    layout = find_groups(model, case.int8.exclude)
    scales = _scales(case, model, layout, settings, cache)
    network = quantize(model, layout, scales.values)
    notes = (*scales.notes, *_left_high(network, rest))
    return _guarded(case, Int8Form(network, scales.source, rest, notes))


def _guarded(case: Case, form: Int8Form) -> Int8Form:
    """``form`` under the case's own plan, where it has one; a search sees what the plan leaves in INT8."""
    if case.plan is None:
        return form
    plan = read_plan(case.path(case.plan), form.network)
    source = f"{form.source}, under {case.plan}"
    return replace(form, network=guard(form.network, plan), source=source, whole=form.network, given=plan)


def engine_form(case: Case, model: Model) -> Form:
    """The candidate where the case names an engine that is built already."""
    assert case.int8.engine is not None
    return Form(model, f"engine {case.int8.engine}", engine=case.path(case.int8.engine))


def implicit_form(case: Case, model: Model) -> Form:
    """The candidate where TensorRT quantizes by itself."""
    implicit = case.int8.implicit
    assert implicit is not None
    cache = None if implicit.cache is None else case.path(implicit.cache)
    calibration = implicit.calibrate
    if calibration is None:
        description = f"INT8 by TensorRT itself, ranges of {implicit.cache}"
        return Form(model, description, single=model, implicit=ImplicitForm("entropy2", None, cache))
    description = f"INT8 by TensorRT itself, {calibration.algorithm} calibration"
    wanted = ImplicitForm(calibration.algorithm, _calibration_samples(case, model, calibration), cache)
    return Form(model, description, single=model, implicit=wanted)


def open_source(case: Case, source: Source, model: Model, what: str, samples: int | None) -> Dataset:
    """The data that a spec's ``inputs`` or ``calibrate.data`` means."""
    base = case.path("")
    wanted = (
        RandomSource(source.random.samples, source.random.seed) if isinstance(source, RandomSpec) else source
    )
    return open_dataset(wanted, model.inputs, samples=samples, batch=case.batch, base=base, what=what)


def calibration_data(case: Case, model: Model) -> Dataset | None:
    """The samples that scales come from, where the case has some apart from its inputs."""
    int8 = case.int8
    calibration = int8.calibrate or (int8.implicit.calibrate if int8.implicit else None)
    if calibration is None or calibration.data is None:
        return None
    return open_source(case, calibration.data, model, "calibrate.data", calibration.samples)


def _calibration_samples(case: Case, model: Model, calibration: Calibration | ImplicitCalibration) -> Dataset:
    """What to calibrate on: samples of its own, or the inputs."""
    own = calibration_data(case, model)
    return own or open_source(case, case.inputs, model, "inputs", calibration.samples)


#: What comes nearest to each of TensorRT's calibrators.
_LIKE: Mapping[Algorithm, CalibrationMethod] = {
    "entropy2": "entropy",
    "entropy": "entropy",
    "minmax": "minmax",
    "legacy": "percentile",
}


def _scales(case: Case, model: Model, layout: Layout, settings: Settings, cache: Path | None) -> Scales:
    implicit, file = case.int8.implicit, cache
    if case.int8.scales is not None:
        file = case.path(case.int8.scales)
    elif file is None and implicit is not None and implicit.cache is not None:
        given = case.path(implicit.cache)
        file = given if implicit.calibrate is None or given.exists() else None
    if file is not None:
        makers = {tensor: node.name for tensor, node in model.index.producer.items()}
        return load_scales(file, layout.activations, makers, origins(model))
    calibration = case.int8.calibrate
    if implicit is not None and implicit.calibrate is not None:
        wish = implicit.calibrate
        calibration = Calibration(data=wish.data, samples=wish.samples, method=_LIKE[wish.algorithm])
    assert calibration is not None  # the spec demands a source
    return _calibrated(case, calibration, model, layout, settings)


def _calibrated(
    case: Case, calibration: Calibration, model: Model, layout: Layout, settings: Settings
) -> Scales:
    samples = _calibration_samples(case, model, calibration)
    logger.info("%s: calibrating %d tensors (%s)", case.name, len(layout.activations), calibration.method)
    scales = calibrate(
        model,
        layout.activations,
        samples,
        method=calibration.method,
        percentile=calibration.percentile,
        top_k=calibration.top_k,
        provider=settings.provider,
        store=store_of(settings),
    )
    if calibration.data is None:
        own = "calibrated on the very inputs that are compared; 'calibrate: {data: ...}' keeps them apart"
        return replace(scales, notes=(*scales.notes, own))
    return scales


def _left_high(network: Network, rest: Precision) -> Sequence[str]:
    """A note on weighted nodes that stay in high precision, reasons first seen first."""
    if not network.left_high:
        return ()
    named = "; ".join(f"{name}: {why.text}" for name, why in list(network.left_high.items())[:5])
    more = len(network.left_high) - 5
    return (
        f"{len(network.left_high)} layers stay in {rest.upper()}: {named}"
        + (f"; +{more} more" if more > 0 else ""),
    )
