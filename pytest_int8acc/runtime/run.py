"""Runs of several engines over a dataset in lock-step: each batch is read once, for all engines."""

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
_LOG_SECONDS = 1.0
_Name = TypeVar("_Name", bound=str)


def run_together(engines: Mapping[_Name, Engine], dataset: Dataset) -> dict[_Name, Outputs]:
    """The outputs of all engines over a dataset; every engine runs a batch before the next batch is read.

    Args:
        engines: Engines by any name; one engine under two names runs twice.
        dataset: Inputs; read once.

    Returns:
        Per engine and output one array per batch, without rows that only fill the batch.

    Raises:
        EngineError: An engine refuses a batch.
        DataError: The inputs cannot be read; or a batch had to be filled, and an output cannot be cut back.
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
    """Batch by batch the number of samples, and per engine its outputs; nothing is kept.

    Raises the same errors as ``run_together``.
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
    """Logs the progress of some work at INFO about once a second; short work logs nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = 0
        self._last = time.monotonic()

    def add(self, count: int, total: int | None) -> None:
        """Count ``count`` more items as done, of ``total`` where it is known."""
        self._done += count
        if time.monotonic() - self._last >= _LOG_SECONDS:
            logger.info("%s: %d%s", self._what, self._done, "" if total is None else f" of {total}")
            self._last = time.monotonic()


def with_progress(dataset: Dataset, what: str) -> Iterator[Batch]:
    """The batches of ``dataset``; logs the progress in samples."""
    progress = Progress(f"{what}, samples")
    clock = current()
    done = 0
    for batch in clock.bounded(dataset.batches()):
        yield batch
        done += batch.rows
        progress.add(batch.rows, dataset.samples)
        clock.count("sample", done, dataset.samples)


def cut(array: Array, batch: Batch, output: str) -> Array:
    """``array`` without rows that only fill the batch; raises DataError where it has no rows."""
    if not batch.padding:
        return array
    size = batch.rows + batch.padding
    if array.ndim == 0 or array.shape[0] != size or not _repeats(array, batch.rows):
        raise DataError(
            f"output '{output}' has shape {list(array.shape)}, not {size} rows as the batch, so the last "
            f"{batch.rows} samples cannot be told from the {batch.padding} rows that fill their batch: "
            f"give a multiple of {size} samples"
        )
    return array[: batch.rows].copy()  # lets the padding go


def _repeats(array: Array, rows: int) -> bool:
    """Whether all rows from the last sample on are equal, as in the inputs; else axis 0 is no batch."""
    if array.dtype.kind != "f":
        return bool((array[rows:] == array[rows - 1]).all())
    # Kernels may add up equal rows in different orders. INT8 rounding can make a whole step of the last bit.
    scale = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
    return bool(np.allclose(array[rows:], array[rows - 1], rtol=0.02, atol=0.02 * scale, equal_nan=True))
