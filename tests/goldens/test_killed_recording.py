"""A recording that is killed at any of its writes: the next one clears what it left, and only that."""

from __future__ import annotations

import signal

import pytest
from golden_support import BASE, MINMAX, write_model, write_project
from plugin_support import LOAD

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL"),
    pytest.mark.usefixtures("quick_processes"),
]
#: Kills pytest at its KILL_AT-th change of a golden; writes how many there were.
KILLER = """
import os, signal, sys

seen = 0
CHANGES = ("os.mkdir", "os.rename", "os.remove")

def audit(event, arguments):
    global seen
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if (writes or event in CHANGES) and "__int8acc__" in str(arguments[0]):
        seen += 1
        if seen == int(os.environ["KILL_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(audit)

def pytest_unconfigure():
    with open("seen.txt", "w") as file:
        file.write(str(seen))
"""
OWN = "def test_own(int8acc_golden):\n    int8acc_golden('x', [NUMBER] * 99)\n"
#: Nobody's drafts and outputs: they stay.
OTHERS = ("net/notes.txt", f"net/another.{'a' * 12}.npz", f"net/net.json.{'a' * 8}.tmp", "arrays/y.tmp")


class Recordings:
    """A project that is recorded again and again, each time with other outputs."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester, self.monkeypatch, self.number = pytester, monkeypatch, 0
        write_project(pytester.path)
        (pytester.path / "net.int8acc.yaml").write_text(f"{BASE}{MINMAX}golden: true\n")
        (pytester.path / "killer.py").write_text(KILLER)
        self.goldens = pytester.path / "__int8acc__"
        self.change()

    def change(self) -> None:
        self.number += 1
        write_model(self.pytester.path, seed=self.number)
        (self.pytester.path / "test_own.py").write_text(OWN.replace("NUMBER", f"{self.number}.0"))

    def record(self, kill_at: int = 0) -> int:
        self.monkeypatch.setenv("KILL_AT", str(kill_at))
        arguments = ("--int8acc", "--int8acc-update=all", "-p", "killer", "-p", "no:cacheprovider")
        return self.pytester.runpytest_subprocess(*LOAD, *arguments).ret

    def files(self) -> set[str]:
        return {
            path.relative_to(self.goldens).as_posix() for path in self.goldens.rglob("*") if path.is_file()
        }


def test_the_next_recording_clears_what_was_left(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Recordings(pytester, monkeypatch)
    assert project.record() == 0
    for name in OTHERS:
        (project.goldens / name).touch()
    project.change()
    assert project.record() == 0
    steps = int((pytester.path / "seen.txt").read_text())
    assert steps >= 6
    left = 0
    for step in range(2, steps + 1, 4):
        project.change()
        assert project.record(kill_at=step) == -signal.SIGKILL
        left += len(project.files()) > len(OTHERS) + 3
        assert project.record() == 0
        (npz,) = {
            name
            for name in project.files() - set(OTHERS)
            if name.startswith("net/net.") and "json" not in name
        }
        assert project.files() == {*OTHERS, "net/net.json", npz, "arrays/x.npz"}
    assert left >= 2
