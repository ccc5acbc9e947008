"""AIMET's automatic mixed precision on one task; run in an environment with aimet-onnx.

python -m benchmarks.rivals.aimet_amp FOLDER
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import aimet_onnx
import numpy as np
import onnx
import onnxruntime
from aimet_onnx.common.defs import CallbackFunc, QuantizationDataType
from aimet_onnx.common.utils import AimetLogger
from aimet_onnx.mixed_precision import choose_mixed_precision
from aimet_onnx.quantsim import QuantizationSimModel

from benchmarks.rivals.bar import BATCH, COSINE, Floats, Task

_INT8 = (8, QuantizationDataType.int)
_FP16 = (16, QuantizationDataType.float)


def kept_high(sim: QuantizationSimModel, model: onnx.ModelProto) -> tuple[set[str], set[str]]:
    """Weighted layers that were to be quantized, and those of them that left INT8."""
    quantizers = {name: q for name, q in sim.qc_quantize_op_dict.items() if q.enabled}
    quantized, kept = set(), set()
    for node in model.graph.node:
        inputs = [quantizers[name] for name in node.input[:2] if name in quantizers]
        if node.op_type in ("Conv", "Gemm", "MatMul") and inputs:
            quantized.add(node.name)
            if any(q.data_type == QuantizationDataType.float or q.bitwidth > 8 for q in inputs):
                kept.add(node.name)
    return quantized, kept


def simulation(task: Task) -> tuple[QuantizationSimModel, Callable[..., None]]:
    """The model in INT8 with scales by min-max, and what calibrates it."""
    sim = QuantizationSimModel(
        onnx.load(task.model),
        quant_scheme="min_max",
        config_file="default",
        dummy_input={"image": task.calibration[:BATCH]},
    )

    def calibrate(session: onnxruntime.InferenceSession, _: object = None) -> None:
        for start in range(0, len(task.calibration), BATCH):
            session.run(None, {"image": task.calibration[start : start + BATCH]})

    sim.compute_encodings(calibrate, None)
    return sim, calibrate


def logits(session: onnxruntime.InferenceSession) -> Callable[[Floats], Floats]:
    """Images to logits."""
    return lambda images: np.asarray(session.run(None, {"image": images})[0])


def main() -> None:
    """Search with AMP, INT8 or FP16 per group of quantizers, and report what was kept."""
    AimetLogger.set_level_for_all_areas(logging.WARNING)
    task = Task.load(Path(sys.argv[1]))
    task.began = time.perf_counter()
    sim, calibrate = simulation(task)
    score = CallbackFunc(lambda session, _: task.score(task.evaluate(logits(session))))
    candidates = [(_INT8, _INT8), (_FP16, _FP16)]
    results = str(task.folder / "amp")
    began = time.perf_counter()
    choose_mixed_precision(sim, candidates, score, score, 1 - COSINE, results, True, CallbackFunc(calibrate))
    seconds = time.perf_counter() - began
    quantized, kept = kept_high(sim, onnx.load(task.model))
    tool = f"AIMET {aimet_onnx.__version__} AMP"
    task.report(logits(sim.session), tool, kept, seconds, candidates=len(quantized))


if __name__ == "__main__":
    main()
