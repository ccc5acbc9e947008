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

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "fuzz_models.py"
#: Malformed models of each base in one run.
EACH = int(os.environ.get("INT8ACC_FUZZ_MODELS", "90"))
#: Bases that share a process.
SHARED = (("convolutions", "functions", "old"), ("attention", "branches", "external", "quantized"))


def attempted(bases: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """How each malformed model of ``bases`` ended; a process that a model ends is told with its seed."""
    (folder / "models").mkdir()
    (folder / DATA).write_bytes(bytes(300))  # a decoy: models are not in the current folder
    command = [sys.executable, str(PROGRAM), "0", str(EACH), str(folder / "models"), *bases]
    path = os.pathsep.join((str(ROOT), str(PROGRAM.parent)))
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"base"')]
    assert done.returncode == 0, f"ended by {told[-1:]}: {done.returncode}\n{done.stderr[-2000:]}"
    return [entry for entry in told if "ends" in entry]


@pytest.mark.parametrize("bases", SHARED, ids="-".join)
def test_malformed_models_end_in_one_error_or_a_sound_result(bases: tuple[str, ...], tmp_path: Path) -> None:
    told = attempted(bases, tmp_path)
    assert len(told) == EACH * len(bases)
    for entry in told:
        for step, end in entry["ends"].items():
            fine = end == "done" or (end.startswith("error: ") and end.strip() != "error:")
            assert fine, f"{entry['base']}, seed {entry['seed']}, {step}: {end}"
    ends = Counter(entry["ends"]["check"] == "done" for entry in told)
    assert ends[True] >= EACH // 10, "nothing gets through: the generator breaks too much"
    assert ends[False] >= EACH * len(bases) // 3, "all gets through: the generator breaks too little"


def test_every_base_is_attempted_and_there_are_600_models() -> None:
    assert sorted(base for bases in SHARED for base in bases) == sorted(BASES)
    assert EACH * len(BASES) >= 600


def test_seeds_repeat_and_differ() -> None:
    made = [malformed("convolutions", seed) for seed in range(50)]
    assert made == [malformed("convolutions", seed) for seed in range(50)]
    assert len({*made, BASES["convolutions"]().SerializeToString()}) > 45
