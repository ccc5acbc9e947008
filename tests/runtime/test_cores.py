"""How many cores a process takes."""

from __future__ import annotations

import pytest

from pytest_int8acc.runtime.onnxruntime import share_of_cores


@pytest.mark.parametrize(
    ("given", "expected"), [("1", 6), ("2", 3), ("4", 1), ("64", 1), ("0", None), ("x", None)]
)
def test_workers_share_the_cores(monkeypatch, given, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert share_of_cores({"PYTEST_XDIST_WORKER_COUNT": given}) == expected


def test_without_workers_the_runtime_decides():
    assert share_of_cores({}) is None
