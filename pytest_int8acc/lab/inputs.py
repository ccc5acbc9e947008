"""The inputs of a case as single samples, which run in any order, and outputs cut into samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pytest_int8acc.case.trials import SampleOutputs
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.data.dataset import fill, rechunk
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.tensors import Feed, Outputs, TensorInfo

#: Maximum size, in bytes, of inputs that are kept in memory. Larger inputs are read again for each plan, in
#: the order of the dataset.
MEMORY_BYTES = 256 << 20
#: Approximate size, in bytes, of the inputs of one run. The size is small, because a model whose inputs
#: select the precisions holds more activations in memory than the plain model.
_RUN_BYTES = 1 << 20
#: The first run of a plan has one in this many samples. The first run is short, because many plans are
#: rejected after it. Later runs have more samples.
_RUNS = 16
#: Minimum number of samples in one run. The overhead of a run is too large for fewer samples.
_LEAST_ROWS = 4


class Inputs:
    """The inputs of a case, sample by sample.

    A sample is a row of the batched inputs if every output has a row for each row of the inputs. If outputs
    cannot be cut into rows, a whole batch is one sample.
    """

    def __init__(self, dataset: Dataset, inputs: Sequence[TensorInfo], baseline: Outputs) -> None:
        """Read the dataset once.

        Args:
            dataset: All samples.
            inputs: The inputs of the model.
            baseline: The baseline's outputs of all samples: for each output one array per batch, or one per
                sample.

        Raises:
            DataError: The dataset cannot be read.
        """
        self._dataset, self._layout = dataset, read_layout(inputs)
        counts, kept, nbytes = [], list[Batch](), 0
        for batch in dataset.batches():
            counts.append(batch.rows)
            nbytes += sum(array.nbytes for array in batch.feed.values())
            kept = [*kept, batch] if nbytes <= MEMORY_BYTES else []
        self._by_row = bool(self._layout.batched) and _have_rows(baseline, counts)
        places = [(b, r) for b, n in enumerate(counts) for r in range(n if self._by_row else 1)]
        self._places = {place: i for i, place in enumerate(places)}
        self._rows = [[i] for i in range(len(places))] if self._by_row else _ranges(counts)
        every = sum(counts)
        fitting = max(_LEAST_ROWS, _RUN_BYTES * every // max(nbytes, 1))
        self._most = self._layout.size or min(max(counts), fitting)
        self._kept = None if nbytes > MEMORY_BYTES else dict(self._samples(kept))
        self._table = self._as_table()
        if self._table is not None:
            self._kept = None

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._places)

    def rows(self, samples: Sequence[int]) -> list[int]:
        """The indices of the rows of the dataset that belong to these samples."""
        return [row for sample in samples for row in self._rows[sample]]

    def runs(
        self, order: Sequence[int], among: int | None = None, *, whole: bool = False
    ) -> Iterator[tuple[list[int], Batch]]:
        """Yield the batches to run, each with the indices of its samples.

        Args:
            order: The samples to run. They run in this order if the inputs are in memory.
            among: The number of samples from which the size of the first run is computed; None for all
                samples.
            whole: Whether to make as few runs as possible, because no plan is rejected between runs.
        """
        first = self._most if whole else max(_LEAST_ROWS, -(-(among or len(self)) // _RUNS))
        first = self._layout.size or min(self._most, first)
        if self._table is not None:
            for start, size in self._cuts(len(order), first):
                rows = list(order[start : start + size])
                feed = {name: array[rows] for name, array in self._table.items()}
                yield rows, fill(feed, len(rows), self._layout)
            return
        if not self._by_row:
            for sample, batch in self._read(order):
                yield [sample], batch
            return
        taken: deque[int] = deque()

        def feeds() -> Iterator[Feed]:
            for sample, batch in self._read(order):
                taken.append(sample)
                yield batch.feed

        for batch in rechunk(feeds(), self._layout, first):
            yield [taken.popleft() for _ in range(batch.rows)], batch

    def _cuts(self, count: int, size: int) -> Iterator[tuple[int, int]]:
        """Split ``count`` samples into runs; yield the first position and the number of samples of each run.

        The first run has ``size`` samples. Later runs are longer, because most plans are rejected early.
        """
        start = 0
        while start < count:
            yield start, size
            start += size
            size = max(size, min(start, self._most))

    def outputs_of(self, samples: Sequence[int], batch: Batch, outputs: Feed) -> SampleOutputs:
        """The ``outputs`` of a run on ``batch``, which holds the ``samples``, cut into these samples."""
        size = batch.rows + batch.padding
        return {
            name: [array[k : k + 1] for k in range(len(samples))]
            if self._by_row and array.ndim and array.shape[0] == size
            else [array] * len(samples)
            for name, array in outputs.items()
        }

    def samples_of(self, batch: int, outputs: Feed) -> tuple[list[int], SampleOutputs]:
        """The samples in the batch with index ``batch``, and ``outputs`` cut into these samples."""
        places = [(sample, row) for (b, row), sample in self._places.items() if b == batch]
        return [sample for sample, _ in places], {
            name: [array[row : row + 1] if self._by_row else array for _, row in places]
            for name, array in outputs.items()
        }

    def cut(self, outputs: Outputs) -> SampleOutputs:
        """The outputs of the whole dataset, given batch by batch or sample by sample, cut into samples."""
        if not self._by_row:
            return {name: list(arrays) for name, arrays in outputs.items()}
        return {
            name: [array[r : r + 1] for array in arrays for r in range(len(array))]
            for name, arrays in outputs.items()
        }

    def _as_table(self) -> Feed | None:
        """All samples as one array for each input.

        The result is None if the samples are not kept in memory, or differ in shape.
        """
        if not self._by_row or not self._kept:
            return None
        feeds = [self._kept[sample].feed for sample in range(len(self._kept))]
        names = feeds[0].keys()
        if names != self._layout.batched:
            return None
        if any(len({feed[name].shape for feed in feeds}) > 1 for name in names):
            return None
        return {name: np.concatenate([feed[name] for feed in feeds]) for name in names}

    def _read(self, order: Sequence[int]) -> Iterator[tuple[int, Batch]]:
        if self._kept is not None:
            yield from ((sample, self._kept[sample]) for sample in order)
            return
        remaining = set(order)
        for sample, batch in self._samples(self._dataset.batches()):
            if sample in remaining:
                yield sample, batch

    def _samples(self, batches: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
        """Yield each sample of the batches as a batch of its own."""
        for b, batch in enumerate(batches):
            for r in range(batch.rows if self._by_row else 1):
                own = Batch(self._layout.cut(batch.feed, r, r + 1), 1) if self._by_row else batch
                yield self._places[b, r], own


def _have_rows(outputs: Outputs, counts: Sequence[int]) -> bool:
    """Whether every output has one row per sample. ``counts`` has the number of samples of each batch.

    The rows may come as one array per batch, or as one array per sample.
    """
    single = [1] * sum(counts)
    return all(
        array.ndim > 0 and array.shape[0] == count
        for arrays in outputs.values()
        for array, count in zip(arrays, counts if len(arrays) == len(counts) else single, strict=True)
    )


def _ranges(counts: Sequence[int]) -> list[list[int]]:
    """For each batch, the indices of its rows in the dataset. ``counts`` has the number of rows per batch."""
    ends = np.cumsum(counts).tolist()
    return [list(range(end - count, end)) for end, count in zip(ends, counts, strict=True)]
