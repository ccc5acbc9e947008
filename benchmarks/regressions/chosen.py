"""A detector that chooses places and classes inside the graph, judged by the tensors that it chooses by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.faults import outlier_channel
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.networks import Net, calibrated, net
from benchmarks.regressions.plant import from_qdq, from_scales, misscaled
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model, with_extra_outputs

_KIND = "chosen inside the graph"
_HEAT = "/heat/heat.1/Conv"


def entries() -> Iterator[Entry]:
    """All of this module."""
    yield Entry("chosen_wide", _KIND, "detector", partial(_misscaled, {_HEAT: 60}))
    yield Entry("chosen_narrow", _KIND, "detector", partial(_misscaled, {"/boxes/boxes.2/Gemm": 1 / 12}))
    yield Entry("chosen_outlier", _KIND, "detector", _outlier)
    yield Entry("healthy_chosen", "healthy", "detector", _healthy)


@cache
def chosen() -> Net:
    """The detector, which gives its three best places and its class alone."""
    known = net("detector")
    return replace(known, model=_with_tail(known.model))


def _with_tail(model: Model) -> Model:
    proto = onnx.ModelProto.FromString(model.serialize())
    graph = proto.graph
    heads = dict.fromkeys((output.name for output in graph.output), TensorProto.FLOAT)
    for name, values in (("count", [3]), ("all_places", [0, -1])):
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    graph.node.extend(
        [
            helper.make_node("Reshape", ["heat", "all_places"], ["cells"], "/choose/Reshape"),
            helper.make_node("TopK", ["cells", "count"], ["peaks", "places"], "/choose/TopK"),
            helper.make_node("ArgMax", ["class"], ["kind"], "/choose/ArgMax", axis=1, keepdims=0),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("places", TensorProto.INT64, ["batch", 3]))
    graph.output.append(helper.make_tensor_value_info("kind", TensorProto.INT64, ["batch"]))
    return with_extra_outputs(normalize(make_model(proto)), heads)


def _misscaled(factors: dict[str, float]) -> Planted:
    return misscaled(chosen(), factors)


def _outlier() -> Planted:
    """A channel that sticks out, calibrated honestly."""
    model = outlier_channel(chosen().model, "/heat/heat.0/conv/Conv", [_HEAT], 6, 100)
    known = calibrated("detector", model)
    return from_scales(known, known.scales, Truth(causes={_HEAT: frozenset({"activation-outliers"})}))


def _healthy() -> Planted:
    return from_qdq(chosen(), chosen().network(), Truth("healthy", int8_fix=None))
