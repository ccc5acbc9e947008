"""What is true of an entry, found without the plugin's check, metrics and search.

Outputs come from a plain session of ONNX Runtime that leaves Q/DQ unfused, and from numpy formulas. Nothing
of the plugin is imported, so that the module also runs in the environments of other tools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime

if TYPE_CHECKING:
    from pytest_int8acc.graph.model import Model
    from pytest_int8acc.tensors import Array, Feed

Limits = Mapping[str, Mapping[str, float]]
#: Metrics of which less is better.
_ERRORS = frozenset({"mean_abs", "max_abs"})

#: They drop what stands before a QuantizeLinear of FP8.
_WRONG = ["ReluQuantRewrite", "ClipQuantRewrite"]


def run(model: Model | bytes, feed: Feed) -> Feed:
    """All samples at once."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = model if isinstance(model, bytes) else model.serialize()
    session = onnxruntime.InferenceSession(
        data, options, providers=["CPUExecutionProvider"], disabled_optimizers=_WRONG
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def values(model: Model, feed: Feed) -> Feed:
    """Every tensor on all samples, the inputs too."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.edit().done().proto)
    own = {output.name for output in proto.graph.output}
    made = [name for node in proto.graph.node for name in node.output if name and name not in own]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    return {**run(replace(model, proto=proto), feed), **feed}


def scores(baseline: Feed, candidate: Feed, limits: Limits) -> dict[tuple[str, str], float]:
    """(Output, metric) to value."""
    return {
        (output, metric): _METRICS[metric](
            baseline[output].astype(np.float64), candidate[output].astype(np.float64)
        )
        for output, wanted in limits.items()
        for metric in wanted
    }


def margin(found: Mapping[tuple[str, str], float], limits: Limits) -> float:
    """How far the worst criterion lies inside its limit, in dB of its error; negative where it is missed.

    The error of a cosine or an agreement is its distance from 1; nan counts as minus infinity.
    """
    return min(
        (
            _decibels(metric, found[output, metric], limit)
            for output, wanted in limits.items()
            for metric, limit in wanted.items()
        ),
        default=math.inf,
    )


def _decibels(metric: str, value: float, limit: float) -> float:
    if math.isnan(value):
        return -math.inf
    if metric.endswith("_db"):
        return value - limit
    error, allowed = (value, limit) if metric in _ERRORS else (1 - value, 1 - limit)
    if error <= 0:
        return math.inf
    return (20 if metric in _ERRORS else 10) * math.log10(allowed / error)


def _cosine(b: Array, c: Array) -> float:
    norm = float(np.linalg.norm(b) * np.linalg.norm(c))
    return float((b * c).sum()) / norm if norm else math.nan


def _sqnr(b: Array, c: Array) -> float:
    return _ratio(float((b**2).sum()), float(((b - c) ** 2).sum()))


def _psnr(b: Array, c: Array) -> float:
    return _ratio(float(np.abs(b).max() ** 2), float(((b - c) ** 2).mean()))


def _ratio(signal: float, noise: float) -> float:
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf


def _top1(b: Array, c: Array) -> float:
    return float((b.argmax(-1) == c.argmax(-1)).mean())


_METRICS = {
    "cosine": _cosine,
    "sqnr_db": _sqnr,
    "psnr_db": _psnr,
    "top1_agreement": _top1,
    "mean_abs": lambda b, c: float(np.abs(b - c).mean()),
    "max_abs": lambda b, c: float(np.abs(b - c).max()),
}
