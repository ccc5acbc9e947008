"""Numbers as places on a chart: what a page draws, worked out here so that templates only draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_int8acc.report.diagnosis import worst_layers
from pytest_int8acc.report.words import number
from pytest_int8acc.results import LayerError, Score
from pytest_int8acc.results.causes import Cause

#: Width and height of a histogram in its own units; the axis lies below.
WIDTH, HEIGHT = 480.0, 96.0
_LAYERS = 40
#: How many times the greatest value the axis may reach, to show a scale that is too wide.
_BEYOND = 4.0


@dataclass(frozen=True)
class Bar:
    """A bar of a chart of layers."""

    label: str
    kind: str
    width: float
    """In percent."""
    rest: float
    """In percent: the error with everything in INT8."""
    text: str
    marked: bool
    """A culprit."""


@dataclass(frozen=True)
class Mark:
    """A vertical line on a histogram; ``beyond``: it lies off the right edge."""

    x: float
    text: str
    beyond: bool = False

    @property
    def anchor(self) -> str:
        """Which end of the text stands at the line."""
        return "end" if self.x > WIDTH / 2 else "start"


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram."""

    x: float
    y: float
    width: float
    height: float
    clipped: bool
    """Its values lie beyond what the scale can express."""


@dataclass(frozen=True)
class HistogramChart:
    """The absolute values of one tensor, and how far its scale reaches."""

    title: str
    bins: tuple[Bin, ...]
    amax: Mark | None
    reach: Mark | None
    right: str
    """The value at the right edge."""
    used: float | None
    """Share of the scale's reach that the values take, in percent; None where they go beyond it."""


def score_place(score: Score) -> float | None:
    """Where a judged score lies between 0 (perfect), 50 (its limit) and 100 (infinitely off)."""
    if score.limit is None:
        return None
    used = score.strain
    if used <= 1:
        return 50 * used
    return 100 - 50 / used if math.isfinite(used) else 100.0


def layer_bars(layers: Sequence[LayerError], culprits: Sequence[str]) -> list[Bar]:
    """The worst layers by the error that each makes alone, as a share of the signal."""
    ranked = worst_layers(layers)[:_LAYERS]
    shares = [(_share(layer.alone_sqnr_db), _share(layer.sqnr_db)) for layer in ranked]
    longest = max((value for pair in shares for value in pair if math.isfinite(value)), default=0.0) or 1.0
    return [
        Bar(
            label=layer.layer,
            kind=layer.op_type,
            width=_percent(alone / longest),
            rest=_percent(rest / longest),
            text=f"{number(100 * alone, 3)}% ({number(layer.alone_sqnr_db, 3)} dB{_between_engines(layer)})",
            marked=layer.layer in culprits,
        )
        for layer, (alone, rest) in zip(ranked, shares, strict=True)
    ]


def _between_engines(layer: LayerError) -> str:
    sqnr = layer.engine_sqnr_db
    return "" if sqnr is None else f"; {number(sqnr, 3)} dB between engines, all in INT8"


def histogram(cause: Cause) -> HistogramChart | None:
    """The values behind a cause, heights in logarithms; None where there are none."""
    values = cause.histogram
    if values is None or not values.counts or len(values.edges) != len(values.counts) + 1:
        return None
    amax = cause.amax if cause.amax is not None else values.edges[-1]
    reach = cause.reach
    right = max(values.edges[-1], min(reach or 0.0, _BEYOND * amax))
    if not (math.isfinite(right) and right > 0):
        return None
    tallest = math.log1p(max(values.counts)) or 1.0
    bins = []
    for low, high, n in zip(values.edges, values.edges[1:], values.counts, strict=False):
        tall = HEIGHT * math.log1p(n) / tallest
        x, width = WIDTH * low / right, max(WIDTH * (high - low) / right - 0.5, 0.5)
        bins.append(Bin(x, HEIGHT - tall, width, tall, reach is not None and low >= reach))
    return HistogramChart(
        title=cause.tensor,
        bins=tuple(bins),
        amax=_mark(amax, right, "largest value"),
        reach=None if reach is None else _mark(reach, right, "scale reaches"),
        right=number(right, 3),
        used=_percent(amax / reach) if reach and amax <= reach else None,
    )


def _mark(value: float, right: float, what: str) -> Mark | None:
    if not math.isfinite(value):
        return None
    text = f"{what} {number(value, 3)}"
    return Mark(WIDTH * min(value / right, 1.0), text, beyond=value > right)


def _share(sqnr_db: float) -> float:
    """Root of the noise's share of the signal; inf where it cannot be computed."""
    if math.isnan(sqnr_db):
        return math.inf
    return float(10 ** min(-sqnr_db / 20, 300))


def _percent(share: float) -> float:
    return round(100 * min(max(share, 0.0), 1.0), 2) if not math.isnan(share) else 0.0
