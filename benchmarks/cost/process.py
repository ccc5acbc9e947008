"""Processes measured whole: CPU seconds of the tree, user and system, and its greatest resident memory.

Every process gets one thread per library: CPU seconds of threads that wait for each other say little.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of wall clock of a case's phases, as report.json tells them; none where it was cut."""


def run(command: Sequence[str | Path], limit: int = 0, may_fail: bool = False) -> Ran:
    """Run to the end, or to ``limit`` CPU seconds where that is above 0.

    Raises:
        SystemExit: The process failed, and not at the limit.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= ONE_THREAD | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
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
    if code and not cut and not (may_fail and code == 1):
        raise SystemExit(f"{' '.join(map(str, command))} ended with {code}:\n{said[-3000:]}")
    return Ran(cpu, cut, said)


def _limited(seconds: int) -> Callable[[], None] | None:
    return (lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))) if seconds else None


def check(spec: Path, *options: str, limit: int = 0, fails: bool | None = None) -> Ran:
    """Run pytest on one spec of one case, nothing kept from other runs, no bound on what follows the verdict.

    Raises:
        SystemExit: The case gave no verdict, or, where ``fails`` says which, the other one; or what follows
            the verdict ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", spec.parent]
        command += ["-c", os.devnull, "--int8acc-no-cache", "--int8acc-report", folder]
        command += ["-p", "no:hypothesispytest"]  # of the tests' own extra: it costs half a second
        ran = run([*command, f"--int8acc-max-seconds={_UNBOUND}", spec, *options], limit, may_fail=True)
        report, case = Path(folder) / "report.json", {}
        if report.exists():
            case = json.loads(report.read_text())["cases"][0]
    verdict = case.get("verdict", "nothing")
    wanted = {True: ["failed"], False: ["passed"], None: ["failed", "passed"]}[fails]
    if not ran.cut and (verdict not in wanted or "1 error" in ran.said):
        raise SystemExit(f"{spec}: {verdict}\n{ran.said[-3000:]}")
    return replace(ran, phases={phase["name"]: phase["seconds"] for phase in case.get("phases", ())})


def plain(what: str, *arguments: Path | int) -> float:
    """The number that benchmarks/cost/plain.py prints."""
    return float(run([sys.executable, "-m", "benchmarks.cost.plain", what, *map(str, arguments)]).said)
