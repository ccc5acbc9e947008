from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_int8acc import DataError
from pytest_int8acc.data import Batch, open_dataset
from pytest_int8acc.runtime.run import run_together
from pytest_int8acc.tensors import Feed, TensorInfo

F4 = np.dtype(np.float32)


class Recorder:
    """An engine in Python that writes down what it was given."""

    def __init__(self, log: list[tuple[str, bytes]], name: str, function: Any) -> None:
        self.log, self.name, self.function = log, name, function
        self.inputs = (TensorInfo("x", F4, (4, 2)),)
        self.outputs = (TensorInfo("y", F4, None),)

    def __call__(self, feed: Feed) -> Feed:
        self.log.append((self.name, feed["x"].tobytes()))
        return {"y": self.function(feed["x"])}


def dataset_of(tmp_path: Path, array: np.ndarray, batch: int | str) -> Any:
    np.savez(tmp_path / "x.npz", x=array)
    return open_dataset("x.npz", [TensorInfo("x", F4, (batch, array.shape[1]))], base=tmp_path)


def rows(n: int) -> np.ndarray:
    return np.arange(2 * n, dtype=np.float32).reshape(n, 2)


def test_every_batch_goes_through_all_engines_before_the_next(tmp_path: Path) -> None:
    log: list[tuple[str, bytes]] = []
    engines = {name: Recorder(log, name, lambda x: x + 1) for name in ("baseline", "candidate", "again")}
    results = run_together(engines, dataset_of(tmp_path, rows(10), 4))
    assert [name for name, _ in log] == ["baseline", "candidate", "again"] * 3
    for i in range(0, 9, 3):
        assert len({data for _, data in log[i : i + 3]}) == 1
    for outputs in results.values():
        assert [a.shape for a in outputs["y"]] == [(4, 2), (4, 2), (2, 2)]
        np.testing.assert_array_equal(np.concatenate(outputs["y"]), rows(10) + 1)


def test_one_engine_may_run_twice(tmp_path: Path) -> None:
    engine = Recorder([], "", lambda x: x)
    results = run_together({"a": engine, "b": engine}, dataset_of(tmp_path, rows(4), 4))
    assert len(results["a"]["y"]) == len(results["b"]["y"]) == 1


def test_padding_is_cut_and_its_memory_let_go(tmp_path: Path) -> None:
    results = run_together({"a": Recorder([], "", lambda x: x)}, dataset_of(tmp_path, rows(5), 4))
    last = results["a"]["y"][-1]
    assert last.shape == (1, 2)
    assert last.base is None


@pytest.mark.parametrize("function", [lambda x: x.sum(), lambda x: x.sum(axis=0), lambda x: x[:1]])
def test_an_output_without_the_batch_cannot_be_cut(tmp_path: Path, function: Any) -> None:
    with pytest.raises(DataError, match=r"output 'y' has shape .*not 4 rows.*give a multiple of 4 samples"):
        run_together({"a": Recorder([], "", function)}, dataset_of(tmp_path, rows(5), 4))


@pytest.mark.parametrize("function", [lambda x: x.sum(), lambda x: x.sum(axis=0)])
def test_an_output_without_the_batch_is_kept_where_nothing_was_filled(tmp_path: Path, function: Any) -> None:
    results = run_together({"a": Recorder([], "", function)}, dataset_of(tmp_path, rows(8), 4))
    assert len(results["a"]["y"]) == 2


def test_long_runs_tell_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    ticks = iter(np.arange(0, 100, 0.7))
    monkeypatch.setattr(
        "pytest_int8acc.runtime.run.time", SimpleNamespace(monotonic=lambda: float(next(ticks)))
    )
    with caplog.at_level(logging.INFO, logger="pytest_int8acc"):
        run_together({"baseline": Recorder([], "", lambda x: x)}, dataset_of(tmp_path, rows(16), 4))
    messages = [r.getMessage() for r in caplog.records]
    assert messages
    assert messages[0] == "running baseline, samples: 8 of 16"


def test_short_runs_say_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.INFO, logger="pytest_int8acc"):
        run_together({"baseline": Recorder([], "", lambda x: x)}, dataset_of(tmp_path, rows(4), 4))
    assert not caplog.records


class Stream:
    """Batches, nobody knows how many."""

    samples = None
    description = "a stream"

    def __init__(self, count: int = 5) -> None:
        self.count, self.read = count, 0

    def batches(self) -> Iterator[Batch]:
        for _ in range(self.count):
            self.read += 1
            yield Batch({"x": rows(4)}, 4)


def test_progress_without_a_total(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ticks = iter(np.arange(0, 100, 0.7))
    monkeypatch.setattr("pytest_int8acc.runtime.run.time.monotonic", lambda: float(next(ticks)))
    with caplog.at_level(logging.INFO, logger="pytest_int8acc"):
        run_together({"baseline": Recorder([], "", lambda x: x)}, Stream(4))  # type: ignore[arg-type]
    assert caplog.messages[0] == "running baseline, samples: 4"


def test_batches_are_not_kept() -> None:
    stream, seen = Stream(), list[int]()
    run_together({"a": Recorder([], "", lambda x: (seen.append(stream.read), x)[1])}, stream)  # type: ignore[arg-type]
    assert seen == [1, 2, 3, 4, 5]
