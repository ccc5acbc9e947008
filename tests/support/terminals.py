"""pytest in a process of its own, on a pseudo-terminal or not, with slow cases, and Ctrl-C in one of them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from forked_python import PYTHON
from plugin_support import LOAD

#: A conftest: the first calls of a function take their time, and leave a file; a word comes soon.
_SLOW = """
import pathlib
import time

import pytest_int8acc.clock as clock
import pytest_int8acc.plugin.progress as progress
from {module} import {owner} as owner

progress.QUIET, progress.PLAIN, progress.LOOK = 0.0, 0.1, 0.02
function = owner.{name}
calls = []


def slow(*args, **named):
    calls.append(1)
    if len(calls) <= {slow}:
        time.sleep({before})
        pathlib.Path("ready").touch()
        time.sleep({seconds})
    return function(*args, **named)


owner.{name} = slow
"""
SLOW_TRIALS = _SLOW.format(
    module="pytest_int8acc.lab.simulator", owner="Simulator", name="trial", before=0, seconds=0.1, slow=10
)
#: Trials that go on until they are interrupted. At the second one a worker has told that its case is judged.
ENDLESS_TRIALS = (
    SLOW_TRIALS.replace("len(calls) <= 10:", "len(calls) <= 100 and not clock.current().interrupted:")
    .replace("pathlib.Path", "len(calls) > 1 and pathlib.Path")
    .replace("sleep(0.1)", "sleep(0.5)")
)
#: A word has come before the file is there.
SLOW_SETUP = _SLOW.format(
    module="pytest_int8acc.case", owner="measured", name="candidate_form", before=0.2, seconds=5, slow=1
)
_LIMIT = 120.0
#: Starts Python with SIGINT's default: a job in the background (``nohup ... &``) ignores it.
_HEARS_CTRL_C = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def run(folder: Path, *args: str, terminal: bool, ctrl_c: str = "") -> tuple[int, str]:
    """Exit code and all that was written.

    Args:
        folder: Of the project.
        args: Of pytest.
        terminal: On a terminal of 150 columns, else into a pipe.
        ctrl_c: Comes once ``ready`` is there: to the whole ``group``, or to the ``first`` process alone. With
            ``terminate`` the whole group gets SIGTERM instead.
    """
    out, inner = os.openpty() if terminal else os.pipe()
    python = [PYTHON, "-c", _HEARS_CTRL_C] if ctrl_c else [sys.executable]
    command = [*python, "-m", "pytest", *LOAD, "-p", "no:cacheprovider", "--int8acc", *args]
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=inner, stderr=inner, start_new_session=True,
        env={**os.environ, "COLUMNS": "150", "TERM": "xterm"},
    )  # fmt: skip
    os.close(inner)
    written, until = b"", time.monotonic() + _LIMIT
    try:
        while time.monotonic() < until:
            if ctrl_c and (folder / "ready").exists():
                send = os.kill if ctrl_c == "first" else os.killpg
                send(process.pid, signal.SIGTERM if ctrl_c == "terminate" else signal.SIGINT)
                ctrl_c = ""
            if select.select([out], [], [], 0.05)[0]:
                try:
                    more = os.read(out, 1 << 16)
                except OSError:  # the terminal's other side is closed
                    break
                if not more:
                    break
                written += more
        return process.wait(_LIMIT), written.decode()
    finally:
        os.close(out)
        process.kill()
        process.wait()
