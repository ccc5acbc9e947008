"""A child process that may hang or crash without harm: own group, time limit, all output in a file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_SHOWN_CHARS = 600
#: What says nothing of the model; error 35 is what TensorRT-RTX meets without a GPU, and TensorRT 8.6 cannot
#: read the timings of fused regions that it wrote itself.
_NOISE = re.compile(
    r"cudaError(?:_t)? ?\(?35|CUDA initialization failure with error: 35|Unable to determine GPU memory usage"
    r"|myelinCache|timing cache will not be used"
    r"|'colored' module|TF32 is disabled|logger passed into create|ModelImporter.cpp:\d+: (?:---|While)"
    r"|^\[.\] ModelImporter.cpp:\d+: ERROR|^Traceback|^Current thread|^Thread 0x|^Extension modules"
)
_ERROR = re.compile(
    r"^\[[E!]\]|^Fatal Python error|^(?:\w+\.)*\w+(?:Error|Exception)\b|CUDA initialization failure"
    r"|^terminate called"
)
_LEVEL = re.compile(r"^\[.\] |^polygraphy[\w.]*: ")
_MEMORY = re.compile(
    r"out ?of ?memory|cudaErrorMemoryAllocation|bad_alloc|MemoryError|Cuda failure: 2\b|insufficient memory",
    re.IGNORECASE,
)


def read_log(path: Path) -> str:
    """The whole log; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def last_words(log: str) -> str:
    """The messages that report errors, or else the last lines; in one line, never empty."""
    messages = list(_messages(log))
    errors = [message for message in messages if _ERROR.match(message)] or messages[-3:]
    texts = list(dict.fromkeys(_LEVEL.sub("", message) for message in errors))
    texts = [text for text in texts if not any(text in other for other in texts if other != text)]
    chosen = texts if len(texts) <= 4 else [*texts[:3], texts[-1]]
    brief = [text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " ..." for text in chosen]
    return " | ".join(brief) or "nothing was logged"


def _messages(log: str) -> Iterator[str]:
    """Messages with their indented lines joined, without noise."""
    message = ""
    for line in log.splitlines():
        if not line[:1].isspace():
            if message and not _NOISE.search(message):
                yield message
            message = line.strip()
        elif message and not _NOISE.search(line):
            message += " " + line.strip()
    if message and not _NOISE.search(message):
        yield message


def ran_out_of_memory(log: str) -> bool:
    """True where an error tells of memory that could not be had; warnings of tactics skipped are usual."""
    return any(_MEMORY.search(line) for line in log.splitlines() if _ERROR.match(line))


_POLL_SECONDS = 0.1
_Child = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    code: int | None
    """Exit status, negative for a signal; None where it was stopped at its time limit."""
    seconds: float

    @property
    def ending(self) -> str:
        """In words, like ``ended by SIGSEGV``."""
        if self.code is None:
            return f"stopped after {self.seconds:.0f} s"
        if self.code >= 0:
            return f"ended with status {self.code}"
        try:
            return f"ended by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"ended by signal {-self.code}"


