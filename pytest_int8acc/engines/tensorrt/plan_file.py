"""The first bytes of a built engine: is it one, of which TensorRT, and is it whole.

The layout is trtexec's own (samples/common/sampleEngines.cpp, ``printPlanVersion``, since 8.6): a tag of four
bytes, a header version (0), and TensorRT's version in bytes 24 to 27. TensorRT-RTX has a tag of its own, and
the file's size in bytes 16 to 23.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from pytest_int8acc.engines.tensorrt.platform import Flavor
from pytest_int8acc.errors import EngineError
from pytest_int8acc.files import readable

_TAGS: dict[bytes, Flavor] = {b"ftrt": "tensorrt", b"vtrt": "rtx"}
_HEADER = 28


@dataclass(frozen=True)
class PlanHeader:
    """What a plan file says of itself."""

    flavor: Flavor
    version: tuple[int, ...] | None
    """Major, minor, patch, build; None in a header of another layout."""

    def __str__(self) -> str:
        name = "TensorRT-RTX" if self.flavor == "rtx" else "TensorRT"
        return f"{name} {'.'.join(map(str, self.version[:3]))}" if self.version else f"another {name}"


def read_header(path: Path) -> PlanHeader:
    """Read what ``path`` says of itself.

    Raises:
        EngineError: It cannot be read, or is no engine of TensorRT 8.6 or later.
    """
    try:
        with readable(path).open("rb") as stream:
            head = stream.read(_HEADER)
        size = path.stat().st_size
    except OSError as error:
        raise EngineError(f"{path}: the engine cannot be read: {error.strerror or error}") from error
    flavor = _TAGS.get(head[:4])
    if flavor is None or len(head) < _HEADER:
        raise EngineError(
            f"{path}: not an engine of TensorRT 8.6 or later ({_guess(head)}); build one with "
            "trtexec --saveEngine, or name the ONNX model under 'model'"
        )
    if struct.unpack_from("<I", head, 4)[0] != 0:
        return PlanHeader(flavor, None)
    if flavor == "rtx" and size < struct.unpack_from("<Q", head, 16)[0]:
        raise EngineError(f"{path}: the engine is cut off after {size} bytes; copy or build it again")
    return PlanHeader(flavor, tuple(head[24:28]))


def _guess(head: bytes) -> str:
    """What else the file may be."""
    if not head:
        return "the file is empty"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer: run 'git lfs pull'"
    if head[:1] == b"\x08":  # the first field of an ONNX model, ir_version
        return "it looks like an ONNX model"
    return f"it begins with {head[:4]!r}"
