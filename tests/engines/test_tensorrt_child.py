"""A child that hangs, crashes or starts others is ended wholly, and all it says is kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from child import is_alive

from pytest_int8acc.engines.tensorrt.child import Outcome, run_child


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, timeout: float = 30) -> tuple[Outcome, str]:
    """Run ``code`` as a module that this process could import."""
    (folder / "some_child.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    (folder / "job").mkdir()
    outcome = run_child("some_child", ["a b"], folder / "job", folder / "log", timeout)
    return outcome, (folder / "log").read_text()


def gone(pid: int) -> bool:
    """True as soon as the process is no more; its new parent may take a moment to bury it."""
    for _ in range(100):
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_output_folder_arguments_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys\nprint(os.getcwd(), sys.argv[1:])\nprint('bad', file=sys.stderr)\nsys.exit(3)"
    outcome, log = run(tmp_path, monkeypatch, code)
    assert (outcome.code, outcome.ending) == (3, "ended with status 3")
    assert log.splitlines() == [f"{tmp_path / 'job'} ['a b']", "bad"]


def test_a_crash_is_named_and_leaves_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, log = run(tmp_path, monkeypatch, "import ctypes\nctypes.string_at(0)")
    assert outcome.ending == "ended by SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in log


def test_a_hang_is_stopped_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(other.pid, flush=True)\ntime.sleep(600)"
    )
    started = time.monotonic()
    outcome, log = run(tmp_path, monkeypatch, code, timeout=1.5)
    assert outcome.code is None
    assert time.monotonic() - started < 15
    assert gone(int(log))


def test_an_interrupt_stops_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    (tmp_path / "some_child.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("pytest_int8acc.engines.tensorrt.child._POLL_SECONDS", 0.5)

    def interrupt(seconds: float) -> None:
        if (tmp_path / "log").read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child("some_child", [], tmp_path, tmp_path / "log", 60, waiting=interrupt)
    assert gone(int((tmp_path / "log").read_text()))


def test_children_of_several_threads_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_child.py").write_text("import sys\nprint(sys.argv[1])")
    monkeypatch.syspath_prepend(tmp_path)
    logs = [tmp_path / f"{i}.log" for i in range(4)]
    threads = [
        threading.Thread(target=run_child, args=("some_child", [log.name], tmp_path, log, 60)) for log in logs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [log.read_text().strip() for log in logs] == [log.name for log in logs]


def test_time_in_which_a_child_waits_for_others_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_child.py").write_text("import time\ntime.sleep(3)")
    monkeypatch.syspath_prepend(tmp_path)
    outcome = run_child("some_child", [], tmp_path, tmp_path / "log", 1, idle=lambda: True)
    assert outcome.code == 0
    assert run_child("some_child", [], tmp_path, tmp_path / "log", 1).code is None
