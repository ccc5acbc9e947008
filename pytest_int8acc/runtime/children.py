"""Child processes that may hang or crash without harm to the session.

A child has a process group of its own and a time limit, and all its output goes to a file. It runs
``worker.py``, and does one job after another. A job is a folder with a ``job.json``.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from pytest_int8acc.runtime import worker

#: Number of seconds after which a waiting parent checks its child again.
_POLL_SECONDS = 0.02
#: Maximum number of characters of one log message that an error shows.
_SHOWN_CHARS = 600
#: Matches log messages that have nothing to do with the model. TensorRT-RTX logs error 35 if there is no GPU.
#: TensorRT 8.6 cannot read the timings of fused regions that it wrote itself.
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
_Child = subprocess.Popen[bytes]


class Ended(Enum):
    """How a job ended."""

    DONE = "done"
    FAILED = "failed"
    """The job failed, and the answer of the child has the reason."""
    CRASHED = "crashed"
    """The child ended before it answered."""
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Outcome:
    """How the job of a child ended, with its answer and its log."""

    ended: Ended
    seconds: float
    code: int | None = None
    """Exit status of a child that crashed. It is negative after a signal."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """The content of the child's ``meta.json``."""
    log: str = ""

    @property
    def ending(self) -> str:
        """A description of how a crashed child process ended, such as ``ended by SIGSEGV``."""
        if self.code is None or self.code >= 0:
            return f"ended with status {self.code}"
        try:
            return f"ended by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"ended by signal {-self.code}"

    @property
    def ended_by_signal(self) -> bool:
        """Whether a signal ended the child before it answered, such as SIGSEGV."""
        return self.ended is Ended.CRASHED and self.code is not None and self.code < 0

    @property
    def facts(self) -> list[Any]:
        """The facts that the child wrote to its log; after a crash, the facts that it wrote before."""
        lines = self.log.splitlines()
        return [json.loads(line.removeprefix(worker.FACT)) for line in lines if line.startswith(worker.FACT)]


