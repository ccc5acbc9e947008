"""A project whose second case fails, and runs of it that are killed at ten moments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from case_files import write
from plugin_support import LOAD

#: The moments, in the order in which they come.
MOMENTS = (
    "between two cases",
    "setup",
    "reference run",
    "candidate run",
    "search",
    "proof",
    "causes",
    "repair",
    "writing of a fix",
    "while the report is written",
)
#: The moments at which the second case has a verdict, so that SIGTERM ends its search alone.
JUDGED = ("search", "proof", "causes", "repair", "writing of a fix")
CASES = [f"case.int8acc.yaml::{name}" for name in ("one", "two", "three")]
SPEC = """
defaults:
  model: model.onnx
  inputs: data.npz
  backend: onnxruntime
  accept_blind: an untrained network on random inputs
  int8: {calibrate: {method: minmax}}
  criteria: [{sqnr_db: 25}]
cases:
  - name: one
  - name: two
    int8: {scales: ranges.json}
  - name: three
"""
#: A conftest. Runs of ONNX Runtime's sessions and writes of files tell the moments, of which each comes once.
#: What SIGKILL leaves are the files as they are, so one run that copies them at each moment is as good as ten
#: runs that are killed.
CONFTEST = """
import json
import os
import pathlib
import shutil
import signal
import time

import onnxruntime
import pytest

from pytest_int8acc.clock import current

HOW = json.loads(os.environ["KILLED_HOW"])
FILES = [pathlib.Path(name) for name in ("out", "cache")]
REPORT = [pathlib.Path("out", "report.json")]
PHASES = ("search", "proof", "causes", "repair")
runs, seen = {}, set()
case = ""
is_worker = False
run, replace = onnxruntime.InferenceSession.run, os.replace


def moment(name, of="two"):
    if not case.endswith(of) or name in seen:
        return
    seen.add(name)
    if HOW == "copy":
        while is_worker and not any('"name": "one"' in path.read_text() for path in REPORT if path.exists()):
            time.sleep(0.01)  # until the controller has taken in what ended
        for path in filter(pathlib.Path.exists, FILES):
            shutil.copytree(path, pathlib.Path("copies") / name / path)
    elif how := HOW.get(f"{name} of {of}"):
        os.kill(os.getppid() if how == "controller" else os.getpid(), getattr(signal, how, signal.SIGKILL))
        time.sleep(1 if how == "controller" else 0)


def run_and_tell(session, *args, **named):
    phase = current().doing.phase if current().doing else ""
    sessions = runs.setdefault((case, phase), {})
    sessions[id(session)] = sessions.get(id(session), 0) + 1
    if phase == "runs":
        moment("reference run" if len(sessions) == 1 else "candidate run")
    elif phase in PHASES and sum(sessions.values()) == (10 if phase == "search" else 2):
        moment(phase)
    return run(session, *args, **named)


def replace_and_tell(source, target, **named):
    if str(target).endswith("fixed.onnx"):
        moment("writing of a fix")
    if str(target).endswith("report.json"):
        moment("while the report is written", of="all")
    return replace(source, target, **named)


onnxruntime.InferenceSession.run, os.replace = run_and_tell, replace_and_tell


def pytest_configure(config):
    global is_worker
    is_worker = hasattr(config, "workerinput")


def pytest_unconfigure():
    onnxruntime.InferenceSession.run, os.replace = run, replace
    if not is_worker:
        told = {phase: sum(count.values()) for (of, phase), count in runs.items() if of.endswith("two")}
        pathlib.Path("runs.json").write_text(json.dumps(told))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    global case
    moment("between two cases", of="one")
    case = item.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    moment("setup")
    moment("setup", of="three")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish():
    global case
    case = "all"
    return (yield)
"""


def project(folder: Path) -> None:
    """Three cases of one network, of which the second fails."""
    write(folder, {"network": "convs()", "ranges": {"relu1": 60}, "data": {"samples": 24}})
    (folder / "case.int8acc.yaml").write_text(SPEC)
    (folder / "conftest.py").write_text(CONFTEST)


def environment(folder: Path, how: str | Mapping[str, str]) -> dict[str, str]:
    """Variables for a run of the project.

    Args:
        folder: Of the project.
        how: ``copy``: the files are copied at all moments into ``copies``. Else who is killed, by moment and
            case, like ``search of two``: ``SIGKILL`` and ``SIGTERM`` go to the process that runs the case,
            ``controller`` means SIGKILL for the controller of pytest-xdist.
    """
    return {"KILLED_HOW": json.dumps(how), "XDG_CACHE_HOME": str(folder / "cache")}


def run(folder: Path, how: str | Mapping[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the project in a process of its own; see ``environment``."""
    command = [sys.executable, "-m", "pytest", *LOAD, "-p", "no:cacheprovider", *args, *ARGUMENTS]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment(folder, how)}, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip


ARGUMENTS = ("--int8acc", "--int8acc-report", "out")


def report(folder: Path) -> dict[str, Any]:
    """The report of a folder."""
    return dict(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def ended(folder: Path) -> list[str]:
    """The node ids of the cases in the report of a folder; the others must be named as missing."""
    found = report(folder)
    nodeids = [entry["nodeid"] for entry in found["cases"]]
    assert found["missing"] == [nodeid for nodeid in CASES if nodeid not in nodeids]
    return [nodeid for nodeid in CASES if nodeid in nodeids]


#: The beginning of the note of a run that goes on where an earlier one was cut off.
CONTINUED = "an earlier run was cut off; "


def second(folder: Path) -> tuple[dict[str, Any], bool, dict[str, int]]:
    """The second case of a run in this process.

    Its entry without times, whether it went on where an earlier run was cut off, and the runs of sessions by
    phase.
    """
    (entry,) = [e for e in report(folder / "out")["cases"] if e["name"] == "two"]
    notes = [note for note in entry["notes"] if not note.startswith(CONTINUED)]
    continued = len(notes) < len(entry["notes"])
    plain = _without_times(entry | {"notes": notes})
    return plain, continued, json.loads((folder / "runs.json").read_text())


def _without_times(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_without_times(inner) for inner in plain]
    if not isinstance(plain, dict):
        return plain
    times = ("seconds", "phases", "finished")
    return {key: _without_times(value) for key, value in plain.items() if key not in times}
