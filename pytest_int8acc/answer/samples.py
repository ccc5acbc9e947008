"""Reduces the worst samples of a case to small pictures and curves for the HTML report."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

import numpy as np

from pytest_int8acc.case.measured import Measured
from pytest_int8acc.case.runs import Worst
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.observers.values import decibels
from pytest_int8acc.results import Role, View, WorstSample
from pytest_int8acc.results.samples import SampleRole
from pytest_int8acc.scores.rows import F64
from pytest_int8acc.tensors import Array, Feed

#: Maximum number of samples of a case that are shown.
_SAMPLES = 3
#: Maximum number of inputs of a sample that are shown.
_INPUTS = 2
#: Maximum number of pixels of a picture, and maximum width of a picture in pixels. Larger images are reduced.
_PIXELS, _WIDTH = 4096, 96
#: Maximum number of points of a curve in the report; a longer curve is thinned out.
_VALUES = 256
#: Maximum number of base64 characters for all pictures of a case. A sample that does not fit is left out.
_CHARACTERS = 90_000
#: Minimum height and width, in elements, of an input or output that is shown as a picture.
_LEAST_SIDE = 8
#: Minimum length, in elements, of an input that is shown as a curve, and maximum number of its channels.
_LEAST_LENGTH, _SIGNAL_CHANNELS = 16, 8


def worst_samples(measured: Measured) -> tuple[WorstSample, ...]:
    """The worst sample of each output that fails, or of all outputs if none fails; at most three samples.

    The inputs of a sample are shown only if the output has a row for each sample.

    Raises:
        DataError: The inputs cannot be read.
        OutOfTime: Reading the inputs took too long.
    """
    outputs = [o for o in measured.result.outputs if not o.passed] or measured.result.outputs
    kept: dict[str, Worst] = {}
    for output in outputs:
        worst = measured.runs.worst.get(output.name)
        if worst is not None and worst.sample == output.worst_sample:
            kept[output.name] = worst
    chosen = dict(sorted(kept.items(), key=lambda item: item[1].ratio)[:_SAMPLES])
    inputs = _inputs(measured, {worst.sample for worst in chosen.values()})
    statistics = measured.runs.comparisons[Role.BASELINE, Role.INT8].outputs
    found, size = [], 0
    for name, worst in chosen.items():
        feed = inputs.get(worst.sample, {}) if statistics[name].samples == measured.result.samples else {}
        views = [*_of_inputs(feed), *_of_outputs(name, worst)]
        characters = sum(len(row) for view in views for row in view.rows)
        if views and size + characters <= _CHARACTERS:
            size += characters
            sqnr = decibels(worst.ratio, 1.0)
            found.append(WorstSample(name, worst.sample, sqnr, tuple(views)))
    return tuple(found)


def _inputs(measured: Measured, samples: set[int]) -> dict[int, Feed]:
    """The batched inputs of each sample, or all inputs if none is batched. The data are read again."""
    layout, found, start = read_layout(measured.model.inputs), dict[int, Feed](), 0
    for batch in measured.clock.bounded(measured.inputs.batches()):
        for sample in samples & set(range(start, start + batch.rows)):
            row = layout.cut(batch.feed, sample - start, sample - start + 1)
            found[sample] = {n: a[0] for n, a in row.items() if n in layout.batched} or row
        start += batch.rows
        if len(found) == len(samples):
            break
    return found


def _of_inputs(feed: Mapping[str, Array]) -> list[View]:
    views = (_input_view(name, array) for name, array in feed.items())
    return [view for view in views if view is not None][:_INPUTS]


def _input_view(name: str, array: Array) -> View | None:
    """A picture of an image, or a curve of a signal's first channel; None if the input is neither."""
    if array.dtype.kind not in "fu":
        return None
    if (picture := _picture_of(array)) is not None:
        return _picture(name, "input", array, picture, _ends(picture))
    signal = array.squeeze()
    if signal.ndim == 2 and min(signal.shape) <= _SIGNAL_CHANNELS:
        signal = signal[0] if signal.shape[0] <= _SIGNAL_CHANNELS else signal[:, 0]
    if signal.ndim != 1 or signal.size < _LEAST_LENGTH:
        return None
    return _curve(name, "input", array, _finite(signal))


def _of_outputs(name: str, worst: Worst) -> Iterator[View]:
    """The views of the baseline's and the candidate's output. Two pictures share one range of grey levels."""
    arrays: dict[SampleRole, Array] = {"baseline": worst.baseline, "INT8": worst.int8}
    pictures = {role: _picture_of(array) for role, array in arrays.items()}
    drawn = [picture for picture in pictures.values() if picture is not None]
    for role, array in arrays.items():
        if (picture := pictures[role]) is not None:
            yield _picture(name, role, array, picture, _ends(np.stack(drawn)))
        elif array.size > 1:
            yield _curve(name, role, array, _finite(array.ravel()))


def _picture_of(array: Array) -> F64 | None:
    """An image with at most ``_PIXELS`` pixels, float64 [height, width, 1 or 3]; None for other arrays."""
    shape, least = array.shape, _LEAST_SIDE
    if array.ndim == 2 and min(shape) >= least:
        image = array[:, :, None]
    elif array.ndim == 3 and shape[0] in (1, 3, 4) and min(shape[1:]) >= least:
        image = np.moveaxis(array, 0, 2)
    elif array.ndim == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) >= least:
        image = array
    else:
        return None
    height, width, channels = image.shape
    image = _finite(image[:, :, : min(channels, 3)])
    factor = max(1.0, (height * width / _PIXELS) ** 0.5, width / _WIDTH)
    for axis, size in enumerate((height, width)):
        starts = np.arange(max(1, int(size / factor))) * size // max(1, int(size / factor))
        counts = np.diff(starts, append=size).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        image = np.add.reduceat(image, starts, axis=axis) / counts
    return image


def _picture(name: str, role: SampleRole, array: Array, image: F64, ends: tuple[float, float]) -> View:
    low, high = ends
    codes = np.rint(255 * (image - low) / ((high - low) or 1.0)).astype(np.uint8)
    rows = tuple(base64.b64encode(row.tobytes()).decode("ascii") for row in codes)
    return View(name, role, array.shape, low, high, image.shape[2], rows)


def _curve(name: str, role: SampleRole, array: Array, values: F64) -> View:
    low, high = _ends(values)
    if len(values) > _VALUES:
        starts = np.arange(_VALUES // 2) * len(values) // (_VALUES // 2)
        both = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        values = np.stack(both, axis=1).ravel()
    return View(name, role, array.shape, low, high, values=tuple(float(f"{v:.4g}") for v in values))


def _finite(array: Array) -> F64:
    return np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _ends(values: F64) -> tuple[float, float]:
    return float(values.min()), float(values.max())
