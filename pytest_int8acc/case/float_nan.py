"""Finds out whether NaN in an output of the baseline comes from FP16 or from the float model itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_int8acc.case.runs import Runs
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.model import Model, giving
from pytest_int8acc.graph.types import inner_types
from pytest_int8acc.results import FloatNan, OutputResult, Role
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.tensors import Array


def find_float_nan(
    model: Model,
    outputs: Sequence[OutputResult],
    runs: Runs,
    inputs: Dataset,
    sessions: Sessions,
    *,
    half: bool,
) -> FloatNan | None:
    """The first output that fails because the baseline holds NaN, and where the NaN comes from.

    Args:
        model: The float model.
        outputs: The judged outputs.
        runs: The runs of the case, which have recorded whether FP32 gave NaN.
        inputs: The samples. The first one runs in FP32 to find the node that gives NaN.
        sessions: Opens the float model.
        half: Whether the baseline computes in FP16.
    """
    name = next((output.output for output in outputs if output.problem and output.nan_share), None)
    if name is None:
        return None
    in_fp32: bool | None = True
    if half:
        in_fp32 = name in runs.bad.nan[Role.FP32] if runs.bad.has_run(Role.FP32) else None
    if in_fp32 is False:
        return FloatNan(name, half, in_fp32)
    try:
        node, op_type = _first_node(model, name, inputs, sessions)
    except EngineError:
        node, op_type = "", ""
    return FloatNan(name, half, True if node else in_fp32, node, op_type)


def _first_node(model: Model, output: str, inputs: Dataset, sessions: Sessions) -> tuple[str, str]:
    """Name and operator of the first node whose output holds NaN, while its computed inputs hold none.

    The model runs on the first sample. Name and operator are empty if the output holds no NaN on this sample,
    or if a model input holds NaN.

    Raises:
        EngineError: The model does not run with all its tensors as outputs.
    """
    engine = sessions.plain(giving(model, inner_types(model)))
    feed = next(inputs.first(1).batches()).feed
    values = engine({i.name: feed[i.name].astype(i.dtype) for i in model.inputs})
    broken = {name for name, array in (feed | values).items() if _holds_nan(array)}
    if output not in broken or broken & feed.keys():
        return "", ""
    for node in model.graph.node:
        if broken.intersection(node.output) and not broken.intersection(node.input):
            return node.name, node.op_type
    return "", ""


def _holds_nan(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())
