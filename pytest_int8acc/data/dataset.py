"""A data set opened for a model: checked feeds, batch by batch, as often as wanted and each time the same."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_int8acc.data.files import MOST_BYTES, find, in_gib, read_arrays, too_much
from pytest_int8acc.data.layout import Layout, convert, inspect, read_layout
from pytest_int8acc.data.sources import (
    RandomSource,
    Source,
    array_source,
    folder_source,
    loader_source,
    random_source,
    read_feeds,
)
from pytest_int8acc.errors import DataError, blaming
from pytest_int8acc.tensors import Array, Feed, TensorInfo, describe

#: Default batch size where neither the model nor the caller fixes one.
ROWS = 32
#: Maximum count of samples from a loader where the spec has no 'samples'.
_ENDLESS = 1_000_000


@dataclass(frozen=True, eq=False)
class Batch:
    """The inputs of one run."""

    feed: Feed
    rows: int
    """Count of real samples, which are the first rows of each batched input; 1 where a feed cannot be cut."""
    padding: int = 0
    """Count of further rows that only fill a fixed batch. Outputs are cut only where this is not 0."""


def real_rows(array: Array, batch: Batch) -> Array:
    """Return ``array`` without the rows that only fill the batch, where its axis 0 has the batch's size."""
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


class Dataset:
    """Inputs for a model; made by :func:`open_dataset`.

    Attributes:
        description: Where the data come from, in words.
        is_random: True where the data are drawn, not given.
        place: The spec's key that names the data, as ``file:line:col``: errors begin with it.
        samples: How many samples a pass gives; None until a source that must be read to know was read once.
        digest: BLAKE2b of the converted samples in order, in hex, the same for any batch size; None until the
            first full pass.
    """

    def __init__(
        self,
        source: Source,
        layout: Layout,
        *,
        what: str,
        description: str,
        size: int | None,
        limit: int | None,
        most: int = MOST_BYTES,
    ) -> None:
        """Keep ``source`` for passes in runs of ``size`` rows over the first ``limit`` samples.

        One that may have no end gives ``most`` bytes at most where there is no ``limit``.
        """
        self.description = description
        self.place = ""
        self.is_random = source.is_random
        self.samples = (
            source.samples if limit is None or source.samples is None else min(source.samples, limit)
        )
        self.digest: str | None = None
        self._first: str | None = None
        self._source = source
        self._layout = layout
        self._what = what
        self._size = size
        self._limit = limit
        self._most = most if source.endless and limit is None else None
        self._notes = dict.fromkeys(source.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of a verdict must know: casts, names taken on trust; complete after a full pass."""
        return tuple(self._notes)

    def read_once(self) -> str:
        """The digest, after a full pass where there was none; ``samples`` is known from then on."""
        if self.digest is None:
            for _ in self.batches():
                pass
        return self.digest or ""

    def first(self, count: int) -> Dataset:
        """The first ``count`` samples alone."""
        limit = count if self._limit is None else min(count, self._limit)
        few = Dataset(
            self._source,
            self._layout,
            what=self._what,
            description=self.description,
            size=self._size,
            limit=limit,
        )
        few.place = self.place
        return few

    def batches(self) -> Iterator[Batch]:
        """One pass; nothing is read ahead of the batch that is handed out.

        Yields:
            Batches in order: inputs in the model's dtypes; rows as :class:`Batch` says.

        Raises:
            DataError: The data cannot be read, do not fit the model, are empty, hold nan or inf, or differ
                from those of an earlier full pass.
        """
        with blaming(self.place):
            yield from self._pass(_Digest(self._layout))

    def _pass(self, digest: _Digest) -> Iterator[Batch]:
        for number, batch in enumerate(rechunk(self._feeds(digest), self._layout, self._size)):
            if number == 0:
                self._compare_first(batch)
            yield batch
        if not digest.samples:
            raise DataError(f"{self._what}: {self.description} gives no samples; give at least one")
        if self._limit is not None and digest.samples < self._limit:
            self._note(f"{digest.samples} samples, fewer than the {self._limit} asked for")
        found = digest.hexdigest()
        if self.digest not in (None, found):
            raise self._differs()
        self.digest, self.samples = found, digest.samples

    def _compare_first(self, batch: Batch) -> None:
        """Tell data that change early: the first batch of each pass must be that of the first pass."""
        digest = _Digest(self._layout)
        digest.update(batch.feed)
        if self._first not in (None, digest.hexdigest()):
            raise self._differs()
        self._first = digest.hexdigest()

    def _differs(self) -> DataError:
        return DataError(
            f"{self._what}: {self.description} yields different data on each call, so no two models can "
            f"be compared on it; seed it: np.random.default_rng(0)"
        )

    def _feeds(self, digest: _Digest) -> Iterator[Feed]:
        nbytes = 0
        for where, raw in self._source.read():
            inspect(raw, self._layout, where)
            if self._limit is not None:
                raw = self._layout.cut(raw, 0, self._limit - digest.samples)
            feed = convert(raw, self._layout, where, digest.samples, self._note)
            digest.update(feed)
            nbytes += sum(array.nbytes for array in feed.values())
            if self._most is not None and (nbytes > self._most or digest.samples > _ENDLESS):
                gave = f"{self._what}: {self.description} gave {digest.samples} samples, {in_gib(nbytes)}"
                raise DataError(
                    f"{gave}, and goes on; 'samples: N' takes the first N. Without it {_ENDLESS} samples are "
                    f"the most, and {in_gib(self._most)} (max_data)"
                )
            yield feed
            if digest.samples == self._limit:
                return

    def _note(self, text: str) -> None:
        self._notes[f"{self._what}: {text}"] = None


class _Digest:
    """Hash of samples in order, however they are cut into feeds."""

    def __init__(self, layout: Layout) -> None:
        self.samples = 0
        self._layout = layout
        self._hashes = {t.name: hashlib.blake2b(str(t.dtype).encode()) for t in layout.inputs}
        self._last: dict[str, object] = {}

    def update(self, feed: Feed) -> None:
        """Add a feed: batched inputs by their rows, others only where they change."""
        for name, array in feed.items():
            data = array.tobytes()
            batched = name in self._layout.batched
            state = array.shape[1:] if batched else (array.shape, hashlib.blake2b(data).digest())
            if state != self._last.get(name):
                self._hashes[name].update(repr((self.samples, state)).encode())
                self._last[name] = state
            if batched:
                self._hashes[name].update(data)
        self.samples += self._layout.rows(feed)

    def hexdigest(self) -> str:
        parts = [(name, self._hashes[name].hexdigest()) for name in sorted(self._hashes)]
        return hashlib.blake2b(repr((self.samples, parts)).encode(), digest_size=16).hexdigest()


def open_dataset(
    source: str | RandomSource,
    inputs: Sequence[TensorInfo],
    *,
    base: Path,
    samples: int | None = None,
    batch: int | None = None,
    rows: int = ROWS,
    what: str = "inputs",
    most: int = MOST_BYTES,
) -> Dataset:
    """Open data for a model that takes ``inputs``; all is checked that needs no reading of every value.

    Args:
        source: Relative to ``base``: a .npz or .npy file, a folder of .npy files, Polygraphy's saved inputs
            (.json or a folder of them), or a loader ``file.py:function``; or random data.
        inputs: The model's inputs; the docstring of :mod:`pytest_int8acc.data` says which axis is the batch.
        base: The folder that ``source`` is relative to.
        samples: Use only the first so many samples, at least 1.
        batch: Rows per run where the model leaves that open; without it stored arrays run in chunks of
            ``rows``, and a loader's or Polygraphy's feeds as they come.
        rows: See there.
        what: The spec key, for messages.
        most: Bytes that random data, an .npz unpacked, or a loader without ``samples`` may give.

    Raises:
        DataError: The source is missing, of no known kind, or does not fit the model.
    """
    layout = read_layout(inputs)
    if not layout.inputs:
        raise DataError(f"{what}: the model takes no inputs, so there is nothing to compare on")
    _check_batch(batch, layout, what)
    opened = _open(source, layout, layout.size or batch or rows, base, what, most)
    size = (layout.size or batch or (rows if opened.joins else None)) if layout.batched else None
    described = source
    if isinstance(source, RandomSource):
        _check_random(min(samples or source.samples, source.samples), layout, what, most)
        described = f"random data ({source.samples} samples, seed {source.seed})"
    description = f"{described}" if samples is None else f"{described}, first {samples} samples"
    return Dataset(opened, layout, what=what, description=description, size=size, limit=samples, most=most)


def _check_random(samples: int, layout: Layout, what: str, most: int) -> None:
    nbytes = samples * sum(
        t.dtype.itemsize
        * math.prod(d for d in (t.shape or ())[t.name in layout.batched :] if isinstance(d, int))
        for t in layout.inputs
    )
    if nbytes > most:
        raise DataError(
            f"{what}: {samples} random samples are {in_gib(nbytes)}, {too_much(most)}; or draw fewer"
        )


def _check_batch(batch: int | None, layout: Layout, what: str) -> None:
    if batch is None:
        return
    if not layout.batched:
        raise DataError(
            f"{what}: no batch of {batch} can be made, since the model's inputs share no batch axis "
            f"({describe(layout.inputs)}); leave the batch out"
        )
    if layout.size not in (None, batch):
        raise DataError(
            f"{what}: a batch of {batch} does not fit the model, which fixes it at {layout.size}; "
            f"leave the batch out"
        )


def _open(source: str | RandomSource, layout: Layout, size: int, base: Path, what: str, most: int) -> Source:
    if isinstance(source, RandomSource):
        return random_source(source, layout, size, what)
    if ".py:" in source or source.endswith(".py"):
        return loader_source(source, base, what)
    where = f"{what}: {source}"
    path = find(source, base, where)
    if path.is_dir():
        return folder_source(path, layout, size, where)
    if path.suffix == ".json":
        return Source(lambda: read_feeds(path, where))
    if path.suffix not in (".npz", ".npy"):
        raise DataError(
            f"{where}: not a kind of data this reads; expected .npz, .npy, a folder of .npy files, .json of "
            f"'polygraphy run --save-inputs', or a loader file.py:function"
        )
    arrays = read_arrays(path, where, most)
    only, first = next(iter(arrays)), layout.inputs[0].name
    if len(arrays) > 1 or len(layout.inputs) > 1 or only == first:
        return array_source(arrays, layout, size, where)
    renamed = array_source({first: arrays[only]}, layout, size, where)
    note = f"{where}: its only array '{only}' is taken for the model's only input '{first}'"
    return Source(renamed.read, renamed.samples, renamed.joins, notes=(note, *renamed.notes))
