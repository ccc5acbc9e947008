"""Files replaced at one stroke: who reads meanwhile, or comes after a kill, finds old ones or new ones."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PREFIX, _SUFFIX = ".int8acc-", ".part"
#: Where drafts cannot be locked, one that is older than this many seconds was left by a killed process.
_STALE_SECONDS = 3600.0


def replace_file(path: Path, data: bytes, draft: Path | None = None) -> None:
    """Write ``path`` by a rename of a draft whose name is this call's own.

    Where that fails, the old content stands and no draft is left; one of a process that was killed is cleared
    by the next write of the same file.

    Args:
        path: In a folder that is there.
        data: All of its new content.
        draft: In the same file system, and cleared by the caller after a kill; None: beside ``path``.

    Raises:
        OSError: The file system refuses it.
    """
    with _drafted(path, data, draft) as draft:
        os.replace(draft, path)


def create_file(path: Path, data: bytes) -> None:
    """As :func:`replace_file` for a file that must not be there.

    Raises:
        FileExistsError: It is there, and stays as it is.
        OSError: The file system refuses it.
    """
    with _drafted(path, data) as draft:
        try:
            os.link(draft, path)  # unlike a rename, it replaces nothing
        except PermissionError:  # a file system without links
            os.rename(draft, path)


@contextlib.contextmanager
def _drafted(path: Path, data: bytes, draft: Path | None = None) -> Iterator[Path]:
    """Yield a draft of ``path`` with its content; the draft is removed when the block ends."""
    clear_drafts(path.parent, path.name)
    lock = None
    if draft is None:
        draft, lock = _locked(lambda: _new_file(path), os.O_RDWR)
    try:
        # Through the lock's own descriptor: some file systems let no other one write.
        with open(draft if lock is None else lock, "wb", closefd=lock is None) as stream:
            stream.write(data)
        yield draft
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def clear_drafts(folder: Path, name: str) -> None:
    """Remove the drafts of the file ``name`` that killed processes have left in ``folder``."""
    _clear(folder, f"{glob.escape(name)}.{'[0-9a-f]' * 32}.tmp")


def check_inside(folder: Path, root: Path | None) -> None:
    """Refuse a ``folder`` below ``root`` that a link leads out of it; None refuses nothing.

    Raises:
        OSError: Names the link, and where it leads.
    """
    if root is None:
        return
    home = real(root)
    for path in (*reversed(folder.parents), folder):
        if root not in path.parents or not path.is_symlink():
            continue
        target = real(path)
        if home not in (target, *target.parents):
            raise OSError(
                errno.ELOOP,
                f"{path} is a link that leads out of the report folder, to {target}: nothing is written "
                "through it; remove the link",
                str(path),
            )


@contextlib.contextmanager
def replacing_files(folder: Path, root: Path | None = None) -> Iterator[Path]:
    """An empty folder for new files, which move into ``folder`` where the block ends without an error.

    Each is moved by one rename, those whose names begin with another's before it: a model's weights before
    the model. Where the block fails, ``folder`` stays as it was; what a process that was killed has left
    there is cleared by the next call.

    Args:
        folder: Made where it is missing.
        root: The folder above it that no link may lead out of; None: links are followed.

    Raises:
        OSError: The file system refuses it, or a link leads out of ``root``.
    """
    check_inside(folder, root)
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder, f"{_PREFIX}*{_SUFFIX}")
    drafts, lock = _locked(lambda: Path(tempfile.mkdtemp(_SUFFIX, _PREFIX, folder)), os.O_RDONLY)
    try:
        yield drafts
        for draft in sorted(drafts.iterdir(), reverse=True):
            os.replace(draft, folder / draft.name)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def special(path: Path) -> str:
    """Return the kind of a special file, whose reading may never end; empty for any other path."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return "a FIFO" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def readable(path: Path) -> Path:
    """``path`` itself, which a user may have put there.

    Raises:
        OSError: Reading it might never end.
    """
    if kind := special(path):
        raise OSError(errno.EINVAL, f"it is {kind}, which has no end to read to", str(path))
    return path


def real(path: Path) -> Path:
    """Return ``path`` with links resolved; a link to itself, where ``Path.resolve`` fails, stays as it is."""
    return Path(os.path.realpath(path))


def seen_from(folder: Path, path: Path) -> str:
    """Return ``path`` relative to ``folder``, with slashes; absolute on another drive of Windows."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return Path(os.path.abspath(path)).as_posix()


def _new_file(path: Path) -> Path:
    """Create an empty draft of ``path`` and return it."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    draft.touch(exist_ok=False)
    return draft


def _locked(make: Callable[[], Path], flags: int) -> tuple[Path, int | None]:
    """Return a draft that ``make`` creates, and the descriptor of its lock; None where locks do not work.

    The kernel lets go of the lock when a process is killed: a draft that can be locked was left.
    """
    while True:
        draft = make()
        lock = _lock(draft, flags, wait=True)
        with contextlib.suppress(FileNotFoundError):
            if lock is None or os.path.samestat(os.stat(draft), os.fstat(lock)):
                draft.stat()
                return draft, lock
        if lock is not None:  # another process took it for left over, before it was locked
            os.close(lock)


def _lock(path: Path, flags: int, *, wait: bool) -> int | None:
    """Return a descriptor that holds the lock of ``path``; None where it cannot be locked.

    Raises:
        BlockingIOError: Another process holds it, and this one is not to ``wait``.
    """
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _clear(folder: Path, pattern: str) -> None:
    """Remove drafts that no process writes any more, except drafts that this user may not remove."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):
            lock = _lock(left, os.O_RDONLY, wait=False)
            if lock is None and time.time() - left.stat().st_mtime < _STALE_SECONDS:
                continue
            try:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            finally:
                if lock is not None:
                    os.close(lock)
