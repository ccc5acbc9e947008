"""Cuts tracebacks of users' tests at the user's own line, and frees the memory that tracebacks hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from pytest_int8acc.errors import Int8accError, InternalError

_PACKAGE = Path(__file__).parents[1]
#: Parts of the paths of files that may lie in a traceback between the user's code and this package.
_BETWEEN = ("_pytest", "pluggy", "contextlib.py")


@contextmanager
def ending_at_users_line(error: BaseException) -> Iterator[None]:
    """Returns a context in which the traceback of ``error`` has no frames of this plugin.

    An error that this plugin raises on purpose (``Int8accError``) also loses its causes. A bug of this plugin
    (``InternalError``) keeps its whole traceback, which is needed to report the bug. An error that did not
    pass through code of the user keeps its traceback, too.
    """
    entries = _entries(error.__traceback__)
    files = [Path(entry.tb_frame.f_code.co_filename) for entry in entries]
    count = _users_entries(files)
    own_error = isinstance(error, Int8accError)
    raised_here = bool(files) and _PACKAGE in files[-1].parents
    if count == 0 or isinstance(error, InternalError) or not (own_error or raised_here):
        yield
        return
    with _cut_after(entries[count - 1], error, drops_causes=own_error):
        yield


@contextmanager
def without_frames(error: BaseException) -> Iterator[None]:
    """Returns a context in which ``error`` has no causes, and only the outermost entry of its traceback.

    pytest shows the arguments of frames. An argument of a user's class may raise an exception when it is
    shown.
    """
    with _cut_after(error.__traceback__, error, drops_causes=True):
        yield


@contextmanager
def _cut_after(entry: TracebackType | None, error: BaseException, *, drops_causes: bool) -> Iterator[None]:
    """Returns a context in which the traceback of ``error`` ends with ``entry``, one of its entries.

    With ``drops_causes``, the error has no causes either.
    """
    rest = None if entry is None else entry.tb_next
    cause, suppressed = error.__cause__, error.__suppress_context__
    if entry is not None:
        entry.tb_next = None
    if drops_causes:
        error.__cause__ = None  # setting a cause also hides the context
    try:
        yield
    finally:
        if entry is not None:
            entry.tb_next = rest
        error.__cause__, error.__suppress_context__ = cause, suppressed


def _entries(entry: TracebackType | None) -> list[TracebackType]:
    """Returns the entries of a traceback, the outermost first."""
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _users_entries(files: Sequence[Path]) -> int:
    """Returns the number of entries of a traceback up to the last entry of the user's code.

    Only entries before the first entry of this package are searched. ``files`` are the files of the entries,
    the outermost first. The result is 0 if no entry before it is in the user's code.
    """
    count = next((i for i, file in enumerate(files) if _PACKAGE in file.parents), 0)
    while count and any(name in files[count - 1].parts for name in _BETWEEN):
        count -= 1
    return count


def clear_frames(error: BaseException | None) -> None:
    """Frees the local variables of all frames that ``error`` and its causes have passed through."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for entry in _entries(error.__traceback__):
            with suppress(RuntimeError):  # a running frame cannot be cleared
                entry.tb_frame.clear()
                # pytest has read ``f_locals``. Before Python 3.13 the frame then keeps a copy of its
                # variables. Reading ``f_locals`` again empties the copy.
                entry.tb_frame.f_locals  # noqa: B018
        error = error.__cause__ or error.__context__
