"""Feeds of any length in, batches of the right length out, in order and one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.data.layout import Layout
from pytest_int8acc.tensors import Array, Feed


@dataclass(frozen=True, eq=False)
class Batch:
    """What one run takes."""

    feed: Feed
    rows: int
    """Samples that count, the first ones of each batched input; 1 where a feed cannot be cut."""
    padding: int = 0
    """Rows after those, repeated only to fill a fixed batch; outputs are cut only where this is not 0."""


def real_rows(array: Array, batch: Batch) -> Array:
    """``array`` without the rows that only filled the batch, where they can be told."""
    filled = batch.padding and array.ndim and array.shape[0] == batch.rows + batch.padding
    return array[: batch.rows] if filled else array


def rechunk(feeds: Iterable[Feed], layout: Layout, size: int | None) -> Iterator[Batch]:
    """Join and cut ``feeds`` into batches of ``size`` rows, or pass each on as it is where ``size`` is None.

    A batch is handed out before the next feed is asked for. Feeds whose sizes beyond axis 0, or whose inputs
    that are not batched, differ are not joined. A batch that stays short is padded only where the model fixes
    its size.
    """
    if size is None:
        for feed in feeds:
            yield Batch(feed, layout.rows(feed))
        return
    waiting: deque[Feed] = deque()
    count = 0
    for feed in feeds:
        if waiting and not _joinable(waiting[-1], feed, layout):
            yield fill(_take(waiting, count, layout), count, layout)
            count = 0
        waiting.append(feed)
        count += layout.rows(feed)
        while count >= size:
            yield Batch(_take(waiting, size, layout), size)
            count -= size
    if count:
        yield fill(_take(waiting, count, layout), count, layout)


def _joinable(one: Feed, other: Feed, layout: Layout) -> bool:
    """True where rows of both may run together."""
    return all(
        a.shape[1:] == other[name].shape[1:]
        if name in layout.batched
        else np.array_equal(a, other[name])  # keeps 0-d and 1-d apart: shapes must be equal too
        for name, a in one.items()
    )


def _take(waiting: deque[Feed], rows: int, layout: Layout) -> Feed:
    """Remove the first ``rows`` rows, which must be there; copies only where feeds are joined."""
    parts: list[Feed] = []
    while rows:
        feed = waiting.popleft()
        have = layout.rows(feed)
        if have > rows:
            waiting.appendleft(layout.cut(feed, rows, have))
            feed, have = layout.cut(feed, 0, rows), rows
        parts.append(feed)
        rows -= have
    if len(parts) == 1:
        return parts[0]
    return {
        name: np.concatenate([part[name] for part in parts]) if name in layout.batched else a
        for name, a in parts[0].items()
    }


def fill(feed: Feed, rows: int, layout: Layout) -> Batch:
    """A short batch, brought to the model's fixed size by repeating the last row."""
    padding = 0 if layout.size is None else layout.size - rows
    if not padding:
        return Batch(feed, rows)

    def pad(a: Array) -> Array:
        return np.concatenate([a, np.repeat(a[-1:], padding, axis=0)])

    return Batch({n: pad(a) if n in layout.batched else a for n, a in feed.items()}, rows, padding)
