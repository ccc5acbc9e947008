"""AIMET's automatic mixed precision on one task; run in an environment with aimet-onnx.

python -m benchmarks.rivals.aimet_amp FOLDER
"""

from __future__ import annotations

import sys
import time
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


def main() -> None:
    """Search with AMP, INT8 or FP16 per group of quantizers, and report what was kept."""
    AimetLogger.set_level_for_all_areas(30)
    task = Task.load(Path(sys.argv[1]))
    model = onnx.load(task.model)
    task.began = time.perf_counter()
    sim = QuantizationSimModel(
        onnx.load(task.model), quant_scheme="min_max", config_file="default",
        dummy_input={"image": task.calibration[:BATCH]},
    )  # fmt: skip

    def run(session: onnxruntime.InferenceSession) -> Floats:
        return task.evaluate(lambda x: np.asarray(session.run(None, {"image": x})[0]))

    def calibrate(session: onnxruntime.InferenceSession, _: object = None) -> None:
        for start in range(0, len(task.calibration), BATCH):
            session.run(None, {"image": task.calibration[start : start + BATCH]})

    sim.compute_encodings(calibrate, None)
    score = CallbackFunc(lambda session, _: float(task.score(run(session))))
    began = time.perf_counter()
    choose_mixed_precision(
        sim,
        [(_INT8, _INT8), (_FP16, _FP16)],
        score,
        score,
        1 - COSINE,
        str(task.folder / "amp"),
        True,
        CallbackFunc(calibrate),
    )
    seconds = time.perf_counter() - began
    quantized, kept = kept_high(sim, model)
    session = sim.session
    task.report(
        lambda x: np.asarray(session.run(None, {"image": x})[0]),
        f"AIMET {aimet_onnx.__version__} AMP",
        kept,
        seconds,
        candidates=len(quantized),
    )


if __name__ == "__main__":
    main()
