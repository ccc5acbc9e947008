"""Reads and writes files by path or by fsspec URL."""

from __future__ import annotations

import errno
import importlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_int8acc.errors import EngineError, error_text
from pytest_int8acc.files import readable, replace_file
from pytest_int8acc.names import is_url, safe_url, without_secrets


class StorageError(EngineError):
    """Shared storage, such as a bucket, fails or cannot be reached."""


@contextmanager
def storage(url: str) -> Iterator[tuple[Any, str]]:
    """Yield fsspec's file system of ``url`` and the path in it.

    Errors inside the block become StorageErrors. They have no cause, since the text and the frames of a cause
    may hold a password.

    Raises:
        FileNotFoundError: A file does not exist.
        StorageError: The storage cannot be reached, or the block fails.
        EngineError: fsspec is missing, does not know such URLs, or lacks a library for them.
    """
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError:
        raise EngineError(f"{safe_url(url)}: shared storage needs fsspec: pip install fsspec") from None
    kinds: tuple[type[Exception], ...] = (ImportError, ValueError)
    try:
        system, path = fsspec.core.url_to_fs(url)
        kinds = ()
        yield system, path
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such file", safe_url(url)) from None
    except Exception as error:  # the errors of fsspec's drivers have no common base class
        words = error_text(error)
        words = without_secrets(" ".join(words.split()), url)[:300]
        kind = EngineError if isinstance(error, kinds) else StorageError
        raise kind(f"shared storage {safe_url(url)} fails: {type(error).__name__}: {words}") from None


def replace(system: Any, path: str, write: Callable[[str], Any]) -> None:
    """Write a temporary file, and replace the file ``path`` by it atomically.

    A file system renames the temporary file. An object store copies it, and its copies are atomic.

    Args:
        system: A file system of fsspec.
        path: The path of the file in ``system``.
        write: Called with the path of the temporary file, which it writes.
    """
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    write(draft := f"{path}.{uuid.uuid4().hex}.tmp")
    system.mv(draft, path)


def read_bytes(where: str) -> bytes:
    """The content of a file, by path or fsspec URL.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file cannot be read, or is no regular file, so that reading might never end.
        EngineError: Shared storage fails, or fsspec does not know the URL.
    """
    if not is_url(where):
        return readable(Path(where)).read_bytes()
    with storage(where) as (system, path):
        return bytes(system.cat_file(path))


def write_bytes_atomic(where: str, data: bytes) -> None:
    """Write a file by path or fsspec URL atomically: readers see the old content or the new content.

    Raises:
        EngineError: Shared storage fails, or fsspec does not know the URL.
        OSError: The file system refuses a local path.
    """
    if is_url(where):
        with storage(where) as (system, path):
            replace(system, path, lambda draft: system.pipe_file(draft, data))
        return
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    replace_file(Path(where), data)
