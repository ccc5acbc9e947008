"""Random inputs for a first try, where no data are at hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_int8acc.data.conform import kind
from pytest_int8acc.data.layout import Layout
from pytest_int8acc.data.source import Located, RandomSource, Source
from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Array, Feed, TensorInfo


def random_source(random: RandomSource, layout: Layout, size: int, where: str) -> Source:
    """Floats uniform in [0, 1], integers and booleans 0 or 1: the ranges of Polygraphy's data loader.

    A sample's values depend on the seed, the input's position and the sample's index, not on ``size``.

    Raises:
        DataError: A size beyond the batch axis is not fixed by the model, or its dtype cannot be drawn.
    """
    if random.samples < 1 or random.seed < 0:
        raise DataError(f"{where}: expected samples of at least 1 and a seed of at least 0")
    for tensor in layout.inputs:
        _check(tensor, layout, where)
    note = f"{where}: the data are random, so the verdict says nothing about real data"
    return Source(
        lambda: _draw(random, layout, size, where), random.samples, joins=True, is_random=True, notes=(note,)
    )


def _check(tensor: TensorInfo, layout: Layout, where: str) -> None:
    if tensor.shape is None:
        raise DataError(f"{where}: the shape of '{tensor.name}' is unknown; give real data")
    if kind(tensor.dtype) == "other":
        raise DataError(f"{where}: cannot draw {tensor.dtype} for '{tensor.name}'; give real data")
    for axis, dim in enumerate(tensor.shape):
        if not isinstance(dim, int) and not (axis == 0 and tensor.name in layout.batched):
            named = f"'{dim}' " if dim else ""
            raise DataError(
                f"{where}: dimension {named}(axis {axis}) of '{tensor.name}' has no fixed size "
                f"(the model takes {tensor}); give real data"
            )


def _draw(random: RandomSource, layout: Layout, size: int, where: str) -> Iterator[Located]:
    """Batched inputs in chunks of ``size``; others once, or anew for each feed where none is batched."""
    streams = {t.name: np.random.default_rng([random.seed, i]) for i, t in enumerate(layout.inputs)}
    step = size if layout.batched else 1
    feed: Feed = {}
    for start in range(0, random.samples, step):
        rows = min(step, random.samples - start)
        for tensor in layout.inputs:
            if tensor.name in layout.batched or not layout.batched or not start:
                feed[tensor.name] = _values(tensor, rows, tensor.name in layout.batched, streams[tensor.name])
        yield where, dict(feed)


def _values(tensor: TensorInfo, rows: int, batched: bool, stream: np.random.Generator) -> Array:
    dims = tuple(dim for dim in (tensor.shape or ())[batched:] if isinstance(dim, int))
    values = np.asarray(stream.random((rows, *dims) if batched else dims))
    return (
        values.astype(tensor.dtype) if kind(tensor.dtype) == "float" else (values >= 0.5).astype(tensor.dtype)
    )
