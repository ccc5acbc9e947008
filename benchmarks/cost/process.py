"""Processes measured whole: CPU seconds of the tree, user and system, and its greatest resident memory.

Every process gets one thread per library: CPU seconds of threads that wait for each other say little.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_UNBOUND = 10**6
#: The plugin takes one thread where as many workers share the machine as it has cores.
ONE_THREAD = {
    "PYTEST_XDIST_WORKER_COUNT": str(os.cpu_count()),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Ran:
    """A process that ended."""

    cpu: float
    """Seconds, user and system, of the process and all that it started."""
    cut: bool
    """Whether it was ended at the limit; then ``cpu`` is the least it would have taken."""
    said: str
    code: int
    """The exit status; a signal's number, negative, where one ended it."""
    case: Mapping[str, Any] = field(default_factory=dict)
    """The one case of report.json; empty where the process was cut."""

    @property
    def phases(self) -> dict[str, float]:
        """CPU seconds of the case's phases, as report.json tells them."""
        return {phase["name"]: phase["cpu_seconds"] for phase in self.case.get("phases", ())}


def run(command: Sequence[str | Path], limit: int = 0, may_fail: bool = False) -> Ran:
    """Run to the end, or to ``limit`` CPU seconds where that is above 0.

    Raises:
        SystemExit: The process failed, not at the limit, and it may not fail.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= ONE_THREAD | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    environment |= {"NNCF_CI": "1"}  # NNCF then starts no telemetry
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_limited(limit),
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read()
    cpu = usage.ru_utime + usage.ru_stime
    cut = code == -signal.SIGXCPU
    if code and not cut and not may_fail:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {code}:\n{said[-3000:]}")
    return Ran(cpu, cut, said, code)


def _limited(seconds: int) -> Callable[[], None] | None:
    return (lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))) if seconds else None


def check(
    spec: Path, *options: str, limit: int = 0, fails: bool | None = None, report: Path | None = None
) -> Ran:
    """Run pytest on one spec of one case, nothing kept from other runs, no bound on what follows the verdict.

    The report is left in the folder ``report``, which is emptied before; without it, nowhere.

    Raises:
        SystemExit: The case gave no verdict, or, where ``fails`` says which, the other one; or what follows
            the verdict ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        if report is None:
            report = Path(folder)
        elif report.exists():
            shutil.rmtree(report)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", spec.parent]
        command += ["-c", os.devnull, "--int8acc-no-cache", "--int8acc-report", report]
        command += ["-p", "no:hypothesispytest"]  # of the tests' own extra: it costs half a second
        ran = run([*command, f"--int8acc-max-seconds={_UNBOUND}", spec, *options], limit, may_fail=True)
        written, case = report / "report.json", {}
        if written.exists():
            case = json.loads(written.read_text())["cases"][0]
    verdict = case.get("verdict", "nothing")
    allowed = {True: ["failed"], False: ["passed"], None: ["failed", "passed"]}[fails]
    broken = ran.code not in (0, 1) or verdict not in allowed or "1 error" in ran.said
    if broken and not ran.cut:
        raise SystemExit(f"{spec}: {verdict}\n{ran.said[-3000:]}")
    return replace(ran, case=case)


def plain(what: str, *arguments: Path | int) -> float:
    """The number that benchmarks/cost/plain.py prints."""
    return float(run([sys.executable, "-m", "benchmarks.cost.plain", what, *map(str, arguments)]).said)
