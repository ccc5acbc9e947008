"""A dataset that counts how often it is read."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_int8acc.data import Batch, Dataset


class Counted(Dataset):
    """Another dataset; ``passes`` tells how often its samples were asked for."""

    def __init__(self, inner: Dataset) -> None:
        self.__dict__.update(inner.__dict__)
        self.inner, self.passes = inner, 0

    def batches(self) -> Iterator[Batch]:
        self.passes += 1
        yield from self.inner.batches()
