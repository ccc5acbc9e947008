"""An engine that looks its outputs up, for tests of what judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.tensors import Array, Feed, TensorInfo

SWITCH = "switch"


class StoredEngine:
    """Takes ``id``, the samples' numbers, and gives what is stored for them: the candidate's outputs.

    With all groups high it gives the baseline's.
    """

    description = "stored"

    def __init__(
        self,
        baseline: Mapping[str, Sequence[Array]],
        candidate: Mapping[str, Sequence[Array]],
        groups: int = 3,
        batch: int | None = None,
    ) -> None:
        """Keep one array per sample and output, without the axis that counts samples."""
        self.stored = {True: candidate, False: baseline}
        self.inputs = (
            TensorInfo("id", np.dtype(np.int64), (batch or "N",)),
            TensorInfo(SWITCH, np.dtype(np.bool_), (groups,)),
        )
        self.outputs = tuple(TensorInfo(name, np.dtype(np.float32), None) for name in baseline)
        self.runs: list[list[int]] = []

    def __call__(self, feed: Feed) -> Feed:
        """Stack the samples asked for; those of unlike shapes must run alone."""
        self.runs.append(feed["id"].tolist())
        stored = self.stored[bool(feed[SWITCH].any())]
        return {name: np.stack([arrays[i] for i in feed["id"]]) for name, arrays in stored.items()}


def ids(count: int, folder: Path, batch: int | None = None, fixed: int | None = None) -> Dataset:
    """A dataset of sample numbers."""
    np.savez(folder / "ids.npz", id=np.arange(count))
    info = TensorInfo("id", np.dtype(np.int64), (fixed or "N",))
    return open_dataset("ids.npz", [info], base=folder, batch=batch)
