""".npy and .npz files, read without pickle; each failure is one DataError that names the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from pytest_int8acc.errors import DataError
from pytest_int8acc.files import special
from pytest_int8acc.tensors import Array, did_you_mean

_NPY = b"\x93NUMPY"
_ZIP = b"PK"
_T = TypeVar("_T")
#: Maximum bytes of data that are unpacked or generated, unless 'max_data' in the spec allows more.
MOST_BYTES = 4 << 30


def in_gib(nbytes: int) -> str:
    """Return a count of bytes as text, such as ``4 GiB``."""
    return f"{nbytes / 2**30:.3g} GiB"


def too_much(most: int) -> str:
    """Return the end of a message: the limit of ``most`` bytes is exceeded, and how to raise the limit."""
    return f"more than the {in_gib(most)} that 'max_data' allows (unless set, 4G): raise it in the case"


def find(written: str, base: Path, where: str) -> Path:
    """Return the file or folder ``written``, relative to ``base``; raises DataError where it is missing."""
    path = base / written
    try:
        there = path.exists()
    except OSError as error:  # a name that is too long
        raise DataError(f"{where}: cannot be read: {error.strerror or error}") from error
    if there:
        if kind := special(path):
            raise DataError(f"{where}: is {kind}, which has no end to read to; give a file or a folder")
        return path
    if not path.parent.is_dir():
        raise DataError(f"{where}: no such file; there is no folder {path.parent}")
    near = did_you_mean(path.name, sorted(p.name for p in path.parent.iterdir()))
    raise DataError(f"{where}: no such file or folder in {path.parent}{near}")


def read_npy(path: Path, where: str) -> Array:
    """The array of a .npy file, mapped into memory: pages are read when they are used.

    Raises DataError for a file that is no .npy file, is cut short, or holds Python objects.
    """
    _check_magic(path, _NPY, where)
    return np.asarray(_guarded(lambda: np.load(path, mmap_mode="r", allow_pickle=False), where))


def read_npz(path: Path, where: str, most: int = MOST_BYTES) -> dict[str, Array]:
    """All arrays of a .npz file by name, plain or compressed, read whole.

    Raises DataError for a file that is none, is damaged or empty, holds Python objects or other files, or
    unpacks to more than ``most`` bytes.
    """
    _check_magic(path, _ZIP, where)
    arrays: dict[str, Array] = {}
    with _guarded(lambda: np.load(path, allow_pickle=False), where) as archive:
        nbytes = sum(member.file_size for member in archive.zip.infolist())
        if nbytes > most:
            raise DataError(f"{where}: unpacks to {in_gib(nbytes)}, {too_much(most)}, or save .npy files")
        for name in archive.files:
            array = _guarded(lambda name=name: archive[name], f"{where}: '{name}'")  # type: ignore[misc]
            if not isinstance(array, np.ndarray):
                raise DataError(f"{where}: '{name}' is no array; save the file with np.savez")
            arrays[name] = array
    if not arrays:
        raise DataError(f"{where}: holds no arrays; save them with np.savez")
    return arrays


def read_arrays(path: Path, where: str, most: int = MOST_BYTES) -> dict[str, Array]:
    """Return the arrays of a .npz file, or the one array of a .npy file under the file's stem."""
    return read_npz(path, where, most) if path.suffix == ".npz" else {path.stem: read_npy(path, where)}


def natural(path: Path) -> list[tuple[int, int, str]]:
    """Return a sort key that puts ``x_2.npy`` before ``x_10.npy``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", path.name)
    return [(0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts]


def _check_magic(path: Path, magic: bytes, where: str) -> None:
    """Raise DataError for a file that is no .npy; NumPy's own message would call any such file a pickle."""
    if kind := special(path):
        raise DataError(f"{where}: is {kind}, which has no end to read to; give a file")
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror}") from error
    if start.startswith(magic):
        return
    expected_format = "npy (np.save)" if magic == _NPY else "npz (np.savez)"
    if not start:
        found = "is empty"
    elif start.startswith(b"\x80"):
        raise DataError(f"{where}: {_PICKLED}")
    elif start.startswith(_NPY):
        found = "holds a single array, as .npy files do"
    elif start.startswith(_ZIP):
        found = "is an archive of arrays, as .npz files are"
    else:
        found = f"starts with {start!r}"
    raise DataError(f"{where}: {found}; expected the format .{expected_format}")


_PICKLED = (
    "holds pickled Python objects, which are refused since reading them runs code; "
    "save plain numbers: np.savez('data.npz', name=np.asarray(values, dtype=np.float32))"
)


def _guarded(read: Callable[[], _T], where: str) -> _T:
    """Return ``read()``; any exception of NumPy or zipfile for a damaged file becomes a DataError."""
    try:
        return read()
    except Exception as error:
        if "pickle" in str(error) or "Python objects" in str(error):
            raise DataError(f"{where}: {_PICKLED}") from error
        text = str(error) or type(error).__name__
        raise DataError(f"{where}: damaged or cut short ({text.splitlines()[0]}); save it again") from error
