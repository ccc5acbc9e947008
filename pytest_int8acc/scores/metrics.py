"""The metrics that compare one output of two runs, batch by batch in float64, and their registry.

Below, b is an element of the baseline, c the same element of the candidate; sums run over all elements of all
samples unless a docstring says otherwise. Elements that are the same NaN or infinity in both are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.results import Bound
from pytest_int8acc.tensors import Array

F64 = NDArray[np.float64]
REL_FLOOR = 1e-3
#: Elements per piece, about: 0.5 MB in float64, which stays in a core's own cache.
_PIECE = 2**16


@dataclass(frozen=True)
class Sums:
    """Sums over all elements b of the baseline and c of the candidate, in float64."""

    count: int = 0
    bb: float = 0.0
    cc: float = 0.0
    bc: float = 0.0
    squared: float = 0.0
    """Sum of (b - c)^2."""
    absolute: float = 0.0
    """Sum of |b - c|."""
    max_error: float = 0.0
    """Greatest |b - c|; nan if any is nan."""
    peak: float = 0.0
    """Greatest |b|."""


@dataclass(frozen=True)
class NonFinite:
    """How many elements of a pair are NaN or infinite, by who holds them."""

    both: int = 0
    """The same NaN or infinity on both sides: these are left out of numeric scores."""
    candidate: int = 0
    """In the candidate only, the baseline being finite."""
    baseline: int = 0
    """In the baseline, with something else in the candidate."""
    candidate_sample: int | None = None
    """First sample of ``candidate``."""
    baseline_sample: int | None = None
    """First sample of ``baseline``."""


@dataclass(frozen=True, eq=False)
class Pair:
    """One output's arrays from the baseline and the candidate, per batch, with the same shapes.

    The first axis counts samples. The walks below take a few samples at a time, so that the
    float64 copies stay small whatever the batch.
    """

    baseline: Sequence[Array]
    candidate: Sequence[Array]
    axis: int = -1
    """The class axis, for metrics of rows."""
    rel_floor: float = REL_FLOOR
    """Least denominator of relative errors, as a share of the baseline's greatest magnitude."""

    def samples(self) -> Iterator[tuple[F64, F64]]:
        """Both sides as (samples, elements) in float64; 0 where both hold the same NaN or inf."""
        for b, c in self._pieces():
            b64, c64 = (a.astype(np.float64).reshape(samples_in(a), -1) for a in (b, c))
            same = _same_non_finite(b64, c64)
            b64[same] = c64[same] = 0.0
            yield b64, c64

    def values(self) -> Iterator[tuple[F64, F64]]:
        """All elements, flat, in float64, without those that are the same NaN or infinity in both."""
        for b, c in self._pieces():
            b64, c64 = b.astype(np.float64).ravel(), c.astype(np.float64).ravel()
            same = _same_non_finite(b64, c64)
            yield (b64[~same], c64[~same]) if same.any() else (b64, c64)

    def rows(self) -> Iterator[tuple[F64, F64]]:
        """Both sides as (rows, classes) in float64: one row for every position outside the class axis.

        Rows whose greatest baseline value is not finite are left out; -inf (a masked class) may be in a row.
        """
        for b, c in self._pieces():
            b64, c64 = (np.moveaxis(a, self.axis, -1).astype(np.float64) for a in (b, c))
            b64, c64 = (a.reshape(-1, a.shape[-1]) for a in (b64, c64))
            whole = np.isfinite(b64.max(axis=-1))
            yield b64[whole], c64[whole]

    def _pieces(self) -> Iterator[tuple[Array, Array]]:
        for b, c in zip(self.baseline, self.candidate, strict=True):
            count = samples_in(b)
            step = max(1, _PIECE * count // max(b.size, 1))
            if step >= count:
                yield b, c
            else:
                for start in range(0, count, step):
                    yield b[start : start + step], c[start : start + step]

    @cached_property
    def sums(self) -> Sums:
        """The sums that most metrics are made of, in one pass."""
        total = Sums()
        for b, c in self.values():
            if not b.size:
                continue
            error = np.abs(b - c)
            total = Sums(
                count=total.count + b.size,
                bb=total.bb + dot(b, b),
                cc=total.cc + dot(c, c),
                bc=total.bc + dot(b, c),
                squared=total.squared + dot(error, error),
                absolute=total.absolute + float(error.sum()),
                max_error=float(np.maximum(total.max_error, error.max())),
                peak=float(np.maximum(total.peak, np.abs(b).max())),
            )
        return total


def _same_non_finite(b: Array, c: Array) -> NDArray[np.bool_]:
    bad = np.asarray(~np.isfinite(b))
    return bad & ((b == c) | (np.isnan(b) & np.isnan(c))) if bad.any() else bad


def dot(x: F64, y: F64) -> float:
    """Sum of the products, on one thread: a threaded BLAS stalls where the cores are busy."""
    return float(np.einsum("i,i->", x, y))


def samples_in(array: Array) -> int:
    """Number of samples in one batch: the size of the first axis, 1 without axes."""
    return array.shape[0] if array.ndim else 1


def find_non_finite(pair: Pair) -> NonFinite:
    """Count NaN and infinities on either side; samples are counted along the first axis, over all batches."""
    both = seen = 0
    counts = {"candidate": 0, "baseline": 0}
    first: dict[str, int | None] = {"candidate": None, "baseline": None}
    for b, c in zip(pair.baseline, pair.candidate, strict=True):
        b_bad, c_bad = ~np.isfinite(b), ~np.isfinite(c)
        if b_bad.any() or c_bad.any():
            same = _same_non_finite(b, c)
            both += int(same.sum())
            for side, bad in (("candidate", c_bad & ~b_bad), ("baseline", b_bad & ~same)):
                counts[side] += int(bad.sum())
                if first[side] is None and bad.any():
                    first[side] = seen + int(bad.reshape(samples_in(b), -1).any(axis=1).argmax())
        seen += samples_in(b)
    return NonFinite(both, counts["candidate"], counts["baseline"], first["candidate"], first["baseline"])


def cosine(pair: Pair) -> float:
    """Sum(b c) / (|b| |c|), in [-1, 1]: 1 is the same direction, whatever the length.

    All samples are taken as one vector, so large samples weigh more. Two zero vectors give 1, one of them 0,
    as in Polygraphy's CosineSimilarityCompareFunc. Blind to a common factor: use it with ``sqnr_db``.
    """
    s = pair.sums
    if s.squared == 0:
        return 1.0
    if s.bb == 0 or s.cc == 0:
        return 0.0
    return float(np.clip(s.bc / (math.sqrt(s.bb) * math.sqrt(s.cc)), -1.0, 1.0))


def sqnr_db(pair: Pair) -> float:
    """10 log10(sum b^2 / sum (b - c)^2), in dB: signal to quantization noise ratio.

    inf where nothing differs; -inf where the baseline is all zero and the candidate is not. The formula of
    ONNX Runtime's qdq_loss_debug and of Polygraphy's SnrCompareFunc.
    """
    return _decibels(pair.sums.bb, pair.sums.squared)


def psnr_db(pair: Pair) -> float:
    """10 log10(peak^2 / mean (b - c)^2), in dB, with peak = max |b|: peak signal to noise ratio.

    inf where nothing differs; -inf where the baseline is all zero and the candidate is not. Polygraphy's
    PsnrCompareFunc takes max b for the peak, which fails where values are mostly negative.
    """
    s = pair.sums
    return _decibels(s.peak**2 * s.count, s.squared)


def max_abs(pair: Pair) -> float:
    """Max |b - c|, in the output's own unit; nan without elements."""
    return pair.sums.max_error if pair.sums.count else math.nan


def mean_abs(pair: Pair) -> float:
    """Mean |b - c|, in the output's own unit; nan without elements."""
    return pair.sums.absolute / pair.sums.count if pair.sums.count else math.nan


def max_rel(pair: Pair) -> float:
    """Max of |b - c| / max(|b|, floor), a ratio; the floor is ``rel_floor`` (1e-3) of max |b|.

    inf where the floor and b are 0 and c is not; nan without elements.
    """
    greatest = 0.0 if pair.sums.count else math.nan
    floor = pair.rel_floor * pair.sums.peak
    for b, c in pair.values():
        if b.size:
            greatest = float(np.maximum(greatest, _relative(b, c, floor).max()))
    return greatest


def mean_rel(pair: Pair) -> float:
    """Mean of |b - c| / max(|b|, floor), a ratio; the floor is that of ``max_rel``; nan without elements."""
    if not pair.sums.count:
        return math.nan
    floor = pair.rel_floor * pair.sums.peak
    return sum(float(_relative(b, c, floor).sum()) for b, c in pair.values()) / pair.sums.count


def kl(pair: Pair) -> float:
    """Mean over rows of KL(softmax(b) || softmax(c)) along the class axis, in nats; 0 is the same.

    Made for logits: of probabilities it takes the softmax again and comes out too small. Kullback and Leibler
    (1951), as in ``torch.nn.KLDivLoss(reduction="batchmean")`` for 2-D outputs. nan where no row of the
    baseline has a finite maximum.
    """
    total, rows = 0.0, 0
    for b, c in pair.rows():
        log_b, log_c = log_softmax(b), log_softmax(c)
        terms = np.exp(log_b) * (log_b - log_c)
        total += float(np.where(np.isneginf(log_b), 0.0, terms).sum())
        rows += len(b)
    # A nan must stay one, so no plain max().
    return float(np.maximum(total / rows, 0.0)) if rows else math.nan


def top1_agreement(pair: Pair) -> float:
    """Share of rows in which baseline and candidate have the same greatest class, 0 to 1.

    Of equal values the lower index comes first, as in ONNX ArgMax. A row with NaN or +inf in the candidate
    disagrees.
    """
    return _topk(pair, 1)


def top5_agreement(pair: Pair) -> float:
    """Share of rows in which the baseline's greatest class is among the candidate's five greatest, 0 to 1.

    This is top-5 accuracy with the baseline's answer as the label. Of equal values the lower index comes
    first, as in ONNX TopK. A row with NaN or +inf in the candidate disagrees.
    """
    return _topk(pair, 5)


def agreement(pair: Pair) -> float:
    """Share of elements with exactly the same value, 0 to 1; nan without elements."""
    equal = count = 0
    for b, c in zip(pair.baseline, pair.candidate, strict=True):
        equal += int(np.count_nonzero(b == c))
        count += b.size
    return equal / count if count else math.nan


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def _relative(b: F64, c: F64, floor: float) -> F64:
    error = np.abs(b - c)
    return np.where(error == 0, 0.0, error / np.maximum(np.abs(b), floor))


def log_softmax(rows: F64) -> F64:
    """The logarithms of the probabilities that each row of logits stands for."""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _topk(pair: Pair, k: int) -> float:
    agreeing = rows = 0
    for b, c in pair.rows():
        top = b.argmax(axis=-1)[:, None]
        own = np.take_along_axis(c, top, axis=-1)
        before = (c > own) | ((c == own) & (np.arange(c.shape[-1]) < top))
        ranked = np.count_nonzero(before, axis=-1) < k
        agreeing += int(np.count_nonzero(ranked & np.isfinite(c.max(axis=-1))))
        rows += len(b)
    return agreeing / rows if rows else math.nan


@dataclass(frozen=True)
class Metric:
    """A metric by name, and what it needs to know of an output."""

    name: str
    function: Callable[[Pair], float]
    bound: Bound
    """Whether a limit on it is the least or the greatest value accepted."""
    doc: str
    """One line for users, with the unit."""
    kinds: tuple[str, ...]
    """What the output may hold: floats, integers, booleans, strings."""
    min_classes: int = 0
    """Least size of the class axis with which it can be anything but perfect; 0: needs no class axis."""

    @property
    def perfect(self) -> float:
        """What it is of two runs that are the same."""
        if self.bound == "max":
            return 0.0
        return math.inf if self.name.endswith("_db") else 1.0

    def __call__(self, pair: Pair) -> float:
        """The metric of ``pair``; nan where it cannot be computed."""
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return float(self.function(pair))


_FLOATS = ("floats",)
_NUMBERS = ("floats", "integers")
_EXACT = ("integers", "booleans", "strings")

#: Every metric that a criterion may name.
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("cosine", cosine, "min", "cosine similarity over all elements, -1 to 1", _NUMBERS),
        Metric("sqnr_db", sqnr_db, "min", "signal to quantization noise ratio, dB", _NUMBERS),
        Metric("psnr_db", psnr_db, "min", "peak signal to noise ratio, peak = max |baseline|, dB", _NUMBERS),
        Metric("max_abs", max_abs, "max", "greatest absolute error", _NUMBERS),
        Metric("mean_abs", mean_abs, "max", "mean absolute error", _NUMBERS),
        Metric("max_rel", max_rel, "max", "greatest relative error, with a floor", _NUMBERS),
        Metric("mean_rel", mean_rel, "max", "mean relative error, with a floor", _NUMBERS),
        Metric("kl", kl, "max", "mean KL divergence of the softmax along the class axis, nats", _FLOATS, 2),
        Metric("top1_agreement", top1_agreement, "min", "share of rows with the same top class", _FLOATS, 2),
        Metric(
            "top5_agreement",
            top5_agreement,
            "min",
            "share of rows with the baseline's top class in the candidate's top 5",
            _FLOATS,
            6,
        ),
        Metric("agreement", agreement, "min", "share of elements that are equal", _EXACT),
    )
}
