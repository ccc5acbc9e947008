"""Makes SIGTERM act like Ctrl-C, so that reports are written even if a scheduler ends the job by SIGTERM."""

from __future__ import annotations

import signal
import threading

import pytest

NAME = "int8acc-termination"


def start(config: pytest.Config) -> None:
    """Make SIGTERM act like Ctrl-C until the session ends, unless SIGTERM has a handler already."""
    if config.pluginmanager.has_plugin(NAME) or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        config.pluginmanager.register(Termination(), NAME)


class Termination:
    """Handles SIGTERM from its creation until pytest's session has ended."""

    def __init__(self) -> None:
        self._ends = False
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self._ends:  # the reports are being written, and the process ends after that anyway
            return
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:  # SIGINT is ignored, as in a job that a shell started in the background
            raise KeyboardInterrupt

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """From now on ignores SIGTERM, because the reports are being written."""
        self._ends = True

    def pytest_unconfigure(self) -> None:
        """Restores the default effect of SIGTERM, which ends the process at once."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
