"""What a user sees of a report: the elements of its page, and what the terminal says of each case."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "wbr", "rect", "line", "img", "path", "polyline", "circle"}
Attributes = dict[str, str | None]


class Reader(HTMLParser):
    """Elements of a page, which are closed in order; with the frame of the drawing that each is in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, Attributes]] = []
        self.texts: list[str] = []
        self.drawn: list[tuple[str, Attributes, list[float]]] = []
        self._frame: list[float] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.elements.append((tag, known))
        if tag == "svg":
            self._frame = [float(part) for part in (known["viewbox"] or "").split()]
        elif "svg" in self.open:
            self.drawn.append((tag, known, self._frame))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[Attributes]:
        return [attributes for name, attributes in self.elements if name == tag]


def by_case(stdout: str, names: Iterable[str], spec: str = "report.int8acc.yaml") -> dict[str, list[str]]:
    """What the terminal shows of each case: its failure, then its line at the end with what is below it."""
    lines: dict[str, list[str]] = {name: [] for name in names}
    name = ""
    for line in stdout.partition("short test summary info")[0].splitlines():
        if heading := re.fullmatch(r"_+ int8acc: (\S+) _+", line):
            name = heading[1]
        elif found := re.match(rf"(?:PASSED|FAILED) {re.escape(spec)}::(\S+) - ", line):
            name = found[1]
            lines[name].append(line.replace(f"{spec}::", ""))
        elif re.match(r"[=!]+ |int8acc: ", line):
            name = ""
        elif name and not line.startswith("    settings: "):
            lines[name].append(line.rstrip())
    return lines


def assert_in_frame(read: Reader) -> None:
    """All that is drawn lies in its drawing, which has no number that is none."""
    for tag, known, (left, top, width, height) in read.drawn:
        points = [pair.split(",") for pair in (known.get("points") or "").split()]
        xs = [float(x) for x, _ in points] + [
            float(known[key] or 0) for key in ("x", "x1", "cx") if key in known
        ]
        ys = [float(y) for _, y in points] + [
            float(known[key] or 0) for key in ("y", "y1", "cy") if key in known
        ]
        if tag == "rect":
            xs.append(float(known.get("x") or 0) + float(known["width"] or 0))
            ys.append(float(known.get("y") or 0) + float(known["height"] or 0))
        assert all(left <= x <= left + width + 1 for x in xs), (tag, known)
        assert all(top - 1e-6 <= y <= top + height + 1e-6 for y in ys), (tag, known)
