"""AIMET's automatic mixed precision on one task; run in an environment with aimet-onnx.

python -m benchmarks.rivals.aimet_amp FOLDER [cle] [adaround | seqmse]

``cle``: cross-layer equalization goes before it, with its absorption of high biases, the only correction
of biases that aimet-onnx has. ``adaround``, ``seqmse``: weights are rounded, or their scales chosen, for the
least error of each layer. Mixed precision only where these do not meet the bar.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import aimet_onnx
import numpy as np
import onnx
import onnxruntime
from aimet_onnx import apply_adaround, apply_seq_mse
from aimet_onnx.common.defs import CallbackFunc, QuantizationDataType
from aimet_onnx.common.utils import AimetLogger
from aimet_onnx.cross_layer_equalization import equalize_model
from aimet_onnx.mixed_precision import choose_mixed_precision
from aimet_onnx.quantsim import QuantizationSimModel

from benchmarks.rivals.bar import BATCH, SEARCH, Floats, Task

#: Of AdaRound, for each layer; its default is 10,000, which takes forty times as long.
ITERATIONS = 250
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


def simulation(task: Task, means: Collection[str]) -> tuple[QuantizationSimModel, Callable[..., None]]:
    """The model in INT8 with scales by min-max, refined by ``means``, and what calibrates it."""
    model = onnx.load(task.model)
    if "cle" in means:
        equalize_model(model)
    sim = QuantizationSimModel(
        model,
        quant_scheme="min_max",
        config_file="default",
        dummy_input={"image": task.calibration[:BATCH]},
    )

    starts = range(0, len(task.calibration), BATCH)
    batches = [{"image": task.calibration[start : start + BATCH]} for start in starts]

    def calibrate(session: onnxruntime.InferenceSession, _: object = None) -> None:
        for batch in batches:
            session.run(None, batch)

    sim.compute_encodings(calibrate, None)
    if "adaround" in means:
        apply_adaround(sim, batches, ITERATIONS)
        sim.compute_encodings(calibrate, None)
    elif "seqmse" in means:
        apply_seq_mse(sim, batches)
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
    means = sys.argv[2:]
    sim, calibrate = simulation(task, means)
    score = CallbackFunc(lambda session, _: task.score(task.evaluate(logits(session))))
    candidates = [(_INT8, _INT8), (_FP16, _FP16)]
    results = str(task.folder / "amp")
    began = time.perf_counter()
    if not task.passes(task.evaluate(logits(sim.session)), list(range(SEARCH))):
        drop = 1 - task.bar
        choose_mixed_precision(sim, candidates, score, score, drop, results, True, CallbackFunc(calibrate))
    seconds = time.perf_counter() - began
    quantized, kept = kept_high(sim, onnx.load(task.model))
    tool = f"AIMET {aimet_onnx.__version__} {' '.join([*means, 'amp'])}"
    task.report(logits(sim.session), tool, kept, seconds, candidates=len(quantized))


if __name__ == "__main__":
    main()
