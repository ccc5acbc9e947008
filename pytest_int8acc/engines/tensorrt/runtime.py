"""TensorRT in this process, through Polygraphy, its messages caught, and a log read for what went wrong."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_int8acc.engines.tensorrt.platform import Platform
from pytest_int8acc.errors import EngineError

_SHOWN_CHARS = 600
#: What says nothing of the model; error 35 is what TensorRT-RTX meets without a GPU, and TensorRT 8.6 cannot
#: read the timings of fused regions that it wrote itself.
_NOISE = re.compile(
    r"cudaError(?:_t)? ?\(?35|CUDA initialization failure with error: 35|Unable to determine GPU memory usage"
    r"|myelinCache|timing cache will not be used"
    r"|'colored' module|TF32 is disabled|logger passed into create|ModelImporter.cpp:\d+: (?:---|While)"
    r"|^\[.\] ModelImporter.cpp:\d+: ERROR|^Traceback|^Current thread|^Thread 0x|^Extension modules"
)
_ERROR = re.compile(
    r"^\[[E!]\]|^Fatal Python error|^(?:\w+\.)*\w+(?:Error|Exception)\b|CUDA initialization failure"
    r"|^terminate called"
)
_LEVEL = re.compile(r"^\[.\] |^polygraphy[\w.]*: ")
_MEMORY = re.compile(
    r"out ?of ?memory|cudaErrorMemoryAllocation|bad_alloc|MemoryError|Cuda failure: 2\b|insufficient memory",
    re.IGNORECASE,
)


def backend(platform: Platform) -> Any:
    """``polygraphy.backend.trt`` on the platform's TensorRT.

    Raises:
        EngineError: Polygraphy serves the other of TensorRT and TensorRT-RTX in this process already.
    """
    config: Any = importlib.import_module("polygraphy.config")
    if bool(config.USE_TENSORRT_RTX) != platform.is_rtx:
        if "polygraphy.backend.trt" in sys.modules:
            wanted = "1" if platform.is_rtx else "0"
            raise EngineError(
                f"{platform.name} cannot run in this process, which uses the other TensorRT already: set "
                f"POLYGRAPHY_USE_TENSORRT_RTX={wanted} before pytest starts"
            )
        config.USE_TENSORRT_RTX = platform.is_rtx  # read once, by the import below
    return importlib.import_module("polygraphy.backend.trt")


@contextlib.contextmanager
def speaking_of(what: str) -> Iterator[None]:
    """Keep Polygraphy's and TensorRT's messages off the terminal; turn what they raise into EngineErrors.

    Raises:
        EngineError: ``what`` went wrong; says what TensorRT said.
    """
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    said = io.StringIO()
    try:
        with (
            G_LOGGER.verbosity(G_LOGGER.ERROR),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            yield
    except (PolygraphyException, RuntimeError, TypeError, OSError, MemoryError) as error:
        text = said.getvalue()
        words = last_words(text or str(error))
        memory = "out of memory on the GPU, give a smaller batch: " if ran_out_of_memory(text) else ""
        raise EngineError(f"{what}: {memory}{words}") from error


def read_log(path: Path) -> str:
    """The whole log; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def last_words(log: str) -> str:
    """The messages that report errors, or else the last lines; in one line, never empty."""
    messages = list(_messages(log))
    errors = [message for message in messages if _ERROR.match(message)] or messages[-3:]
    texts = list(dict.fromkeys(_LEVEL.sub("", message) for message in errors))
    texts = [text for text in texts if not any(text in other for other in texts if other != text)]
    chosen = texts if len(texts) <= 4 else [*texts[:3], texts[-1]]
    brief = [text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " ..." for text in chosen]
    return " | ".join(brief) or "nothing was logged"


def _messages(log: str) -> Iterator[str]:
    """Messages with their indented lines joined, without noise."""
    message = ""
    for line in log.splitlines():
        if not line[:1].isspace():
            if message and not _NOISE.search(message):
                yield message
            message = line.strip()
        elif message and not _NOISE.search(line):
            message += " " + line.strip()
    if message and not _NOISE.search(message):
        yield message


def ran_out_of_memory(log: str) -> bool:
    """True where an error tells of memory that could not be had; warnings of tactics skipped are usual."""
    return any(_MEMORY.search(line) for line in log.splitlines() if _ERROR.match(line))
