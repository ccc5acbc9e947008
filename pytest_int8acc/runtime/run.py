"""Runs several engines over a dataset. Each batch is read once, and given to all engines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pytest_int8acc.clock import current
from pytest_int8acc.errors import DataError
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.tensors import Array, Feed, Outputs

if TYPE_CHECKING:
    from pytest_int8acc.data import Batch, Dataset


logger = logging.getLogger("pytest_int8acc")
#: Minimum number of seconds between two messages about progress.
_LOG_SECONDS = 1.0
_Name = TypeVar("_Name", bound=str)


def run_together(engines: Mapping[_Name, Engine], dataset: Dataset) -> dict[_Name, Outputs]:
    """The outputs of all engines over a dataset.

    Args:
        engines: Engines by any name. An engine with two names runs twice.
        dataset: The inputs. Each batch is read once, and all engines run it before the next one is read.

    Returns:
        For each engine and output one array per batch, without rows that only fill the batch.

    Raises:
        EngineError: An engine refuses a batch.
        DataError: The inputs cannot be read, or the last batch was padded and the rows of an output cannot be
            assigned to samples.
    """
    results: dict[_Name, Outputs] = {name: {o.name: [] for o in e.outputs} for name, e in engines.items()}
    for _, outputs in lock_step(engines, dataset):
        for name, feed in outputs.items():
            for output, array in feed.items():
                results[name][output].append(array)
    return results


def lock_step(
    engines: Mapping[_Name, Callable[[Feed], Feed]], dataset: Dataset
) -> Iterator[tuple[int, dict[_Name, Feed]]]:
    """For each batch the number of its samples, and the outputs of each engine.

    Raises:
        EngineError: An engine refuses a batch.
        DataError: The inputs cannot be read, or the last batch was padded and the rows of an output cannot be
            assigned to samples.
    """
    for batch in with_progress(dataset, f"running {', '.join(engines)}"):
        yield (
            batch.rows,
            {
                name: {output: cut(array, batch, output) for output, array in engine(batch.feed).items()}
                for name, engine in engines.items()
            },
        )


class Progress:
    """Logs the progress of some work at level INFO once a second, from the first second on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = 0
        self._last = time.monotonic()

    def add(self, count: int, total: int | None) -> None:
        """Count ``count`` more items as done; ``total`` is the number of all items, if it is known."""
        self._done += count
        if time.monotonic() - self._last >= _LOG_SECONDS:
            logger.info("%s: %d%s", self._what, self._done, "" if total is None else f" of {total}")
            self._last = time.monotonic()


def with_progress(dataset: Dataset, what: str) -> Iterator[Batch]:
    """The batches of ``dataset``. The progress is logged and reported to the clock of the case."""
    progress = Progress(f"{what}, samples")
    clock = current()
    done = 0
    for batch in clock.bounded(dataset.batches()):
        yield batch
        done += batch.rows
        progress.add(batch.rows, dataset.samples)
        clock.count("sample", done, dataset.samples)


def cut(array: Array, batch: Batch, output: str) -> Array:
    """An output without rows that only fill the batch; DataError if axis 0 of the output is not the batch."""
    if not batch.padding:
        return array
    size = batch.rows + batch.padding
    if array.ndim == 0 or array.shape[0] != size or not _repeats(array, batch.rows):
        raise DataError(
            f"output '{output}' has shape {list(array.shape)}, not {size} rows as the batch, so the last "
            f"{batch.rows} samples cannot be told from the {batch.padding} rows that fill their batch: "
            f"give a multiple of {size} samples"
        )
    return array[: batch.rows].copy()  # a view would keep the whole array in memory


def _repeats(array: Array, rows: int) -> bool:
    """Whether the row of the last sample and all rows after it are equal.

    The inputs were padded with copies of the last sample. If the rows differ, axis 0 of the output is not the
    batch.
    """
    if array.dtype.kind != "f":
        return bool((array[rows:] == array[rows - 1]).all())
    # Kernels may add up equal rows in different orders. INT8 rounding can turn a difference in the last bit
    # into a whole step.
    scale = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
    return bool(np.allclose(array[rows:], array[rows - 1], rtol=0.02, atol=0.02 * scale, equal_nan=True))
