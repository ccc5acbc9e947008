"""TensorRT in this process, through Polygraphy, its messages caught."""

from __future__ import annotations

import contextlib
import importlib
import io
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pytest_int8acc.engines.tensorrt.log import last_words, ran_out_of_memory
from pytest_int8acc.engines.tensorrt.platform import Platform
from pytest_int8acc.errors import EngineError


def backend(platform: Platform) -> Any:
    """``polygraphy.backend.trt`` on the platform's TensorRT.

    Raises:
        EngineError: Polygraphy serves the other of TensorRT and TensorRT-RTX in this process already.
    """
    config: Any = importlib.import_module("polygraphy.config")
    if bool(config.USE_TENSORRT_RTX) != platform.is_rtx:
        if "polygraphy.backend.trt" in sys.modules:
            needed = "1" if platform.is_rtx else "0"
            raise EngineError(
                f"{platform.name} cannot run in this process, which uses the other TensorRT already: set "
                f"POLYGRAPHY_USE_TENSORRT_RTX={needed} before pytest starts"
            )
        config.USE_TENSORRT_RTX = platform.is_rtx  # read once, by the import below
    return importlib.import_module("polygraphy.backend.trt")


def tensorrt(platform: Platform) -> Any:
    """The ``tensorrt`` or ``tensorrt_rtx`` module."""
    return importlib.import_module("tensorrt_rtx" if platform.is_rtx else "tensorrt")


@contextlib.contextmanager
def speaking_of(what: str) -> Iterator[None]:
    """Keep Polygraphy's and TensorRT's messages off the terminal; turn what they raise into EngineErrors.

    Raises:
        EngineError: ``what`` went wrong; says what TensorRT said.
        KeyboardInterrupt: At the end, where the user wants to interrupt meanwhile.
    """
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    said = io.StringIO()
    try:
        with (
            _interrupts_held(),
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


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Pass Ctrl-C on at the end: raised while TensorRT calls back, as to log, it would be swallowed."""
    other = threading.current_thread() is not threading.main_thread()  # is not interrupted
    if other or signal.getsignal(signal.SIGINT) is None:  # or by a handler that is not Python's
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)
