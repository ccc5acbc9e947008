"""Shows which step a case is at while it runs, in a progress line.

On a terminal the line is overwritten. If stdout is no terminal, a new line is printed every 30 seconds. A
thread reads the state of the running case. It writes to a copy of pytest's stdout that was made while pytest
captured no output.

A worker of pytest-xdist writes its line into a file in a shared folder, and the controller shows it. The
worker also writes the report of a case into this folder. After Ctrl-C the controller receives no more reports
from pytest-xdist, so it reads them from the folder.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_int8acc.files import replace_file
from pytest_int8acc.settings import SUFFIXES

if TYPE_CHECKING:
    from pytest_int8acc.api import Run

NAME = "int8acc-progress"
#: The key, in pytest-xdist's ``workerinput``, of the folder into which workers write their progress lines.
FOLDER = "int8acc_progress"
#: Times of the progress line, in seconds. A case is shown after it has run for ``QUIET``. If stdout is no
#: terminal, a line is printed every ``PLAIN``. The state of the case is read every ``LOOK``.
QUIET, PLAIN, LOOK = 2.0, 30.0, 0.2
#: Maximum time, in seconds, that the controller waits after Ctrl-C for the reports of cases that workers have
#: already judged.
PATIENCE = 30.0
_STOP, _BUSY, _REPORT = "stop", ".busy", ".report"


@contextmanager
def watching(config: pytest.Config, nodeid: str, run: Run) -> Iterator[None]:
    """Returns a context in which the progress line shows the state of ``run``.

    Args:
        config: The configuration of pytest.
        nodeid: The node id of the case.
        run: The run of the case.
    """
    progress: Progress | None = config.pluginmanager.get_plugin(NAME)
    if progress is None:
        yield
        return
    progress.begin(nodeid, run)
    try:
        yield
    finally:
        progress.end()


def start(config: pytest.Config) -> Progress:
    """Return the progress display of the session, which the first call creates.

    The first call must happen while pytest captures no output.
    """
    found: Progress | None = config.pluginmanager.get_plugin(NAME)
    if found is None:
        found = Progress(config)
        config.pluginmanager.register(found, NAME)
    return found


class Screen:
    """A copy of pytest's stdout that bypasses pytest's capturing."""

    def __init__(self, config: pytest.Config) -> None:
        """Duplicate the file descriptor of stdout; raises OSError if stdout is not a file."""
        self._fd = os.dup(sys.stdout.fileno())
        self._writer = config.get_terminal_writer()
        self._captures = config.getoption("capture") != "no"
        self._encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        self._shown = ""
        # pytest's live logs go to the same terminal. A progress line that is overwritten would erase them.
        logs = config.getini("log_cli") or config.getoption("log_cli_level")
        self.moves = os.isatty(self._fd) and os.environ.get("TERM") != "dumb" and not logs

    def show(self, text: str) -> None:
        """Show ``text`` as the last line of the terminal, in place of the line that was shown before."""
        if text == self._shown:
            return
        start = "\r\x1b[K" if self._shown else "\r\n" if self._writer.width_of_current_line else ""
        self._write(start + text[: max(shutil.get_terminal_size().columns - 1, 20)])
        self._shown = text

    def hide(self) -> None:
        """Erase the progress line, if one is shown.

        The cursor returns to the end of pytest's own output. It does not if pytest captures no output,
        because tests may have written to the terminal.
        """
        if self._shown:
            column = self._writer.width_of_current_line
            back = f"\x1b[A\x1b[{column}C" if column and self._captures else ""
            self._write("\r\x1b[K" + back)
            self._shown = ""

    def tell(self, text: str) -> None:
        """Write ``text`` as a line of its own, which is not erased later."""
        self._write(("\n" if self._writer.width_of_current_line else "") + text + "\n")

    def close(self) -> None:
        """Close the copied file descriptor of stdout."""
        os.close(self._fd)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # stdout may be a closed pipe
            os.write(self._fd, text.encode(self._encoding, "replace"))


class Progress:
    """Shows the progress of the running case by a thread, which runs until the session ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._worker: str | None = getattr(config, "workerinput", {}).get("workerid")
        given = getattr(config, "workerinput", {}).get(FOLDER)
        self.folder: Path | None = Path(given) if given else None
        self._screen: Screen | None = None
        if self._worker is None and config.get_verbosity() > -2:
            with contextlib.suppress(OSError, ValueError):  # stdout is not a file
                self._screen = Screen(config)
        self._run: Run | None = None
        self._nodeid = ""
        #: The node id of the case that has a verdict, but whose report is not in the shared folder yet; empty
        #: if there is none.
        self._unsaved = ""
        #: The function that makes the text of the progress line. None until the first case begins.
        self._sentence: Callable[..., str] | None = None
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._look, name=NAME, daemon=True)
        self._printed_at: dict[str, float] = {}
        self._seen: set[str] = set()

    def begin(self, nodeid: str, run: Run) -> None:
        """Shows the state of ``run``, the run of the case ``nodeid``, until ``end`` is called."""
        # The thread must not make this import: if two threads import the same package at once, both may fail.
        from pytest_int8acc.report.verdict import progress_line

        self._sentence = progress_line
        self._nodeid, self._run = nodeid, run
        self._leave()
        self._wake()

    def end(self) -> None:
        """Stops showing the running case, and erases the progress line before it returns."""
        with self._lock:
            if self._run is not None and self._run.result is not None:
                self._unsaved = self._nodeid
            self._run = None
            if self._screen is not None:
                self._screen.hide()

    def _line(self) -> str:
        """Returns the progress line of the running case.

        It is empty if no case runs, and in the first ``QUIET`` seconds of a case.
        """
        run = self._run
        if run is None or run.doing is None or self._sentence is None:
            return ""
        seconds = time.monotonic() - run.began
        if seconds < QUIET:
            return ""
        return self._sentence(run.case.name, run.doing, seconds, run.result)

    def _wake(self) -> None:
        shows_progress = self._screen is not None or self.folder is not None
        if shows_progress and not self._thread.is_alive() and not self._ended.is_set():
            self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            if self._worker is not None:
                self._leave()
                self._obey()
                continue
            with self._lock:
                self._show(self._lines())

    def _lines(self) -> dict[str, str]:
        """Returns the progress lines by the names of the workers of pytest-xdist.

        Without pytest-xdist there is at most one line, and its name is empty.
        """
        if self.folder is None:
            return {"": line} if (line := self._line()) else {}
        lines_by_worker = {
            path.stem: _read(path).get("line", "") for path in sorted(self.folder.glob("*" + _BUSY))
        }
        return {worker: f"{worker} {line}" for worker, line in lines_by_worker.items() if line}

    def _show(self, lines: dict[str, str]) -> None:
        screen, now = self._screen, time.monotonic()
        if screen is None:
            return
        if screen.moves:
            screen.show(" | ".join(lines.values())) if lines else screen.hide()
            return
        for gone in self._printed_at.keys() - lines.keys():
            del self._printed_at[gone]
        for worker, line in lines.items():
            if now - self._printed_at.setdefault(worker, now - QUIET) >= PLAIN:
                self._printed_at[worker] = now
                screen.tell(f"int8acc: {line}")

    def share(self, node: Any) -> None:
        """Gives a worker of pytest-xdist the folder into which it writes its progress line."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="int8acc-"))
        node.workerinput[FOLDER] = str(self.folder)
        self._wake()

    def _leave(self) -> None:
        """Writes the worker's progress line, and whether its case has a verdict, into the shared folder.

        Only a worker of pytest-xdist writes.
        """
        with self._lock:
            run = self._run
            if self._worker is not None:
                nodeid = self._nodeid if run else self._unsaved
                is_judged = bool(self._unsaved) or (run is not None and run.result is not None)
                self._put(_BUSY, {"line": self._line(), "nodeid": nodeid, "judged": is_judged})

    def _put(self, suffix: str, facts: dict[str, Any]) -> None:
        if self._worker is not None and self.folder is not None:
            with contextlib.suppress(OSError):  # The controller may be on another machine, or has ended.
                replace_file(self.folder / (self._worker + suffix), json.dumps(facts).encode())

    def _obey(self) -> None:
        """Interrupts this worker's search for causes if only the controller of pytest-xdist got Ctrl-C."""
        run = self._run
        if run is None or self.folder is None or run.result is None or run.interrupted:
            return
        with contextlib.suppress(OSError):
            if time.time() - (self.folder / _STOP).stat().st_mtime > 1:
                _thread.interrupt_main()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Erases the progress line before pytest writes a report.

        A worker also saves the report of a case.
        """
        with self._lock:
            if self._screen is not None:
                self._screen.hide()
            self._seen.add(f"{report.nodeid} {report.when}")
            if report.when == "call" and report.location[0].endswith(SUFFIXES):
                hook = self._config.hook
                self._put(_REPORT, hook.pytest_report_to_serializable(config=self._config, report=report))
            if report.when != "setup" or not report.passed:
                self._unsaved = ""
            self._leave()
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Deletes the progress file of a worker that has ended, so that Ctrl-C does not wait for it."""
        if self.folder is not None:
            (self.folder / (node.gateway.id + _BUSY)).unlink(missing_ok=True)

    def pytest_keyboard_interrupt(self) -> None:
        """After Ctrl-C, passes the reports of cases that workers have already judged to pytest.

        The controller waits up to ``PATIENCE`` seconds for these reports. A second Ctrl-C ends the wait.
        """
        if self._worker is not None or self.folder is None:
            return
        (self.folder / _STOP).touch()
        until = time.monotonic() + PATIENCE
        with contextlib.suppress(KeyboardInterrupt):
            while self._awaited() and time.monotonic() < until:
                time.sleep(LOOK)
        for path in sorted(self.folder.glob("*" + _REPORT)):
            data = _read(path)
            if data and f"{data['nodeid']} {data['when']}" not in self._seen:
                data["location"] = tuple(data["location"])
                hook = self._config.hook
                report = hook.pytest_report_from_serializable(config=self._config, data=data)
                hook.pytest_runtest_logreport(report=report)

    def _awaited(self) -> bool:
        """Returns whether a worker has judged a case, but has not written the case's report yet."""
        assert self.folder is not None
        busy = [_read(path) for path in self.folder.glob("*" + _BUSY)]
        left = {_read(path).get("nodeid") for path in self.folder.glob("*" + _REPORT)}
        return any(b.get("judged") and b["nodeid"] not in left for b in busy)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, Any, Any]:
        """Ends the thread that writes the progress line, before pytest prints its summary."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._screen is not None:
            self._screen.hide()
        return (yield)

    def pytest_unconfigure(self) -> None:
        """Closes the copy of stdout and deletes the shared folder."""
        if self._screen is not None:
            self._screen.close()
        if self.folder is not None and self._worker is None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file that a worker has written; empty if it is missing or incomplete."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
