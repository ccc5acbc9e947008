"""Finds preprocessing mismatches: calibration samples that are not preprocessed like the inputs of the case.

Statistics of samples are compared: means, standard deviations, and differences between channels. A mismatch
is reported only if it is large, and at least six standard errors. So a chance difference between two parts of
one data set is not reported.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.data import Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.results import Finding
from pytest_int8acc.tensors import Array, TensorInfo

F64 = NDArray[np.float64]
#: Maximum number of samples that are read of the calibration data, and of the inputs. With this number of
#: samples, a large mismatch exceeds ``CERTAIN`` standard errors.
SAMPLES = 256
#: Minimum number of calibration samples; with fewer, a warning is given. With n calibration samples, a new
#: input exceeds their greatest value with a probability of 1/(n+1).
FEW = 32
#: Minimum difference of two means, in standard errors, that is reported. If one data set is split at random,
#: such a difference has a probability of about 2 in a billion.
CERTAIN = 6.0
#: Minimum number of samples, or of values in a sample, from which a standard deviation is estimated.
_LEAST = 16
#: Minimum ratio between the standard deviations of calibration samples and inputs (greater to smaller) that
#: is reported as a scaling mismatch. A smaller ratio may only mean that the images show different subjects.
_FACTOR = 1.5
#: Minimum ratio between the standard deviations of calibration samples and inputs (greater to smaller) that
#: is reported even if there are fewer than ``_LEAST`` samples.
_OBVIOUS = 20.0
#: Minimum difference between the means of calibration samples and inputs that is reported, in standard
#: deviations of the calibration samples. If the mean is subtracted in one of the two only, the difference is
#: one standard deviation or more.
_SHIFT = 0.4
#: Minimum ratio of the variation of the calibration samples to the variation of the inputs. Below this ratio,
#: calibration samples are reported as nearly alike; see ``_Side.variation``.
_UNIFORM = 0.1
#: Minimum number of calibration samples that are reported as nearly alike. Fewer may be alike by chance.
_LEAST_ALIKE = 4
#: Minimum share of the calibration samples that are copies of others at which a warning is given.
_DUPLICATES = 0.1
#: Minimum shares of the inputs that are also calibration samples: at the first share a note is given, at the
#: second share a warning.
_OVERLAP, _SAME = 0.1, 0.9
#: Minimum magnitude of the mean of ``_Side.rows``, whose sign tells channels first from channels last. If the
#: mean is closer to 0 for the calibration samples or for the inputs, no mismatch of layouts is reported.
_SMOOTH = 0.2
#: What to do if one side is scaled or normalized, and the other is not.
_ALIKE = "prepare calibration data and inputs alike, as your application does"
#: Usual ratios between two ranges of pixel values, and the text that names the two ranges in the message.
_KNOWN = {255.0: "0 to 255 against 0 to 1", 127.5: "0 to 255 against -1 to 1"}


def sample_arrays(dataset: Dataset, inputs: tuple[TensorInfo, ...]) -> dict[str, Array]:
    """Return the first ``SAMPLES`` samples of a dataset: input name to an array with samples on axis 0.

    If the model has a batch axis, inputs without it are left out. Samples that differ in shape from the first
    sample are left out, too.

    Raises:
        DataError: The data cannot be read.
    """
    batched = read_layout(inputs).batched
    names = batched or {tensor.name for tensor in inputs}
    found: dict[str, list[Array]] = {name: [] for name in names}
    for batch in dataset.first(SAMPLES).batches():
        for name in names:
            rows = batch.feed[name][: batch.rows] if batched else batch.feed[name][None]
            if not found[name] or found[name][0].shape[1:] == rows.shape[1:]:
                found[name].append(rows)
    return {name: np.concatenate(parts) for name, parts in found.items() if parts}


def compare_inputs(calibration: Mapping[str, Array], validation: Mapping[str, Array]) -> tuple[Finding, ...]:
    """Return the mismatches between calibration samples and the inputs that a case is judged on.

    ``calibration`` and ``validation`` map the name of an input to an array with samples on axis 0. An input
    that one of them lacks is not compared.
    """
    names = [name for name in validation if name in calibration and calibration[name].ndim]
    findings = [finding for name in names for finding in _compare(name, calibration[name], validation[name])]
    count = min((len(calibration[name]) for name in names), default=FEW)
    if count < FEW:
        text = (
            f"{count} calibration sample{'s' * (count != 1)}: with a chance of 1 in {count + 1} the next "
            "input exceeds all that was seen, and is cut off"
        )
        findings.append(_finding("data-few-samples", names[0], text, f"give {FEW} or more, better 500"))
    findings += _repeats(calibration, validation, names)
    return tuple(findings)


def _finding(rule: str, name: str, text: str, remedy: str) -> Finding:
    return Finding(rule, name, text, remedy, "warning", "data")


def _compare(name: str, calibration: Array, validation: Array) -> Iterator[Finding]:
    here, there = calibration.shape[1:], validation.shape[1:]
    if here != there and len(there) == 3 and here in (there[1:] + there[:1], there[-1:] + there[:-1]):
        text = f"calibration samples of '{name}' have shape {here}, the inputs {there}"
        yield _finding("data-layout", name, text, "order the axes alike: channels first or last in both")
        return
    numeric = calibration.dtype.kind == "f" or (calibration.dtype.kind in "iu" and calibration.ndim > 2)
    if not numeric or not calibration.size or not validation.size:
        return
    ours, theirs = _Side(calibration), _Side(validation)
    if ours.spread == 0:
        if theirs.spread > 0:
            text = f"calibration samples of '{name}' are {ours.mean:.4g} throughout"
            yield _finding(
                "data-uniform",
                name,
                text,
                "name a file of real samples as 'data' under 'calibrate:' in the spec",
            )
        return
    if theirs.spread == 0:
        return
    mismatch = _map(name, ours, theirs)
    if mismatch is not None:
        yield mismatch
    if mismatch is None or mismatch.rule == "data-factor":
        yield from _channels(name, ours, theirs)
    yield from _layout(name, ours, theirs)
    if len(calibration) >= _LEAST_ALIKE and ours.variation < _UNIFORM * theirs.variation:
        text = (
            f"calibration samples of '{name}' are nearly alike: they differ from each other by "
            f"{ours.variation / theirs.variation:.2g} of what the inputs differ by"
        )
        yield _finding("data-uniform", name, text, "calibrate on samples as different as the inputs")


class _Side:
    """Statistics of the samples of one input, either of the calibration samples or of the case's inputs.

    Attributes:
        values: The samples, on axis 0.
        count: The number of samples.
        means: The mean of each sample.
        mean: The mean of all samples.
        spread: The standard deviation of all values.
        has_negatives: Whether any value is below 0. Raw pixels are not, and normalized ones are.
        log_spreads: The logarithm of each sample's standard deviation.
        variation: The share of the variance of all values that remains if the average of all samples is
            subtracted from each sample; 0 if all samples are equal.
    """

    def __init__(self, array: Array) -> None:
        self.values: F64 = array.astype(np.float64)
        self.has_negatives = bool((self.values < 0).any())
        self.count = len(array)
        flat = self.values.reshape(self.count, -1)
        self.means: F64 = flat.mean(axis=1)
        self.mean = float(self.means.mean())
        centred = flat - self.means[:, None]
        about_own = np.einsum("ij,ij->i", centred, centred) / flat.shape[1]
        about_all = about_own + (self.means - self.mean) ** 2
        self.spread = float(np.sqrt(about_all.mean()))
        # Deviations are taken from each sample's own mean, because a few bright samples move the common mean.
        deviations = np.sqrt(about_own if flat.shape[1] >= _LEAST else about_all)
        self.log_spreads: F64 = np.log(np.maximum(deviations, 1e-9 * max(self.spread, 1e-300)))
        explained = float(flat.mean(axis=0).var())  # the variance of the average sample
        self.variation = max(1 - explained / self.spread**2, 0.0) if self.spread else 0.0

    def contrasts(self) -> list[F64]:
        """Return, for each sample, by how much the first channel differs from the last one, in two arrays.

        The first array has the differences of the channels' means, the second array those of their standard
        deviations. A fourth channel is ignored. The list is empty if no axis has 2 to 4 channels.
        """
        values = self.values
        if values.ndim < 3:
            return []
        axis = next((i for i in (1, values.ndim - 1) if 2 <= values.shape[i] <= 4), None)
        if axis is None:
            return []
        last = min(values.shape[axis], 3) - 1  # A fourth channel is no color.
        channels = np.moveaxis(values, axis, 1).reshape(self.count, values.shape[axis], -1)
        return [
            np.asarray(part[:, 0] - part[:, last]) for part in (channels.mean(axis=2), channels.std(axis=2))
        ]

    def rows(self) -> F64 | None:
        """Return the logarithm of a ratio for each sample. It is negative if channels come first in memory.

        In an image, a pixel resembles the pixel below. With channels first, the pixel below is W elements
        further in memory. With channels last, it is W times C elements further. The ratio is the mean squared
        difference at the first distance, divided by that at the second distance. None if the samples are not
        images of 2 to 4 channels.
        """
        shape = self.values.shape
        if len(shape) != 4:
            return None
        first = 2 <= shape[1] <= 4
        if not first and not 2 <= shape[3] <= 4:
            return None
        width, channels = (shape[3], shape[1]) if first else (shape[2], shape[3])
        flat = self.values.reshape(self.count, -1)
        if flat.shape[1] <= 2 * width * channels:
            return None
        near, far = (
            np.maximum(((flat[:, lag:] - flat[:, :-lag]) ** 2).mean(axis=1), 1e-300)
            for lag in (width, width * channels)
        )
        return np.asarray(np.log(near / far))


def _map(name: str, ours: _Side, theirs: _Side) -> Finding | None:
    """Return a mismatch if calibration samples (``ours``) look like scaled or shifted inputs (``theirs``).

    The factor or the shift must be too large for chance; otherwise None is returned.
    """
    factor = _factor(ours, theirs)
    sure = _sure(ours.log_spreads, theirs.log_spreads, obvious=abs(math.log(factor)) > math.log(_OBVIOUS))
    scaled = abs(math.log(factor)) > math.log(_FACTOR) and sure
    scale = factor if scaled else 1.0
    shift = ours.mean - scale * theirs.mean
    shifted = abs(shift) > _SHIFT * ours.spread and _sure(ours.means, scale * theirs.means)
    if not scaled and not shifted:
        return None
    seen = (
        f"calibration samples of '{name}' have mean {ours.mean:.3g} and standard deviation "
        f"{ours.spread:.3g}, the inputs {theirs.mean:.3g} and {theirs.spread:.3g}"
    )
    normalized, raw = "one side is", "the other is not"
    if ours.has_negatives != theirs.has_negatives:
        sides = ("calibration samples", "inputs") if ours.has_negatives else ("inputs", "calibration samples")
        normalized, raw = f"the {sides[0]} look", f"the {sides[1]} do not: none is below 0"
    if scaled and shifted:
        text = f"{seen}: {normalized} normalized, {raw}"
        return _finding("data-normalization", name, text, _ALIKE)
    if scaled:
        times = f"{factor:.4g} times" if factor > 1 else f"1/{1 / factor:.4g} of"
        known = next((t for k, t in _KNOWN.items() if abs(max(factor, 1 / factor) / k - 1) < 0.1), "")
        text = f"{seen}: {times} the inputs" + (f" ({known})" if known else "")
        return _finding("data-factor", name, text, _ALIKE)
    text = f"{seen}: shifted by {shift:.3g}, as by a mean that one side subtracts"
    return _finding("data-offset", name, text, "subtract the same mean from both")


def _channels(name: str, ours: _Side, theirs: _Side) -> Iterator[Finding]:
    """Yield a mismatch if the channels are reversed: first minus last channel has opposite signs.

    The signs are those of the calibration samples ``ours`` and of the inputs ``theirs``.
    """
    factor = _factor(ours, theirs)
    for mine, other in zip(ours.contrasts(), theirs.contrasts(), strict=False):
        same, swapped = _distance(mine / factor, other), _distance(-mine / factor, other)
        opposite = float(mine.mean()) * float(other.mean()) < 0
        enough = min(len(mine), len(other)) >= _LEAST
        if enough and opposite and same > CERTAIN and swapped < same / 3:
            text = (
                f"the channels of '{name}' are in reversed order in the calibration samples: the first minus "
                f"the last is {float(mine.mean()):.3g} there and {float(other.mean()):.3g} in the inputs"
            )
            yield _finding("data-channel-order", name, text, "load both as RGB, or both as BGR")
            return


def _layout(name: str, ours: _Side, theirs: _Side) -> Iterator[Finding]:
    """Yield a mismatch if the values lie channels-first on one side and channels-last on the other.

    The sides are the calibration samples ``ours`` and the inputs ``theirs``. Their shapes are equal, so one
    side was reshaped where it should have been transposed.
    """
    mine, other = ours.rows(), theirs.rows()
    if mine is None or other is None or ours.values.shape[1:] != theirs.values.shape[1:]:
        return
    here, there = float(mine.mean()), float(other.mean())
    if here * there < 0 and min(abs(here), abs(there)) > _SMOOTH and _sure(mine, other):
        ours_first = "channels first" if here < 0 else "channels last"
        theirs_first = "channels first" if there < 0 else "channels last"
        text = (
            f"values of '{name}' lie as with {ours_first} in the calibration samples, as with {theirs_first} "
            "in the inputs"
        )
        yield _finding("data-layout", name, text, "transpose the axes (np.transpose), do not reshape")


def _factor(ours: _Side, theirs: _Side) -> float:
    """Return the median standard deviation of the samples in ``ours``, divided by that in ``theirs``.

    A few samples of high contrast have no influence on a median.
    """
    return math.exp(float(np.median(ours.log_spreads) - np.median(theirs.log_spreads)))


def _sure(ours: F64, theirs: F64, *, obvious: bool = False) -> bool:
    """Return whether the means of two arrays differ by more than chance.

    With fewer than ``_LEAST`` samples in an array, ``obvious`` is returned.
    """
    if min(len(ours), len(theirs)) < _LEAST:
        return obvious
    return _distance(ours, theirs) > CERTAIN


def _distance(ours: F64, theirs: F64) -> float:
    """Return the difference between the means of two arrays, in standard errors (Welch 1947).

    If neither array varies, the result is inf for different means and 0 for equal means.
    """
    difference = abs(float(ours.mean() - theirs.mean()))
    error = math.sqrt(sum(float(x.var(ddof=1)) / len(x) for x in (ours, theirs) if len(x) > 1))
    if error <= 1e-9 * difference:
        return math.inf if difference else 0.0
    return difference / error


def _repeats(
    calibration: Mapping[str, Array], validation: Mapping[str, Array], names: list[str]
) -> Iterator[Finding]:
    """Yield findings on calibration samples that are copies of each other or of the inputs ``validation``."""
    ours, theirs = _digests(calibration, names), _digests(validation, names)
    if len(ours) > 1:
        twice = 1 - len(set(ours)) / len(ours)
        if twice >= _DUPLICATES:
            text = f"{twice:.0%} of the {len(ours)} calibration samples are copies of others"
            yield _finding("data-duplicates", names[0], text, "calibrate on different samples")
    if theirs:
        shared = sum(digest in set(ours) for digest in set(theirs)) / len(set(theirs))
        text = f"{shared:.0%} of the inputs are calibration samples as well"
        remedy = "keep them apart: ranges fit what they were made from"
        if shared >= _SAME:
            yield _finding("data-same", names[0], text, remedy)
        elif shared >= _OVERLAP:
            yield Finding("data-overlap", names[0], text, remedy, "note", "data")


def _digests(arrays: Mapping[str, Array], names: list[str]) -> list[bytes]:
    """Return one digest per sample, computed from the sample's values for all inputs in ``names``."""
    found = []
    for sample in zip(*(arrays[name] for name in names), strict=False):
        digest = hashlib.blake2b(digest_size=16)
        for array in sample:
            digest.update(array.tobytes())
        found.append(digest.digest())
    return found
