"""The samples of a case, and the scales from calibration or from a file of ranges."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_int8acc.data import Dataset, RandomSource, open_dataset
from pytest_int8acc.data.dataset import ROWS
from pytest_int8acc.errors import DataError
from pytest_int8acc.files import special
from pytest_int8acc.graph.formats import FORMATS, Format
from pytest_int8acc.graph.layout import Layout, origins
from pytest_int8acc.graph.model import Model
from pytest_int8acc.observers.methods import Options, calibrate
from pytest_int8acc.observers.scale_files import load_scales
from pytest_int8acc.observers.scales import Scales
from pytest_int8acc.runtime.onnxruntime import sessions_of
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.int8 import (
    Algorithm,
    BaselineModel,
    Calibration,
    CalibrationMethod,
    ImplicitCalibration,
    Prove,
    Source,
)
from pytest_int8acc.spec.int8 import RandomSource as RandomSpec
from pytest_int8acc.spec.models import Case

#: Approximate maximum number of output elements of one run. Outputs of baseline and candidate are held in
#: memory together. A model with larger outputs runs on fewer samples at once.
_RUN_ELEMENTS = 1 << 20
logger = logging.getLogger("pytest_int8acc")
#: For each calibration algorithm of TensorRT, the most similar calibration method of this plugin.
_LIKE: Mapping[Algorithm, CalibrationMethod] = {
    "entropy2": "entropy",
    "entropy": "entropy",
    "minmax": "minmax",
    "legacy": "percentile",
}


def low_of(case: Case) -> Format:
    """The low format of the case: INT8, FP8, FP16 or BF16."""
    return FORMATS[case.candidate or case.source.where]


def check_files(case: Case) -> None:
    """Raise DataError, with the place in the spec, for a path to a pipe or device: reading may never end."""
    source, int8 = case.source, case.int8
    baseline = case.baseline if isinstance(case.baseline, BaselineModel) else None
    named = {key: getattr(case, key) for key in ("model", "inputs", "labels", "groups", "reference", "plan")}
    if isinstance(case.prove, Prove):
        named |= {f"prove.{key}": getattr(case.prove, key) for key in ("inputs", "labels", "groups")}
    else:
        named["prove"] = case.prove
    named |= {f"{source.where}.{key}": getattr(source, key) for key in ("scales", "model")}
    named |= {f"baseline.{key}": getattr(baseline, key, None) for key in ("model", "engine")}
    named |= {"int8.engine": int8.engine, "int8.implicit.cache": int8.implicit and int8.implicit.cache}
    for key, name in named.items():
        if isinstance(name, str) and (kind := special(case.path(name))):
            with case.at(key):
                raise DataError(f"{key}: {name} is {kind}, which has no end to read to; give a file")


def open_source(case: Case, source: Source, model: Model, what: str, samples: int | None) -> Dataset:
    """Open the dataset that the spec names under the key ``what``, such as ``inputs``.

    The key of the calibration data is ``calibrate.data``. ``source`` is the value of the key, and ``samples``
    the maximum number of samples, or None.
    """
    base = case.path("")
    expected_text = (
        RandomSource(source.random.samples, source.random.seed) if isinstance(source, RandomSpec) else source
    )
    under = "int8.implicit" if case.int8.implicit else case.source.where
    key = f"{under}.{what}" if what.startswith("calibrate") else what
    with case.at(key):
        opened = open_dataset(
            expected_text,
            model.inputs,
            base=base,
            samples=samples,
            batch=case.batch,
            rows=_rows(model),
            what=what,
            most=case.most_bytes,
        )
    opened.place = case.place(key)
    return opened


def _rows(model: Model) -> int:
    """The default number of samples per run; it is smaller for a model with large outputs."""
    shapes = [tensor.shape[1:] for tensor in model.outputs if tensor.shape]
    sizes = [math.prod(dim for dim in shape if isinstance(dim, int)) for shape in shapes]
    return max(1, min(ROWS, _RUN_ELEMENTS // max(sum(sizes), 1)))


def calibration_data(case: Case, model: Model) -> Dataset | None:
    """The calibration samples that the spec names; None if the spec names none."""
    implicit = case.int8.implicit
    calibration = case.source.calibrate or (implicit.calibrate if implicit else None)
    if calibration is None or calibration.data is None:
        return None
    return open_source(case, calibration.data, model, "calibrate.data", calibration.samples)


def calibration_samples(case: Case, model: Model, calibration: Calibration | ImplicitCalibration) -> Dataset:
    """The samples to calibrate on: the calibration samples that the spec names, otherwise the inputs."""
    own = calibration_data(case, model)
    return own or open_source(case, case.inputs, model, "inputs", calibration.samples)


def find_scales(
    case: Case, model: Model, layout: Layout, settings: Settings, cache: Path | None = None
) -> Scales:
    """The scales of a case: from a file, by calibration, or by a method similar to TensorRT's calibrator.

    Args:
        case: The case.
        model: The float model.
        layout: The tensors that get scales.
        settings: The settings of the run.
        cache: The cache file that TensorRT's calibrator wrote, for implicit quantization. If None, the cache
            file that the spec names is read, or a method similar to TensorRT's is used.

    Raises:
        Int8accError: The calibration data or a scale file is faulty.
    """
    implicit, file = case.int8.implicit, cache
    if case.source.scales is not None:
        file = case.path(case.source.scales)
    elif file is None and implicit is not None and implicit.cache is not None:
        given = case.path(implicit.cache)
        file = given if implicit.calibrate is None or given.exists() else None
    if file is not None:
        makers = {tensor: node.name for tensor, node in model.index.producer.items()}
        return load_scales(file, layout.activations, makers, origins(model)).of(low_of(case))
    calibration = case.source.calibrate
    if implicit is not None and implicit.calibrate is not None:
        wish = implicit.calibrate
        calibration = Calibration(data=wish.data, samples=wish.samples, method=_LIKE[wish.algorithm])
    assert calibration is not None  # the spec must name a source of scales
    return _calibrated(case, calibration, model, layout, settings)


def _calibrated(
    case: Case, calibration: Calibration, model: Model, layout: Layout, settings: Settings
) -> Scales:
    samples = calibration_samples(case, model, calibration)
    logger.info("%s: calibrating %d tensors (%s)", case.name, len(layout.activations), calibration.method)
    scales = calibrate(
        model,
        layout.activations,
        samples,
        method=calibration.method,
        options=Options(calibration.percentile, calibration.top_k),
        low=low_of(case),
        sessions=sessions_of(settings),
    )
    if calibration.data is None:
        own = "calibrated on the very inputs that are compared; 'calibrate: {data: ...}' keeps them apart"
        return replace(scales, notes=(*scales.notes, own))
    return scales
