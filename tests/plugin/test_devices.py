"""Which GPU a process takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_int8acc.plugin.session import choose_device, visible_devices


def gpus(folder: Path, count: int) -> Path:
    for i in range(count):
        (folder / f"0000:0{i}:00.0").mkdir()
    return folder


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2,5", ["2", "5"]),
        (" 2 , 5", ["2", "5"]),
        ("GPU-8f1,GPU-3a2", ["GPU-8f1", "GPU-3a2"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
    ],
)
def test_the_callers_list_counts(given, expected, tmp_path):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": given}, gpus(tmp_path, 4)) == expected
    assert visible_devices({}, tmp_path) == ["0", "1", "2", "3"], "without a list the driver tells"
    assert visible_devices({}, tmp_path / "none") == []


@pytest.mark.parametrize(
    ("worker", "wanted", "expected"),
    [
        ("gw0", None, "2"),
        ("gw1", None, "5"),
        ("gw2", None, "2"),
        ("gw11", None, "5"),
        (None, None, None),
        ("master", None, None),
        (None, 1, "5"),
        ("gw0", 1, "5"),
    ],
)
def test_each_worker_takes_an_entry_in_turn(worker, wanted, expected):
    assert choose_device(worker, wanted, ["2", "5"]) == expected
    assert choose_device("gw1", None, []) is None


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no GPU 2: 2 GPUs are visible"):
        choose_device(None, 2, ["2", "5"])
