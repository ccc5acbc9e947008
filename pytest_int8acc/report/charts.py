"""Computes the charts and pictures of the HTML page as coordinates for SVG.

Lengths are in units of the ``viewBox`` of an SVG, and y grows downward.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_int8acc.report.words import middle, number
from pytest_int8acc.results import Culprit, LayerError, Tradeoff, View, Wire
from pytest_int8acc.results.causes import Cause

#: Lengths in the units of an SVG's ``viewBox``: the width of every chart, the height of a chart of curves,
#: and the height of a histogram.
WIDTH, CURVE_HEIGHT, HEIGHT = 480.0, 120.0, 96.0
#: The maximum number of layers in a chart of bars.
_LAYERS = 40
#: Maximum end of the x axis of a histogram, as a multiple of the tensor's greatest value. The axis ends
#: earlier if the greatest value that the scale can represent is smaller.
_MAX_AXIS = 4.0
#: Lengths in the units of an SVG's ``viewBox``: width and height of a box for a node, the distance from the
#: top of one box to the top of the box below, and the length of a line between boxes.
_BOX, _ROW, _GAP = (150.0, 48.0), 58.0, 15.0
#: The maximum number of characters of a name in a box.
_NAME = 22
#: Minimum normalized loss in the chart of a trade-off; smaller losses are drawn at this number. The maximum
#: is its inverse. A normalized loss is a loss divided by the loss that the limit allows.
_LEAST = 1e-4
#: The title of a box that is no node, by the kind of the tensor's other end: a model input, a constant or a
#: model output.
_ENDS = {"input": "input", "constant": "weights", "output": "output"}


@dataclass(frozen=True)
class Box:
    """A box in the drawing of a culprit, a layer at fault: the culprit itself, or something beside it.

    Beside the culprit are nodes, model inputs, constants and model outputs.
    """

    x: float
    y: float
    lines: tuple[str, ...]
    name: str
    """The full name of the node or tensor, which a browser shows as a tooltip."""
    kind: str
    """The CSS classes of the box, separated by spaces."""
    wire: str = ""
    """The line from this box to the culprit's box, as an SVG path; empty for the culprit's own box."""

    width, height = _BOX


@dataclass(frozen=True)
class Drawing:
    """The drawing of a culprit, a layer at fault, with the nodes before and after it."""

    height: float
    boxes: tuple[Box, ...]
    said: str
    """The drawing in words, for screen readers."""
    more: int
    """The number of nodes and tensors beside the culprit that are left out."""


def drawing(culprit: Culprit, culprits: Sequence[str]) -> Drawing | None:
    """Returns the drawing of a culprit, with its inputs on the left and its readers on the right.

    ``culprits`` are the names of all layers at fault, which are marked. The result is None if the nodes
    around the culprit are not known.
    """
    around = culprit.neighbours
    if around is None:
        return None
    rows = max(len(around.inputs), len(around.outputs), 1)
    height = _height(rows)
    middle_y = height / 2
    lines = (culprit.op_type, middle(culprit.layer, _NAME))
    boxes = [Box((WIDTH - _BOX[0]) / 2, middle_y - _BOX[1] / 2, lines, culprit.layer, "culprit")]
    for wires, left in ((around.inputs, True), (around.outputs, False)):
        top = middle_y - _height(len(wires)) / 2
        boxes += [_box(wire, top + i * _ROW, middle_y, culprits, left=left) for i, wire in enumerate(wires)]
    reads, read_by = ("; ".join(map(_said, wires)) or "nothing" for wires in (around.inputs, around.outputs))
    said = f"{culprit.op_type} {culprit.layer} reads {reads}; read by {read_by}"
    return Drawing(height, tuple(boxes), said, around.more)


def _height(rows: int) -> float:
    """Returns the height of ``rows`` boxes, one below the other."""
    return (rows - 1) * _ROW + _BOX[1]


def _box(wire: Wire, y: float, middle_y: float, culprits: Sequence[str], *, left: bool) -> Box:
    width, height = _BOX
    x, start, end = (
        (0.0, width, width + _GAP) if left else (WIDTH - width, WIDTH - width - _GAP, WIDTH - width)
    )
    own, bend = y + height / 2, (start + end) / 2
    first, last = (own, middle_y) if left else (middle_y, own)
    path = f"M{start:g} {first:.1f}C{bend:g} {first:.1f} {bend:g} {last:.1f} {end:g} {last:.1f}"
    quantized = "quantized" if wire.scale is not None else "float"
    kind = f"{wire.kind} {quantized}{' also' if wire.node in culprits else ''}"
    name = wire.node or wire.tensor
    lines = (_ENDS.get(wire.kind, wire.op_type), middle(name, _NAME), _format(wire))
    return Box(x, y, lines, f"{name}, tensor {wire.tensor}", kind, path)


def _format(wire: Wire) -> str:
    if wire.scale is None:
        return wire.format.upper()
    return f"{wire.format.upper()}, scale {'up to ' if wire.scales > 1 else ''}{number(wire.scale, 3)}"


def _said(wire: Wire) -> str:
    return f"{_ENDS.get(wire.kind, wire.op_type)} {wire.node or wire.tensor} ({_format(wire)})"


def png(view: View) -> str:
    """Returns the picture in ``view`` as a data URI of a PNG; empty if it is a curve, or damaged."""
    try:
        rows = [base64.b64decode(row, validate=True) for row in view.rows]
    except ValueError:
        return ""
    sizes = {len(row) for row in rows}
    if len(sizes) != 1 or view.channels not in (1, 3) or not (size := sizes.pop()) or size % view.channels:
        return ""
    kind = 0 if view.channels == 1 else 2
    header = struct.pack(">IIBBBBB", size // view.channels, len(rows), 8, kind, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    chunks = b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode("ascii")


@dataclass(frozen=True)
class Curves:
    """The curves of one or two tensors in one chart, with one common y axis."""

    views: tuple[View, ...]
    paths: tuple[str, ...]
    """For each tensor the points of its curve, in the form of an SVG polyline."""
    low: str
    high: str


def curves(views: Iterable[View]) -> Curves | None:
    """Returns one chart of all ``views`` that are curves and not pictures; None if there are none."""
    drawn = tuple(view for view in views if view.values)
    values = [value for view in drawn for value in view.values if math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    half = high / 2 - low / 2 or 1.0  # ``high - low`` could overflow

    def points(view: View) -> str:
        step = WIDTH / max(len(view.values) - 1, 1)
        heights = ((high / 2 - v / 2) / half if math.isfinite(v) else 1.0 for v in view.values)
        return " ".join(f"{i * step:.1f},{CURVE_HEIGHT * min(h, 1.0):.1f}" for i, h in enumerate(heights))

    return Curves(drawn, tuple(map(points, drawn)), number(low, 3), number(high, 3))


@dataclass(frozen=True)
class Chart:
    """The chart of a trade-off: x is the share of the MACs in high precision, y the plan's score."""

    dots: tuple[tuple[float, float], ...]
    """The x and y coordinates of the dot of each plan."""
    limit: float
    """The y coordinate of the horizontal line that stands for the criterion's limit."""

    @property
    def path(self) -> str:
        """The points of an SVG polyline through the dots of all plans."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.dots)


def chart(tradeoff: Tradeoff) -> Chart:
    """Returns the chart of a trade-off.

    A plan with less error has a higher dot. The y axis has the normalized loss in decibels.
    """
    losses = [min(max(point.score.normalized_loss, _LEAST), 1 / _LEAST) for point in tradeoff.points]
    reserves = [-10 * math.log10(loss) for loss in losses]
    low, high = min(*reserves, 0.0), max(*reserves, 0.0)
    widest = max(point.share for point in tradeoff.points) or 1.0

    def height(reserve: float) -> float:
        return CURVE_HEIGHT * (high - reserve) / ((high - low) or 1.0)

    along = (WIDTH * point.share / widest for point in tradeoff.points)
    return Chart(tuple(zip(along, map(height, reserves), strict=True)), height(0.0))


@dataclass(frozen=True)
class Bar:
    """One layer in the chart of the errors of layers."""

    label: str
    kind: str
    """The operator of the layer."""
    width: float
    """The error of the layer's output with only this layer in the low format, in percent of the longest bar.
    """
    rest: float
    """The error of the layer's output with all layers in the low format, in percent of the longest bar."""
    text: str
    marked: bool
    """Whether the layer is one of the layers at fault."""
    engine: str
    """The SQNR of the layer's output in the candidate's engine against the baseline's engine, as text; empty
    if it was not measured."""
    skipped: int
    """The number of layers between the bar before and this one that have no bar."""


