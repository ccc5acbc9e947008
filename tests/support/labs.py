"""Measured cases, their labs, and a dataset that counts how often it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repair_support import write_case

from pytest_int8acc import Settings, load_spec
from pytest_int8acc.case.measured import measure
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.graph.network import Network
from pytest_int8acc.lab.lab import Lab


def measured(
    folder: Path, network: Network, limits: dict[str, float], form: str = "model", **more: object
) -> Any:
    """A case of a network with planted faults, measured."""
    (case,) = load_spec(write_case(folder, network, limits, form, **more))
    return measure(case, Settings(lint="warn"))  # repairs of what TensorRT refuses are seen, too


def lab_of(case: Any) -> Lab:
    """A fresh lab, which has built and tried nothing yet."""
    assert case.int8 is not None
    return Lab(case, case.int8)


class Counted(Dataset):
    """Another dataset; ``passes`` tells how often its samples were asked for."""

    def __init__(self, inner: Dataset) -> None:
        self.__dict__.update(inner.__dict__)
        self.inner, self.passes = inner, 0

    def batches(self) -> Iterator[Batch]:
        self.passes += 1
        yield from self.inner.batches()
