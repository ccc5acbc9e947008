"""Finds the batch axis of a model's inputs, checks that feeds fit the inputs, and converts their dtypes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Array, Feed, TensorInfo, describe, did_you_mean

#: Names that torch.onnx.export, tf2onnx and Paddle2ONNX invent for dimensions without a fixed size. Two
#: inputs may share a batch axis although these names differ.
_NUMBERED = re.compile(r"_dynamic_axes_|^unk__\d+$|DynamicDimension\.\d+$")


@dataclass(frozen=True)
class Layout:
    """The inputs of a model and their batch axis; :mod:`pytest_int8acc.data` describes the rule."""

    inputs: tuple[TensorInfo, ...]
    batched: frozenset[str]
    """The names of the inputs whose axis 0 counts samples; empty if the model has no batch axis."""
    size: int | None
    """The batch size that the model fixes; None if the model fixes none, or has no batch axis."""

    def rows(self, feed: Feed) -> int:
        """Return the number of samples in ``feed``; 1 if the model has no batch axis."""
        return next((feed[name].shape[0] for name in feed if name in self.batched), 1)

    def cut(self, feed: Feed, start: int, stop: int) -> Feed:
        """Return a feed with rows ``start`` to ``stop`` of the batched inputs, and all of the other inputs.

        The arrays are views.
        """
        return {name: a[start:stop] if name in self.batched else a for name, a in feed.items()}


def read_layout(inputs: Sequence[TensorInfo]) -> Layout:
    """Return which of ``inputs`` share a batch axis, and the batch size."""
    firsts = {t.name: t.shape[0] if t.shape else None for t in inputs if t.shape != ()}
    symbolic = {name for name, first in firsts.items() if not isinstance(first, int)}
    if symbolic:
        names = {dim for dim in firsts.values() if isinstance(dim, str) and not _NUMBERED.search(dim)}
        return Layout(tuple(inputs), frozenset(symbolic if len(names) < 2 else ()), None)
    sizes = {first for first in firsts.values() if isinstance(first, int)}
    if len(sizes) != 1:
        return Layout(tuple(inputs), frozenset(), None)
    return Layout(tuple(inputs), frozenset(firsts), sizes.pop())


def check_names(names: Iterable[str], inputs: Sequence[TensorInfo], where: str) -> None:
    """Raise DataError unless ``names`` are the names of ``inputs``; the message begins with ``where``."""
    found = list(names)
    known = [t.name for t in inputs]
    extra = [name for name in found if name not in known]
    missing = [name for name in known if name not in found]
    if extra:
        raise DataError(
            f"{where}: '{extra[0]}' is no input of the model{did_you_mean(extra[0], missing or known)}; "
            f"it takes {describe(inputs)}; rename it or leave it out"
        )
    if missing:
        raise DataError(
            f"{where}: nothing for the model's input '{missing[0]}'; "
            f"found {', '.join(found) or 'nothing'}, expected {describe(inputs)}"
        )


def inspect(feed: Feed, layout: Layout, where: str) -> None:
    """Raise DataError unless names, dtypes, ranks, sizes and sample counts fit ``layout``.

    A batched input may have any number of rows. All other sizes must be those that the model fixes. Values
    are not read.
    """
    check_names(feed, layout.inputs, where)
    for tensor in layout.inputs:
        _check_dtype(feed[tensor.name].dtype, tensor, where)
        _check_shape(feed[tensor.name].shape, tensor, layout, where)
    counts = {f"'{t.name}'": feed[t.name].shape[0] for t in layout.inputs if t.name in layout.batched}
    check_equal(counts, f"{where}: sample counts differ", "axis 0 of each must hold the same samples")


def check_equal(counts: Mapping[str, int], what: str, advice: str) -> None:
    """Raise DataError unless all counts are equal; the message is ``what``, the counts, and ``advice``."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"{what} ({listed}); {advice}")


