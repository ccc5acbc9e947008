"""Whatever stands in an ONNX file: one error of ours, or a sound result; never a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from malformed_models import BASES, DATA, malformed

pytestmark = pytest.mark.usefixtures("quick_processes")

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "fuzz_models.py"
#: Malformed models of each base in one run.
EACH = int(os.environ.get("INT8ACC_FUZZ_MODELS", "16"))
#: Models that share a process.
SHARED = 100


def attempted(base: str, first: int, last: int, folder: Path) -> list[dict[str, Any]]:
    """What the tests of malformed models tell; a process that a model ends is told with its seed."""
    models = folder / "models"
    models.mkdir(parents=True)
    (folder / DATA).write_bytes(bytes(300))  # a decoy: models are not in the current folder
    path = os.pathsep.join((str(ROOT), str(PROGRAM.parent)))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), base, str(first), str(last), str(models)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"test"')]
    assert done.returncode == 0, f"ended by {said[-1:]}: {done.returncode}\n{done.stderr[-2000:]}"
    return said


@pytest.mark.parametrize("base", BASES)
def test_malformed_models_end_in_one_error_or_a_sound_result(base: str, tmp_path: Path) -> None:
    ends = Counter[str]()
    for first in range(0, EACH, SHARED):
        last = min(first + SHARED, EACH)
        said = attempted(base, first, last, tmp_path / str(first))
        unforeseen = [entry for entry in said if "fault of pytest-int8acc" in entry.get("text", "")]
        assert unforeseen == []
        assert [entry for entry in said if "test_alike" in entry["test"] and entry.get("text")] == []
        verdicts = [entry for entry in said if "verdict" in entry]
        assert len(verdicts) == last - first
        for entry in verdicts:
            ends[entry["verdict"]] += 1
            nan = [score for score in entry["scores"] if score["value"] == "nan"]
            assert not nan or entry["verdict"] != "passed"
    judged = ends["passed"] + ends["failed"]
    assert judged >= EACH // 10, "nothing gets through: the generator breaks too much"
    assert ends["error"] >= EACH // 4, "all gets through: the generator breaks too little"


def test_seeds_repeat_and_differ() -> None:
    made = [malformed("convolutions", seed) for seed in range(50)]
    assert made == [malformed("convolutions", seed) for seed in range(50)]
    assert len({*made, BASES["convolutions"]().SerializeToString()}) > 45
