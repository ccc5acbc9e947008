"""The .npz of a golden: the baseline's outputs, packed, unpacked, and cut into the batches of another run."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from pytest_int8acc.errors import error_text
from pytest_int8acc.goldens.record import GoldenError, KeptOutput
from pytest_int8acc.spec.models import GoldenType
from pytest_int8acc.tensors import Array, Feed, Outputs

#: Output name to one array of all samples, or to one array per batch where batches cannot be joined.
Stored = dict[str, Array | list[Array]]


def pack(outputs: Outputs, samples: int, dtype: GoldenType) -> tuple[bytes, dict[str, KeptOutput]]:
    """Return the outputs as the bytes of an .npz, and how each output lies in it; equal outputs, equal bytes.

    Args:
        outputs: One array per batch; an output whose batches join has the samples along its first axis.
        samples: Count of samples in all batches.
        dtype: Floats that are wider are narrowed to this type.

    Raises:
        GoldenError: A value exceeds the range of ``dtype``.
    """
    buffer, kept, members = io.BytesIO(), {}, []
    for name, batches in outputs.items():
        joined = _join(batches, samples)
        if joined is None:
            members += [(f"{name}.{n}", _narrow(name, array, dtype)) for n, array in enumerate(batches)]
        else:
            members.append((name, _narrow(name, joined, dtype)))
        parts = len(batches) if joined is None else None
        kept[name] = KeptOutput(dtype=str(batches[0].dtype), parts=parts)
    write_npz(buffer, members)
    return buffer.getvalue(), kept


def write_npz(file: io.BytesIO | Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Write arrays of any name as ``np.savez_compressed`` would; equal arrays make equal files."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays:
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, not now
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
                if kept.parts is not None:
                    if kept.parts > len(file.files):
                        raise ValueError(
                            f"'{name}' has {kept.parts} parts, and the file {len(file.files)} arrays"
                        )
                    stored[name] = [_read_member(file, f"{name}.{n}", kept) for n in range(kept.parts)]
                    continue
                array = _read_member(file, name, kept)
                if not array.ndim:
                    raise ValueError(f"'{name}' is a single number, and no sample of it")
                stored[name] = array
    except Exception as error:  # NumPy and zipfile raise many types for a damaged file
        raise ValueError(error_text(error)) from error
    return stored


def _read_member(file: Mapping[str, Array], member: str, kept: KeptOutput) -> Array:
    """Return one array of an .npz in the dtype of its output."""
    array, dtype = file[f"{member}.npy"], np.dtype(kept.dtype)
    if array.dtype.kind != ("U" if dtype.kind == "O" else dtype.kind):
        raise ValueError(f"'{member}' holds {array.dtype}, which is not what {dtype} is kept as")
    return array.astype(dtype)


class Cutter:
    """Cuts the outputs of a golden into the batches of another run on the same samples."""

    def __init__(self, stored: Stored, misfit: Callable[[str], Exception]) -> None:
        """Start at the first batch; ``misfit`` makes the error that is raised where outputs do not fit."""
        self._stored, self._misfit, self._batches = stored, misfit, 0
        self._rows: dict[str, int] = {}

    def __call__(self, other: Feed) -> Feed:
        """Return the golden's rows for the next batch ``other``; a lack of rows is raised by ``end``."""
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
            if kept.shape[1:] != array.shape[1:]:
                raise self._misfit(
                    f"'{name}' is kept as {list(kept.shape)}, and a batch of this run is {list(array.shape)}"
                )
            batch[name] = kept[start : start + rows]
        self._batches += 1
        return batch

    def end(self) -> None:
        """Check that each row was used once; raises the error of ``misfit``."""
        for name, rows in self._rows.items():
            kept, batches = self._stored[name], self._batches
            if isinstance(kept, list) and len(kept) != batches:
                raise self._misfit(f"'{name}' is kept in {len(kept)} batches, and this run has {batches}")
            if not isinstance(kept, list) and rows != len(kept):
                raise self._misfit(f"'{name}' is kept with {len(kept)} rows, and this run has {rows}")

    def cut(self, other: Outputs) -> Outputs:
        """Return the golden's outputs in the batches of a whole run; raises the error of ``misfit``."""
        batches = zip(*other.values(), strict=True)
        feeds = [self(dict(zip(other, batch, strict=True))) for batch in batches]
        self.end()
        return {name: [feed[name] for feed in feeds] for name in other}


def first_samples(outputs: Outputs, samples: int, count: int) -> Outputs:
    """Return the outputs of the first ``count`` of ``samples`` samples.

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
    """Return all batches as one array; None where its first axis would not count the samples."""
    if any(array.ndim == 0 or array.shape[1:] != batches[0].shape[1:] for array in batches):
        return None
    return np.concatenate(batches) if sum(map(len, batches)) == samples else None


def _narrow(name: str, array: Array, dtype: GoldenType) -> Array:
    """Return ``array`` in the dtype that the golden keeps; raises GoldenError where a value overflows."""
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
