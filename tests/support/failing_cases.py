"""Failing cases as users meet them: each function writes a project and returns its spec."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import body_models
import joined
import numpy as np
import onnx
import yaml
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_static

from benchmarks.faults import outlier_channel
from benchmarks.optimizers import PLANTED
from benchmarks.regressions.chosen import chosen
from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.data import samples
from benchmarks.regressions.entry import write
from benchmarks.regressions.networks import CALIBRATION, LIMITS, VALIDATION, net
from benchmarks.regressions.plant import misscaled
from benchmarks.regressions.quantizer import LEGAL, Reader
from pytest_int8acc.graph.model import Model, save_model, without_extra_outputs

CALIBRATE = {"data": "calibration.npz", "method": "minmax"}
LIMITS_OF_DETECTOR = [{"output": name, **limits} for name, limits in LIMITS["detector"].items()]


def digits(
    folder: Path, network: str, model: Model | None = None, count: int = VALIDATION, **said: Any
) -> Path:
    """A network of benchmarks/models, or ``model`` in its place, with ``count`` digits to compare."""
    save_model(net(network).model if model is None else model, folder / "model.onnx")
    inputs, calibration = samples(network, "validation", count), samples(network, "calibration", CALIBRATION)
    np.savez(folder / "inputs.npz", **inputs)
    np.savez(folder / "calibration.npz", **calibration)
    return spec(folder, inputs="inputs.npz", **said)


def spec(folder: Path, inputs: str, **said: Any) -> Path:
    """A spec of ``model.onnx``."""
    path = folder / "case.int8acc.yaml"
    path.write_text(yaml.safe_dump({"model": "model.onnx", "inputs": inputs, **said}, sort_keys=False))
    return path


def of_corpus(name: str, folder: Path) -> Path:
    """An entry of the corpus."""
    return write(corpus()[name], corpus()[name].plant(), folder)


def weights_per_tensor(folder: Path) -> Path:
    """ONNX Runtime's quantizer on a MobileNet, with one scale for each weight, and 12 samples to compare."""
    model = outlier_channel(
        net("mobilenet").model, "/2/depthwise/conv/Conv", ["/2/project/conv/Conv"], 4, 60.0
    )
    path = digits(
        folder,
        "mobilenet",
        model,
        12,
        int8={"model": "int8.onnx"},
        criteria=[{"output": "logits", "sqnr_db": 20}],
    )
    reader = Reader(samples("mobilenet", "calibration", 32))
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            folder / "model.onnx",
            folder / "int8.onnx",
            reader,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            extra_options=LEGAL,
        )
    finally:
        logging.disable(logging.NOTSET)
    return path


def percentile(folder: Path) -> Path:
    """A detector calibrated by a percentile that cuts off what its classes hang on."""
    calibrate = {"data": "calibration.npz", "method": "percentile", "percentile": 99}
    return digits(folder, "detector", int8={"calibrate": calibrate}, criteria=LIMITS_OF_DETECTOR)


def bf16(folder: Path) -> Path:
    """A model in BF16 whose last layer loses too many digits."""
    return digits(folder, "mlp", candidate="bf16", criteria=[{"output": "logits", "sqnr_db": 50.5}])


def boxes_and_scores(folder: Path) -> Path:
    """An output of boxes in pixels and scores from 0 to 1, with one scale."""
    joined.write(folder, broken=True)
    return spec(folder, "data.npz", baseline="fp32", int8={"model": "int8.onnx"})


def hardly_any_int8(folder: Path) -> Path:
    """A limit that is met with an eighth of the work in INT8 at most."""
    criteria = [{"output": "logits", "sqnr_db": 50}]
    return digits(folder, "cnn", int8={"calibrate": CALIBRATE}, criteria=criteria)


def default_session(folder: Path) -> Path:
    """A wrong scale, in a model that ONNX Runtime does not run by default for its Concat in FP16."""
    return PLANTED["Concat in FP16"].write(folder, faulty=True)


def loop(folder: Path) -> Path:
    """A wrong scale in the body of a Loop."""
    body_models.write(folder, "loop", {"odd": 400})
    return spec(
        folder,
        "data.npz",
        int8={"model": "int8.onnx"},
        criteria=[{"output": "y", "sqnr_db": 20}],
        accept_blind="an untrained network",
    )


def choice(folder: Path) -> Path:
    """A detector that gives the places of its three best cells, by a TopK."""
    path = write(corpus()["chosen_wide"], misscaled(chosen(), {"/heat/heat.1/Conv": 60}), folder)
    save_model(without_extra_outputs(chosen().model), folder / "model.onnx")
    said = yaml.safe_load(path.read_text())
    said["criteria"] = [{"output": "places", "agreement": 0.9}, {"output": "kind", "agreement": 0.95}]
    del said["unjudged"]
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    return path


def behind_softmax(folder: Path) -> Path:
    """64 samples, which cannot decide a limit of 98 %, and a Softmax that hides how noisy the logits are."""
    model = outlier_channel(net("cnn").model, "/3/conv/Conv", ["/4/conv/Conv"], 5, 70.0)
    proto = onnx.ModelProto.FromString(model.serialize())
    proto.graph.node.append(helper.make_node("Softmax", ["logits"], ["probs"], "/Softmax", axis=-1))
    proto.graph.output[0].name = "probs"
    path = digits(
        folder,
        "cnn",
        count=64,
        int8={"calibrate": CALIBRATE},
        criteria=[{"output": "probs", "kl": 0.5, "top1_agreement": 0.98}],
        undecided="fail",
    )
    onnx.save(proto, folder / "model.onnx")
    return path


#: Name of each case to what writes it into a folder.
CASES: Mapping[str, Callable[[Path], Path]] = {
    **{
        name: partial(of_corpus, name)
        for name in (
            "by_hand_cnn_50",
            "wide_resnet_x30",
            "mixed_inception",
            "data_black_cnn",
            "outlier_cnn_x60",
            "accumulated_cnn",
            "weight_dead_mlp_x20",
            "unequal_pair_cnn",
            "data_not_normalized_inception",
            "miscorrected_cnn",
            "fp8_narrow_cnn",
        )
    },
    "weights_per_tensor": weights_per_tensor,
    "percentile": percentile,
    "bf16": bf16,
    "boxes_and_scores": boxes_and_scores,
    "hardly_any_int8": hardly_any_int8,
    "default_session": default_session,
    "loop": loop,
    "choice": choice,
    "behind_softmax": behind_softmax,
    # Refused before anything is compared.
    **{name: partial(of_corpus, name) for name in ("asymmetric_cnn", "fp16_overflow_cnn")},
}
