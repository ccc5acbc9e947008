"""Tracebacks of tests that use our fixtures: they end at the user's line, and hold no memory afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from pytest_int8acc.errors import Int8accError, InternalError

_PACKAGE = Path(__file__).parents[1]
#: Folders and files of the frames that call a user's test, or lie between the test and this package.
_BETWEEN = ("_pytest", "pluggy", "contextlib.py")


@contextmanager
def ending_at_users_line(error: BaseException) -> Iterator[None]:
    """Within it, the traceback of ``error`` is without our frames, and an error of ours without its causes.

    A fault of ours keeps its whole traceback, which belongs in a report of the fault. An error that passed
    through no code of the user's keeps it, too.
    """
    entries = _entries(error.__traceback__)
    files = [Path(entry.tb_frame.f_code.co_filename) for entry in entries]
    count = _users_entries(files)
    own_error = isinstance(error, Int8accError)
    raised_here = bool(files) and _PACKAGE in files[-1].parents
    if count == 0 or isinstance(error, InternalError) or not (own_error or raised_here):
        yield
        return
    last, cause, suppressed = entries[count - 1], error.__cause__, error.__suppress_context__
    rest, last.tb_next = last.tb_next, None
    if own_error:
        error.__cause__ = None  # which suppresses the context as well
    try:
        yield
    finally:
        last.tb_next = rest
        error.__cause__, error.__suppress_context__ = cause, suppressed


@contextmanager
def without_frames(error: BaseException) -> Iterator[None]:
    """Cut the causes and the inner traceback entries of ``error`` while the context is open.

    pytest shows the arguments of frames, and an argument of a user's class may raise where it is shown.
    """
    entry, cause, suppressed = error.__traceback__, error.__cause__, error.__suppress_context__
    rest = None if entry is None else entry.tb_next
    if entry is not None:
        entry.tb_next = None
    error.__cause__ = None  # which suppresses the context as well
    try:
        yield
    finally:
        if entry is not None:
            entry.tb_next = rest
        error.__cause__, error.__suppress_context__ = cause, suppressed


def _entries(entry: TracebackType | None) -> list[TracebackType]:
    """A traceback's entries, the outermost first."""
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _users_entries(files: Sequence[Path]) -> int:
    """Count of the entries before our first one, the last of them in the user's code; 0 without such code."""
    count = next((i for i, file in enumerate(files) if _PACKAGE in file.parents), 0)
    while count and any(name in files[count - 1].parts for name in _BETWEEN):
        count -= 1
    return count


def clear_frames(error: BaseException | None) -> None:
    """Removes the local variables of all frames that ``error`` and its causes have passed through."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for entry in _entries(error.__traceback__):
            with suppress(RuntimeError):  # it still runs
                entry.tb_frame.clear()
                # pytest has read f_locals. Before Python 3.13 that leaves a copy in the frame, which only
                # another read brings up to date.
                entry.tb_frame.f_locals  # noqa: B018
        error = error.__cause__ or error.__context__
