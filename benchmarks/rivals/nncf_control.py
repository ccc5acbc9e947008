"""NNCF's quantize_with_accuracy_control on one task; run in an environment with nncf and onnxruntime.

python -m benchmarks.rivals.nncf_control FOLDER [transformer] [bias]

With ``transformer`` NNCF also applies SmoothQuant, which moves outliers into the weights; with ``bias`` it
corrects biases layer after layer, in place of its fast way. It aligns channels in OpenVINO's models only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import nncf
import numpy as np
import onnx
import onnxruntime

from benchmarks.rivals.bar import SEARCH, Floats, Task, cosines

_WEIGHTED = ("Conv", "Gemm", "MatMul")
_MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "MaxPool")


def in_int8(model: onnx.ModelProto) -> set[str]:
    """Weighted layers whose first two inputs come from DequantizeLinear, through nodes that move values."""
    producer = {name: node for node in model.graph.node for name in node.output}

    def quantized(tensor: str) -> bool:
        while tensor in producer and producer[tensor].op_type in _MOVING:
            tensor = producer[tensor].input[0]
        return tensor in producer and producer[tensor].op_type == "DequantizeLinear"

    layers = (node for node in model.graph.node if node.op_type in _WEIGHTED)
    return {node.name for node in layers if all(map(quantized, node.input[:2]))}


def one_thread() -> None:
    """Give every session of this process one thread, NNCF's own, too."""
    session = onnxruntime.InferenceSession

    def opened(model: bytes, options: onnxruntime.SessionOptions, **more: object) -> object:
        options.intra_op_num_threads = 1
        return session(model, options, **more)

    onnxruntime.InferenceSession = opened


def main() -> None:
    """Quantize with accuracy control and report what was kept."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        one_thread()
    task = Task.load(Path(sys.argv[1]))
    model = onnx.load(task.model)
    calibration = nncf.Dataset(list(task.calibration), lambda image: {"image": image[None]})
    validation = nncf.Dataset(range(SEARCH))
    began: list[float] = []

    def validate(candidate: onnx.ModelProto, items: Iterable[int]) -> tuple[float, list[float]]:
        began.append(time.perf_counter())
        chosen = list(items)
        logits = task.evaluate(runner(candidate), chosen)
        each = cosines(task.reference[chosen], logits)
        return float(task.score(logits, chosen)), [float(value) for value in each]

    means = sys.argv[2:]
    options = {"model_type": nncf.ModelType.TRANSFORMER} if "transformer" in means else {}
    options["fast_bias_correction"] = "bias" not in means
    plain = in_int8(nncf.quantize(model, calibration, **options))
    task.began = time.perf_counter()
    result = nncf.quantize_with_accuracy_control(
        model,
        calibration,
        validation,
        validate,
        max_drop=1 - task.bar,
        drop_type=nncf.DropType.ABSOLUTE,
        **options,
    )
    seconds = time.perf_counter() - began[0]
    kept = plain - in_int8(result)
    tool = f"NNCF {nncf.__version__} {' '.join([*means, 'accuracy control'])}"
    task.report(runner(result), tool, kept, seconds, candidates=len(plain))


def runner(model: onnx.ModelProto) -> Callable[[Floats], Floats]:
    """Images to logits, Q/DQ as they stand, since fused INT8 saturates on CPUs without VNNI."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda images: np.asarray(session.run(None, {"image": images})[0])


if __name__ == "__main__":
    main()
