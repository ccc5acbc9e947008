"""Cases in FP16 and BF16, with or without a planted fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.half.networks import build, inputs
from benchmarks.half.parts import FAULTS, HEALTHY
from pytest_int8acc.graph.model import save_model


def put(folder: Path, part: str, low: str, more: str = "", limit: float = 30.0) -> str:
    """A case of the mlp with a part of ``benchmarks/half``, and ``more`` in its spec; its output's name."""
    model = build("mlp", {**FAULTS, **HEALTHY}[part])
    save_model(model, folder / "model.onnx")
    np.savez(folder / "data.npz", x=inputs("mlp"))
    text = (
        f"model: model.onnx\ninputs: data.npz\ncandidate: {low}\ncriteria:\n  - {{sqnr_db: {limit}}}\n{more}"
    )
    (folder / "case.int8acc.yaml").write_text(text)
    return model.outputs[0].name
