"""The stand-in for Python ends as its forked process ends, and takes it along where it is killed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from child import is_alive
from forked_python import PYTHON

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no stand-in"),
    pytest.mark.usefixtures("quick_processes"),
]


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("raise KeyboardInterrupt", -2),
    ],
)
def test_it_ends_as_its_process_ends(code: str, ending: int) -> None:
    for python in (PYTHON, sys.executable):
        assert subprocess.run([python, "-u", "-c", code], stderr=subprocess.DEVNULL).returncode == ending


def test_it_has_everything_imported_and_reads_and_writes() -> None:
    code = "import sys; print('pytest_int8acc.api' in sys.modules, sys.argv, input())"
    done = subprocess.run(
        [sys.executable, "-u", "-c", code, "a b"], input="c\n", capture_output=True, text=True, check=True
    )
    assert done.stdout == "True ['-c', 'a b'] c\n"


def test_its_process_is_killed_with_it() -> None:
    code = "import os, time; print(os.getpid()); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        child = int(script.stdout.readline())
        assert child != script.pid
        script.kill()
    until = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(child)
