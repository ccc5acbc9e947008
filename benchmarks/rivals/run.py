"""All tools on all tasks, one after the other on one machine, each in a process and environment of its own.

The environments lie in one folder, RIVALS:

    python -m venv RIVALS/nncf && RIVALS/nncf/bin/pip install nncf==3.4.0 onnx==1.23.2 onnxruntime==1.31.1
    python -m venv RIVALS/aimet && RIVALS/aimet/bin/pip install aimet-onnx==2.42.0  # 6.4 GB
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals.tasks import CULPRITS, write
from benchmarks.tables import table

ROOT = Path(__file__).parents[2]
#: Environment (None: this one) and what to run in it.
TOOLS: Sequence[tuple[str | None, Sequence[str]]] = (
    (None, ["ours"]),
    ("nncf", ["nncf_control"]),
    ("nncf", ["nncf_control", "transformer"]),
    ("aimet", ["aimet_amp"]),
)

#: AIMET's answer depends on the order of a set of strings (ViT: 3 layers or 8): this seed gives its best.
HASH_SEED = "2"

Result = dict[str, Any]


def run(environments: Path, tasks: Sequence[str] = tuple(CULPRITS)) -> list[Result]:
    """Run every tool whose environment is there; says which are not."""
    results = []
    for task in tasks:
        for environment, (module, *options) in TOOLS:
            if options and task != "vit":
                continue
            python = environments / environment / "bin" / "python" if environment else Path(sys.executable)
            if not python.exists():
                print(f"{task}: {module} left out, there is no {python}", file=sys.stderr)
                continue
            with tempfile.TemporaryDirectory() as parent:
                folder = Path(parent) / task
                folder.mkdir()
                write(task, folder)
                results.append(_result(python, module, options, folder))
    return results


def _result(python: Path, module: str, options: Sequence[str], folder: Path) -> Result:
    command = [str(python), "-m", f"benchmarks.rivals.{module}", str(folder), *options]
    environment = os.environ | {"PYTHONHASHSEED": HASH_SEED}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    path = folder / "result.json"
    if done.returncode or not path.exists():
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result: Result = json.loads(path.read_text())
    planted, kept = set(CULPRITS[folder.name]), set(result["kept"])
    return result | {
        "task": folder.name,
        "planted": len(planted),
        "precision": len(planted & kept) / len(kept) if kept else 0.0,
        "recall": len(planted & kept) / len(planted),
    }


def compare(results: Sequence[Result]) -> str:
    """One line per task and tool."""
    columns = [
        "task",
        "tool",
        "planted",
        "kept",
        "precision",
        "recall",
        "evaluations",
        "search_seconds",
        "total_seconds",
        "passes",
        "passes_unseen",
        "cosine",
    ]
    rows = [[r[c] if c != "kept" else len(r[c]) for c in columns] for r in results]
    return table([c.replace("_", " ") for c in columns], rows)
