"""A child that hangs, crashes or starts others is ended wholly, and all it says is kept."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from child import is_alive

from pytest_int8acc.runtime.children import Ended, Outcome, Workers


def gone(pid: int) -> bool:
    """True as soon as the process is no more; its new parent may take a moment to bury it."""
    for _ in range(100):
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


#: Does what each job says, and tells who did it.
WORKER = """
import json, os, pathlib, subprocess, sys, time
for line in sys.stdin:
    folder, answer = pathlib.Path(json.loads(line)), {}
    with (folder / "build.log").open("ab") as log:
        for standard in (1, 2):
            os.dup2(log.fileno(), standard)
    (folder / "by").write_text(str(os.getpid()))
    exec(json.loads((folder / "job.json").read_text())["code"])
    (folder / "draft").write_text(json.dumps(answer))
    (folder / "draft").replace(folder / "meta.json")
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    (tmp_path / "some_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    with Workers("some_worker") as made:
        yield made


def do(workers: Workers, folder: Path, code: str = "", timeout: float = 30, **how: Any) -> Outcome:
    """Have ``code`` run as a job in ``folder``."""
    folder.mkdir()
    return workers.run({"code": code}, folder, timeout, **how)


def by(folder: Path) -> int:
    return int((folder / "by").read_text())


def test_a_worker_does_one_job_after_another_and_none_elsewhere(workers: Workers, tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("a", "b\nc", "d"))
    assert all(do(workers, folder).ended is Ended.DONE for folder in (first, second))
    assert do(workers, other, environment={"DEVICE": "1"}).ended is Ended.DONE
    assert by(first) == by(second) != by(other)
    workers.close()
    assert gone(by(first))
    assert gone(by(other))


@pytest.mark.parametrize(
    ("job", "ended"),
    [
        ("answer = {'error': 'badly'}", Ended.FAILED),
        ("import ctypes; ctypes.string_at(0)", Ended.CRASHED),
        ("time.sleep(600)", Ended.TIMED_OUT),
    ],
)
def test_a_worker_that_fails_gets_no_further_job(
    workers: Workers, tmp_path: Path, job: str, ended: Ended
) -> None:
    assert do(workers, tmp_path / "first").ended is Ended.DONE
    assert do(workers, tmp_path / "bad", job, timeout=0.5).ended is ended
    assert gone(by(tmp_path / "bad"))
    assert do(workers, tmp_path / "next").ended is Ended.DONE
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
    assert do(workers, tmp_path / "next").ended is Ended.DONE


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
        assert pool.submit(do, workers, tmp_path / "first", dies).result().ended is Ended.DONE
    time.sleep(0.2)
    assert do(workers, tmp_path / "next").ended is Ended.DONE
    assert by(tmp_path / "first") == by(tmp_path / "next")


def test_workers_of_several_threads_do_a_job_each(workers: Workers, tmp_path: Path) -> None:
    names = "abcd"
    with ThreadPoolExecutor(4) as pool:
        endings = [x.ended for x in pool.map(lambda n: do(workers, tmp_path / n, "time.sleep(0.2)"), names)]
    assert endings == [Ended.DONE] * 4
    assert len({by(tmp_path / name) for name in names}) == 4


def test_all_that_a_child_says_is_kept(workers: Workers, tmp_path: Path) -> None:
    code = "print('FACT [1]'); print('bad', file=sys.stderr); print('FACT 2', flush=True); answer = {'x': 3}"
    outcome = do(workers, tmp_path / "job", code)
    assert (outcome.ended, outcome.answer) == (Ended.DONE, {"x": 3})
    assert (sorted(outcome.log.split()), outcome.facts) == (["2", "FACT", "FACT", "[1]", "bad"], [[1], 2])


def test_a_crash_is_named_and_leaves_a_trace(workers: Workers, tmp_path: Path) -> None:
    outcome = do(workers, tmp_path / "job", "import ctypes\nctypes.string_at(0)")
    assert outcome.ending == "ended by SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in outcome.log


def test_a_hang_is_stopped_with_all_that_it_started(workers: Workers, tmp_path: Path) -> None:
    code = (
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(other.pid, flush=True)\ntime.sleep(600)"
    )
    do(workers, tmp_path / "first")  # the worker has started
    started = time.monotonic()
    outcome = do(workers, tmp_path / "job", code, timeout=0.7)
    assert outcome.ended is Ended.TIMED_OUT
    assert time.monotonic() - started < 15
    assert gone(int(outcome.log))


def test_an_interrupt_stops_the_child(workers: Workers, tmp_path: Path) -> None:
    log = tmp_path / "job" / "build.log"

    def interrupt(seconds: float) -> None:
        if log.read_text().strip():
            raise KeyboardInterrupt

    code = "print(os.getpid(), flush=True)\ntime.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        do(workers, tmp_path / "job", code, waiting=interrupt)
    assert gone(int(log.read_text()))


def test_time_in_which_a_child_waits_for_the_gpu_is_not_counted(workers: Workers, tmp_path: Path) -> None:
    do(workers, tmp_path / "first")  # the worker has started
    waits = "(folder / 'waiting').touch(); time.sleep(1)"
    assert do(workers, tmp_path / "waits", waits, timeout=0.4).ended is Ended.DONE
    assert do(workers, tmp_path / "works", "time.sleep(600)", timeout=0.4).ended is Ended.TIMED_OUT
