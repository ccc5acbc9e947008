"""Three trained networks with three or four culprits each, planted in the model so that all tools meet them.

Two more have none, and a bar that the noise of all layers misses.

One channel between two layers is made a hundred times larger and divided again by its reader: the function
stays, but the reader's input has no INT8 scale that suits all of its channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.faults import outlier_channel
from benchmarks.nets import MODELS, trained
from benchmarks.rivals.bar import COSINE
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.runtime.onnxruntime import OrtEngine

FACTOR = 100.0
#: Network to the layers that read an outlier channel, each with the layer that writes it.
CULPRITS: Mapping[str, Mapping[str, str]] = {
    "cnn": {f"/{i + 1}/conv/Conv": f"/{i}/conv/Conv" for i in (2, 5, 7)},
    "mobilenet": {f"/{i}/project/conv/Conv": f"/{i}/depthwise/conv/Conv" for i in (1, 3, 4, 6)},
    "vit": {
        f"/blocks/blocks.{i}/fc1/MatMul": f"/blocks/blocks.{i}/norm2/LayerNormalization" for i in (0, 1, 2)
    },
}
#: Task of a network without culprits to its bar, the mean cosine.
NOISE: Mapping[str, float] = {"mobilenet_noise": 0.9999, "vit_noise": 0.9999}


def write(name: str, folder: Path) -> None:
    """Write a task's model, its data, its own logits and its bar to ``folder``."""
    model = trained(name.removesuffix("_noise"))
    for channel, (reader, writer) in enumerate(CULPRITS.get(name, {}).items()):
        model = outlier_channel(model, writer, [reader], 2 * channel + 1, FACTOR)
    save_model(model, folder / "model.onnx")
    with np.load(MODELS / "digits.npz") as data:
        images = {part: data[part].astype(np.float32) / 16 for part in ("validation", "calibration")}
        labels = data["labels"]
    (logits,) = OrtEngine(model)({"image": images["validation"]}).values()
    np.savez(
        folder / "data.npz",
        images=images["validation"],
        calibration=images["calibration"],
        labels=labels,
        reference=logits,
        bar=NOISE.get(name, COSINE),
    )
