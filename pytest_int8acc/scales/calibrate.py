"""Scales by calibration: the model runs in float on samples, and each tensor's range is chosen."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.engines.calibrators import (
    ENTROPY_BINS,
    collect_histograms,
    collect_maxima,
    entropy_amax,
    runtime_version,
)
from pytest_int8acc.engines.onnxruntime import CPU, Sessions
from pytest_int8acc.engines.remote import RemoteStore
from pytest_int8acc.engines.run import Progress
from pytest_int8acc.engines.store import Store
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.model import Model
from pytest_int8acc.scales import Scales, amax_to_scale
from pytest_int8acc.spec.int8 import CalibrationMethod

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset

logger = logging.getLogger("pytest_int8acc")
Histogram = NDArray[np.int64]

#: The file of ranges in the store, and what is raised where the same histogram gives another range.
_FILE, _FORMAT = "ranges.json", 1
#: Bins over [-amax, amax] where ONNX Runtime's entropy search does not set the price.
_FINE_BINS = 1 << 15
#: Ranges that the mse method tries, as fractions of amax: 1 down to 1/128 in steps of 4 %.
_FRACTIONS = 2.0 ** -np.arange(0, 7.01, 1 / 16)


def calibrate(
    model: Model,
    tensors: Sequence[str],
    dataset: Dataset,
    *,
    method: CalibrationMethod = "entropy",
    percentile: float = 99.99,
    top_k: int = 5,
    sessions: Sessions = CPU,
    store: Store | RemoteStore | None = None,
) -> Scales:
    """Choose a symmetric range for each tensor from what it holds on ``dataset``.

    - *minmax*: the greatest magnitude.
    - *entropy*: ONNX Runtime's Kullback-Leibler threshold, see :func:`~engines.calibrators.entropy_amax`.
    - *percentile*: the magnitude that ``percentile`` % of the values keep.
    - *mse*: the range of least squared INT8 error, see :func:`mse_amax`.
    - *topk*: the mean of the ``top_k`` greatest of the samples' maxima, for outputs that entropy clips
      (NVIDIA's INT8 debugging guide: 'the mean value of TOP5 max values').

    Args:
        model: A float model.
        tensors: Float activations of its main graph, of rank 1 or more; at least one.
        dataset: Samples that stand for real inputs; a few hundred. Read twice, once for minmax and topk.
        method: How the range is chosen.
        percentile: In (0, 100].
        top_k: 1 or more; with fewer samples, the mean of all their maxima.
        sessions: Where the float model runs.
        store: Where ranges of the entropy method, which is slow, are kept; None keeps none.

    Raises:
        ScalesError: A tensor holds inf or nan; names it.
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    maxima = collect_maxima(model, tensors, dataset, sessions)
    amax = {tensor: maxima.amax(tensor) for tensor in tensors}
    _, notes = amax_to_scale(amax)  # before a second pass over broken data
    if method == "topk":
        amax = {t: float(np.sort(maxima.per_sample[t])[-top_k:].mean()) for t in tensors}
    elif method != "minmax":
        bins = ENTROPY_BINS if method == "entropy" else _FINE_BINS
        zeros = method == "percentile"  # elsewhere they say nothing, being exact at any scale
        histograms = collect_histograms(model, maxima, dataset, bins, zeros=zeros, sessions=sessions)
        choose = partial(_from_histograms, histograms, amax, method, percentile)
        if store is not None and method == "entropy":
            amax |= keep_ranges(store, histograms, amax, choose)
        else:
            amax |= choose()
    source = f"{_in_words(method, percentile, top_k)} over {maxima.samples} samples, {dataset.description}"
    if dataset.is_random:
        notes += ("calibrated with random data: these are not the ranges of real inputs",)
    return Scales(amax_to_scale(amax)[0], source, notes)


def _from_histograms(
    histograms: Mapping[str, Histogram],
    amax: Mapping[str, float],
    method: CalibrationMethod,
    percentile: float,
) -> dict[str, float]:
    choose: Callable[[Histogram, float], float] = {
        "entropy": entropy_amax,
        "mse": mse_amax,
        "percentile": lambda counts, most: percentile_amax(counts, most, percentile),
    }[method]
    chosen, progress = {}, Progress(f"calibration: choosing ranges by {method}, tensors")
    for tensor, counts in histograms.items():
        chosen[tensor] = choose(counts, amax[tensor])
        progress.add(1, len(histograms))
    return chosen


def percentile_amax(counts: Histogram, amax: float, percentile: float) -> float:
    """The least bin edge that ``percentile`` % of the magnitudes do not pass.

    ONNX Runtime takes the lower edge of that bin, which is 0 where one outlier leaves all other values in the
    first bin (microsoft/onnxruntime#10571).

    Args:
        counts: Histogram over [-amax, amax], with an even number of bins.
        amax: Greatest magnitude, above 0.
        percentile: In (0, 100].
    """
    cumulated = np.cumsum(_magnitudes(counts))
    index = int(np.searchsorted(cumulated, percentile / 100 * cumulated[-1]))
    return amax * (index + 1) / cumulated.size


def mse_amax(counts: Histogram, amax: float, limit: float | None = None) -> float:
    """The range, of 113 down to amax / 128, whose INT8 error has the least mean square over the histogram.

    Each bin counts as its centre, rounded to the range's grid of 127 steps and clipped there (as
    ``HistogramCalibrator.compute_amax("mse")`` of NVIDIA's pytorch-quantization and ModelOpt).

    Args:
        counts: Histogram over [-limit, limit], with an even number of bins.
        amax: Greatest magnitude, above 0.
        limit: Where the histogram ends; None: at amax.
    """
    magnitudes = _magnitudes(counts)
    centres = (np.arange(magnitudes.size) + 0.5) / magnitudes.size * ((limit or amax) / amax)
    weights, centres = magnitudes[magnitudes > 0], centres[magnitudes > 0]
    scales = _FRACTIONS / INT8.levels
    errors = [(weights * (INT8.fake_quantize(centres, s) - centres) ** 2).sum() for s in scales]
    return float(amax * _FRACTIONS[int(np.argmin(errors))])


def _magnitudes(counts: Histogram) -> Histogram:
    """The histogram of |x| over [0, amax]."""
    half = counts.size // 2
    return counts[half:] + counts[:half][::-1]


def _in_words(method: CalibrationMethod, percentile: float, top_k: int) -> str:
    if method == "percentile":
        return f"percentile {percentile:g}"
    return f"mean of the top {top_k} maxima" if method == "topk" else method


def keep_ranges(
    store: Store | RemoteStore,
    histograms: Mapping[str, Histogram],
    amax: Mapping[str, float],
    choose: Callable[[], dict[str, float]],
) -> dict[str, float]:
    """The ranges that ``choose`` gives, or gave before for the same histograms.

    ONNX Runtime's entropy search takes up to a second per tensor, and its answer depends on the histogram
    alone. Where the store cannot be used, that is logged, and the ranges are chosen anew.

    Args:
        store: Where they are kept; processes that want the same ones wait for the first.
        histograms: Per tensor, over [-amax, amax].
        amax: Greatest magnitude of each tensor.
        choose: Gives a magnitude per tensor.
    """
    found: dict[str, float] = {}

    def fill(folder: Path) -> None:
        found.update(choose())
        (folder / _FILE).write_text(json.dumps(list(found.values())), encoding="utf-8")

    try:
        with store.fetch(_key(histograms, amax), fill) as entry:
            if not found:
                ranges = json.loads(entry.path(_FILE).read_text(encoding="utf-8"))
                found.update(zip(histograms, ranges, strict=True))
                logger.info("calibration: %d ranges taken from the store, %s", len(found), entry.folder)
    except EngineError as error:
        logger.info("calibration: ranges are not kept: %s", error)
    return found or choose()


def _key(histograms: Mapping[str, Histogram], amax: Mapping[str, float]) -> str:
    """BLAKE2b of the histograms in their order; the tensors' names have no part in it."""
    digest = hashlib.blake2b(f"{_FORMAT} {runtime_version()}".encode(), digest_size=20)
    for tensor, counts in histograms.items():
        digest.update(f"{float(amax[tensor]).hex()} {counts.size} ".encode())
        digest.update(np.ascontiguousarray(counts).data)
    return digest.hexdigest()
