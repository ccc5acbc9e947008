"""Optimization profiles: which shapes an engine must take, from the spec or from the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from pytest_int8acc.errors import EngineError
from pytest_int8acc.tensors import Feed, TensorInfo, did_you_mean

Shape = tuple[int, ...]
#: Smallest, usual and largest shape of one input.
Range = tuple[Shape, Shape, Shape]


def seen_shapes(feeds: Iterable[Feed]) -> dict[str, Counter[Shape]]:
    """How often each shape of each input occurs in ``feeds``."""
    seen: dict[str, Counter[Shape]] = {}
    for feed in feeds:
        for name, array in feed.items():
            seen.setdefault(name, Counter())[tuple(array.shape)] += 1
    return seen


def make_profiles(
    inputs: Sequence[TensorInfo], given: Mapping[str, Range], seen: Mapping[str, Counter[Shape]]
) -> dict[str, Range]:
    """Smallest, usual and largest shape of every input.

    An input that is not given takes the shapes seen: as they are where there is one, else from the smallest
    to the largest size of each dimension, the most frequent shape as the usual one.

    Args:
        inputs: The model's inputs.
        given: Profiles of the spec.
        seen: Shapes of the data, from :func:`seen_shapes`; may be empty.

    Raises:
        EngineError: A given profile does not fit its input or the data, or a dynamic input has neither.
    """
    names = [tensor.name for tensor in inputs]
    for name in given:
        if name not in names:
            raise EngineError(
                f"tensorrt shapes: the model has no input '{name}'{did_you_mean(name, names)}; "
                f"its inputs are {', '.join(names)}"
            )
    profiles = {}
    for tensor in inputs:
        shapes = seen.get(tensor.name, Counter())
        profile = given.get(tensor.name) or _from_data(tensor, shapes)
        _check(tensor, profile)
        for shape in shapes:
            if not within(shape, profile):
                raise EngineError(
                    f"input '{tensor.name}': the data has shape {list(shape)}, outside its profile "
                    f"{shown(profile)}; widen 'tensorrt: {{shapes: {{{tensor.name}: ...}}}}'"
                )
        profiles[tensor.name] = profile
    return profiles


def within(shape: Shape, profile: Range) -> bool:
    """True where an engine of ``profile`` takes ``shape``."""
    least, _, most = profile
    return len(shape) == len(least) and all(a <= n <= b for a, n, b in zip(least, shape, most, strict=True))


def shown(profile: Range) -> str:
    """Like ``[1, 3] to [8, 3]``, or ``[8, 3]`` where it is one shape."""
    least, _, most = profile
    return f"{list(least)}" if least == most else f"{list(least)} to {list(most)}"


def in_batches(feed: Feed, usual: Mapping[str, Shape]) -> Iterator[Feed]:
    """``feed`` in batches of these shapes, rows repeated to fill the last; none where it cannot be cut so.

    Args:
        feed: One array per input.
        usual: Input to the shape of a batch.
    """
    if all(feed[name].shape == shape for name, shape in usual.items()):
        yield feed
        return
    rows = {feed[name].shape[0] for name in usual if feed[name].ndim}
    size = {shape[0] for shape in usual.values() if shape}
    fits = all(feed[name].shape[1:] == shape[1:] for name, shape in usual.items())
    if len(rows) != 1 or len(size) != 1 or not fits or any(not shape for shape in usual.values()):
        return
    count, batch = rows.pop(), size.pop()
    for start in range(0, count, batch):
        chosen = np.arange(start, start + batch) % count
        yield {name: feed[name][chosen] for name in usual}


def _from_data(tensor: TensorInfo, shapes: Counter[Shape]) -> Range:
    if shapes:
        if len({len(shape) for shape in shapes}) > 1:
            ranks = " and ".join(str(list(shape)) for shape in list(shapes)[:2])
            raise EngineError(f"input '{tensor.name}': shapes of different ranks in the data: {ranks}")
        usual = max(shapes, key=lambda shape: (shapes[shape], shape))
        sizes = list(zip(*shapes, strict=True))
        return tuple(map(min, sizes)), usual, tuple(map(max, sizes))
    if tensor.shape is None or not all(isinstance(d, int) for d in tensor.shape):
        raise EngineError(
            f"input {tensor}: its shape is dynamic and no data tells it; give "
            f"'tensorrt: {{shapes: {{{tensor.name}: [smallest, usual, largest]}}}}'"
        )
    fixed = tuple(d for d in tensor.shape if isinstance(d, int))
    return fixed, fixed, fixed


def _check(tensor: TensorInfo, profile: Range) -> None:
    """Raise EngineError where the profile is in disorder, or is not the input's."""
    least, usual, most = profile
    if not within(usual, profile):
        raise EngineError(
            f"tensorrt shapes: '{tensor.name}' must be [smallest, usual, largest] of one rank, each "
            f"dimension ascending; found {list(least)}, {list(usual)}, {list(most)}"
        )
    for shape in profile:
        dims = tensor.shape
        if dims is not None and (
            len(dims) != len(shape)
            or any(isinstance(d, int) and d != n for d, n in zip(dims, shape, strict=True))
        ):
            raise EngineError(f"tensorrt shapes: {list(shape)} is no shape of the model's input {tensor}")
