"""ONNX Runtime's own quantizer, as users run it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from benchmarks.regressions.data import samples
from benchmarks.regressions.networks import CALIBRATION, Net
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.tensors import Feed

#: What TensorRT takes.
LEGAL = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "QuantizeBias": False,
    "AddQDQPairToWeight": True,
}
_OPERATORS = ["Conv", "ConvTranspose", "MatMul", "Gemm", "Add"]


class Reader(CalibrationDataReader):
    """Sample by sample."""

    def __init__(self, feed: Feed) -> None:
        self._feeds: Iterator[Feed] = (
            {name: array[i : i + 1] for name, array in feed.items()}
            for i in range(len(next(iter(feed.values()))))
        )

    def get_next(self) -> Feed | None:
        """The next sample, or None."""
        return next(self._feeds, None)


def quantized(net: Net, method: str = "MinMax", activations: str = "QInt8", **options: Any) -> bytes:
    """``quantize_static`` with Q/DQ, weights per channel; ``options`` are its ``extra_options``."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        save_model(net.model, source)
        logging.disable(logging.WARNING)
        try:
            quantize_static(
                source,
                target,
                Reader(samples(net.name, "calibration", CALIBRATION)),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=_OPERATORS,
                per_channel=True,
                activation_type=QuantType[activations],
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod[method],
                extra_options=options,
            )
        finally:
            logging.disable(logging.NOTSET)
        return target.read_bytes()


def dynamically_quantized(net: Net) -> bytes:
    """``quantize_dynamic``: scales at run time, in operators that TensorRT does not have."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        save_model(net.model, source)
        quantize_dynamic(source, target)
        return target.read_bytes()
