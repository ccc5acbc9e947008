"""Reads scales from files: TensorRT calibration caches, and JSON of dynamic ranges.

A calibration cache is a text file with one tensor per line. The scale is given as the bits of a float32::

    TRT-8501-EntropyCalibration2
    input: 3c010a14
    (Unnamed Layer* 48) [Constant]_output: 3a83126f

The hex number is the big-endian IEEE-754 float32 of the *scale*, not of amax. NVIDIA does not document this
format. It follows from ONNX Runtime's ``ReadDynamicRange`` (dynamic range = value * 127) and from ModelOpt's
``import_scales_from_calib_cache`` (value = scale of the Q/DQ pair).

A file of dynamic ranges is a JSON object. It maps a tensor name, or a pattern of names, to amax or [min,
max]::

    {"input": [-2.1, 2.6], "*/relu*": 6.0, "conv5_out": 50}

Patterns are those of ``fnmatch``, and case-sensitive. If several patterns match a tensor, the last one is
used. An exact name takes precedence over all patterns. The scale is max(-min, max) / 127.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pytest_int8acc.errors import ScalesError, listed
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.observers.scales import EXPECTED, Scales, problem, read_text, to_float32
from pytest_int8acc.runtime.trt.calibration import named_algorithm
from pytest_int8acc.spec.yaml import parse
from pytest_int8acc.tensors import did_you_mean

_EXPECTED = 'expected a JSON object of dynamic ranges like {"tensor": 6.0}'
_EXPECTED_RANGE = "expected the greatest magnitude, a number above 0, or [min, max]"
_SHOWN = 20
_WILDCARD = re.compile(r"[*?\[]")


def load_scales(
    path: Path,
    tensors: Sequence[str],
    producers: Mapping[str, str] | None = None,
    origins: Mapping[str, str] | None = None,
) -> Scales:
    """The scales in a file: a TensorRT calibration cache, or a JSON object of dynamic ranges.

    Args:
        path: The file.
        tensors: Activations of the model that need a scale.
        producers: Tensor to the name of the node that computes it. An entry of the file may name the node,
            because ranges are often listed by layer. An entry for the tensor takes precedence. Entries for
            tensors or nodes in this dict that need no scale are ignored.
        origins: Tensor to its origin, a tensor with the same range. For instance, the origin of the output of
            a Reshape or MaxPool is its input. A tensor without an entry gets the scale of its origin.

    Returns:
        The scales that the file has for ``tensors``. A note says how many of the tensors have a scale.

    Raises:
        ScalesError: The file cannot be read, or names none of the tensors.
    """
    text = read_text(path)
    requested = _with_origins(tensors, origins or {})
    makers = {t: producers[t] for t in requested if t in producers} if producers else {}
    known = {*requested, *makers.values()}
    found: dict[str, float] = {}
    if text.lstrip().startswith(("{", "[")):
        ranges = ranges_of_text(text, path)
        entries, source = ranges.exact(known), f"dynamic ranges of {path.name}"
        found.update(ranges.matched(requested, known))
    else:
        cache = cache_of_text(text, path)
        entries, source = dict(cache.values), f"{path.name} ({cache.header})"
    found.update({tensor: entries[node] for tensor, node in makers.items() if node in entries})
    found.update({tensor: entries[tensor] for tensor in requested if tensor in entries})
    for tensor in reversed(requested):  # An origin comes before the tensors that get its scale.
        origin = (origins or {}).get(tensor)
        if tensor not in found and origin in found:
            found[tensor] = found[origin]
    found = {tensor: found[tensor] for tensor in tensors if tensor in found}
    if tensors and not found:
        raise ScalesError(_no_coverage(path, list(entries), tensors))
    elsewhere = {*(producers or {}), *(producers or {}).values(), *(origins or {}).values()}
    unknown = [name for name in entries if name not in known and name not in elsewhere]
    return Scales(found, source, tuple(_coverage(found, tensors, unknown)))


def _with_origins(tensors: Sequence[str], origins: Mapping[str, str]) -> list[str]:
    """The tensors and their origins, each tensor before its origin."""
    chain: dict[str, None] = {}
    for tensor in tensors:
        step: str | None = tensor
        while step is not None:
            chain.pop(step, None)  # Moves the tensor behind all tensors whose origin it is.
            chain[step] = None
            step = origins.get(step)
    return list(chain)


def _coverage(found: Mapping[str, float], tensors: Sequence[str], unknown: Sequence[str]) -> Iterator[str]:
    missing = [tensor for tensor in tensors if tensor not in found]
    without = f"; without: {listed(missing)}" if missing else ""
    yield f"{len(found)} of {len(tensors)} tensors have a scale{without}"
    if unknown:
        near = did_you_mean(unknown[0], missing) if len(unknown) == 1 else ""
        entries = "entry names" if len(unknown) == 1 else "entries name"
        yield f"{len(unknown)} {entries} no tensor to quantize: {listed(unknown)}{near}"


def _no_coverage(path: Path, entries: Sequence[str], tensors: Sequence[str]) -> str:
    near = next((n for n in (did_you_mean(name, tensors) for name in entries[:20]) if n), "")
    return (
        f"{path}: was this made for another model? It names {listed(entries)}{near}; the model needs scales "
        f"for {listed(tensors)}. Give the file that belongs to this model, or calibrate"
    )


@dataclass(frozen=True)
class Ranges:
    """The content of a JSON file of dynamic ranges."""

    scales: Mapping[str, float]
    """Name or pattern to scale (amax / 127, float32), in the order of the file."""
    path: Path
    text: str
    """The content of the file."""

    def place(self, key: str, *, value: bool = False) -> str:
        """``file:line:col`` of a key or of its value; the file's path alone if no line can be found."""
        root = parse(self.text.encode()).root
        if root is None or key not in root.keys:
            return str(self.path)
        mark = root.entries[key].mark if value else root.keys[key]
        return f"{self.path}:{mark.line}:{mark.column}"

    def exact(self, known: Collection[str]) -> dict[str, float]:
        """The scales of entries that are not patterns, by name.

        An entry is not a pattern if its name is in ``known``, or has none of the characters ``*``, ``?``,
        ``[``.
        """
        return {n: s for n, s in self.scales.items() if n in known or not _WILDCARD.search(n)}

    def matched(self, tensors: Sequence[str], known: Collection[str]) -> dict[str, float]:
        """Tensor to scale, for all ``tensors`` that a pattern matches; names in ``known`` are not patterns.

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
                    f"{self.place(pattern)}: the pattern '{pattern}' matches none of the {len(tensors)} "
                    f"tensors to quantize{near}; correct or remove it"
                )
            found.update(dict.fromkeys(matched, scale))
        return found


def ranges_of_text(text: str, path: Path) -> Ranges:
    """The dynamic ranges in ``text``; ``path`` is for messages.

    Raises:
        ScalesError: The text is not a JSON object, repeats a key, or has a value that is not a range. The
            message names line and column.
    """
    try:
        # Unlike a dict, a tuple of pairs keeps repeated keys. Integers are parsed as floats, because Python
        # raises an error for an int with too many digits.
        entries = json.loads(text, object_pairs_hook=tuple, parse_int=float)
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise ScalesError(f"{place}: not valid JSON: {error.msg}; {_found(text, error.pos)}") from None
    except RecursionError:
        raise ScalesError(f"{path}: nested too deeply; {_EXPECTED}") from None
    if not isinstance(entries, tuple) or not entries:
        empty = "the object is empty; " if entries == () else ""
        raise ScalesError(f"{path}:1:1: {empty}{_EXPECTED}; {_found(text.lstrip(), 0)}")
    ranges = Ranges({}, path, text)
    if len(dict(entries)) < len(entries):
        raise ScalesError(_repeated(entries, ranges))
    return replace(ranges, scales={key: _scale(key, value, ranges) for key, value in entries})


def _repeated(entries: Sequence[tuple[str, Any]], ranges: Ranges) -> str:
    keys = [key for key, _ in entries]
    key = next(key for at, key in enumerate(keys) if key in keys[:at])
    mistakes = parse(ranges.text.encode()).mistakes
    where = f"{ranges.path}:{mistakes[0].mark.line}:{mistakes[0].mark.column}" if mistakes else ranges.path
    return f"{where}: '{key}' is there a second time, first at {ranges.place(key)}; remove one"


def _scale(key: str, value: Any, ranges: Ranges) -> float:
    bounds = value if isinstance(value, list) else [0.0, value]
    wrong = ""
    if len(bounds) != 2 or not all(type(bound) is float and bound == bound for bound in bounds):
        wrong = f"{_EXPECTED_RANGE}; found {_shown(value)}"
    elif bounds[0] > bounds[1]:
        wrong = f"{bounds[1]:g} is below {bounds[0]:g}; {_EXPECTED_RANGE}"
    elif said := problem(scale := max(map(abs, bounds)) / INT8.levels):
        wrong = f"the range divided by {INT8.levels} {said}; {_EXPECTED_RANGE}"
    if wrong:
        raise ScalesError(f"{ranges.place(key, value=True)}: '{key}': {wrong}")
    return to_float32(scale)


def _shown(value: Any) -> str:
    return "an object" if isinstance(value, tuple) else json.dumps(value)[:_SHOWN]


def _found(text: str, at: int) -> str:
    found = text[at : at + _SHOWN].split("\n")[0].strip()
    return f"found {found!r}" if found else "the file or line ends here"


_HEX = re.compile(r"[0-9A-Fa-f]{1,8}")
_DECIMAL = re.compile(r"\S.* [-+]?(?:\d+\.?\d*|\.\d+|nan|inf)(?:e[-+]?\d+)?\s*", re.IGNORECASE)
_SHOWN_LINE = 60


@dataclass(frozen=True)
class Cache:
    """The content of a calibration cache."""

    header: str
    """The first line, like ``TRT-8501-EntropyCalibration2``."""
    values: Mapping[str, float]
    """Tensor to scale (amax / 127), in the file's order; exact in float32."""


