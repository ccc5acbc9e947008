"""Processes that are killed at each of their writes in turn, or write at the same time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime", "test.step")


def killed_at(step: int, action: Callable[[], object], *, inside: bool = True) -> bool:
    """Run ``action`` in a child that is killed at its ``step``-th write; False where it ended first.

    A step is what changes a folder, what opens a file to write, and, ``inside`` files, every write before it
    and after it.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        if (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)) or event in _CHANGES:
            count()

    def profile(frame: object, event: str, called: object) -> None:
        if event in ("c_call", "c_return") and getattr(called, "__name__", "") in ("write", "tofile"):
            count()

    try:
        sys.addaudithook(audit)
        if inside:
            sys.setprofile(profile)
        action()
        os._exit(0)
    except BaseException:
        os._exit(1)


def steps(action: Callable[[], object], *, inside: bool = True, least: int = 6) -> Iterator[int]:
    """Every step at which ``action`` can be killed, killed there; the caller checks what it left."""
    for step in range(1, 400):
        if not killed_at(step, action, inside=inside):
            assert step >= least, "nothing was written"
            return
        yield step
    raise AssertionError("too many steps")


def at_once(*actions: Callable[[], object]) -> None:
    """Run each in a child of its own, all at the same time; none may fail."""
    children = []
    for action in actions:
        child = os.fork()
        if not child:
            try:
                action()
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(child)
    assert not any(os.waitpid(child, 0)[1] for child in children)
