"""Dynamic ranges as a JSON object: tensor name or pattern to amax or [min, max].

::

    {"input": [-2.1, 2.6], "*/relu*": 6.0, "conv5_out": 50}

Patterns are those of ``fnmatch``, case-sensitive; of several that match, the last counts, and an exact name
beats them all. The scale is max(-min, max) / 127.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

from pytest_int8acc.errors import ScalesError
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.scales import problem, to_float32
from pytest_int8acc.scales.files import read_text
from pytest_int8acc.tensors import did_you_mean

_EXPECTED = 'expected a JSON object of dynamic ranges like {"tensor": 6.0}'
_WANTED = "expected the greatest magnitude, a number above 0, or [min, max]"
_SPACE = re.compile(r"[ \t\r\n]*")
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Ranges:
    """Ranges as the file gives them."""

    scales: Mapping[str, float]
    """Name or pattern to scale (amax / 127, float32), in the file's order."""
    places: Mapping[str, str]
    """Name or pattern to ``file:line:col``."""

    def exact(self, known: Collection[str]) -> dict[str, float]:
        """Entries that are no patterns: names in ``known``, and names without ``*``, ``?`` and ``[``."""
        return {n: s for n, s in self.scales.items() if n in known or not _WILDCARD.search(n)}

    def matched(self, tensors: Sequence[str], known: Collection[str]) -> dict[str, float]:
        """Scales of those of ``tensors`` that a pattern matches; names in ``known`` are no patterns.

        Raises:
            ScalesError: A pattern matches no tensor.
        """
        found: dict[str, float] = {}
        exact = self.exact(known)
        for pattern, scale in self.scales.items():
            if pattern in exact:
                continue
            matched = [tensor for tensor in tensors if fnmatchcase(tensor, pattern)]
            if not matched:
                near = did_you_mean(pattern.replace("*", ""), tensors)
                raise ScalesError(
                    f"{self.places[pattern]}: the pattern '{pattern}' matches none of the {len(tensors)} "
                    f"tensors to quantize{near}; correct or remove it"
                )
            found.update(dict.fromkeys(matched, scale))
        return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


#: Refuses NaN and Infinity, which Python would read and JSON does not have.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse_ranges(path: Path) -> Ranges:
    """Read a JSON file of dynamic ranges.

    Raises:
        ScalesError: The file cannot be read, is no JSON object, repeats a key, or holds a value that is no
            range; names line and column.
    """
    return ranges_of_text(read_text(path), path)


def ranges_of_text(text: str, path: Path) -> Ranges:
    """The ranges that ``text`` holds; ``path`` is for messages."""
    return _Reader(text, path).read()


class _Reader:
    """Reads one flat JSON object and knows where each key and value stands, which ``json`` does not tell."""

    def __init__(self, text: str, path: Path) -> None:
        self._text = text
        self._path = path
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def read(self) -> Ranges:
        scales: dict[str, float] = {}
        places: dict[str, str] = {}
        at = self._after("{", self._skip(0), _EXPECTED)
        closed = self._text.startswith("}", at)
        if closed:
            self._fail(at, f"the object is empty; {_EXPECTED}")
        while not closed:
            key, colon = self._key(at)
            if key in scales:
                self._fail(at, f"'{key}' is there a second time, first at {places[key]}; remove one")
            places[key] = self._place(at)
            start = self._after(":", colon, "expected ':' and a range")
            value, end = self._parse(start)
            scales[key] = self._scale(key, value, start)
            closed = self._text.startswith("}", end)
            at = self._after("}" if closed else ",", end, "expected ',' or '}'")
        if at < len(self._text):
            self._fail(at, "expected nothing after the closing '}'")
        return Ranges(scales, places)

    def _key(self, at: int) -> tuple[str, int]:
        if not self._text.startswith('"', at):
            self._fail(at, "expected a tensor's name in double quotes")
        key, end = self._parse(at)
        return str(key), end

    def _parse(self, at: int) -> tuple[Any, int]:
        """The JSON value at ``at``, and where the next token starts."""
        try:
            value, end = _DECODER.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            self._fail(error.pos, f"not valid JSON: {error.msg}")
        except (ValueError, RecursionError):  # NaN, or thousands of digits or brackets
            self._fail(at, _WANTED)
        return value, self._skip(end)

    def _scale(self, key: str, value: Any, at: int) -> float:
        bounds = value if isinstance(value, list) else [0, value]
        numbers = [x for x in bounds if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(bounds) != 2 or numbers != bounds:
            self._fail(at, f"'{key}': {_WANTED}")
        try:
            low, high = map(float, numbers)
        except OverflowError:
            self._fail(at, f"'{key}': the range is too large for float32")
        if low > high:
            self._fail(at, f"'{key}': {high:g} is below {low:g}; {_WANTED}")
        scale = max(abs(low), abs(high)) / INT8.levels
        if problem(scale):
            self._fail(at, f"'{key}': the range divided by {INT8.levels} {problem(scale)}; {_WANTED}")
        return to_float32(scale)

    def _after(self, token: str, at: int, otherwise: str) -> int:
        """Where the next token starts, given that ``token`` is at ``at``."""
        if not self._text.startswith(token, at):
            self._fail(at, otherwise)
        return self._skip(at + len(token))

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def _place(self, at: int) -> str:
        line = bisect_right(self._line_starts, at)
        return f"{self._path}:{line}:{at - self._line_starts[line - 1] + 1}"

    def _fail(self, at: int, message: str) -> NoReturn:
        found = self._text[at : at + 20].split("\n")[0].strip()
        what = f"found {found!r}" if found else "the file or line ends here"
        raise ScalesError(f"{self._place(at)}: {message}; {what}")
