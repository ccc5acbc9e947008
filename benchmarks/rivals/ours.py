"""The plugin's own search on one task, in a process of its own like the rivals'.

python -m benchmarks.rivals.ours FOLDER [repair]

With ``repair`` it is a whole case: the search, the causes, and the cheapest fix.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.case import assemble
from benchmarks.rivals.bar import BATCH, SEARCH, TOP1_DROP, Task, cosines
from benchmarks.simulate import simulator
from pytest_int8acc.answer import conclude
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.case.measured import measure
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.scores.criteria import MetricLimit
from pytest_int8acc.search.strategies import search
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.tensors import Feed


def accuracy(outputs: Feed, labels: Feed) -> float:
    """Share of images whose greatest logit is the label's."""
    return float((outputs["logits"].argmax(1) == labels["labels"]).mean())


def similarity(outputs: Feed, labels: Feed) -> float:
    """Mean over images of the cosine similarity to the float model's logits: the bar of all tools."""
    return float(cosines(labels["logits"], outputs["logits"]).mean())


def mended(task: Task) -> None:
    """Run the case, and report the fixed model of its report."""
    folder = task.folder / "case"
    folder.mkdir()
    np.savez(folder / "inputs.npz", image=task.images[:SEARCH])
    np.savez(folder / "calibration.npz", image=task.calibration)
    np.savez(folder / "labels.npz", labels=task.labels[:SEARCH], logits=task.reference[:SEARCH])
    spec = {
        "model": "../model.onnx",
        "inputs": "inputs.npz",
        "labels": "labels.npz",
        "int8": {"calibrate": {"data": "calibration.npz", "method": "minmax"}},
        "criteria": [
            {"metric": f"{__file__}:similarity", "min": task.bar},
            {"metric": f"{__file__}:accuracy", "max_drop": TOP1_DROP},
        ],
    }
    (folder / "case.int8acc.yaml").write_text(json.dumps(spec))
    (case,) = load_spec(folder / "case.int8acc.yaml")
    began = time.perf_counter()
    result = conclude(measure(case, Settings()), folder / "report")
    seconds = time.perf_counter() - began
    assert result.search is not None
    assert result.diagnosis is not None
    (best, *_) = result.diagnosis.repairs
    engine = OrtEngine(load_model(folder / "report" / "fixed.onnx"))
    task.report(
        lambda x: np.asarray(next(iter(engine({"image": x}).values()))),
        "pytest-int8acc, whole case",
        best.layers,
        seconds,
        candidates=result.int8_groups,
    )


def main() -> None:
    """Calibrate, search, apply the plan, and report what was kept."""
    task = Task.load(Path(sys.argv[1]))
    task.began = time.perf_counter()
    if sys.argv[2:] == ["repair"]:
        mended(task)
        return
    images, calibration = {"image": task.images[:SEARCH]}, {"image": task.calibration}
    case = assemble(load_model(task.model), images, (), calibration=calibration)
    bar = (MetricLimit("similarity", min=task.bar), similarity)
    top1 = (MetricLimit("accuracy", max_drop=TOP1_DROP), accuracy)
    labels = {"labels": task.labels[:SEARCH], "logits": task.reference[:SEARCH]}
    case = replace(case, metrics=(bar, top1), labels=labels)
    began = time.monotonic()
    found = search(simulator(case, BATCH))
    form = Int8Form(case.network, "", "fp16").under(Plan(dict.fromkeys(found.high, "fp16")))
    engine = OrtEngine(form.model)
    task.evaluations = found.cost
    task.report(
        lambda x: np.asarray(next(iter(engine({"image": x}).values()))),
        "pytest-int8acc minimal",
        found.high,
        time.monotonic() - began,
        candidates=len(case.network.groups),
    )


if __name__ == "__main__":
    main()