def cache_of_text(text: str, path: Path) -> Cache:
    """The content of the TensorRT calibration cache ``text``, which is not blank; ``path`` is for messages.

    Lines may end in CRLF, blank lines are skipped, and names may contain ``': '``. Hex numbers with less than
    8 digits get leading zeros, since several tools strip them.

    Raises:
        ScalesError: The text is not a calibration cache; the message names the line.
    """
    first, *entries = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    header = _header(*first, path)
    if named_algorithm(header) == "legacy" and entries and named_algorithm(entries[0][1]):
        entries = entries[1:]
    values: dict[str, float] = {}
    first_lines: dict[str, int] = {}
    for n, line in entries:
        name, scale = _entry(line, f"{path}:{n}")
        if name in values:
            raise ScalesError(
                f"{path}:{n}: '{name}' is there a second time, first on line {first_lines[name]}; "
                "remove one, or calibrate again"
            )
        values[name], first_lines[name] = scale, n
    if not values:
        raise ScalesError(f"{path}: has a header but no tensor; calibrate again")
    return Cache(header, values)


def _header(n: int, line: str, path: Path) -> str:
    if named_algorithm(line):
        return line.strip()
    if _is_entry(line):
        raise ScalesError(
            f"{path}:{n}: the header is missing: expected 'TRT-<version>-<algorithm>', found {_cited(line)}; "
            "add a first line like TRT-8601-EntropyCalibration2"
        )
    if _DECIMAL.fullmatch(line):
        raise ScalesError(
            f"{path}:{n}: this is ONNX Runtime's calibration table ('tensor amax' in decimal, of the same "
            f"file name), not a TensorRT cache: {_cited(line)}. Give its numbers as dynamic ranges in a JSON "
            'file: {"tensor": amax}'
        )
    raise ScalesError(f"{path}:{n}: {EXPECTED}; found {_cited(line)}")


def _is_entry(line: str) -> bool:
    _, colon, digits = line.rpartition(": ")
    return bool(colon) and _HEX.fullmatch(digits.strip()) is not None


def _entry(line: str, where: str) -> tuple[str, float]:
    name, colon, digits = line.rpartition(": ")
    digits = digits.strip()
    if not colon or not name.strip():
        raise ScalesError(f"{where}: expected 'tensor: scale in hex', found {_cited(line)}")
    if not _HEX.fullmatch(digits):
        raise ScalesError(
            f"{where}: '{name}' has {_cited(digits)} for its scale; expected up to 8 hex digits, "
            "the bits of a float32"
        )
    (scale,) = struct.unpack("!f", bytes.fromhex(digits.zfill(8)))
    if problem(scale):
        raise ScalesError(
            f"{where}: the scale of '{name}' ({digits}) {problem(scale)}; "
            "remove the line to keep the tensor in high precision, or calibrate again"
        )
    return name, float(scale)


def _cited(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_LINE else text[:_SHOWN_LINE] + "...")
