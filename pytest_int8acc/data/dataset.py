"""Opens data for a model. The data are checked and cut into batches; each pass must give the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pytest_int8acc.data.files import MOST_BYTES, in_gib
from pytest_int8acc.data.layout import Layout, convert, inspect, read_layout
from pytest_int8acc.data.sources import RandomSource, Source, check_random_size, open_source
from pytest_int8acc.errors import DataError, blaming
from pytest_int8acc.tensors import Array, Feed, TensorInfo, describe

#: Default number of samples in a batch, if neither the model nor the spec fixes the batch size.
ROWS = 32
#: Maximum number of samples from a loader if the spec has no key 'samples'. More raises DataError, because a
#: loader may never end.
_MAX_LOADED_SAMPLES = 1_000_000


@dataclass(frozen=True, eq=False)
class Batch:
    """The inputs of one run."""

    feed: Feed
    rows: int
    """The number of samples, which are the first rows of each batched input; 1 if no input is batched."""
    padding: int = 0
    """The number of rows after the samples: copies of the last sample that fill a batch of fixed size."""


def real_rows(array: Array, batch: Batch) -> Array:
    """Return ``array``, an input or an output of ``batch``, without the rows that only fill the batch.

    The array is returned as it is if the size of its axis 0 is not the batch's size.
    """
    has_padding = batch.padding and array.ndim and array.shape[0] == batch.rows + batch.padding
    return array[: batch.rows] if has_padding else array


def rechunk(feeds: Iterable[Feed], layout: Layout, size: int | None) -> Iterator[Batch]:
    """Join and cut ``feeds`` into batches of ``size`` rows; if ``size`` is None, each feed is a batch.

    A batch is yielded before the next feed is read. Feeds are joined only if they have the same sizes beyond
    axis 0 and the same values in the inputs that are not batched. A short batch is padded if the model fixes
    the batch size.
    """
    if size is None:
        for feed in feeds:
            yield Batch(feed, layout.rows(feed))
        return
    waiting: list[Feed] = []
    for feed in feeds:
        if waiting and not _joinable(waiting[0], feed, layout):
            rest = _joined(waiting, layout)
            yield fill(rest, layout.rows(rest), layout)
            waiting = []
        waiting.append(feed)
        if sum(map(layout.rows, waiting)) < size:
            continue
        joined = _joined(waiting, layout)
        rows = layout.rows(joined)
        whole = rows - rows % size
        for start in range(0, whole, size):
            yield Batch(layout.cut(joined, start, start + size), size)
        waiting = [layout.cut(joined, whole, rows)] if whole < rows else []
    if waiting:
        rest = _joined(waiting, layout)
        yield fill(rest, layout.rows(rest), layout)


def _joinable(one: Feed, other: Feed, layout: Layout) -> bool:
    for name, array in one.items():
        if name in layout.batched:
            if array.shape[1:] != other[name].shape[1:]:
                return False
        elif not np.array_equal(array, other[name]):
            return False
    return True


def _joined(feeds: Sequence[Feed], layout: Layout) -> Feed:
    """Return one feed with the rows of all feeds; arrays are copied only if there are several feeds."""
    if len(feeds) == 1:
        return feeds[0]
    joined = dict(feeds[0])
    for name in joined.keys() & layout.batched:
        joined[name] = np.concatenate([feed[name] for feed in feeds])
    return joined


def fill(feed: Feed, rows: int, layout: Layout) -> Batch:
    """Return ``feed``, which has ``rows`` samples, as a batch.

    If the model fixes a larger batch size, the last row is repeated until the batch has that size.
    """
    padding = 0 if layout.size is None else layout.size - rows
    padded = dict(feed)
    for name in feed.keys() & layout.batched if padding else ():
        padded[name] = np.concatenate([feed[name], np.repeat(feed[name][-1:], padding, axis=0)])
    return Batch(padded, rows, padding)


class Dataset:
    """Inputs for a model; made by :func:`open_dataset`.

    Attributes:
        description: The source of the data, as text for messages.
        is_random: Whether the data are random numbers.
        place: The place of the spec's key that names the data, as ``file:line:col``. Error messages begin
            with this place.
        samples: The number of samples that a pass gives. None before the first full pass if the data must be
            read to count the samples.
        digest: The BLAKE2b digest of the converted samples in order, in hex. It does not depend on the batch
            size. None before the first full pass.
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
        """Create a dataset; nothing is read yet.

        Args:
            source: The raw feeds.
            layout: The model's inputs and their batch axis.
            what: The spec's key that names the data, for messages.
            description: The source of the data, as text for messages.
            size: The number of rows in a batch; None makes each feed of the source a batch.
            limit: Maximum number of samples; None takes all.
            most: Maximum number of bytes of a source that may never end; ignored if there is a ``limit``.
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
        self._has_single_rows = True
        """Whether each feed so far had one sample."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the data for the report, such as casts; complete after a full pass."""
        return tuple(self._notes)

    def file_of(self, sample: int) -> str:
        """Return the name of the file that holds only this sample; empty if not each sample has its own file.

        Call this method after a pass: only then it is known how many samples each file holds.
        """
        files = self._source.files if self._has_single_rows else ()
        return files[sample] if sample < len(files) else ""

    def read_once(self) -> str:
        """Return ``digest``. If there was no full pass yet, read all data, which also sets ``samples``."""
        if self.digest is None:
            for _ in self.batches():
                pass
        return self.digest or ""

    def first(self, count: int) -> Dataset:
        """Return a dataset of the first ``count`` samples."""
        few = Dataset(
            self._source,
            self._layout,
            what=self._what,
            description=self.description,
            size=self._size,
            limit=count if self._limit is None else min(count, self._limit),
        )
        few.place = self.place
        return few

    def of_rows(self, rows: Collection[int], size: int | None = None) -> Dataset:
        """Return a dataset of some samples, given by index.

        Args:
            rows: The indices of the samples.
            size: The number of rows in each batch. The last sample is repeated to fill the last batch. With
                None, or if the model has no batch axis, the batches of this dataset are kept, each with its
                chosen samples only. A batch without a chosen sample is left out.
        """
        return _SomeSamples(self, rows, size)

    def digests(self) -> list[str]:
        """Return the digest of each sample, in order; equal samples have equal digests. All data are read."""
        found = []
        for batch in self.batches():
            for row in range(batch.rows):
                digest = _Digest(self._layout)
                digest.update(self._layout.cut(batch.feed, row, row + 1))
                found.append(digest.hexdigest())
        return found

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of one pass, with inputs in the model's dtypes.

        A batch is yielded as soon as enough data are read for it.

        Raises:
            DataError: The data cannot be read, do not fit the model, are empty, hold nan or inf, or differ
                from the data of an earlier pass.
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
        """Raise DataError if ``batch``, the first of this pass, differs from that of earlier passes."""
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
            self._has_single_rows = self._has_single_rows and self._layout.rows(feed) == 1
            nbytes += sum(array.nbytes for array in feed.values())
            if self._most is not None and (nbytes > self._most or digest.samples > _MAX_LOADED_SAMPLES):
                gave = f"{self._what}: {self.description} gave {digest.samples} samples, {in_gib(nbytes)}"
                raise DataError(
                    f"{gave}, and goes on; 'samples: N' takes the first N. Without it "
                    f"{_MAX_LOADED_SAMPLES} samples are the most, and {in_gib(self._most)} (max_data)"
                )
            yield feed
            if digest.samples == self._limit:
                return

    def _note(self, text: str) -> None:
        self._notes[f"{self._what}: {text}"] = None


