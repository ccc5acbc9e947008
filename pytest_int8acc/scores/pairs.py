"""One output from two runs, walked batch by batch in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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
