"""Replaces files atomically, so that readers find either the old or the new files, even after a kill."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import logging
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

logger = logging.getLogger(__name__)

#: Size in bytes of the SHA-256 digest at the beginning of a sealed file.
_SHA256_BYTES = 32
_PREFIX, _SUFFIX = ".int8acc-", ".part"
#: A draft (an unfinished file) that cannot be locked is removed if it is older than this, in seconds. A
#: killed process has probably left such a draft.
_STALE_SECONDS = 3600.0
#: The error numbers of ``os.link`` if the file system has no hard links, or refuses them to the user.
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def replace_file(path: Path, data: bytes, draft: Path | None = None) -> None:
    """Write ``path`` atomically: write a draft with a unique name, then rename it.

    If this fails, the old content stays and no draft is left. A draft of a killed process is removed by the
    next write of the same file.

    Args:
        path: The file, in an existing folder.
        data: The whole new content.
        draft: The path of the draft, in the same file system. If the process is killed, the caller must
            remove the draft later. With None, the draft gets a new name in the folder of ``path``.

    Raises:
        OSError: The file system refuses the write.
    """
    with _drafted(path, data, draft) as draft:
        os.replace(draft, path)


def seal(data: bytes) -> bytes:
    """The content of a sealed file: the SHA-256 digest of ``data``, then ``data``."""
    return hashlib.sha256(data).digest() + data


def read_sealed(path: Path, what: str) -> bytes | None:
    """The data of a sealed file; None if the file is missing, or if it is damaged, which is logged.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, data = content[:_SHA256_BYTES], content[_SHA256_BYTES:]
    if hashlib.sha256(data).digest() == digest:
        return data
    logger.warning("%s: the %s is damaged and is not used", path, what)
    return None


def create_file(path: Path, data: bytes) -> None:
    """Write a new file. An existing file is never replaced.

    The write is atomic, as in :func:`replace_file`, unless the file system has no hard links.

    Raises:
        FileExistsError: The file exists. It stays unchanged.
        OSError: The file system refuses the write.
    """
    with _drafted(path, data) as draft:
        try:
            os.link(draft, path)  # unlike a rename, a link replaces no file
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("xb") as stream:
                try:
                    stream.write(data)
                except BaseException:
                    path.unlink(missing_ok=True)
                    raise


@contextlib.contextmanager
def _drafted(path: Path, data: bytes, draft: Path | None = None) -> Iterator[Path]:
    """Yield an unfinished file that holds ``data`` and can be renamed to ``path``.

    The unfinished file is removed when the block ends. It is ``draft``, or a new file beside ``path``.
    """
    clear_drafts(path.parent, path.name)
    lock = None
    if draft is None:
        draft, lock = _locked(lambda: _new_file(path), os.O_RDWR)
    try:
        # The data is written through the descriptor that holds the lock, because on some file systems no
        # other descriptor can write to a locked file.
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
    """Raise OSError if a symbolic link in the path of ``folder`` leads out of ``root``.

    ``root`` is a folder above ``folder``. If it is None, nothing is checked.

    Raises:
        OSError: The message names the link and its target.
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
    """Yield an empty folder for new files. They move into ``folder`` if the block ends without an error.

    Each file is moved by one rename, in descending order of the names. The name of a model's weights is the
    name of the model with a suffix, so the weights are moved before the model. If the block fails, ``folder``
    stays unchanged. Files that a killed process has left are removed by the next call.

    Args:
        folder: The target folder. It is created if it is missing.
        root: A folder above ``folder``. No link may lead out of it. With None, links are followed.

    Raises:
        OSError: The file system refuses a write, or a link leads out of ``root``.
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
    """Return the kind of a special file, such as "a FIFO"; an empty text for any other path.

    Reading a special file may never end.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return "a FIFO" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def readable(path: Path) -> Path:
    """Return ``path`` unchanged; raise OSError if it is a special file, such as a FIFO.

    Raises:
        OSError: The file is special, so that reading it might never end.
    """
    if kind := special(path):
        raise OSError(errno.EINVAL, f"it is {kind}, which has no end to read to", str(path))
    return path


def real(path: Path) -> Path:
    """Return ``path`` with links resolved; a link to itself, where ``Path.resolve`` fails, stays as it is."""
    return Path(os.path.realpath(path))


def seen_from(folder: Path, path: Path) -> str:
    """Return ``path`` relative to ``folder``, with forward slashes.

    If they are on different drives of Windows, return the absolute path.
    """
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
    """Return a draft that ``make`` creates, and the descriptor that locks it; None if locks do not work.

    The draft is opened with ``flags`` of ``os.open``. The kernel releases the lock when a process is killed.
    A draft that can be locked therefore belongs to no running process.
    """
    while True:
        draft = make()
        lock = _lock(draft, flags, wait=True)
        with contextlib.suppress(FileNotFoundError):
            if lock is None or os.path.samestat(os.stat(draft), os.fstat(lock)):
                draft.stat()
                return draft, lock
        if lock is not None:  # another process removed the draft before it was locked
            os.close(lock)


def _lock(path: Path, flags: int, *, wait: bool) -> int | None:
    """Lock ``path`` and return the descriptor that holds the lock; None if the file cannot be locked.

    Args:
        path: The file or folder to lock.
        flags: Flags of ``os.open`` with which ``path`` is opened.
        wait: Whether to wait while another process holds the lock.

    Raises:
        BlockingIOError: Another process holds the lock, and ``wait`` is False.
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
    """Remove the drafts in ``folder`` that match ``pattern`` and that no running process writes.

    Drafts that this user may not remove are left.
    """
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