def run_child(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    log: Path,
    timeout: float,
    *,
    environment: Mapping[str, str] | None = None,
    waiting: Callable[[float], None] = lambda seconds: None,
    idle: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run ``python -m module`` in ``folder``, importing from where this process does.

    Args:
        module: Run as ``__main__``.
        arguments: Its command line.
        folder: Its working folder, which comes first on its path: no place for a user's files.
        log: Gets its standard output and error.
        timeout: Seconds until its process group is killed.
        environment: Added to this process's own.
        waiting: Called again and again with the seconds gone by; what it raises ends the child.
        idle: Whether the child waits for others; that time is not counted against ``timeout``.
    """
    started = time.monotonic()
    with log.open("ab") as stream:
        child = _start([module, *arguments], folder, stream, {**_environment(), **(environment or {})})
    try:
        code = _wait(child, timeout, waiting, idle)
    finally:  # also on Ctrl-C: the child, in a group of its own, does not hear it
        _kill(child)
    return Outcome(code, time.monotonic() - started)


class Workers:
    """Children that do one job after another, for work whose start takes seconds.

    A child is told of a job by a line on its standard input: the job's folder, in JSON. One that fails,
    crashes or is stopped gets no further job. Threads may share them, and cases of one session.

    Args:
        module: Run as ``__main__``; takes its output to the job's log by itself from the second job on.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._waiting: list[tuple[object, _Child]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._starting = ThreadPoolExecutor(1)  # Linux ends a child with the thread that started it

    def run(
        self,
        folder: Path,
        log: Path,
        timeout: float,
        succeeded: Callable[[], bool | None],
        *,
        environment: Mapping[str, str],
        kind: object = None,
        waiting: Callable[[float], None] = lambda seconds: None,
        idle: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Have a child do the job of ``folder``; status 0 once it is done, well or not.

        Args:
            folder: The job's.
            log: Gets the output of a child that starts.
            timeout: See ``run_child``.
            succeeded: Whether the job is done well; None as long as it is not done.
            environment: Added to this process's own; a child gets jobs of one environment only.
            kind: What a child keeps from one job to the next; it gets jobs of one kind only.
            waiting: See ``run_child``.
            idle: See ``run_child``.
        """
        started, good = time.monotonic(), False
        whole = {**_environment(), **environment}
        child = self._assigned(folder, log, whole, kind)
        try:
            code = _wait(child, timeout, waiting, idle, lambda: succeeded() is not None)
            good = code == 0 and bool(succeeded())
        finally:
            with self._lock:
                good = good and not self._closed
                if good:
                    self._waiting.append(((whole, kind), child))
            if not good:
                _kill(child)
        return Outcome(code, time.monotonic() - started)

    def close(self) -> None:
        """End all children, those at work with their job at the latest."""
        with self._lock:
            self._closed, children = True, [child for _, child in self._waiting]
            self._waiting.clear()
        for child in children:
            _kill(child)
        self._starting.shutdown()

    def _assigned(self, folder: Path, log: Path, environment: Mapping[str, str], kind: object) -> _Child:
        """A child that has the job, one that waits for some where there is one."""
        job = f"{json.dumps(str(folder.absolute()))}\n".encode()
        while True:
            with self._lock:
                alike = (i for i, (own, _) in enumerate(self._waiting) if own == (environment, kind))
                place = next(alike, None)
                known = None if place is None else self._waiting.pop(place)[1]
            if known is None:
                break
            if _tell(known, job):
                return known
            _kill(known)
        with log.open("ab") as stream:
            started = self._starting.submit(
                _start, [self._module], folder, stream, environment, subprocess.PIPE
            )
            child = started.result()
        _tell(child, job)
        return child


def make_workers() -> Workers:
    """Children that build or examine engines; to be closed."""
    return Workers(f"{__package__}.worker")


def _tell(child: _Child, line: bytes) -> bool:
    """Write a line to a child's standard input; False where it is no more."""
    assert child.stdin is not None
    if child.poll() is not None:  # asked before: one that the job itself ends at once was told
        return False
    try:
        child.stdin.write(line)
    except OSError:
        return False
    return True


def _start(
    command: Sequence[str],
    folder: Path,
    stream: BinaryIO,
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
) -> _Child:
    """A module in a process, and a process group, of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        bufsize=0,
        stdin=stdin,
        stdout=stream,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """This process's own, with its path to import from; a crash leaves a trace, and no word is held back."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**own, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}


def _wait(
    child: _Child,
    timeout: float,
    waiting: Callable[[float], None],
    idle: Callable[[], bool],
    done: Callable[[], bool] = lambda: False,
) -> int | None:
    """The child's exit status, 0 once it is done with its job, or None where the time is up."""
    started = last = time.monotonic()
    left = timeout
    while left > 0:
        try:
            return child.wait(min(left, _POLL_SECONDS))
        except subprocess.TimeoutExpired:
            if done():
                return 0
            before, last = last, time.monotonic()
            left -= 0 if idle() else last - before
            waiting(last - started)
    return None


def _kill(child: _Child) -> None:
    """End the child and whatever it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except (ProcessLookupError, PermissionError):  # nobody is left
        pass
    child.wait()
    if child.stdin is not None:
        child.stdin.close()
