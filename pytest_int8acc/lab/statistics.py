"""What a quantization does to the values of a tensor: sums, histograms, and how good the best scale is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.graph.formats import FP8, INT8, Format, along
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.lab.values import TensorValues, decibels
from pytest_int8acc.tensors import Array

#: INT8 does no better than this on values that fill their range evenly; finer differences are luck. FP8,
#: whose errors go with the values, ends at 32.
CEILING_DB = 45.0
#: A scale is at fault from here: twice too wide loses 6 dB, while calibrated ones stay within 3 of the best.
LOST_DB = 4.0
#: A range counts as too wide from here: samples that were not calibrated on move amax by up to a third.
WIDE = 1.4
#: Formats of so many codes have errors that float32 cannot tell from its own.
_FINE = 1 << 12
#: What float32 rounds a half to.
_ROUNDED = 1 + 1e-6
#: Below this with the best scale, a few large values make the range; trained layers keep 33 dB and more in
#: INT8, and 31 in FP8, whatever their values, as long as they are no smaller than a 30,000th of the range.
_SOUND_DB = {INT8.name: 30.0, FP8.name: 25.0}


@dataclass(eq=False)
class EdgeStats:
    """What one quantization does to a tensor: exact sums over every value seen."""

    quantization: Quantization
    values: int = 0
    signal: float = 0.0
    """Sum of x^2."""
    noise: float = 0.0
    """Sum of the squared error."""
    clipped: int = 0
    """Values beyond the range by more than half a step."""
    clip_noise: float = 0.0
    """The part of ``noise`` that clipped values make."""
    top_code: float = 0
    """Greatest distance of a code from the zero point."""
    channels: NDArray[np.float64] | None = None
    """Shape [2, channels]: ``signal`` and ``noise`` per channel; None without a channel axis."""

    @property
    def sqnr_db(self) -> float:
        """10 log10(signal / noise)."""
        return decibels(self.signal, self.noise)

    @property
    def clips(self) -> bool:
        """Whether most of the noise is of values cut off."""
        return self.clip_noise > self.noise / 2

    @property
    def clips_wisely(self) -> bool:
        """Whether what is cut off costs little, as where a calibration (entropy, percentile) chose to cut."""
        return self.clips and self.sqnr_db >= sound_db(self.quantization.format)

    @property
    def codes_used(self) -> float:
        """Share of the codes on the fuller side, 127 or up to 448, up to the greatest that occurs."""
        return min(self.top_code / self.quantization.format.symmetric.levels, 1.0)

    @property
    def usual_db(self) -> float:
        """SQNR of the usual channel, the median one; of the tensor where it has no channels.

        A channel with large values makes most of the energy: it hides in the whole what the others lose.
        """
        if self.channels is None:
            return self.sqnr_db
        live = self.channels[:, self.channels[0] > 0]
        return decibels(1.0, float(np.median(live[1] / live[0]))) if live.size else self.sqnr_db

    def add(self, values: Array, axis: int | None = None) -> None:
        """Quantize one batch, exactly as QuantizeLinear does; ``axis`` holds channels.

        Errors are taken in steps, so that their squares suit float32 whatever the scale; sums are float64.
        """
        q = self.quantization
        wide = np.float32 if q.format.levels < _FINE else np.float64
        scale = along(q.scale, q.axis, values.ndim).astype(wide)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            codes, steps = q.quantize(values), values / scale
            error = codes.astype(wide) - along(q.zero_point, q.axis, values.ndim).astype(wide)
            self.top_code = max(self.top_code, float(max(error.max(initial=0), -error.min(initial=0))))
            error -= steps
            squared = error**2
            powers = steps**2
        beyond = self._beyond(codes, squared)
        unit = np.square(scale, dtype=np.float64)
        if unit.size > 1:
            powers, squared, unit = powers * unit, squared * unit, np.ones(())
        unit = unit.reshape(())
        self.clipped += int(beyond.sum())
        self.clip_noise += float(squared[beyond].sum(dtype=np.float64) * unit)
        channels = axis if values.ndim > 1 else None
        others = tuple(i for i in range(values.ndim) if channels is None or i != channels % values.ndim)
        found = np.stack([part.sum(axis=others, dtype=np.float64) for part in (powers, squared)]) * unit
        self.values += values.size
        self.signal += float(found[0].sum())
        self.noise += float(found[1].sum())
        if channels is not None and (self.channels is None or self.channels.shape == found.shape):
            self.channels = found if self.channels is None else self.channels + found

    def _beyond(self, codes: Array, squared: Array) -> NDArray[np.bool_]:
        """What lies beyond the outermost codes by more than half a step; errors squared, in steps."""
        held = self.quantization.format
        half = float(held.step(np.array(held.highest)) / 2)
        ends = (codes == held.round(held.highest)) | (codes == held.round(held.lowest))
        return np.asarray(ends & (squared > (half * _ROUNDED) ** 2))


def sound_db(codes: Format) -> float:
    """The SQNR that values keep with their best scale where no few of them make the range."""
    return _SOUND_DB[codes.symmetric.name]


def reach(quantization: Quantization) -> float:
    """Greatest magnitude that the codes express; of the widest channel. INT8's -128 counts as -127."""
    scale, zero = (a.astype(np.float64) for a in (quantization.scale, quantization.zero_point))
    low, high = max(quantization.format.lowest, -quantization.format.highest), quantization.format.highest
    return float((scale * np.maximum(high - zero, zero - low)).max())


def lost_db(stats: TensorValues, edge: EdgeStats) -> float:
    """SQNR lost against the best symmetric scale, in dB; 0 where nothing is lost, or nothing was counted."""
    if not stats.counts.any():
        return 0.0
    return max(min(stats.sqnr_db(stats.best_reach()), CEILING_DB) - edge.sqnr_db, 0.0)
