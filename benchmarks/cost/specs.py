"""Cases of the benchmarks written as users' folders: a model, arrays, a spec."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.case import BATCH, Case
from benchmarks.cost.process import plain
from benchmarks.rivals.bar import BATCH as RIVAL_BATCH
from benchmarks.rivals.bar import COSINE, SEARCH, TOP1_DROP, Task
from benchmarks.rivals.tasks import write as write_task
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.data import open_dataset
from pytest_int8acc.graph.emulate import emulate_half
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.observers.methods import calibrate
from pytest_int8acc.observers.scales import Scales
from pytest_int8acc.spec.int8 import CalibrationMethod
from pytest_int8acc.tensors import Feed

_TOP1 = '''def top1(outputs, labels):
    """Share of images whose greatest logit is the label's."""
    return float((outputs["logits"].argmax(1) == labels).mean())
'''


@dataclass(frozen=True)
class Written:
    """A case as files."""

    spec: Path
    batch: int

    @property
    def folder(self) -> Path:
        """Where all lies; ``model.onnx`` and ``data.npz`` among it."""
        return self.spec.parent

    def plain_pass(self) -> float:
        """u: CPU seconds of one plain FP32 pass over all samples."""
        return plain("pass", self.folder / "model.onnx", self.folder / "data.npz", self.batch)

    def by_hand(self) -> float:
        """CPU seconds of the two forms loaded, run and compared, of a case by ``write_large``."""
        forms = [self.folder / name for name in ("baseline.onnx", "int8.onnx")]
        return plain("compare", *forms, self.folder / "data.npz", self.batch)

    def activations(self) -> tuple[str, ...]:
        """The tensors that calibration finds a range for."""
        return tuple(find_groups(load_model(self.folder / "model.onnx")).activations)

    def calibrate(self, method: CalibrationMethod) -> tuple[Scales, float]:
        """Scales from the case's own samples, and the CPU seconds of finding them."""
        model, tensors = load_model(self.folder / "model.onnx"), self.activations()
        opened = open_dataset("data.npz", model.inputs, base=self.folder, batch=self.batch)
        began = time.process_time()
        scales = calibrate(model, tensors, opened, method=method)
        return scales, time.process_time() - began


def write(
    folder: Path,
    model: Model | Path,
    data: Feed,
    int8: Mapping[str, Any],
    criteria: list[dict[str, Any]],
    batch: int = BATCH,
) -> Written:
    """A case of these; ``model`` may be a file that is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, Path):
        (folder / "model.onnx").write_bytes(model.read_bytes())
    else:
        save_model(model, folder / "model.onnx")
    np.savez(folder / "data.npz", **data)
    text = {"model": "model.onnx", "inputs": "data.npz", "batch": batch, "int8": dict(int8)}
    spec = folder / f"{folder.name}.int8acc.yaml"
    text |= {"criteria": criteria} if criteria else {}
    text["accept_blind"] = "random inputs"
    spec.write_text(yaml.safe_dump(text, sort_keys=False))
    return Written(spec, batch)


def write_case(case: Case, folder: Path) -> Written:
    """A case of the search suite, what is planted in it as a Q/DQ model."""
    folder.mkdir(parents=True)
    save_model(apply(case.network), folder / "int8.onnx")
    criteria = [{"output": limit.output, **limit.limits} for limit in case.limits]
    return write(folder, case.network.model, case.data, {"model": "int8.onnx"}, criteria)


def write_large(model: Model, folder: Path, batch: int = 8) -> Written:
    """A case that passes on 16 smooth images, its ranges from a file, and its two forms as they run."""
    (image,), rng = model.inputs, np.random.default_rng(0)
    shape = (16, *image.shape[1:])
    coarse = rng.standard_normal((*shape[:2], shape[2] // 8, shape[3] // 8))
    smooth = np.kron(coarse, np.ones((1, 1, 8, 8))) + 0.3 * rng.standard_normal(shape)
    data = {image.name: smooth.astype(np.float32)}
    written = write(folder, model, data, {"scales": "ranges.json"}, [{"sqnr_db": 10}], batch)
    scales = written.calibrate("minmax")[0].values
    ranges = {tensor: [-127 * scale, 127 * scale] for tensor, scale in scales.items()}
    (folder / "ranges.json").write_text(json.dumps(ranges))
    network = quantize(model, find_groups(model), scales)
    int8 = Int8Form(network, "", "fp16").under().model
    for name, form in (("baseline", to_fp16(model).model), ("int8", int8)):
        save_model(emulate_half(form), folder / f"{name}.onnx")
    return written


def write_rival(name: str, folder: Path) -> Written:
    """A task of the rivals as a case with the same images and bar."""
    rival = folder / "task" / name
    rival.mkdir(parents=True)
    write_task(name, rival)
    task = Task.load(rival)
    ours = folder / name
    ours.mkdir()
    np.savez(ours / "calibration.npz", image=task.calibration)
    np.save(ours / "labels.npy", task.labels[:SEARCH])
    (ours / "metrics.py").write_text(_TOP1)
    int8 = {"calibrate": {"data": "calibration.npz", "method": "minmax"}}
    criteria = [{"output": "logits", "cosine": COSINE}, {"metric": "metrics.py:top1", "max_drop": TOP1_DROP}]
    written = write(ours, task.model, {"image": task.images[:SEARCH]}, int8, criteria, RIVAL_BATCH)
    text = yaml.safe_load(written.spec.read_text()) | {"labels": "labels.npy"}
    written.spec.write_text(yaml.safe_dump(text, sort_keys=False))
    return written
