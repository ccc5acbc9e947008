"""The large half of a golden: the baseline's outputs as an .npz, one array per output."""

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

#: Outputs as kept: one array of all samples, or one per batch where they do not join.
Stored = dict[str, Array | list[Array]]


def pack(outputs: Outputs, samples: int, dtype: GoldenType) -> tuple[bytes, dict[str, KeptOutput]]:
    """The outputs as an .npz whose bytes depend on nothing but them, and how each lies in it.

    Args:
        outputs: Per batch, samples along the first axis where they join.
        samples: How many there are.
        dtype: What floats that are wider become.

    Raises:
        GoldenError: An output cannot be kept so.
    """
    buffer, kept, members = io.BytesIO(), {}, []
    for name, batches in outputs.items():
        joined = _join(batches, samples)
        parts = len(batches) if joined is None else None
        kept[name] = KeptOutput(dtype=str(batches[0].dtype), parts=parts)
        for number, array in enumerate(batches if joined is None else [joined]):
            member = _member(name, None if parts is None else number)
            members.append((member, _narrow(name, array, dtype)))
    write_npz(buffer, members)
    return buffer.getvalue(), kept


def write_npz(file: io.BytesIO | Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Like ``np.savez_compressed``, for arrays of any name; equal arrays make equal files."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays:
            member = zipfile.ZipInfo(f"{name}.npy")  # its own date, 1980
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


def unpack(data: bytes, outputs: Mapping[str, KeptOutput]) -> Stored:
    """The outputs of an .npz from :func:`pack`, in their own types.

    Raises:
        ValueError: It is damaged.
    """
    found: Stored = {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            for name, kept in outputs.items():
                if kept.parts is None:
                    array = _read_member(file, name, kept)
                    if not array.ndim:
                        raise ValueError(f"'{name}' is a single number, and no sample of it")
                    found[name] = array
                    continue
                if kept.parts > len(file.files):
                    raise ValueError(
                        f"'{name}' has {kept.parts} parts, and the file {len(file.files)} arrays"
                    )
                found[name] = [_read_member(file, _member(name, n), kept) for n in range(kept.parts)]
    except Exception as error:  # of what is damaged, NumPy and zipfile raise many kinds
        raise ValueError(error_text(error)) from error
    return found


def _read_member(file: Mapping[str, Array], member: str, kept: KeptOutput) -> Array:
    """One array of an .npz, in the type that its output has."""
    stored, dtype = file[f"{member}.npy"], np.dtype(kept.dtype)
    if stored.dtype.kind != ("U" if dtype.kind == "O" else dtype.kind):
        raise ValueError(f"'{member}' holds {stored.dtype}, which is not what {dtype} is kept as")
    return stored.astype(dtype)


class Cutter:
    """Kept outputs, cut into the batches of another run on the same samples."""

    def __init__(self, stored: Stored, misfit: Callable[[str], Exception] = ValueError) -> None:
        """Start at the first batch; ``misfit`` makes the error where outputs do not fit, of what is wrong."""
        self._stored, self._misfit, self._batches = stored, misfit, 0
        self._rows: dict[str, int] = {}

    def __call__(self, other: Feed) -> Feed:
        """What was kept of the next batch; too little where the two do not fit, which ``end`` says."""
        found = {}
        for name, array in other.items():
            kept = self._stored.get(name)
            if kept is None:
                raise self._misfit(f"it holds no output '{name}'")
            start, rows = self._rows.get(name, 0), array.shape[0] if array.ndim else 0
            self._rows[name] = start + rows
            if isinstance(kept, list):
                found[name] = kept[min(self._batches, len(kept) - 1)]
                continue
            if kept.shape[1:] != array.shape[1:]:
                raise self._misfit(
                    f"'{name}' is kept as {list(kept.shape)}, and a batch of this run is {list(array.shape)}"
                )
            found[name] = kept[start : start + rows]
        self._batches += 1
        return found

    def end(self) -> None:
        """Check that all was used, once; raises what ``misfit`` makes."""
        for name, rows in self._rows.items():
            kept, batches = self._stored[name], self._batches
            if isinstance(kept, list) and len(kept) != batches:
                raise self._misfit(f"'{name}' is kept in {len(kept)} batches, and this run has {batches}")
            if not isinstance(kept, list) and rows != len(kept):
                raise self._misfit(f"'{name}' is kept with {len(kept)} rows, and this run has {rows}")


def cut_like(stored: Stored, other: Outputs) -> Outputs:
    """Kept outputs in the batches of another run on the same samples.

    Raises:
        ValueError: They cannot be brought together; says why.
    """
    cutter = Cutter({name: stored[name] for name in other if name in stored})
    batches = zip(*other.values(), strict=True)
    feeds = [cutter(dict(zip(other, batch, strict=True))) for batch in batches]
    cutter.end()
    return {name: [feed[name] for feed in feeds] for name in other}


def first_samples(outputs: Outputs, samples: int, count: int) -> Outputs:
    """The first ``count`` of ``samples``.

    Raises:
        GoldenError: An output has no axis of samples.
    """
    if count >= samples:
        return outputs
    found: Outputs = {}
    for name, batches in outputs.items():
        if _join(batches, samples) is None:
            raise GoldenError(
                f"golden: output '{name}' has no axis of {samples} samples, so its first {count} cannot be "
                "kept alone; remove 'samples' under 'golden'"
            )
        starts = accumulate(map(len, batches), initial=0)
        found[name] = [b[: count - n] for b, n in zip(batches, starts, strict=False) if n < count]
    return found


def _join(batches: Sequence[Array], samples: int) -> Array | None:
    """All batches as one array; None where its first axis would not count the samples."""
    if any(array.ndim == 0 or array.shape[1:] != batches[0].shape[1:] for array in batches):
        return None
    return np.concatenate(batches) if sum(map(len, batches)) == samples else None


def _narrow(name: str, array: Array, dtype: GoldenType) -> Array:
    """``array`` as it is kept."""
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.kind != "f" or array.dtype.itemsize <= np.dtype(dtype).itemsize:
        return array
    with np.errstate(over="ignore"):
        narrow: Array = array.astype(dtype)
    if not np.isfinite(narrow[np.isfinite(array)]).all():
        greatest = float(np.abs(array[np.isfinite(array)]).max())
        raise GoldenError(
            f"golden: output '{name}' reaches {greatest:.4g}, more than {dtype} can hold; "
            "set 'golden: {dtype: float32}'"
        )
    return narrow


def _member(name: str, number: int | None) -> str:
    """The name in the .npz, as ``np.load`` shows it."""
    return name if number is None else f"{name}.{number}"
