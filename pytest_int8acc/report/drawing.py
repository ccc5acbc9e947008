"""Pictures of a report as data URIs and SVG: a culprit's surroundings, samples, outputs."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_int8acc.report.words import middle, number
from pytest_int8acc.results import Culprit, Tradeoff, View, Wire

#: Of a drawing and of a curve, in their own units.
WIDTH, CURVE_HEIGHT = 480.0, 120.0
_BOX, _ROW, _GAP = (150.0, 48.0), 58.0, 15.0
_NAME = 22
#: Errors are drawn down to this share of what a limit allows, and up to its inverse.
_LEAST = 1e-4
_ENDS = {"input": "input", "constant": "weights", "output": "output"}


@dataclass(frozen=True)
class Box:
    """A node, or an end of the model, and the wire that joins it to the culprit in the middle."""

    x: float
    y: float
    lines: tuple[str, ...]
    name: str
    """In full."""
    kind: str
    """Its classes."""
    wire: str = ""
    """SVG path; empty for the culprit itself."""

    width, height = _BOX


@dataclass(frozen=True)
class Drawing:
    """The graph around a culprit."""

    height: float
    boxes: tuple[Box, ...]
    said: str
    """The same in words."""
    more: int


def drawing(culprit: Culprit, culprits: Sequence[str]) -> Drawing | None:
    """What a culprit reads stands left of it, its readers right; None where they are not known."""
    around = culprit.neighbours
    if around is None:
        return None
    rows = max(len(around.inputs), len(around.outputs), 1)
    middle_y = (rows * _ROW - (_ROW - _BOX[1])) / 2
    lines = (culprit.op_type, middle(culprit.layer, _NAME))
    boxes = [Box((WIDTH - _BOX[0]) / 2, middle_y - _BOX[1] / 2, lines, culprit.layer, "culprit")]
    for wires, left in ((around.inputs, True), (around.outputs, False)):
        top = middle_y - (len(wires) * _ROW - (_ROW - _BOX[1])) / 2
        boxes += [_box(wire, top + i * _ROW, middle_y, culprits, left=left) for i, wire in enumerate(wires)]
    reads, read_by = ("; ".join(map(_said, wires)) or "nothing" for wires in (around.inputs, around.outputs))
    said = f"{culprit.op_type} {culprit.layer} reads {reads}; read by {read_by}"
    return Drawing(rows * _ROW - (_ROW - _BOX[1]), tuple(boxes), said, around.more)


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
    """A picture as a data URI of a PNG; empty where ``rows`` are none."""
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
    """Curves of one or two tensors on one scale."""

    views: tuple[View, ...]
    paths: tuple[str, ...]
    """Points of an SVG polyline, by view."""
    low: str
    high: str


def curves(views: Iterable[View]) -> Curves | None:
    """The curves among ``views`` in one chart; None where there are none."""
    drawn = tuple(view for view in views if view.values)
    values = [value for view in drawn for value in view.values if math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    half = high / 2 - low / 2 or 1.0  # halves: none overflows

    def points(view: View) -> str:
        step = WIDTH / max(len(view.values) - 1, 1)
        heights = ((high / 2 - v / 2) / half if math.isfinite(v) else 1.0 for v in view.values)
        return " ".join(f"{i * step:.1f},{CURVE_HEIGHT * min(h, 1.0):.1f}" for i, h in enumerate(heights))

    return Curves(drawn, tuple(map(points, drawn)), number(low, 3), number(high, 3))


@dataclass(frozen=True)
class Chart:
    """What a trade-off's plans reach, against the multiply-accumulates that they take out of INT8."""

    dots: tuple[tuple[float, float], ...]
    limit: float
    """Height of the criterion's limit."""

    @property
    def path(self) -> str:
        """Points of an SVG polyline."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.dots)


def chart(tradeoff: Tradeoff) -> Chart:
    """Less error is higher, in decibels of what the limit allows."""
    normalized_losses = [
        min(max(point.score.normalized_loss, _LEAST), 1 / _LEAST) for point in tradeoff.points
    ]
    reserves = [-10 * math.log10(normalized_loss) for normalized_loss in normalized_losses]
    low, high = min(*reserves, 0.0), max(*reserves, 0.0)
    widest = max(point.share for point in tradeoff.points) or 1.0

    def height(reserve: float) -> float:
        return CURVE_HEIGHT * (high - reserve) / ((high - low) or 1.0)

    along = (WIDTH * point.share / widest for point in tradeoff.points)
    return Chart(tuple(zip(along, map(height, reserves), strict=True)), height(0.0))
