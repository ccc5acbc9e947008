"""Arrays, files and inputs of models for tests of what reads data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pytest_int8acc.data import Dataset
from pytest_int8acc.tensors import TensorInfo


def tensor(name: str, *shape: int | str | None, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name, np.dtype(dtype), shape)


def joined(dataset: Dataset, name: str = "x") -> np.ndarray:
    return np.concatenate([batch.feed[name][: batch.rows] for batch in dataset.batches()])


def counting(count: int, *shape: int) -> np.ndarray:
    return np.arange(count * int(np.prod(shape)), dtype=np.float32).reshape(count, *shape)


def write(folder: Path, name: str, text: str) -> str:
    """Write a file; gives its name."""
    (folder / name).write_text(text)
    return name
