"""Stored arrays as feeds: samples first, or whole feeds along an axis of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_int8acc.data.conform import check_names, inspect
from pytest_int8acc.data.layout import Layout
from pytest_int8acc.data.source import Located, Source
from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Array, Feed, describe


def array_source(arrays: Mapping[str, Array], layout: Layout, size: int, where: str) -> Source:
    """Feeds of ``size`` rows, sliced from ``arrays`` as needed; names, dtypes and sizes are checked now.

    Args:
        arrays: One per model input, at the model's rank with samples first, or with one axis more for feeds.
        layout: The model's inputs.
        size: Rows per slice.
        where: The file, for messages.

    Raises:
        DataError: The arrays do not fit the model.
    """
    check_names(arrays, layout.inputs, where)
    feed = dict(arrays)
    stacked = stacked_names(feed, layout, where)
    if not stacked:
        inspect(feed, layout, where)
        rows = layout.rows(feed)
    else:
        rows = _check_stack(feed, stacked, layout, where)
    notes = tuple(
        f"{where}: '{name}' has no sample axis, so the same values go into each run"
        for name in feed
        if name not in layout.batched and name not in stacked
    )
    return Source(lambda: slices(feed, stacked, layout, size, where), rows, joins=not stacked, notes=notes)


def stacked_names(feed: Feed, layout: Layout, where: str) -> frozenset[str]:
    """Names of the arrays that hold whole feeds along axis 0; empty where samples come first.

    Raises:
        DataError: The model has no batch axis, so samples cannot come first, but no array holds feeds.
    """
    over = frozenset(
        t.name for t in layout.inputs if t.shape is not None and feed[t.name].ndim == len(t.shape) + 1
    )
    if over and layout.batched <= over:
        return over
    if not layout.batched:
        raise DataError(
            f"{where}: the model's inputs share no batch axis ({describe(layout.inputs)}), so samples "
            f"cannot be cut from arrays; give whole feeds, with one more axis in front: np.stack(feeds)"
        )
    return frozenset()


def slices(feed: Feed, stacked: frozenset[str], layout: Layout, size: int, where: str) -> Iterator[Located]:
    """The feeds held by arrays: one per index of the ``stacked`` ones, or slices of ``size`` rows."""
    if stacked:
        for index in range(min(len(feed[name]) for name in stacked)):
            yield where, _pick(feed, stacked, index)
    else:
        for start in range(0, layout.rows(feed), size):
            yield where, layout.cut(feed, start, start + size)


def _pick(feed: Feed, stacked: frozenset[str], index: int) -> Feed:
    return {name: a[index, ...] if name in stacked else a for name, a in feed.items()}


def _check_stack(feed: Feed, stacked: frozenset[str], layout: Layout, where: str) -> int:
    """Samples in whole feeds, after checking that there are equally many of each input and that they fit."""
    counts = {name: len(feed[name]) for name in sorted(stacked)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise DataError(
            f"{where}: numbers of feeds differ ({listed}); axis 0 of each must hold the same feeds"
        )
    count = next(iter(counts.values()))
    if not count:
        raise DataError(f"{where}: is empty; give at least one feed")
    first = _pick(feed, stacked, 0)
    inspect(first, layout, where)
    return count * layout.rows(first)
