"""A word while a case is at work: a line that moves on a terminal, a plain one now and then elsewhere.

A thread looks at the clock of the case under way and writes to a copy of pytest's stdout, made while pytest
captures nothing. A worker of pytest-xdist leaves its line as a file in a folder that the controller shows; so
it does with the report of a case that Ctrl-C has ended, since the controller takes nothing more from it then.
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
#: Key in pytest-xdist's ``workerinput`` for the folder where workers write their lines.
FOLDER = "int8acc_progress"
#: Seconds: minimum age of a case that is shown; interval of plain lines; interval of updates.
QUIET, PLAIN, LOOK = 2.0, 30.0, 0.2
#: Maximum seconds that the controller waits, after Ctrl-C, for reports of cases that workers have judged.
PATIENCE = 30.0
_STOP, _BUSY, _REPORT = "stop", ".busy", ".report"


@contextmanager
def watching(config: pytest.Config, nodeid: str, run: Run) -> Iterator[None]:
    """Within it, the progress line shows what ``run`` does; ``nodeid`` is pytest's name of the item."""
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
    """Return the session's progress; must be called while pytest captures nothing."""
    found: Progress | None = config.pluginmanager.get_plugin(NAME)
    if found is None:
        found = Progress(config)
        config.pluginmanager.register(found, NAME)
    return found


class Screen:
    """A copy of pytest's stdout that bypasses pytest's capturing."""

    def __init__(self, config: pytest.Config) -> None:
        """Open the copy; raises OSError where stdout is no file."""
        self._fd = os.dup(sys.stdout.fileno())
        self._writer = config.get_terminal_writer()
        self._captures = config.getoption("capture") != "no"
        self._encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        self._shown = ""
        # Live logs say as much, and would be written over.
        logs = config.getini("log_cli") or config.getoption("log_cli_level")
        self.moves = os.isatty(self._fd) and os.environ.get("TERM") != "dumb" and not logs

    def show(self, text: str) -> None:
        """Show a line below pytest's output, or replace the line that is shown."""
        if text == self._shown:
            return
        start = "\r\x1b[K" if self._shown else "\r\n" if self._writer.width_of_current_line else ""
        self._write(start + text[: max(shutil.get_terminal_size().columns - 1, 20)])
        self._shown = text

    def hide(self) -> None:
        """Erase the line, and move the cursor back to pytest's own position unless tests may have written."""
        if self._shown:
            column = self._writer.width_of_current_line
            back = f"\x1b[A\x1b[{column}C" if column and self._captures else ""
            self._write("\r\x1b[K" + back)
            self._shown = ""

    def tell(self, text: str) -> None:
        """Write a line that stays."""
        self._write(("\n" if self._writer.width_of_current_line else "") + text + "\n")

    def close(self) -> None:
        """Close the copy."""
        os.close(self._fd)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a pipe that nobody reads any more
            os.write(self._fd, text.encode(self._encoding, "replace"))


class Progress:
    """Shows the case under way, from a thread that runs from the first case to the session's end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._worker: str | None = getattr(config, "workerinput", {}).get("workerid")
        given = getattr(config, "workerinput", {}).get(FOLDER)
        self.folder: Path | None = Path(given) if given else None
        self._screen: Screen | None = None
        if self._worker is None and config.get_verbosity() > -2:
            with contextlib.suppress(OSError, ValueError):  # stdout is no file
                self._screen = Screen(config)
        self._run: Run | None = None
        self._nodeid = ""
        #: Words the line; None until the first case begins.
        self._sentence: Callable[..., str] | None = None
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._look, name=NAME, daemon=True)
        self._printed_at: dict[str, float] = {}
        self._seen: set[str] = set()

    # A case of this process

    def begin(self, nodeid: str, run: Run) -> None:
        """Show ``run`` from now on."""
        # Imported here, not in the thread: two threads that import one package at once may fail.
        from pytest_int8acc.report.text import progress_line

        self._sentence = progress_line
        self._nodeid, self._run = nodeid, run
        self._leave()
        self._wake()

    def end(self) -> None:
        """Show no run any more; the line is erased when this returns."""
        with self._lock:
            self._run = None
            if self._screen is not None:
                self._screen.hide()

    def _line(self) -> str:
        """Return the line of the run under way; empty where there is none, or it has only begun."""
        run = self._run
        if run is None or run.doing is None or self._sentence is None:
            return ""
        seconds = time.monotonic() - run.began
        if seconds < QUIET:
            return ""
        return self._sentence(run.case.name, run.doing, seconds, run.result)

    # All cases

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
        """Return the lines by worker; without pytest-xdist this process's own line under an empty name."""
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

    # Workers of pytest-xdist

    def share(self, node: Any) -> None:
        """Give a worker the folder for its lines."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="int8acc-"))
        node.workerinput[FOLDER] = str(self.folder)
        self._wake()

    def _leave(self) -> None:
        """Write this worker's line, and whether its case has a verdict, into the shared folder."""
        with self._lock:
            run = self._run
            if self._worker is not None:
                facts = {"line": self._line(), "nodeid": self._nodeid if run else ""}
                self._put(_BUSY, facts | {"judged": run is not None and run.result is not None})

    def _put(self, suffix: str, facts: dict[str, Any]) -> None:
        if self._worker is not None and self.folder is not None:
            with contextlib.suppress(OSError):  # the controller is on another machine, or gone
                replace_file(self.folder / (self._worker + suffix), json.dumps(facts).encode())

    def _obey(self) -> None:
        """End the answer of a case where Ctrl-C has reached the controller and not this worker."""
        run = self._run
        if run is None or self.folder is None or run.result is None or run.interrupted:
            return
        with contextlib.suppress(OSError):
            if time.time() - (self.folder / _STOP).stat().st_mtime > 1:
                _thread.interrupt_main()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Keeps the line away from what pytest writes; a worker leaves what it reports of a case."""
        with self._lock:
            if self._screen is not None:
                self._screen.hide()
            self._seen.add(f"{report.nodeid} {report.when}")
            if report.when == "call" and report.location[0].endswith(SUFFIXES):
                hook = self._config.hook
                self._put(_REPORT, hook.pytest_report_to_serializable(config=self._config, report=report))
            self._leave()
            return (yield)

    def pytest_keyboard_interrupt(self) -> None:
        """Takes in the reports of cases that workers had judged when Ctrl-C came; a second one ends that."""
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
        """Return whether a worker has judged a case and has not written its report yet."""
        assert self.folder is not None
        busy = [_read(path) for path in self.folder.glob("*" + _BUSY)]
        left = {_read(path).get("nodeid") for path in self.folder.glob("*" + _REPORT)}
        return any(b.get("judged") and b["nodeid"] not in left for b in busy)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, Any, Any]:
        """Ends the thread before pytest sums up."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._screen is not None:
            self._screen.hide()
        return (yield)

    def pytest_unconfigure(self) -> None:
        """Lets go of the file and the folder."""
        if self._screen is not None:
            self._screen.close()
        if self.folder is not None and self._worker is None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a worker's file; empty where the file is missing or incomplete."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
