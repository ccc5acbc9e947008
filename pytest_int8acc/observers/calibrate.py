"""Scales by calibration: the model runs in float on samples, and each tensor's range is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_int8acc.graph.formats import INT8, Format
from pytest_int8acc.graph.model import Model
from pytest_int8acc.observers.methods import ENTROPY_BINS, entropy_amax, mse_amax, percentile_amax
from pytest_int8acc.observers.observer import Observed
from pytest_int8acc.observers.scales import Scales, amax_to_scale
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.runtime.run import Progress
from pytest_int8acc.spec.int8 import CalibrationMethod

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset
    from pytest_int8acc.observers.histograms import Bins


def calibrate(
    model: Model,
    tensors: Sequence[str],
    dataset: Dataset,
    *,
    method: CalibrationMethod = "entropy",
    percentile: float = 99.99,
    top_k: int = 5,
    low: Format = INT8,
    sessions: Sessions = CPU,
) -> Scales:
    """Choose a symmetric range for each tensor from what it holds on ``dataset``.

    - *minmax*: the greatest magnitude.
    - *entropy*: ONNX Runtime's Kullback-Leibler threshold, see :func:`~observers.methods.entropy_amax`.
    - *percentile*: the magnitude that ``percentile`` % of the values keep.
    - *mse*: the range of least squared error, see :func:`~observers.methods.mse_amax`.
    - *topk*: the mean of the ``top_k`` greatest of the samples' maxima, for outputs that entropy clips
      (NVIDIA's INT8 debugging guide: 'the mean value of TOP5 max values').

    Args:
        model: A float model.
        tensors: Float activations of its main graph, of rank 1 or more; at least one.
        dataset: Samples that stand for real inputs; a few hundred. Read twice, once for minmax and topk.
        method: How the range is chosen.
        percentile: In (0, 100].
        top_k: 1 or more; with fewer samples, the mean of all their maxima.
        low: What the tensors are quantized to.
        sessions: Where the float model runs.

    Returns:
        Scales, and what was observed, which may be asked for more.

    Raises:
        ScalesError: A tensor holds inf or nan; names it.
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    observed = Observed(model, dataset, sessions)
    maxima = observed.maxima(tensors)
    amax = {tensor: maxima.amax(tensor) for tensor in tensors}
    _, notes = amax_to_scale(amax, low)  # before a second pass over broken data
    if method == "topk":
        amax = {t: float(np.sort(maxima.per_sample[t])[-top_k:].mean()) for t in tensors}
    elif method == "mse":
        amax |= {t: mse_amax(bins.counts, amax[t], low) for t, bins in observed.bins(tensors).items()}
    elif method != "minmax":
        amax |= _from_histograms(observed.bins(tensors), amax, method, percentile)
    source = f"{_in_words(method, percentile, top_k)} over {maxima.samples} samples, {dataset.description}"
    if dataset.is_random:
        notes += ("calibrated with random data: these are not the ranges of real inputs",)
    return Scales(amax_to_scale(amax, low)[0], source, notes, observed)


def _from_histograms(
    histograms: Mapping[str, Bins],
    amax: Mapping[str, float],
    method: CalibrationMethod,
    percentile: float,
) -> dict[str, float]:
    chosen, progress = {}, Progress(f"calibration: choosing ranges by {method}, tensors")
    for tensor, bins in histograms.items():
        if method == "entropy":
            chosen[tensor] = entropy_amax(bins.merged(ENTROPY_BINS), amax[tensor])
        else:  # zeros count here; elsewhere they say nothing, being exact at any scale
            chosen[tensor] = percentile_amax(bins.with_zeros, amax[tensor], percentile)
        progress.add(1, len(histograms))
    return chosen


def _in_words(method: CalibrationMethod, percentile: float, top_k: int) -> str:
    if method == "percentile":
        return f"percentile {percentile:g}"
    return f"mean of the top {top_k} maxima" if method == "topk" else method
