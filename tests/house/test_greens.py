"""The table of planted greens: it runs, it resumes, and it stands apart from the plugin."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("quick_processes")

ROOT = Path(__file__).parents[2]
ENTRY = "a_pair_behind_the_concat"


def greens(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.greens", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_entry_runs_and_is_not_repeated(tmp_path):
    kept = tmp_path / "greens.jsonl"
    done = greens("--only", ENTRY, "--resume", kept)
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, kept.read_text().splitlines())
    assert line["name"] == ENTRY
    assert line["outcome"] in ("red", "caution", "green")
    assert line["truth"].endswith("-> 0")
    assert "| a. composite outputs | 1 |" in done.stdout
    kept.write_text(json.dumps({**line, "outcome": "misled"}) + "\n")
    again = greens("--only", ENTRY, "--resume", kept, "--entries")
    assert f"| {ENTRY} |" in again.stdout
    assert "| misled |" in again.stdout


def test_each_class_is_planted():
    names = greens("--list").stdout.splitlines()
    assert {line[:2] for line in names} >= {"a_", "b_", "c_", "d_", "e_", "f_"}
    assert sum(line.startswith("healthy_") for line in names) >= 100


def test_an_entry_that_is_not_there():
    done = greens("--only", "nothing")
    assert done.returncode == 1
    assert done.stderr == "--only nothing: no entry is called so; --list shows all\n"


def test_nothing_is_made_by_the_plugin():
    for file in (ROOT / "benchmarks" / "greens").glob("*.py"):
        assert not re.search(r"^\s*(import|from) pytest_int8acc", file.read_text(), re.MULTILINE), file
