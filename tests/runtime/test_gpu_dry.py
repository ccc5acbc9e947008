"""The GPU tests' own code runs where there is no GPU, up to the first engine that each of them builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_support import DRY, REACHED, ROOT, gpus
from plugin_support import LOAD

pytestmark = pytest.mark.usefixtures("quick_processes")

FILES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests").rglob("test_*.py")
    if re.search(r"^@?(pytestmark = )?needs_gpu", path.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.skipif(gpus() > 0, reason="there is a GPU: the tests themselves run")
def test_gpu_tests_come_as_far_as_the_build(tmp_path: Path) -> None:
    assert len(FILES) > 10
    command = [sys.executable, "-m", "pytest", *LOAD, "-m", "gpu", "-n0", "-rA", "-p", "gpu_dry", *FILES]
    command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}"]
    path = os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    environment = {**outer, "PYTHONPATH": path, DRY: "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    reasons = set(re.findall(r"^SKIPPED \[\d+\] \S+: (.*)$", done.stdout, re.MULTILINE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {
        r for r in reasons if REACHED not in r and "two NVIDIA GPUs" not in r and "tensorrt" not in r
    } == set()
    assert reasons
