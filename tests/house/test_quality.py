"""Linter, formatter and type checker, as tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--no-cache"),
        ("ruff", "format", "--check", "--no-cache"),
        ("mypy", "--strict", "pytest_int8acc"),  # .ci/types checks against the lowest Python, too
    ],
    ids=" ".join,
)
def test_tool_has_no_complaint(command):
    pytest.importorskip(command[0])
    if command[0] == "mypy" and sys.version_info < (3, 11):
        pytest.skip("types are checked against the annotations of a NumPy that wants Python 3.11")
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)
