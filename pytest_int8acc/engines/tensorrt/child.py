"""A child process that may hang or crash without harm: own group, time limit, all output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    code: int | None
    """Exit status, negative for a signal; None where it was stopped at its time limit."""
    seconds: float

    @property
    def ending(self) -> str:
        """In words, like ``ended by SIGSEGV``."""
        if self.code is None:
            return f"stopped after {self.seconds:.0f} s"
        if self.code >= 0:
            return f"ended with status {self.code}"
        try:
            return f"ended by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"ended by signal {-self.code}"


def run_child(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    log: Path,
    timeout: float,
    *,
    environment: Mapping[str, str] | None = None,
    waiting: Callable[[float], None] = lambda seconds: None,
    idle: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run ``python -m module`` in ``folder``, importing from where this process does.

    Args:
        module: Run as ``__main__``.
        arguments: Its command line.
        folder: Its working folder, which comes first on its path: no place for a user's files.
        log: Gets its standard output and error.
        timeout: Seconds until its process group is killed.
        environment: Added to this process's own.
        waiting: Called again and again with the seconds gone by; what it raises ends the child.
        idle: Whether the child waits for others; that time is not counted against ``timeout``.
    """
    started = time.monotonic()
    with log.open("ab") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env={**_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = _wait(child, timeout, waiting, idle)
    finally:  # also on Ctrl-C: the child, in a group of its own, does not hear it
        _kill(child)
    return Outcome(code, time.monotonic() - started)


def _environment() -> dict[str, str]:
    """This process's own, with its path to import from; a crash leaves a trace, and no word is held back."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}


def _wait(
    child: subprocess.Popen[bytes],
    timeout: float,
    waiting: Callable[[float], None],
    idle: Callable[[], bool],
) -> int | None:
    """The child's exit status, or None where the time is up."""
    started = last = time.monotonic()
    left = timeout
    while left > 0:
        try:
            return child.wait(min(left, _POLL_SECONDS))
        except subprocess.TimeoutExpired:
            before, last = last, time.monotonic()
            left -= 0 if idle() else last - before
            waiting(last - started)
    return None


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except (ProcessLookupError, PermissionError):  # nobody is left
        pass
    child.wait()
