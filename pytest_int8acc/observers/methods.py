"""The register of calibration methods, and calibration by one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_int8acc.graph.formats import INT8, Format
from pytest_int8acc.graph.model import Model
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.observers.ranges import ENTROPY_BINS, entropy_amax, mse_amax, percentile_amax
from pytest_int8acc.observers.scales import Scales, amax_to_scale
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.runtime.run import Progress
from pytest_int8acc.spec.int8 import CalibrationMethod

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset

#: Number of histogram bins for entropy calibration during the search for a fix. The search calibrates many
#: tensors, and the time of entropy calibration grows with the number of bins.
FEW_BINS = 1 << 9


@dataclass(frozen=True)
class Options:
    """The parameters of all calibration methods; each method reads only its own."""

    percentile: float = 99.99
    """The percentage of the magnitudes that is not clipped, in (0, 100]."""
    top_k: int = 5
    """Number of the samples' maxima that are averaged, 1 or more; NVIDIA's INT8 debugging guide uses 5."""
    entropy_bins: int = ENTROPY_BINS
    """The number of histogram bins that entropy calibration reads, a multiple of 128."""


@dataclass(frozen=True)
class Method:
    """A calibration method: it chooses the range of a tensor from the values that the tensor holds."""

    name: CalibrationMethod
    """The value of the spec's key 'method' that selects this method."""
    summary: str
    """The range that the method chooses, in one phrase, for the reference."""
    amax: Callable[[TensorValues, Options], float]
    """Returns the range of a tensor, as the greatest magnitude that is not clipped.

    The range is 0 only for a tensor that is always 0, and finite if all values are finite. If the method
    needs a histogram, the function is called only for tensors that have one.
    """
    reads_histogram: bool = True
    """Whether the method needs a histogram; otherwise the maxima of the samples are enough."""
    is_slow: bool = False
    """Whether the method takes far longer for one tensor than the other methods do."""
    label: str = ""
    """The text that names the method in reports, with placeholders for ``Options``; empty means ``name``."""
    source: str = ""
    """The text that names the method in :attr:`Scales.source`, with placeholders; empty means ``label``."""
    tried: tuple[Options, ...] = (Options(),)
    """The parameters with which the search for a fix and ``--int8acc-calibrations`` try the method; empty if
    the method is never tried."""

    def labelled(self, options: Options) -> str:
        """The text that names the method and its parameters in reports."""
        return (self.label or self.name).format_map(vars(options))

    def in_spec(self, options: Options) -> str:
        """The keys of a spec's ``calibrate`` that choose the method and its parameters, as YAML."""
        own = f", percentile: {options.percentile:g}" if self.name == "percentile" else ""
        return f"method: {self.name}{own}"

    def described(self, options: Options) -> str:
        """The text that names the method and its parameters in :attr:`Scales.source`."""
        return (self.source or self.label or self.name).format_map(vars(options))


#: The register of calibration methods.
#:
#: To add a method, add its name to ``CalibrationMethod`` in ``spec/int8.py``, describe the method there in
#: the help of the option ``method``, and add a row here. If the row is missing,
#: ``tests/observers/test_calibrate.py`` fails. The search for a fix and ``--int8acc-calibrations`` try every
#: method once for each of its ``tried`` parameters, in the order of the rows. The methods that most often
#: give the best accuracy come first, and slow methods come last. Put a new row before the slow methods, and
#: move the row further up only if a benchmark shows that the method is the best more often.
#: ``--int8acc-init``, the reference and the schema list the methods by these names. Add the labels of the
#: method to ``tests/cases/remedies/tables.yaml``, which holds the expected table of
#: ``--int8acc-calibrations``.
METHODS: Mapping[CalibrationMethod, Method] = {
    method.name: method
    for method in (
        Method(
            "mse",
            "the range of least squared error",
            lambda held, options: mse_amax(held.counts, held.amax, held.low),
        ),
        Method(
            "minmax",
            "the greatest magnitude",
            lambda held, options: held.amax,
            reads_histogram=False,
        ),
        Method(
            "topk",
            "the mean of the `top_k` greatest of the samples' maxima, for outputs that entropy clips "
            "(NVIDIA's INT8 debugging guide: 'the mean value of TOP5 max values')",
            lambda held, options: float(np.sort(held.maxima)[-options.top_k :].mean()),
            reads_histogram=False,
            label="topk {top_k}",
            source="mean of the top {top_k} maxima",
        ),
        Method(
            "percentile",
            "the magnitude that `percentile` % of the values keep",
            # This histogram includes zeros. The other methods leave zeros out, which are exact at any scale.
            lambda held, options: percentile_amax(held.bins.with_zeros, held.amax, options.percentile),
            label="percentile {percentile:g}",
            tried=tuple(Options(percentile=percentile) for percentile in (99.999, 99.99, 99.9, 99.0)),
        ),
        Method(
            "entropy",
            "ONNX Runtime's Kullback-Leibler threshold",
            lambda held, options: entropy_amax(held.bins.merged(options.entropy_bins), held.amax),
            is_slow=True,
        ),
    )
}


#: Each method with each of its ``tried`` parameters, by its label in reports.
CANDIDATES: Mapping[str, tuple[Method, Options]] = {
    method.labelled(options): (method, options) for method in METHODS.values() for options in method.tried
}


def calibrate(
    model: Model,
    tensors: Sequence[str],
    dataset: Dataset,
    *,
    method: CalibrationMethod = "entropy",
    options: Options | None = None,
    low: Format = INT8,
    sessions: Sessions = CPU,
) -> Scales:
    """Choose a symmetric range for each tensor from its values on ``dataset``, by a calibration method.

    Args:
        model: A float model.
        tensors: Float activations of the model's main graph, of rank 1 or more; at least one.
        dataset: A few hundred representative samples. They are read twice, or once if the method needs no
            histogram.
        method: The calibration method.
        options: The parameters of the method; None for its defaults.
        low: The format that the tensors are quantized to.
        sessions: Opens the float model.

    Returns:
        The scales, with the observer that measured the tensors.

    Raises:
        ScalesError: A tensor holds inf or nan; the message names it.
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    chosen, options = METHODS[method], options or Options()
    observer = Observer(model, dataset, sessions, low)
    held = observer.maxima(tensors)
    amax = {tensor: values.amax for tensor, values in held.items()}
    samples = next(iter(held.values())).samples
    _, notes = amax_to_scale(amax, low)  # For inf and nan, this raises an error before the second pass.
    if chosen.reads_histogram:
        counted = observer.of(tensors)
        held = {tensor: values for tensor, values in counted.items() if values.is_counted}
    progress = Progress(f"calibration: choosing ranges by {method}, tensors")
    for tensor, values in held.items():
        amax[tensor] = chosen.amax(values, options)
        progress.add(1, len(held))
    source = f"{chosen.described(options)} over {samples} samples, {dataset.description}"
    if dataset.is_random:
        notes += ("calibrated with random data: these are not the ranges of real inputs",)
    return Scales(amax_to_scale(amax, low)[0], source, notes, observer)
