"""The samples of a case: those that are compared, and those that scales come from."""

from __future__ import annotations

from pytest_int8acc.data import Dataset, RandomSource, open_dataset
from pytest_int8acc.graph.model import Model
from pytest_int8acc.spec.int8 import Calibration, ImplicitCalibration, Source
from pytest_int8acc.spec.int8 import RandomSource as RandomSpec
from pytest_int8acc.spec.models import Case


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


def calibration_samples(case: Case, model: Model, calibration: Calibration | ImplicitCalibration) -> Dataset:
    """What to calibrate on: samples of its own, or the inputs."""
    own = calibration_data(case, model)
    return own or open_source(case, case.inputs, model, "inputs", calibration.samples)
