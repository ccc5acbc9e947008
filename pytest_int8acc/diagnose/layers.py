"""The error of every group's output: with all of INT8, and with that group alone in INT8.

The first is what arrives there, the second what is made there. Two models give both, each in one run: one
with all in INT8, and one with nothing in INT8 that holds each group once more in INT8 (see graph/alone.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import helper

from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.data.dataset import real_rows
from pytest_int8acc.engines.onnxruntime import CPU, OrtEngine, Sessions
from pytest_int8acc.graph.alone import beside
from pytest_int8acc.graph.fp16_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.network import Group, Network, Precision
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.types import FLOAT, value_types
from pytest_int8acc.lab.sweep import FirstSamples
from pytest_int8acc.results import LayerError
from pytest_int8acc.scores.metrics import METRICS, Pair
from pytest_int8acc.tensors import Array

logger = logging.getLogger("pytest_int8acc")
#: Errors of whole tensors are steady on few samples, and the tensors are kept.
SAMPLES = 8


def layer_errors(
    network: Network,
    inputs: Dataset,
    rest: Precision = "fp16",
    sessions: Sessions = CPU,
    *,
    samples: int = SAMPLES,
) -> tuple[LayerError, ...]:
    """The error of each group's output against the network with nothing in INT8, in the groups' order.

    A group's output is the first output of its last node: of a weighted node before its activation function,
    and before a BatchNormalization or an Add that an engine fuses with it.

    Args:
        network: The INT8 side of the case, no plan applied.
        inputs: What the case is judged on.
        rest: What runs beside INT8, and what errors are measured against.
        sessions: Where it runs.
        samples: How many of the inputs are run, a whole batch at least where the model fixes it.

    Raises:
        EngineError: A model does not run.
        DataError: The inputs cannot be read.
    """
    seen = emulate_network(network_to_fp16(network)) if rest == "fp16" else network
    watched = outputs_of_groups(seen)
    shown = _with_outputs(seen, watched)
    plain, alone = beside(shown, watched)
    models = plain, apply(shown)
    few = FirstSamples(inputs, network.model, samples)
    logger.info("diagnosis: errors of %d layers on %d samples", len(watched), few.samples or 0)
    runs = _Runs([sessions.exact(model) for model in models], watched, alone)
    for batch in few.batches():
        runs.add(batch)
    return tuple(runs.error(group) for group in network.groups)


def outputs_of_groups(network: Network) -> dict[str, str]:
    """Group to the first output of its last node."""
    nodes, order = network.model.index.nodes, network.model.index.order
    return {
        group.name: nodes[max((n for n in group.nodes if n in order), key=order.__getitem__)].output[0]
        for group in network.groups
    }


def _with_outputs(network: Network, watched: Mapping[str, str]) -> Network:
    """The network with the watched tensors as outputs of its model."""
    types = value_types(network.model)
    editor = network.model.edit()
    known = {value.name for value in editor.graph.output}
    for tensor in dict.fromkeys(watched.values()):
        if tensor not in known:
            info = helper.make_tensor_value_info(tensor, types.get(tensor, FLOAT), None)
            editor.graph.output.append(info)
    return replace(network, model=editor.done())


class _Runs:
    """The outputs of every group, batch by batch: high, with all in INT8, and alone in INT8."""

    def __init__(
        self, engines: Sequence[OrtEngine], watched: Mapping[str, str], alone: Mapping[str, str]
    ) -> None:
        self.engines = engines
        self.watched, self.made_alone = watched, alone
        self.high: dict[str, list[Array]] = {name: [] for name in watched}
        self.int8: dict[str, list[Array]] = {name: [] for name in watched}
        self.alone: dict[str, list[Array]] = {name: [] for name in watched}

    def add(self, batch: Batch) -> None:
        """Run one batch with nothing and with all in INT8."""
        plain, int8 = (
            {name: real_rows(array, batch) for name, array in engine(batch.feed).items()}
            for engine in self.engines
        )
        for name, tensor in self.watched.items():
            self.high[name].append(plain[tensor])
            self.int8[name].append(int8[tensor])
            self.alone[name].append(plain[self.made_alone[name]])

    def error(self, group: Group) -> LayerError:
        """What all batches so far show of one group."""
        high = self.high[group.name]
        everything, alone = (errors_between(high, found[group.name]) for found in (self.int8, self.alone))
        return LayerError(group.name, group.op_type, *everything, *alone)


def errors_between(baseline: list[Array], candidate: list[Array]) -> tuple[float, float]:
    """SQNR in dB and cosine; nan where the values cannot be compared."""
    if any(a.shape != b.shape for a, b in zip(baseline, candidate, strict=True)):
        return float("nan"), float("nan")
    pair = Pair(baseline, candidate)
    return METRICS["sqnr_db"](pair), METRICS["cosine"](pair)