class Workers:
    """Child processes that each do one job after another, because starting a process takes seconds.

    A line of JSON on a child's standard input names the folder of its next job. A child that fails, crashes
    or is stopped gets no further job. Threads and the cases of a session may share the workers.

    Args:
        module: The module that a child runs as ``__main__``. It writes its output to the log of each job.
    """

    def __init__(self, module: str = worker.__name__) -> None:
        self._module = module
        self._waiting: list[tuple[object, _Child]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._starting = ThreadPoolExecutor(1)  # Linux ends a child when the thread that started it ends

    def run(
        self,
        job: Mapping[str, Any],
        folder: Path,
        timeout: float,
        *,
        environment: Mapping[str, str] | None = None,
        kind: object = None,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> Outcome:
        """Have a child do a job.

        Args:
            job: The job as JSON values.
            folder: Folder for the job and its results.
            timeout: Number of seconds after which the child's process group is killed. The limit does not
                include the time in which the child waits for the GPU.
            environment: Variables that are added to the environment of this process. A child gets jobs of one
                environment only.
            kind: Any value. A child gets jobs of one kind only, because it keeps loaded libraries.
            waiting: Called repeatedly with the number of seconds since the start. If this function raises an
                error, the child is ended.
        """
        (folder / worker.JOB).write_text(json.dumps(job), encoding="utf-8")
        started = time.monotonic()
        whole = {**_environment(), **(environment or {})}
        child = self._assigned(folder, whole, kind)
        answer: dict[str, Any] | None = None
        is_good = False
        try:
            code = _wait(child, folder, timeout, waiting)
            answer = _answer(folder)
            is_good = code == 0 and answer is not None and "error" not in answer
        finally:  # also after Ctrl-C, which does not reach the process group of the child
            with self._lock:
                is_good = is_good and not self._closed
                if is_good:
                    self._waiting.append(((whole, kind), child))
            if not is_good:
                _kill(child)
        return Outcome(
            ended=_ended(code, answer),
            seconds=time.monotonic() - started,
            code=code,
            answer=answer or {},
            log=read_log(folder / worker.LOG),
        )

    def close(self) -> None:
        """End all children. A child that works ends when its job is done at the latest."""
        with self._lock:
            self._closed, children = True, [child for _, child in self._waiting]
            self._waiting.clear()
        for child in children:
            _kill(child)
        self._starting.shutdown()

    def __enter__(self) -> Workers:
        """Return the workers."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all children."""
        self.close()

    def _assigned(self, folder: Path, environment: Mapping[str, str], kind: object) -> _Child:
        """A child to which the job was sent: an idle child if there is one, else a new one."""
        line = f"{json.dumps(str(folder.absolute()))}\n".encode()
        while (known := self._take(environment, kind)) is not None:
            if _tell(known, line):
                return known
            _kill(known)
        with (folder / worker.LOG).open("ab") as stream:
            child = self._starting.submit(_start, self._module, folder, stream, environment).result()
        _tell(child, line)
        return child

    def _take(self, environment: Mapping[str, str], kind: object) -> _Child | None:
        """An idle child for jobs of this environment and kind; None if there is none."""
        with self._lock:
            for place, (own, child) in enumerate(self._waiting):
                if own == (environment, kind):
                    del self._waiting[place]
                    return child
        return None


@functools.cache
def shared_workers(process: int) -> Workers:
    """The workers that all code of this process shares; ``process`` is the id of this process.

    The workers stay for further jobs, because runtimes take long to load. They end when this process ends.
    After a fork, the new process gets workers of its own.
    """
    workers = Workers()

    def close() -> None:
        if os.getpid() == process:  # a fork must not end the children of its parent
            workers.close()

    atexit.register(close)
    return workers


def _ended(code: int | None, answer: Mapping[str, Any] | None) -> Ended:
    if code is None:
        return Ended.TIMED_OUT
    if answer is None:
        return Ended.CRASHED
    return Ended.FAILED if "error" in answer else Ended.DONE


def _answer(folder: Path) -> dict[str, Any] | None:
    """The answer of a child to its job; None if it did not answer."""
    try:
        answer: dict[str, Any] = json.loads((folder / worker.META).read_bytes())
    except (OSError, ValueError):
        return None
    return answer


def _tell(child: _Child, line: bytes) -> bool:
    """Write a line to a child's standard input; returns False if the child has ended."""
    assert child.stdin is not None
    if child.poll() is not None:  # checked before writing, because a job may end its child at once
        return False
    try:
        child.stdin.write(line)
    except OSError:
        return False
    return True


def _start(module: str, folder: Path, stream: BinaryIO, environment: Mapping[str, str]) -> _Child:
    """Start a module in a new process with a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=folder,
        env=environment,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=stream,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """The environment of a child.

    The environment has the import path of this process. A crash writes a traceback, and output is not
    buffered.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**own, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}


def _wait(child: _Child, folder: Path, timeout: float, waiting: Callable[[float], None]) -> int | None:
    """Wait for a child; returns 0 once it answered, else its exit status, or None after ``timeout``."""
    started = last = time.monotonic()
    left = timeout
    while left > 0:
        try:
            return child.wait(min(left, _POLL_SECONDS))
        except subprocess.TimeoutExpired:
            if _answer(folder) is not None:
                return 0
            before, last = last, time.monotonic()
            if not (folder / worker.WAITING).exists():
                left -= last - before
            waiting(last - started)
    return None


def _kill(child: _Child) -> None:
    """End a child and all processes that it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except (ProcessLookupError, PermissionError):  # the processes have ended already
        pass
    child.wait()
    if child.stdin is not None:
        child.stdin.close()


def read_log(path: Path) -> str:
    """The whole text of a file; empty if the file does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def last_words(log: str) -> str:
    """The error messages of a log, or else its last lines, joined into one line that is never empty."""
    every = list(messages(log))
    errors = [message for message in every if _ERROR.match(message)] or every[-3:]
    texts = list(dict.fromkeys(_LEVEL.sub("", message) for message in errors))
    texts = [text for text in texts if not any(text in other for other in texts if other != text)]
    chosen = texts if len(texts) <= 4 else [*texts[:3], texts[-1]]
    brief = [text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " ..." for text in chosen]
    return " | ".join(brief) or "nothing was logged"


def messages(log: str) -> Iterator[str]:
    """The messages of a log, each in one line, without those that have nothing to do with the model."""
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
    """Whether an error in a log is about missing memory. Warnings about skipped tactics are ignored."""
    return any(_MEMORY.search(line) for line in log.splitlines() if _ERROR.match(line))


def may_lack_memory(outcome: Outcome) -> bool:
    """Whether a job failed, and missing memory may be the reason.

    Linux ends a process by SIGKILL where its memory runs out. Warnings about skipped tactics count, too.
    """
    if outcome.ended not in (Ended.FAILED, Ended.CRASHED):
        return False
    return outcome.code == -9 or _MEMORY.search(outcome.log) is not None