def convert(feed: Feed, layout: Layout, where: str, first: int, note: Callable[[str], None]) -> Feed:
    """Return the feed in the order of the model's inputs, with their dtypes, native byte order and C order.

    Args:
        feed: A feed that :func:`inspect` accepted.
        layout: The model's inputs and their batch axis.
        where: The place of the feed, for messages.
        first: The index of the feed's first sample in the whole data set.
        note: Called with a remark on each cast to another dtype.

    Raises:
        DataError: A value is nan or inf, or does not fit the model's dtype.
    """
    converted = {}
    for tensor in layout.inputs:
        array = np.asarray(feed[tensor.name], order="C")
        here = f"{where}: '{tensor.name}'"
        index = first if tensor.name in layout.batched or not layout.batched else None
        _check_finite(array, here, index, tensor.name in layout.batched)
        if array.dtype.newbyteorder("=") != tensor.dtype:
            note(f"'{tensor.name}' cast from {array.dtype.name} to {tensor.dtype.name}")
        converted[tensor.name] = _cast(array, tensor, here)
    return converted


def kind(dtype: np.dtype[np.generic]) -> Literal["float", "int", "bool", "other"]:
    """Return the kind of value that ``dtype`` holds; ``other``: text, objects, complex numbers, raw bytes."""
    if dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8")):
        return "float"
    if dtype.kind in "iu":
        return "int"
    return "bool" if dtype.kind == "b" else "other"


def _check_dtype(found: np.dtype[np.generic], tensor: TensorInfo, where: str) -> None:
    """Raise DataError unless ``found`` and the input's dtype are of one kind, or are boolean and integer."""
    have, want = kind(found), kind(tensor.dtype)
    if found.newbyteorder("=") == tensor.dtype or have == want != "other" or (have, want) == ("bool", "int"):
        return
    advice = f"save it with .astype('{tensor.dtype.name}')"
    if have == "int" and want == "float":
        advice += ", scaled as the model was trained"
    if have == "other":
        advice = f"save plain {tensor.dtype.name} numbers"
    raise DataError(
        f"{where}: '{tensor.name}' is {found.name}, the model takes {tensor.dtype.name}, "
        f"to which it is not converted silently; {advice}"
    )


def _check_shape(shape: tuple[int, ...], tensor: TensorInfo, layout: Layout, where: str) -> None:
    """Raise DataError unless the rank and all sizes are those that the model fixes; no size may be 0.

    A batched input may have any number of rows, even if the model fixes its batch size.
    """
    here = f"{where}: '{tensor.name}'"
    batched = tensor.name in layout.batched
    dims = tensor.shape if tensor.shape is not None else (None,) * max(len(shape), 1)
    if len(shape) != len(dims):
        advice = "samples on axis 0" if batched else "one array for each run"
        if len(shape) == len(dims) - 1:
            advice += "; add the missing axis with x[None]"
        raise DataError(
            f"{here} has rank {len(shape)} (shape {shape}), expected rank {len(dims)}; "
            f"the model takes {tensor}, {advice}"
        )
    for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
        if isinstance(dim, int) and size != dim and not (batched and axis == 0):
            raise DataError(
                f"{here} has size {size} on axis {axis} (shape {shape}), expected {dim}; "
                f"the model takes {tensor}"
            )
    if 0 in shape:
        raise DataError(f"{here} is empty (shape {shape}); give at least one sample")


def _check_finite(array: Array, here: str, first: int | None, batched: bool) -> None:
    """Raise DataError if ``array`` has NaN or infinity, because outputs cannot be compared on such inputs.

    ``first`` is the index of the array's first sample in the data set; None if the array belongs to no
    sample. ``batched`` says whether axis 0 counts samples. The message begins with ``here``.
    """
    if kind(array.dtype) != "float":
        return
    bad = ~np.isfinite(array)
    if not bad.any():
        return
    value = array[bad][0]
    row = int(np.argmax(bad.reshape(len(array), -1).any(axis=1))) if batched else 0
    if first is None:
        raise DataError(f"{here} has {value}; a verdict needs finite inputs")
    raise DataError(
        f"{here} has {value} in sample {first + row} (the first sample is 0); "
        f"a verdict needs finite inputs: remove or repair that sample"
    )


def _cast(array: Array, tensor: TensorInfo, here: str) -> Array:
    """Return ``array`` in the model's dtype.

    Raises:
        DataError: A float becomes NaN or infinite, or a value of another kind changes.
    """
    if array.dtype == tensor.dtype:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(tensor.dtype)
    changed = ~np.isfinite(cast) if kind(tensor.dtype) == "float" else np.asarray(cast != array)
    if changed.any():
        wrong = array[changed][0]
        raise DataError(f"{here} holds {wrong}, which does not fit the model's {tensor.dtype.name}")
    return cast
