"""Makes SIGTERM act like Ctrl-C, so that a job that is ended by its scheduler still writes its reports."""

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
    """Handles SIGTERM as long as it is registered with pytest."""

    def __init__(self) -> None:
        self._ends = False
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self._ends:  # the reports are being written, and nothing else is left to do
            return
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:  # SIGINT has no handler, as in a job in the background, which ignores it
            raise KeyboardInterrupt

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Makes SIGTERM wait for the reports."""
        self._ends = True

    def pytest_unconfigure(self) -> None:
        """Gives SIGTERM its default effect back: it ends the process at once."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
