"""The case's candidate in ONNX Runtime, with what its engine's kernels sum in FP16 summed so."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np

from pytest_int8acc.case.judge import Verdict
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.emulate import emulate_half
from pytest_int8acc.graph.low_sums import SummingModel, can_sum_low, summing_model
from pytest_int8acc.graph.macs import sum_length
from pytest_int8acc.graph.model import Model
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.results import Role


class Sums:
    """Which nodes of a case in FP16 its engine sums in FP16, and what the case scores where they are."""

    def __init__(self, lab: Lab) -> None:
        """Nothing runs yet."""
        self._lab = lab

    @cached_property
    def _model(self) -> Model:
        return emulate_half(self._lab.int8.under().model)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Those whose kernels say so, and that can be summed so here."""
        low, backend = self._lab.int8.low, self._lab.measured.backend
        layers = [layer for engine in backend.engines if engine.role == Role.INT8 for layer in engine.layers]
        told = {node for layer in layers if layer.sums_in == low.name for node in layer.nodes}
        found = [n for n in self._model.graph.node if n.name in told] if told else []
        return tuple(node.name for node in found if can_sum_low(self._model, node))

    @cached_property
    def _opened(self) -> tuple[SummingModel, OrtEngine]:
        summing = summing_model(self._model, self.nodes, self._lab.int8.low)
        return summing, self._lab.sessions.exact(summing.model)

    def judged(self, nodes: Collection[str]) -> Verdict:
        """The candidate on all samples with the products of some of ``nodes`` summed so, the others in FP32.

        Raises:
            EngineError: The model does not run.
            OutOfTime: Before it begins.
        """
        measured = self._lab.measured
        measured.clock.check()
        summing, engine = self._opened
        low = np.isin(self.nodes, list(nodes))
        return measured.judged(measured.outputs_of(lambda feed: engine({**feed, summing.switch: low})))

    def products(self, node: str) -> int:
        """How many products each sum of a node adds up, in the first batch."""
        return sum_length(self._lab.network.model, node, self._lab.shapes)
