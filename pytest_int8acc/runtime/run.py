"""Engines run over a dataset, in lock-step, so that all see the same inputs."""

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
    """Give each batch of ``dataset`` to every engine before the next batch is read.

    Args:
        engines: Engines by any name; one engine under two names runs twice.
        dataset: Inputs; read once.

    Returns:
        Per engine and output, one array per batch, rows that only filled a batch cut off.

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
    """The same batch by batch: how many samples it holds, and per engine its outputs; nothing is kept.

    Raises what ``run_together`` does.
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
    """Logs what is going on, and how far, at INFO; about once a second, so short work says nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = 0
        self._last = time.monotonic()

    def add(self, count: int, total: int | None) -> None:
        """``count`` more are done, of ``total`` where that is known."""
        self._done += count
        if time.monotonic() - self._last >= _LOG_SECONDS:
            logger.info("%s: %d%s", self._what, self._done, "" if total is None else f" of {total}")
            self._last = time.monotonic()


def with_progress(dataset: Dataset, what: str) -> Iterator[Batch]:
    """The batches of ``dataset``, with progress in samples."""
    progress = Progress(f"{what}, samples")
    clock = current()
    done = 0
    for batch in clock.bounded(dataset.batches()):
        yield batch
        done += batch.rows
        progress.add(batch.rows, dataset.samples)
        clock.count("sample", done, dataset.samples)


def cut(array: Array, batch: Batch, output: str) -> Array:
    """``array`` without the rows that only filled the batch; DataError where these cannot be told."""
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
    """Whether all from the last real row on is alike, as the inputs are there: else axis 0 is no batch."""
    if array.dtype.kind != "f":
        return bool((array[rows:] == array[rows - 1]).all())
    # Kernels may compute equal rows in different orders; INT8 rounding can make a step of a last bit.
    scale = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
    return bool(np.allclose(array[rows:], array[rows - 1], rtol=0.02, atol=0.02 * scale, equal_nan=True))