class _SomeSamples(Dataset):
    """Some samples of another dataset."""

    def __init__(self, whole: Dataset, rows: Collection[int], size: int | None = None) -> None:
        self.__dict__.update(vars(whole))
        self._whole, self._rows = whole, frozenset(rows)
        self._size = size if self._layout.batched else None
        self.samples, self.digest = len(self._rows), None

    def first(self, count: int) -> Dataset:
        """Return a dataset of the first ``count`` samples of this dataset."""
        return _SomeSamples(self._whole, sorted(self._rows)[:count], self._size)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of one pass; see ``Dataset.batches``."""
        digest = _Digest(self._layout)
        if self._size is None:
            for feed in self._chosen(digest):
                yield fill(feed, self._layout.rows(feed), self._layout)
        else:
            yield from rechunk(self._chosen(digest), replace(self._layout, size=self._size), self._size)
        self.digest = digest.hexdigest()

    def _chosen(self, digest: _Digest) -> Iterator[Feed]:
        """Yield the chosen samples of each batch that has chosen samples, and add them to ``digest``."""
        start, batched = 0, self._layout.batched
        for batch in self._whole.batches():
            chosen = [row for row in range(batch.rows) if start + row in self._rows]
            start += batch.rows
            if chosen:
                feed = {name: a[chosen] if name in batched else a for name, a in batch.feed.items()}
                digest.update(feed)
                yield feed


class _Digest:
    """A hash of samples in order. It does not depend on how the samples are cut into feeds."""

    def __init__(self, layout: Layout) -> None:
        self.samples = 0
        self._layout = layout
        self._hashes = {t.name: hashlib.blake2b(str(t.dtype).encode()) for t in layout.inputs}
        self._last: dict[str, object] = {}

    def update(self, feed: Feed) -> None:
        """Add a feed.

        An input that is not batched is added only if its values differ from the last feed's.
        """
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
    """Open data for a model that takes ``inputs``. Names, dtypes and shapes of stored arrays are checked now.

    Args:
        source: Random data, or a path relative to ``base``: a .npz or .npy file, a folder of .npy files,
            Polygraphy's saved inputs (a .json file or a folder of such files), or a loader script with its
            function, as ``file.py:function``.
        inputs: The model's inputs; the docstring of :mod:`pytest_int8acc.data` says which axis is the batch.
        base: The folder that ``source`` is relative to.
        samples: Maximum number of samples; None takes all.
        batch: The number of rows in a batch if the model leaves its batch size open. If None, stored arrays
            are cut into batches of ``rows``, and each feed of a loader or of Polygraphy is a batch.
        rows: The number of rows in a batch of stored arrays if ``batch`` is None.
        what: The spec's key that names the data, for messages.
        most: Maximum number of bytes of random data, an unpacked .npz, or a loader without ``samples``.

    Raises:
        DataError: The source is missing, of no known kind, or does not fit the model.
    """
    layout = read_layout(inputs)
    if not layout.inputs:
        raise DataError(f"{what}: the model takes no inputs, so there is nothing to compare on")
    if batch is not None:
        _check_batch(batch, layout, what)
    run_size = layout.size or batch or rows
    opened = open_source(source, layout, run_size, base, what, most)
    if isinstance(source, RandomSource):
        check_random_size(min(samples or source.samples, source.samples), layout, what, most)
        description = f"random data ({source.samples} samples, seed {source.seed})"
    else:
        description = source
    if samples is not None:
        description += f", its first {samples}"
    keeps_feeds = not layout.batched or not (layout.size or batch or opened.joins)
    size = None if keeps_feeds else run_size
    return Dataset(opened, layout, what=what, description=description, size=size, limit=samples, most=most)


def _check_batch(batch: int, layout: Layout, what: str) -> None:
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
