"""The plugin's own search on one task, in a process of its own like the rivals'.

python -m benchmarks.rivals.ours FOLDER
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.case import assemble
from benchmarks.rivals.bar import BATCH, COSINE, SEARCH, TOP1_DROP, Task
from benchmarks.simulate import simulator
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.scores.criteria import MetricLimit
from pytest_int8acc.search import STRATEGIES
from pytest_int8acc.tensors import Array, Feed


def accuracy(outputs: Feed, labels: Array) -> float:
    """Share of images whose greatest logit is the label's."""
    return float((outputs["logits"].argmax(1) == labels).mean())


def main() -> None:
    """Calibrate, search, apply the plan, and report what was kept."""
    task = Task.load(Path(sys.argv[1]))
    task.began = time.perf_counter()
    images, calibration = {"image": task.images[:SEARCH]}, {"image": task.calibration}
    case = assemble(load_model(task.model), images, {"cosine": COSINE}, calibration=calibration)
    top1 = (MetricLimit("top1", max_drop=TOP1_DROP), accuracy)
    case = replace(case, metrics=(top1,), labels=task.labels[:SEARCH])
    found = STRATEGIES["minimal"](simulator(case, BATCH))
    form = Int8Form(case.network, "", "fp16").under(Plan(dict.fromkeys(found.high, "fp16")))
    engine = OrtEngine(form.model)
    task.evaluations = found.cost
    task.report(
        lambda x: np.asarray(next(iter(engine({"image": x}).values()))),
        "pytest-int8acc minimal",
        found.high,
        found.seconds,
        candidates=len(case.network.groups),
    )


if __name__ == "__main__":
    main()
