"""Files replaced at one stroke: who reads meanwhile, or comes after a kill, finds old ones or new ones."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_PREFIX, _SUFFIX = ".int8acc-", ".part"
#: Nobody writes for longer: what is older was left by a process that was killed.
_STALE_SECONDS = 3600.0


def replace_file(path: Path, data: bytes, draft: Path | None = None) -> None:
    """Write ``path`` by a rename of a draft whose name is this call's own.

    Where that fails, the old content stands and no draft is left; one of a process that was killed is cleared
    by the first write of the same file after an hour.

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
    """A draft of ``path`` with its content, gone when the block ends; stale ones are cleared."""
    _clear(path.parent, f"{glob.escape(path.name)}.{'[0-9a-f]' * 32}.tmp")
    draft = draft or path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        draft.write_bytes(data)
        yield draft
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def check_inside(folder: Path, root: Path | None) -> None:
    """Refuse a ``folder`` below ``root`` that a link leads out of it; None refuses nothing.

    Raises:
        OSError: Names the link, and where it leads.
    """
    if root is None:
        return
    home = root.resolve()
    for path in (*reversed(folder.parents), folder):
        if root not in path.parents or not path.is_symlink():
            continue
        try:
            target = path.resolve()
        except (OSError, RuntimeError):  # a link to itself, by Python's version
            target = Path(os.readlink(path))
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
    there is cleared by the first call after an hour.

    Args:
        folder: Made where it is missing.
        root: The folder above it that no link may lead out of; None: links are followed.

    Raises:
        OSError: The file system refuses it, or a link leads out of ``root``.
    """
    check_inside(folder, root)
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder, f"{_PREFIX}*{_SUFFIX}")
    drafts = Path(tempfile.mkdtemp(_SUFFIX, _PREFIX, folder))
    try:
        yield drafts
        for draft in sorted(drafts.iterdir(), reverse=True):
            os.replace(draft, folder / draft.name)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)


def special(path: Path) -> str:
    """What ``path`` is in words where reading it might never end; empty for a file, a folder or nothing."""
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


def seen_from(folder: Path, path: Path) -> str:
    """``path`` as written in a file of ``folder``, with slashes; absolute on another drive."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return Path(os.path.abspath(path)).as_posix()


def _clear(folder: Path, pattern: str) -> None:
    """Remove stale drafts; those of others' rights stay."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
