"""A child that hangs, crashes or starts others is ended wholly, and all it says is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from child import is_alive

from pytest_int8acc.runtime.trt.children import Outcome, Workers, run_child


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
    monkeypatch.setattr("pytest_int8acc.runtime.trt.children._POLL_SECONDS", 0.5)

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


#: Does what each job says, and tells who did it.
WORKER = """
import json, os, pathlib, sys, time
for line in sys.stdin:
    folder = pathlib.Path(json.loads(line))
    (folder / "by").write_text(str(os.getpid()))
    exec((folder / "job").read_text())
    (folder / "done").write_text("well")
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    (tmp_path / "some_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    with contextlib.closing(Workers("some_worker")) as made:
        yield made


def do(
    workers: Workers,
    folder: Path,
    job: str = "",
    timeout: float = 30,
    kind: object = None,
    **environment: str,
) -> Outcome:
    """Have ``job`` done in ``folder``."""
    folder.mkdir()
    (folder / "job").write_text(job)
    done = folder / "done"
    return workers.run(
        folder,
        folder / "log",
        timeout,
        lambda: done.read_text() == "well" if done.exists() and done.stat().st_size else None,
        environment=environment,
        kind=kind,
    )


def by(folder: Path) -> int:
    return int((folder / "by").read_text())


def test_a_worker_does_one_job_after_another_and_none_elsewhere(workers: Workers, tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("a", "b\nc", "d"))
    assert do(workers, first).code == do(workers, second).code == do(workers, other, DEVICE="1").code == 0
    assert by(first) == by(second) != by(other)
    workers.close()
    assert gone(by(first))
    assert gone(by(other))


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("(folder / 'done').write_text('badly'); time.sleep(600)", 0),
        ("import ctypes; ctypes.string_at(0)", -11),
        ("time.sleep(600)", None),
    ],
)
def test_a_worker_that_fails_gets_no_further_job(
    workers: Workers, tmp_path: Path, job: str, code: int | None
) -> None:
    assert do(workers, tmp_path / "first").code == 0
    assert do(workers, tmp_path / "bad", job, timeout=2).code == code
    assert gone(by(tmp_path / "bad"))
    assert do(workers, tmp_path / "next").code == 0
    assert by(tmp_path / "first") == by(tmp_path / "bad") != by(tmp_path / "next")


def test_a_job_that_ends_its_worker_at_once_is_given_to_no_other(workers: Workers, tmp_path: Path) -> None:
    do(workers, tmp_path / "first")
    ((_, child),) = workers._waiting
    assert child.stdin is not None
    write = child.stdin.write

    class Slow:
        """Comes back when the worker has ended."""

        close = child.stdin.close

        def write(self, line: bytes) -> None:
            write(line)
            child.wait()

    child.stdin = cast("Any", Slow())
    assert do(workers, tmp_path / "bad", "os.kill(os.getpid(), 9)").code == -9
    assert by(tmp_path / "bad") == child.pid


def test_a_worker_that_died_while_it_waited_is_replaced(workers: Workers, tmp_path: Path) -> None:
    do(workers, tmp_path / "first")
    os.kill(by(tmp_path / "first"), signal.SIGKILL)
    assert gone(by(tmp_path / "first"))
    assert do(workers, tmp_path / "next").code == 0


def test_a_worker_gets_jobs_of_one_kind_and_environment_only(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(workers, tmp_path / "first", kind=["plugin.so"])
    do(workers, tmp_path / "plain")
    do(workers, tmp_path / "again", kind=["plugin.so"])
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "of no account")
    do(workers, tmp_path / "still", kind=["plugin.so"])
    monkeypatch.setenv("LD_LIBRARY_PATH", "elsewhere")
    do(workers, tmp_path / "elsewhere", kind=["plugin.so"])
    assert by(tmp_path / "first") == by(tmp_path / "again") == by(tmp_path / "still")
    assert len({by(tmp_path / name) for name in ("first", "plain", "elsewhere")}) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, where a child may die with a thread")
def test_a_worker_outlives_the_thread_that_had_it_started(workers: Workers, tmp_path: Path) -> None:
    dies = "import ctypes, signal; ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(do, workers, tmp_path / "first", dies).result().code == 0
    time.sleep(0.2)
    assert do(workers, tmp_path / "next").code == 0
    assert by(tmp_path / "first") == by(tmp_path / "next")


def test_workers_of_several_threads_do_a_job_each(workers: Workers, tmp_path: Path) -> None:
    names = "abcd"
    with ThreadPoolExecutor(4) as pool:
        codes = [x.code for x in pool.map(lambda n: do(workers, tmp_path / n, "time.sleep(0.5)"), names)]
    assert codes == [0] * 4
    assert len({by(tmp_path / name) for name in names}) == 4
