"""Models of the zoo as ONNX Runtime's quantize_static writes them."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxruntime.quantization import QuantFormat, quantize_static
from zoo import ZOO, sample_feed

#: Its options for TensorRT.
TENSORRT = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
TENSORRT["AddQDQPairToWeight"] = True


def by_onnxruntime(name: str, folder: Path, **options: object) -> Path:
    """The file of a model in Q/DQ form, calibrated on four feeds."""
    proto = ZOO[name]()
    onnx.save(proto, folder / "float.onnx")
    feeds = iter([sample_feed(proto, seed, 2) for seed in range(4)])
    reader = type("Reader", (), {"get_next": lambda self: next(feeds, None)})()
    paths = folder / "float.onnx", folder / "qdq.onnx"
    quantize_static(*paths, reader, quant_format=QuantFormat.QDQ, **options)
    return paths[1]
