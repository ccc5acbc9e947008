"""What the plugin costs a suite that has no specs: pytest with it and without it, in turn.

    python benchmarks/startup.py

Prints the CPU time of one run (least of many, user and system), and the import time of the plugin module.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROUNDS = 20
IMPORT = (
    "import pytest, time; t = time.process_time_ns(); import pytest_int8acc.plugin; "
    "print((time.process_time_ns() - t) / 1e6)"
)
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def run(*arguments: str, cwd: str) -> str:
    """Standard output of Python with ``arguments``."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, check=True, capture_output=True, text=True, env=ENVIRONMENT
    ).stdout


def cpu_seconds(*arguments: str, cwd: str) -> float:
    """User and system time of Python with ``arguments``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*arguments, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    with_plugin, without = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(50):
            tests = [f"def test_{j}():\n    assert {j} + 1 == {j + 1}\n" for j in range(20)]
            (Path(folder) / f"test_{i}.py").write_text("\n".join(tests))
        suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        for _ in range(ROUNDS):
            with_plugin.append(cpu_seconds(*suite, cwd=folder))
            without.append(cpu_seconds(*suite, "-p", "no:int8acc", cwd=folder))
        imports = min(float(run("-c", IMPORT, cwd=folder)) for _ in range(ROUNDS))
    ours, bare = min(with_plugin), min(without)
    print(f"Python {platform.python_version()}, pytest {metadata.version('pytest')}, {ROUNDS} rounds in turn")
    print(f"1000 tests in 50 files, no spec: {ours:.3f} s CPU with, {bare:.3f} s without the plugin")
    print(f"ratio {ours / bare:.3f}; import of the plugin module {imports:.2f} ms")


if __name__ == "__main__":
    main()
