"""How much of a model's work INT8 reaches."""

from __future__ import annotations

from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.macs import inferred_shapes, unsized, work
from pytest_int8acc.graph.model import Model
from pytest_int8acc.measure.shapes import tensor_shapes

#: INT8 that does less of the work than this is hardly any.
_LITTLE = 0.05


def int8_share(int8: Int8Form | None, inputs: Dataset, sessions: Sessions) -> float | None:
    """Share of the multiply-accumulates that run in INT8; None without any, or where shapes are not known.

    Shapes are inferred; where that does not tell them all, the model runs once.

    Raises:
        DataError: The inputs cannot be read.
    """
    if int8 is None:
        return None
    try:
        done = _work(int8.network.model, inputs, sessions)
    except (EngineError, KeyError):  # a figure that is not worth a case
        return None
    total = sum(done.values())
    return sum(done[name] for group in int8.network.groups for name in group.nodes) / total if total else None


def little_in_int8(int8: Int8Form | None, share: float | None) -> list[str]:
    """What is said of INT8 that does hardly any of the work; empty where it does enough."""
    if int8 is None or share is None or share >= _LITTLE:
        return []
    groups = len(int8.network.groups)
    return [f"{100 * share:.2g} % of the multiply-accumulates run in INT8, though {groups} groups do"]


def _work(model: Model, inputs: Dataset, sessions: Sessions) -> dict[str, float]:
    """Node to its multiply-accumulates."""
    shapes = inferred_shapes(model, _input_shapes(model, inputs))
    missing = unsized(model, shapes)
    if missing:
        shapes |= tensor_shapes(model, next(inputs.batches()).feed, unsized(model, {}), sessions)
    return work(model, shapes)


def _input_shapes(model: Model, inputs: Dataset) -> dict[str, tuple[int, ...]]:
    """Of one sample, where the model says them; else of the first batch."""
    batched, found = read_layout(model.inputs).batched, dict[str, tuple[int, ...]]()
    for info in model.inputs:
        sizes = [1 if i == 0 and info.name in batched else d for i, d in enumerate(info.shape or (None,))]
        if not all(isinstance(size, int) for size in sizes):
            return {name: array.shape for name, array in next(inputs.batches()).feed.items()}
        found[info.name] = tuple(size for size in sizes if isinstance(size, int))
    return found
