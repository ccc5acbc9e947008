"""TensorRT calibration caches: text, one tensor per line, its scale as the bits of a float32.

::

    TRT-8501-EntropyCalibration2
    input: 3c010a14
    (Unnamed Layer* 48) [Constant]_output: 3a83126f

The hex number is the big-endian IEEE-754 float32 of the *scale*, not of amax. NVIDIA documents this nowhere;
it follows from ONNX Runtime's ``ReadDynamicRange`` (dynamic range = value * 127) and from ModelOpt's
``import_scales_from_calib_cache`` (value = scale of the Q/DQ pair).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_int8acc.engines.tensorrt.calibration import named_algorithm
from pytest_int8acc.errors import ScalesError
from pytest_int8acc.scales import EXPECTED, problem

_HEX = re.compile(r"[0-9A-Fa-f]{1,8}")
_DECIMAL = re.compile(r"\S.* [-+]?(?:\d+\.?\d*|\.\d+|nan|inf)(?:e[-+]?\d+)?\s*", re.IGNORECASE)
_SHOWN = 60


@dataclass(frozen=True)
class Cache:
    """What a calibration cache holds."""

    header: str
    """The first line, like ``TRT-8501-EntropyCalibration2``."""
    values: Mapping[str, float]
    """Tensor to scale (amax / 127), in the file's order; exact in float32."""


def cache_of_text(text: str, path: Path) -> Cache:
    """The TensorRT calibration cache that ``text``, which is not blank, holds; ``path`` is for messages.

    Lines may end in CRLF, blank lines are skipped, and names may hold ``': '``. Hex numbers shorter than 8
    digits get their leading zeros back, since several tools strip them.

    Raises:
        ScalesError: It is none; names the line.
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
            f"{path}:{n}: the header is missing: expected 'TRT-<version>-<algorithm>', found {_shown(line)}; "
            "add a first line like TRT-8601-EntropyCalibration2"
        )
    if _DECIMAL.fullmatch(line):
        raise ScalesError(
            f"{path}:{n}: this is ONNX Runtime's calibration table ('tensor amax' in decimal, of the same "
            f"file name), not a TensorRT cache: {_shown(line)}. Give its numbers as dynamic ranges in a JSON "
            'file: {"tensor": amax}'
        )
    raise ScalesError(f"{path}:{n}: {EXPECTED}; found {_shown(line)}")


def _is_entry(line: str) -> bool:
    _, colon, digits = line.rpartition(": ")
    return bool(colon) and _HEX.fullmatch(digits.strip()) is not None


def _entry(line: str, where: str) -> tuple[str, float]:
    name, colon, digits = line.rpartition(": ")
    digits = digits.strip()
    if not colon or not name.strip():
        raise ScalesError(f"{where}: expected 'tensor: scale in hex', found {_shown(line)}")
    if not _HEX.fullmatch(digits):
        raise ScalesError(
            f"{where}: '{name}' has {_shown(digits)} for its scale; expected up to 8 hex digits, "
            "the bits of a float32"
        )
    (scale,) = struct.unpack("!f", bytes.fromhex(digits.zfill(8)))
    if problem(scale):
        raise ScalesError(
            f"{where}: the scale of '{name}' ({digits}) {problem(scale)}; "
            "remove the line to keep the tensor in high precision, or calibrate again"
        )
    return name, float(scale)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
