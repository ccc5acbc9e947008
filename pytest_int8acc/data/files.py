"""Reads .npy and .npz files without pickle; each failure raises a DataError that names the file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.errors import DataError
from pytest_int8acc.files import readable
from pytest_int8acc.tensors import Array, did_you_mean

#: Maximum number of bytes that are unpacked or generated, unless the spec sets another one by 'max_data'.
MOST_BYTES = 4 << 30
_PICKLED = (
    "holds pickled Python objects, which are refused since reading them runs code, or is no NumPy file; "
    "save plain numbers: np.savez('data.npz', name=np.asarray(values, dtype=np.float32))"
)


def in_gib(nbytes: int) -> str:
    """Return a count of bytes as text, such as ``4 GiB``."""
    return f"{nbytes / 2**30:.3g} GiB"


def too_much(most: int) -> str:
    """Return the end of a message: that data exceed ``most`` bytes, and how to raise this limit."""
    return f"more than the {in_gib(most)} that 'max_data' allows (unless set, 4G): raise it in the case"


def find(written: str, base: Path, where: str) -> Path:
    """Return the path of the file or folder ``written``, which is relative to ``base``.

    Raises:
        DataError: Neither a file nor a folder has this path; the message begins with ``where``.
    """
    path = base / written
    if os.path.exists(path):
        return path
    if not os.path.isdir(path.parent):
        raise DataError(f"{where}: no such file; there is no folder {path.parent}")
    near = did_you_mean(path.name, sorted(os.listdir(path.parent)))
    raise DataError(f"{where}: no such file or folder in {path.parent}{near}")


def read_arrays(path: Path, where: str, most: int = MOST_BYTES) -> dict[str, Array]:
    """Return the arrays of a .npz file by name, or the one array of a .npy file under the file's stem.

    A .npy file is mapped into memory: its pages are read when they are used.

    Raises:
        DataError: The file is neither .npz nor .npy, is damaged, holds Python objects, or unpacks to more
            than ``most`` bytes. The message begins with ``where``.
    """
    try:
        loaded = np.load(readable(path), mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {path.stem: np.asarray(loaded)}
        if path.suffix == ".npy":
            raise DataError(f"{where}: holds an archive of arrays; rename it to .npz")
        with loaded as archive:
            nbytes = sum(member.file_size for member in archive.zip.infolist())
            if nbytes > most:
                raise DataError(f"{where}: unpacks to {in_gib(nbytes)}, {too_much(most)}, or save .npy files")
            return {name: np.asarray(archive[name]) for name in archive.files}
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # NumPy raises exceptions of many types for a damaged file.
        text = str(error) or type(error).__name__
        if "pickle" not in text and "Python objects" not in text:
            first_line = text.splitlines()[0]
            raise DataError(f"{where}: damaged or cut short ({first_line}); save it again") from error
        raise DataError(f"{where}: {_PICKLED}") from error


def natural_order(path: Path) -> list[Any]:
    """Return a sort key that orders numbers in names by value: ``x_2.npy`` comes before ``x_10.npy``."""
    texts_and_numbers = re.split(r"([0-9]+)", path.name)
    return [int(part) if index % 2 else part for index, part in enumerate(texts_and_numbers)]
