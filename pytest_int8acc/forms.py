"""The forms of one model that a case compares: FP32 reference, FP16 baseline, INT8 candidate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_int8acc.data import Dataset, RandomSource, open_dataset
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.groups import Layout, find_groups, origins
from pytest_int8acc.graph.halve import Halved, halve
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, Precision
from pytest_int8acc.graph.plan import apply, fp32_nodes
from pytest_int8acc.graph.qdq import is_qdq, read_qdq
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.scales import Scales
from pytest_int8acc.scales.calibrate import calibrate
from pytest_int8acc.scales.load import load_scales
from pytest_int8acc.settings import Provider
from pytest_int8acc.spec.models import BaselineModel, Case, Source
from pytest_int8acc.spec.models import RandomSource as RandomSpec

logger = logging.getLogger("pytest_int8acc")


@dataclass(frozen=True, eq=False)
class Form:
    """A model as it will run, and what the report says of it."""

    model: Model
    description: str
    notes: tuple[str, ...] = ()
    overflows: tuple[str, ...] = ()
    """Constants that FP16 cannot hold."""


@dataclass(frozen=True, eq=False)
class Int8Form:
    """The INT8 side of a case before a plan: its network, and where its scales come from."""

    network: Network
    source: str
    rest: Precision
    """What is not INT8 runs in this."""
    notes: tuple[str, ...] = ()

    def under(self, plan: Plan | None = None) -> Form:
        """The candidate with ``plan`` applied; by default everything that can be INT8 is."""
        plan = plan or Plan()
        mixed = apply(self.network, plan)
        count = len(self.network.groups) - len(plan.high)
        every = len(self.network.groups) + len(self.network.left_high)
        description = f"INT8 in {count} of {every} groups, {self.source}, rest {self.rest.upper()}"
        if self.rest == "fp32":
            return Form(mixed, description, self.notes)
        halved = halve(mixed, fp32_nodes(self.network, plan))
        return Form(halved.model, description, (*self.notes, *halved.notes), halved.overflows)


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
        own = load_model(case.path(case.baseline.model))
        return Form(own, f"{case.baseline.model} as it is")
    if case.baseline == "fp32":
        return Form(model, "FP32")
    halved: Halved = halve(model)
    return Form(halved.model, "FP16", halved.notes, halved.overflows)


def int8_form(case: Case, model: Model, provider: Provider) -> Int8Form:
    """The network of the case's INT8 side, with scales from where the spec says."""
    rest: Precision = "fp32" if case.baseline == "fp32" else "fp16"
    if case.int8.model is not None:
        network = read_qdq(load_model(case.path(case.int8.model)), original=model, exclude=case.int8.exclude)
        notes = (*network.notes, *_left_high(network, rest))
        return Int8Form(network, f"read from {case.int8.model}", rest, notes)
    layout = find_groups(model, case.int8.exclude)
    scales = _scales(case, model, layout, provider)
    network = quantize(model, layout, scales.values)
    return Int8Form(network, scales.source, rest, (*scales.notes, *_left_high(network, rest)))


def open_source(case: Case, source: Source, model: Model, what: str, samples: int | None) -> Dataset:
    """The data that a spec's ``inputs`` or ``calibrate.data`` means."""
    base = case.path("")
    wanted = (
        RandomSource(source.random.samples, source.random.seed) if isinstance(source, RandomSpec) else source
    )
    return open_dataset(wanted, model.inputs, samples=samples, batch=case.batch, base=base, what=what)


def _scales(case: Case, model: Model, layout: Layout, provider: Provider) -> Scales:
    if case.int8.scales is not None:
        path, makers = case.path(case.int8.scales), {o: n.name for n in model.graph.node for o in n.output}
        return load_scales(path, layout.activations, makers, origins(model))
    calibration = case.int8.calibrate
    assert calibration is not None  # the spec demands one of three
    if calibration.data is None:
        samples = open_source(case, case.inputs, model, "inputs", calibration.samples)
    else:
        samples = open_source(case, calibration.data, model, "calibrate.data", calibration.samples)
    logger.info("%s: calibrating %d tensors (%s)", case.name, len(layout.activations), calibration.method)
    scales = calibrate(
        model,
        layout.activations,
        samples,
        method=calibration.method,
        percentile=calibration.percentile,
        top_k=calibration.top_k,
        provider=provider,
    )
    if calibration.data is None:
        own = "calibrated on the very inputs that are compared; 'calibrate: {data: ...}' keeps them apart"
        return replace(scales, notes=(*scales.notes, own))
    return scales


def _left_high(network: Network, rest: Precision) -> Sequence[str]:
    """A note on weighted nodes that stay in high precision, reasons first seen first."""
    if not network.left_high:
        return ()
    named = "; ".join(f"{name}: {why}" for name, why in list(network.left_high.items())[:5])
    more = len(network.left_high) - 5
    return (
        f"{len(network.left_high)} layers stay in {rest.upper()}: {named}"
        + (f"; +{more} more" if more > 0 else ""),
    )
