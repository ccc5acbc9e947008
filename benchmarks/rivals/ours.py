"""The plugin's own search on one task, in a process of its own like the rivals'.

python -m benchmarks.rivals.ours FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import pytest_int8acc
from benchmarks.case import assemble
from benchmarks.rivals.bar import BATCH, COSINE, SEARCH, TOP1_DROP, Task
from benchmarks.simulate import simulator
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.search import STRATEGIES


def main() -> None:
    """Calibrate, search, apply the plan, and report what was kept."""
    task = Task.load(Path(sys.argv[1]))
    limits = {"cosine": COSINE, "top1_agreement": 1 - TOP1_DROP}
    task.began = time.perf_counter()
    images, calibration = {"image": task.images[:SEARCH]}, {"image": task.calibration}
    case = assemble(load_model(task.model), images, limits, calibration=calibration)
    began = time.perf_counter()
    found = STRATEGIES["minimal"](simulator(case, BATCH))
    seconds = time.perf_counter() - began
    engine = OrtEngine(apply(case.network, Plan(high=dict.fromkeys(found.high, "fp32"))))
    task.evaluations = found.cost
    task.report(
        lambda x: np.asarray(next(iter(engine({"image": x}).values()))),
        f"pytest-int8acc {pytest_int8acc.__version__} minimal",
        found.high,
        seconds,
        candidates=len(case.network.groups),
    )


if __name__ == "__main__":
    main()
