"""Reads and writes a golden: a JSON file with accepted scores, and an .npz file with the baseline's outputs.

The files are in a folder or at an fsspec URL. The name of the .npz file contains a part of its hash. The .npz
file is written first. The JSON file names it, and is renamed into place afterwards. If a process is killed,
either the old or the new pair of files is valid. Files that no JSON file names may remain. The next recording
of the same golden removes them.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from pytest_int8acc.errors import error_text
from pytest_int8acc.files import clear_drafts, real
from pytest_int8acc.goldens.record import GoldenError, KeptOutput, Record, read_record
from pytest_int8acc.names import is_url, safe_url
from pytest_int8acc.runtime.storage import read_bytes, write_bytes_atomic
from pytest_int8acc.settings import stem
from pytest_int8acc.spec.load import display
from pytest_int8acc.spec.models import Case, GoldenType
from pytest_int8acc.tensors import Array, Feed, Outputs

#: Name of the folder with goldens that is beside the specs, unless the configuration names another place.
FOLDER = "__int8acc__"
#: Number of characters of the hash in the name of an .npz file.
HASH_LENGTH = 12
#: Maximum time to wait for another process that writes the same golden, in seconds.
_LOCK_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Location:
    """Where the two files of one golden are: a JSON file and an .npz file."""

    folder: str = field(repr=False)
    """A path or an fsspec URL, which may contain a password."""
    case: str
    again: str = "record it again"
    """Advice for messages: how to record the golden again, with the command to type."""

    @property
    def file(self) -> str:
        """The path or URL of the golden's JSON file."""
        return f"{self.folder}/{self.case}.json"

    @property
    def mend(self) -> str:
        """Advice for messages on a damaged golden: restore it, or record it again."""
        return f"restore it from version control, or {self.again}"

    def __str__(self) -> str:
        """Returns the path of the JSON file, as messages show it."""
        return shown(self.file)

    def read(self) -> Record | None:
        """Return the content of the golden's JSON file; None if there is no file.

        Raises:
            GoldenError: The file cannot be read, or is no golden.
        """
        text = read_golden(self.file, self.mend)
        return None if text is None else read_record(text, str(self), self.again)

    def outputs(self, record: Record) -> Stored:
        """Return the baseline's outputs from the golden's .npz, which ``record`` must name.

        Raises:
            GoldenError: The .npz is missing, or its hash is not the one in ``record``.
        """
        assert record.kept is not None
        where = f"{self.folder}/{record.kept.file}"
        data = read_golden(where, self.mend)
        if data is None:
            raise GoldenError(f"{shown(where)}: missing, and {self} names it; {self.mend}")
        damage = "its SHA-256 is not the recorded one"
        if hashlib.sha256(data).hexdigest() == record.kept.sha256:
            try:
                return unpack(data, record.kept.outputs)
            except ValueError as error:
                damage = str(error)
        raise GoldenError(f"{shown(where)}: the golden is damaged ({damage}); {self.mend}")

    def write(self, record: Record, data: bytes | None, *, replace: bool) -> bool:
        """Write both files of the golden. A file that already has the right content is not written again.

        Args:
            record: The content of the JSON.
            data: The .npz; None if ``record`` keeps no outputs.
            replace: Whether an existing golden is replaced.

        Returns:
            Whether the golden was written. It is not if one exists and ``replace`` is False.

        Raises:
            GoldenError: The files cannot be written; the old golden stays as it was.
            EngineError: The shared storage fails.
        """
        try:
            with self.locked():
                if not replace and _content(self.file) is not None:
                    return False
                if data is not None and record.kept is not None:
                    self._put(f"{self.folder}/{record.kept.file}", data)
                self._put(self.file, record.text().encode())
                self._clear(None if record.kept is None else record.kept.file)
                return True
        except OSError as error:
            raise GoldenError(
                f"{self}: the golden cannot be written: {error.strerror or error}; what was there is "
                "unchanged. Make room or the folder writable, or name another one with the ini key "
                "int8acc_goldens"
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes of this machine from writing this golden; shared storage has no locks.

        Raises:
            GoldenError: Another process holds the lock for longer than the timeout.
        """
        if is_url(self.file):
            yield
            return
        # The lock file is never deleted, so it is in the temporary folder. A lock file beside the golden
        # would be committed with it.
        user = getattr(os, "getuid", getpass.getuser)()
        name = hashlib.sha256(f"{user}\0{real(Path(self.file))}".encode()).hexdigest()[:24]
        lock = Path(tempfile.gettempdir()) / f"int8acc-golden-{name}.lock"
        try:
            with FileLock(lock, timeout=_LOCK_TIMEOUT_SECONDS):
                yield
        except Timeout:
            raise GoldenError(f"{self}: another process has been writing this golden for minutes") from None

    def _clear(self, kept: str | None) -> None:
        """Remove temporary files of killed recordings, and .npz files of this golden not named ``kept``.

        At a URL nothing is removed, because another process may have just written the files.
        """
        if is_url(self.folder):
            return
        folder = Path(self.folder)
        outputs = f"{glob.escape(self.case)}.{'[0-9a-f]' * HASH_LENGTH}.npz"
        for npz in folder.glob(outputs):
            if npz.name != kept:
                with contextlib.suppress(OSError):
                    npz.unlink()
        for draft in folder.glob(f"{outputs}.*.tmp"):
            clear_drafts(folder, draft.name.rsplit(".", 2)[0])
        clear_drafts(folder, f"{self.case}.json")

    def _put(self, where: str, data: bytes) -> None:
        """Write ``data`` to the path or URL ``where`` atomically, unless the file holds ``data`` already."""
        if _content(where) != data:
            write_bytes_atomic(where, data)


def location_of(case: Case, folder: str | None = None) -> Location:
    """Return the location of a case's golden in ``folder``, a path or URL; None means beside the spec."""
    local_folder = case.file.parent / FOLDER / stem(case.file.name)
    update = f"`pytest {display(case.file)}::{case.name} --int8acc-update=all`"
    return Location(
        str(local_folder) if folder is None else folder, case.name, f"record it again with {update}"
    )


def shown(where: str) -> str:
    """Return ``where`` as messages show it: a path relative to the current folder, a URL without secrets."""
    return safe_url(where) if is_url(where) else display(Path(where))


def _content(where: str) -> bytes | None:
    """Return the bytes of a file, by path or URL; None if there is no file."""
    try:
        return read_bytes(where)
    except FileNotFoundError:
        return None


def read_golden(where: str, mend: str) -> bytes | None:
    """Return the bytes of a file of a golden; None if there is no file.

    Raises:
        GoldenError: The file cannot be read, or Git LFS has not fetched it. The message on a file that cannot
            be read ends with the advice ``mend``.
    """
    try:
        data = _content(where)
    except OSError as error:
        why = error.strerror or error
        raise GoldenError(f"{shown(where)}: the golden cannot be read: {why}; {mend}") from error
    if data is not None and data.startswith(b"version https://git-lfs"):
        raise GoldenError(f"{shown(where)}: a Git LFS pointer, not the golden; run `git lfs pull`")
    return data


#: The outputs in a golden, by name: one array of all samples, or one array per batch if the batches of the
#: output cannot be joined along axis 0.
Stored = dict[str, Array | list[Array]]


def pack(outputs: Outputs, samples: int, dtype: GoldenType) -> tuple[bytes, dict[str, KeptOutput]]:
    """Return the outputs as the bytes of an .npz, and a description of how each output is stored in it.

    Equal outputs give equal bytes.

    Args:
        outputs: Output name to one array per batch. The batches of an output are joined if their axis 0
            counts the samples.
        samples: Number of samples in all batches together.
        dtype: The type in which floats are stored. Narrower floats are not converted.

    Raises:
        GoldenError: A value exceeds the range of ``dtype``.
    """
    buffer, kept, members = io.BytesIO(), {}, []
    for name, batches in outputs.items():
        joined = _join(batches, samples)
        if joined is not None:
            members.append((name, _narrow(name, joined, dtype)))
            kept[name] = KeptOutput(dtype=str(joined.dtype))
            continue
        members += [(f"{name}.{n}", _narrow(name, array, dtype)) for n, array in enumerate(batches)]
        kept[name] = KeptOutput(dtype=str(batches[0].dtype), parts=len(batches))
    write_npz(buffer, members)
    return buffer.getvalue(), kept


def write_npz(file: io.BytesIO | Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Write arrays as ``np.savez_compressed`` does, but with any names; equal arrays make equal files."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays:
            # the date is fixed to 1980, so that equal arrays make equal files
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


def unpack(data: bytes, outputs: Mapping[str, KeptOutput]) -> Stored:
    """Return the outputs in an .npz from :func:`pack`, each in its own dtype.

    Raises:
        ValueError: The file is damaged.
    """
    stored: Stored = {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            for name, kept in outputs.items():
                if kept.parts is None:
                    stored[name] = _cast(file[f"{name}.npy"], kept)
                else:
                    members = (f"{name}.{number}.npy" for number in range(kept.parts))
                    stored[name] = [_cast(file[member], kept) for member in members]
    except Exception as error:  # NumPy and zipfile raise many types of errors for a damaged file
        raise ValueError(error_text(error)) from error
    return stored


def _cast(array: Array, kept: KeptOutput) -> Array:
    """Return a stored array in the dtype that the output had; TypeError if the kind of dtype differs."""
    return array.astype(kept.dtype, casting="same_kind")


class Cutter:
    """Splits the outputs of a golden into the same batches as another run on the same samples."""

    def __init__(self, stored: Stored, where: str, again: str) -> None:
        """Start at the first batch.

        Args:
            stored: The golden's outputs.
            where: The golden's file, for messages.
            again: Advice on how to record the golden again, for messages.
        """
        self._stored, self._where, self._again = stored, where, again
        self._batches = 0
        self._rows: dict[str, int] = {}

    def _misfit(self, said: str) -> GoldenError:
        return GoldenError(f"{self._where}: the golden does not fit: {said}; {self._again}")

    def __call__(self, other: Feed) -> Feed:
        """Return the golden's outputs for the samples of the next batch.

        Args:
            other: The outputs of another run for this batch. They give the number of samples.

        Raises:
            GoldenError: The golden lacks an output, or has it in another shape. If the golden has too few
                samples, only ``end`` raises an error.
        """
        batch = {}
        for name, array in other.items():
            kept = self._stored.get(name)
            if kept is None:
                raise self._misfit(f"it holds no output '{name}'")
            start, rows = self._rows.get(name, 0), array.shape[0] if array.ndim else 0
            self._rows[name] = start + rows
            if isinstance(kept, list):
                batch[name] = kept[min(self._batches, len(kept) - 1)]
                continue
            if kept.ndim != array.ndim or kept.shape[1:] != array.shape[1:]:
                raise self._misfit(
                    f"'{name}' is kept as {list(kept.shape)}, and a batch of this run is {list(array.shape)}"
                )
            batch[name] = kept[start : start + rows]
        self._batches += 1
        return batch

    def end(self) -> None:
        """Raise GoldenError unless the batches so far have used each sample of the golden exactly once."""
        for name, rows in self._rows.items():
            kept, batches = self._stored[name], self._batches
            if isinstance(kept, list) and len(kept) != batches:
                raise self._misfit(f"'{name}' is kept in {len(kept)} batches, and this run has {batches}")
            if not isinstance(kept, list) and len(kept) != rows:
                raise self._misfit(f"'{name}' is kept with {len(kept)} rows, and this run has {rows}")

    def cut(self, other: Outputs) -> Outputs:
        """Return the golden's outputs, split like the batches of ``other``.

        Raises:
            GoldenError: The outputs do not fit ``other``.
        """
        batches = zip(*other.values(), strict=True)
        feeds = [self(dict(zip(other, batch, strict=True))) for batch in batches]
        self.end()
        return {name: [feed[name] for feed in feeds] for name in other}


def first_samples(outputs: Outputs, samples: int, count: int) -> Outputs:
    """Return the outputs of the first ``count`` samples; ``outputs`` hold ``samples`` samples in batches.

    Raises:
        GoldenError: An output has no axis of samples.
    """
    if count >= samples:
        return outputs
    first: Outputs = {}
    for name, batches in outputs.items():
        if _join(batches, samples) is None:
            raise GoldenError(
                f"golden: output '{name}' has no axis of {samples} samples, so its first {count} cannot be "
                "kept alone; remove 'samples' under 'golden'"
            )
        starts = accumulate(map(len, batches), initial=0)
        first[name] = [b[: count - n] for b, n in zip(batches, starts, strict=False) if n < count]
    return first


def _join(batches: Sequence[Array], samples: int) -> Array | None:
    """Return the batches of an output as one array; None if its axis 0 would not count ``samples``."""
    if any(array.ndim == 0 or array.shape[1:] != batches[0].shape[1:] for array in batches):
        return None
    return np.concatenate(batches) if sum(map(len, batches)) == samples else None


def _narrow(name: str, array: Array, dtype: GoldenType) -> Array:
    """Return ``array``, the output ``name``, with floats at most as wide as ``dtype``, and objects as text.

    Raises:
        GoldenError: A value exceeds the range of ``dtype``.
    """
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.kind != "f" or array.dtype.itemsize <= np.dtype(dtype).itemsize:
        return array
    finite = np.isfinite(array)
    with np.errstate(over="ignore"):
        narrow: Array = array.astype(dtype)
    if not np.isfinite(narrow[finite]).all():
        raise GoldenError(
            f"golden: output '{name}' reaches {float(np.abs(array[finite]).max()):.4g}, more than {dtype} "
            "can hold; set 'golden: {dtype: float32}'"
        )
    return narrow
