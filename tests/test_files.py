"""Files replaced at one stroke: killed at any write, on a full disk, and by two processes at once."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from kills import at_once, steps

from pytest_int8acc.files import replace_file, replacing_files

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
OLD, NEW = b"old" * 10, b"new" * 20
NAMES = ("model.onnx", "model.onnx.data", "plan.yaml")


def write_all(folder: Path, data: bytes) -> None:
    with replacing_files(folder) as drafts:
        for name in NAMES:
            (drafts / name).write_bytes(data)


@forks
def test_killed_at_any_write_the_old_file_or_the_new_one_is_there(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", []
    path.write_bytes(OLD)
    for _ in steps(lambda: replace_file(path, NEW), least=4):
        seen.append(path.read_bytes())
        path.write_bytes(OLD)
    assert list(dict.fromkeys(seen)) == [OLD, NEW]


@forks
def test_killed_at_any_write_each_file_of_a_folder_is_old_or_new(tmp_path: Path) -> None:
    write_all(tmp_path, OLD)
    seen = []
    for _ in steps(lambda: write_all(tmp_path, NEW)):
        seen.append("".join("on"[(tmp_path / name).read_bytes() == NEW] for name in NAMES))
        assert {(tmp_path / name).read_bytes() for name in NAMES} <= {OLD, NEW}
        write_all(tmp_path, OLD)
    assert list(dict.fromkeys(seen)) == ["ooo", "oon", "onn", "nnn"]  # the model after its data


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path, OLD)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name.startswith("model.onnx.data"):
            write(path, data[:7])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_all(tmp_path, NEW)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "model.onnx.data", NEW)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(NAMES, OLD)


@forks
def test_two_processes_that_write_one_file_both_succeed(tmp_path: Path) -> None:
    def write(data: bytes) -> None:
        for _ in range(60):
            replace_file(tmp_path / "file", data)
            assert (tmp_path / "file").read_bytes() in (OLD, NEW)
            write_all(tmp_path, data)

    at_once(lambda: write(OLD), lambda: write(NEW))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", *NAMES]
    assert {path.read_bytes() for path in tmp_path.iterdir()} <= {OLD, NEW}


def test_what_a_kill_left_is_cleared_after_an_hour(tmp_path: Path) -> None:
    stale, fresh = (tmp_path / f"[1].json.{digit * 32}.tmp" for digit in "ab")
    folders = stale_folder, fresh_folder = tmp_path / ".int8acc-a.part", tmp_path / ".int8acc-b.part"
    others = [tmp_path / "other.part", tmp_path / f"1.json.{'a' * 32}.tmp"]
    for folder in folders:
        folder.mkdir()
        (folder / "half").touch()
    for path in (stale, fresh, *others):
        path.touch()
    for path in (stale, stale_folder, *others):
        os.utime(path, (time.time() - 4000,) * 2)
    replace_file(tmp_path / "[1].json", NEW)
    write_all(tmp_path, NEW)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"[1].json", *NAMES, fresh.name, fresh_folder.name, *(path.name for path in others)}
