"""A project with a small network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from zoo import ZOO, sample_feed

from pytest_int8acc.check import check
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec


class Project:
    """A folder with a model, its data and a spec."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model(self, name: str = "residual", file: str = "model.onnx") -> onnx.ModelProto:
        proto = ZOO[name]()
        onnx.save(proto, self.folder / file)
        return proto

    def data(self, proto: onnx.ModelProto, runs: int = 6, file: str = "data.npz") -> None:
        feeds = [sample_feed(proto, seed, 2) for seed in range(runs)]
        np.savez(self.folder / file, **{k: np.concatenate([f[k] for f in feeds]) for k in feeds[0]})

    def check(self, spec: str, settings: Settings | None = None) -> CaseResult:
        path = self.folder / "case.int8acc.yaml"
        path.write_text("model: model.onnx\ninputs: data.npz\n" + spec)
        (case,) = load_spec(path)
        return check(case, settings or Settings())


CALIBRATED = "int8: {calibrate: {method: minmax}}\n"
