"""Digits with a planted fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from zoo import ZOO, sample_feed

from pytest_int8acc import Settings, load_spec
from pytest_int8acc.case.measured import measure

CRITERIA = "criteria: [{sqnr_db: %g}]\n"


def faulty(folder: Path, name: str, factor: float, count: int, limit: float, extra: str = "") -> Any:
    """A case of a zoo model whose ranges are exact but for ``count``, which are ``factor`` times too wide."""
    proto = ZOO[name]()
    onnx.save(proto, folder / "model.onnx")
    feeds = [sample_feed(proto, seed, 2) for seed in range(20)]
    np.savez(folder / "data.npz", **{k: np.concatenate([f[k] for f in feeds]) for k in feeds[0]})
    path = folder / "case.int8acc.yaml"
    head = "model: model.onnx\ninputs: data.npz\n"
    path.write_text(head + "int8: {calibrate: {method: minmax}}\n" + CRITERIA % limit)
    network = measure(load_spec(path)[0], Settings()).int8.network
    scales = {
        e.tensor: float(e.quantization.scale)
        for g in network.groups
        for e in g.edges
        if e.quantization.values is None
    }
    wide = sorted(scales)[:count]
    ranges = {tensor: scale * 127 * (factor if tensor in wide else 1) for tensor, scale in scales.items()}
    (folder / "ranges.json").write_text(json.dumps(ranges))
    path.write_text(head + "int8: {scales: ranges.json}\n" + CRITERIA % limit + extra)
    return measure(load_spec(path)[0], Settings())