@dataclass(frozen=True)
class Mark:
    """A vertical line on a histogram that marks a value, with a text."""

    x: float
    text: str
    beyond: bool
    """Whether the value lies beyond the right edge of the histogram. The line is then drawn at the edge."""

    @property
    def anchor(self) -> str:
        """SVG's ``text-anchor``: whether the text starts or ends at the line, to fit on the chart."""
        return "end" if self.x > WIDTH / 2 else "start"


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram."""

    x: float
    y: float
    width: float
    height: float
    clipped: bool
    """Whether the values of this bar exceed the greatest value that the scale can represent."""


@dataclass(frozen=True)
class HistogramChart:
    """The histogram of a tensor's absolute values, and the greatest value that its scale can represent."""

    title: str
    bins: tuple[Bin, ...]
    amax: Mark | None
    reach: Mark | None
    right: str
    """The value at the right edge of the histogram, as text."""
    used: float | None
    """The tensor's greatest value, in percent of the greatest value that the scale can represent. None if the
    tensor has greater values than this, or if the scale is not known."""


def layer_bars(layers: Sequence[LayerError], culprits: Sequence[str]) -> list[Bar]:
    """Returns a bar for each layer, in the order of the graph.

    The length of a bar is the layer's error: the root mean square of the noise, divided by that of the
    signal. If there are more than ``_LAYERS`` layers, only ``culprits`` and the worst layers have a bar.
    """

    def rank(place: int) -> tuple[bool, tuple[bool, float]]:
        return layers[place].layer not in culprits, error_rank(layers[place])

    kept = sorted(sorted(range(len(layers)), key=rank)[:_LAYERS])
    shares = [(_share(layers[i].alone_sqnr_db), _share(layers[i].sqnr_db)) for i in kept]
    longest = max((value for pair in shares for value in pair if math.isfinite(value)), default=0.0) or 1.0
    bars = []
    before = -1
    for place, (alone, rest) in zip(kept, shares, strict=True):
        layer = layers[place]
        bars.append(
            Bar(
                label=layer.layer,
                kind=layer.op_type,
                width=_percent(alone / longest),
                rest=_percent(rest / longest),
                text=f"{number(100 * alone, 3)} % ({number(layer.alone_sqnr_db, 3)} dB)",
                marked=layer.layer in culprits,
                engine="" if layer.engine_sqnr_db is None else f"{number(layer.engine_sqnr_db, 3)} dB",
                skipped=place - before - 1,
            )
        )
        before = place
    return bars


def error_rank(layer: LayerError) -> tuple[bool, float]:
    """Returns a key that sorts layers: those with NaN first, then those with the largest error alone.

    The error alone is the error of a layer's output with only this layer in the low format.
    """
    return not math.isnan(layer.alone_sqnr_db), layer.alone_sqnr_db


def histogram(cause: Cause) -> HistogramChart | None:
    """Returns the histogram of the tensor in ``cause``, with logarithmic heights; None if there is none."""
    values = cause.histogram
    if values is None or not values.counts or len(values.edges) != len(values.counts) + 1:
        return None
    if min(values.counts) < 0:  # only a report.json that was edited by hand has negative counts
        return None
    amax = cause.amax if cause.amax is not None else values.edges[-1]
    reach = cause.reach
    right = max(values.edges[-1], min(reach or 0.0, _MAX_AXIS * amax))
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
    """Returns the root mean square of the noise divided by that of the signal; inf if the SQNR is nan."""
    if math.isnan(sqnr_db):
        return math.inf
    return float(10 ** min(-sqnr_db / 20, 300))


def _percent(share: float) -> float:
    return round(100 * min(max(share, 0.0), 1.0), 2) if not math.isnan(share) else 0.0
