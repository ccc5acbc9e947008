"""The corpus's networks: trained weights, samples, honest scales, and what their outputs must keep."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.case import dataset
from benchmarks.regressions.data import MODELS, samples
from pytest_int8acc.graph.formats import FP8, INT8, Format
from pytest_int8acc.graph.layout import Layout, find_groups, quantize
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.opsets import QDQ_OPSET, raise_opset
from pytest_int8acc.observers.methods import calibrate
from pytest_int8acc.spec.int8 import CalibrationMethod
from pytest_int8acc.tensors import Feed

#: Samples that scales come from, and samples that are compared.
CALIBRATION, VALIDATION = 128, 128
BATCH = 64
#: Network to the limits of its outputs: 4 to 10 dB below what INT8 reaches with honest scales.
LIMITS: dict[str, dict[str, dict[str, float]]] = {
    "cnn": {"logits": {"cosine": 0.9995, "top1_agreement": 0.98}},
    "resnet": {"logits": {"cosine": 0.999, "top1_agreement": 0.98}},
    "mobilenet": {"logits": {"sqnr_db": 25.0, "top1_agreement": 0.97}},
    "vit": {"logits": {"cosine": 0.998, "top1_agreement": 0.97}},
    "mlp": {"logits": {"sqnr_db": 27.0}},
    "mixer": {"logits": {"cosine": 0.996}},
    "tcn": {"logits": {"cosine": 0.999, "top1_agreement": 0.98}},
    "inception": {"logits": {"sqnr_db": 26.0, "top1_agreement": 0.98}},
    "unet": {"clean": {"psnr_db": 38.0, "mean_abs": 0.01}},
    "detector": {
        "class": {"cosine": 0.998, "top1_agreement": 0.97},
        "box": {"mean_abs": 0.012},
        "heat": {"sqnr_db": 30.0},
    },
    "encoder": {"logits": {"cosine": 0.997, "top1_agreement": 0.9}},
    "decoder": {"logits": {"sqnr_db": 24.0}},
    "recognizer": {"logits": {"sqnr_db": 27.0, "top1_agreement": 0.98}},
    "swin": {"logits": {"cosine": 0.998, "top1_agreement": 0.97}},
    "efficient": {"logits": {"sqnr_db": 22.0, "top1_agreement": 0.94}},
    "convnext": {"logits": {"sqnr_db": 26.0, "top1_agreement": 0.97}},
}
#: The same for FP8: 4 to 5 dB below what it reaches.
FP8_LIMITS: dict[str, dict[str, dict[str, float]]] = {
    "cnn": {"logits": {"sqnr_db": 23.0}},
    "resnet": {"logits": {"sqnr_db": 20.0}},
    "mobilenet": {"logits": {"sqnr_db": 17.0}},
    "vit": {"logits": {"sqnr_db": 19.0}},
    "mlp": {"logits": {"sqnr_db": 21.0}},
    "mixer": {"logits": {"sqnr_db": 16.0}},
    "tcn": {"logits": {"sqnr_db": 19.0}},
    "inception": {"logits": {"sqnr_db": 19.0}},
    "unet": {"clean": {"sqnr_db": 25.0}},
    "detector": {"class": {"sqnr_db": 20.0}, "box": {"sqnr_db": 30.0}, "heat": {"sqnr_db": 30.0}},
}


@dataclass(frozen=True, eq=False)
class Net:
    """A network before anything is planted."""

    name: str
    model: Model
    layout: Layout
    scales: Mapping[str, float]
    """Of minmax over the calibration samples."""
    low: Format = INT8

    @property
    def limits(self) -> Mapping[str, Mapping[str, float]]:
        """Output to metric to limit."""
        return (LIMITS if self.low is INT8 else FP8_LIMITS)[self.name]

    @property
    def groups(self) -> tuple[str, ...]:
        """All groups in topological order."""
        return tuple(self.layout.slots)

    @property
    def weighted(self) -> tuple[str, ...]:
        """Groups with a constant weight."""
        return tuple(name for name, slots in self.layout.slots.items() if any(s.constant for s in slots))

    def network(self, scales: Mapping[str, float] | None = None) -> Network:
        """Quantized with ``scales``, honest ones by default."""
        return quantize(self.model, self.layout, self.scales if scales is None else scales, self.low)


@cache
def net(name: str, low: Format = INT8) -> Net:
    """One of ``LIMITS``."""
    model = load_model(MODELS / f"{name}.onnx")
    if low is FP8:
        model = normalize(raise_opset(model, QDQ_OPSET))
    return calibrated(name, model, low=low)


def calibrated(
    name: str,
    model: Model,
    feed: Feed | None = None,
    method: CalibrationMethod = "minmax",
    low: Format = INT8,
) -> Net:
    """``model``, a form of network ``name``, with scales of its own."""
    layout = find_groups(model, low=low)
    feed = feed or samples(name, "calibration", CALIBRATION)
    return Net(name, model, layout, scales_of(model, layout, feed, method, low), low)


def scales_of(
    model: Model,
    layout: Layout,
    feed: Feed,
    method: CalibrationMethod = "minmax",
    low: Format = INT8,
) -> dict[str, float]:
    """Scales by calibration."""
    with tempfile.TemporaryDirectory() as folder:
        opened = dataset(model, feed, Path(folder), BATCH)
        return dict(calibrate(model, layout.activations, opened, method=method, low=low).values)
