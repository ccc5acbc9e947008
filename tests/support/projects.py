"""A project with a small network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from written_networks import network
from zoo import ZOO, sample_feed

from pytest_int8acc import Case, CaseResult, Settings, load_spec
from pytest_int8acc.api import check


class Project:
    """A folder with a model, its data and a spec."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model(self, name: str = "residual", file: str = "model.onnx") -> onnx.ModelProto:
        proto = ZOO[name]()
        onnx.save(proto, self.folder / file)
        return proto

    def norm(self, samples: int, *, size: float = 1.0) -> np.ndarray:
        """Write a model that divides by the root of a mean of squares, as norms do; gives inputs for it.

        With a ``size`` of 1000 its squares overflow in FP16.
        """
        proto = network(
            """g (float[n, 8] x) => (float[n, 4] y) {
                h = MatMul(x, w)
                squares = Mul(h, h)
                mean = ReduceMean<axes=[1], keepdims=1>(squares)
                root = Sqrt(mean)
                normed = Div(h, root)
                y = MatMul(normed, v)
            }""",
            {"w": {"shape": [8, 16], "times": 3 * size}, "v": {"shape": [16, 4], "times": 1.5}},
            named=False,
        )
        onnx.save(proto, self.folder / "model.onnx")
        return np.random.default_rng(1).normal(size=(samples, 8)).astype(np.float32)

    def data(self, proto: onnx.ModelProto, runs: int = 6, file: str = "data.npz") -> None:
        feeds = [sample_feed(proto, seed, 2) for seed in range(runs)]
        np.savez(self.folder / file, **{k: np.concatenate([f[k] for f in feeds]) for k in feeds[0]})

    def case(self, spec: str) -> Case:
        path = self.folder / "case.int8acc.yaml"
        accepted = "accept_blind: untrained networks give nearly the same for all samples\n"
        path.write_text("model: model.onnx\ninputs: data.npz\n" + spec.rstrip("\n") + "\n" + accepted)
        (case,) = load_spec(path)
        return case

    def check(self, spec: str, settings: Settings | None = None) -> CaseResult:
        return check(self.case(spec), settings or Settings())


CALIBRATED = "int8: {calibrate: {method: minmax}}\n"
