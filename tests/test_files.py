"""Files replaced at one stroke: killed at any write, on a full disk, and by two processes at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from child import in_child
from kills import at_once, steps

from pytest_int8acc.files import create_file, replace_file, replacing_files

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


@forks
def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    write_all(tmp_path, OLD)

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (7, 7))  # as on a full disk, a write ends half-way
        with pytest.raises(OSError, match="File too large"):
            write_all(tmp_path, NEW)
        replace_file(tmp_path / "model.onnx.data", NEW)

    assert "File too large" in in_child(write)
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


@forks
def test_what_a_kill_left_is_cleared_by_the_next_write_of_the_same_files(tmp_path: Path) -> None:
    others = [tmp_path / "other.part", tmp_path / f"1.json.{'a' * 32}.tmp"]
    for path in others:
        path.touch()

    def write() -> None:
        replace_file(tmp_path / "[1].json", NEW)
        write_all(tmp_path, NEW)

    write()
    whole = {path.name for path in tmp_path.iterdir()}
    left = set()
    for _ in steps(write):
        left |= {path.suffix for path in tmp_path.iterdir() if path.name not in whole}
        write()
        assert {path.name for path in tmp_path.iterdir()} == whole
    assert left == {".tmp", ".part"}


@forks
def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    with replacing_files(tmp_path) as drafts:
        at_once(lambda: write_all(tmp_path, OLD))
        assert drafts.is_dir()
        (drafts / NAMES[0]).write_bytes(NEW)
    assert (tmp_path / NAMES[0]).read_bytes() == NEW
    assert {path.name for path in tmp_path.iterdir()} == set(NAMES)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_on_a_disk_without_links_too_a_new_file_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    create_file(tmp_path / "file", OLD)
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "file", NEW)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": OLD}
