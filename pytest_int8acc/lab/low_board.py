"""A network in FP16 or BF16 in ONNX Runtime, exact: a session for each choice of groups kept in FP32."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_int8acc.engines.onnxruntime import OrtEngine, Sessions
from pytest_int8acc.graph.formats import Format
from pytest_int8acc.graph.network import Network, Plan, TensorScale
from pytest_int8acc.graph.plan import fp32_nodes
from pytest_int8acc.graph.to_fp16 import to_fp16
from pytest_int8acc.tensors import Feed

#: Sessions that are held: a plan is tried run after run.
_HELD = 2


class LowBoard:
    """Runs what is built of a plan: its Casts depend on all groups, so that no switch could stand for one."""

    def __init__(self, network: Network, low: Format, sessions: Sessions) -> None:
        """Keep the network; sessions are opened when they are asked for."""
        self.network, self.as_run = network, network
        self.own: dict[str, float] = {}
        self._low, self._sessions = low, sessions
        self._engines: dict[frozenset[str], OrtEngine] = {}

    def run(self, feed: Feed, high: Collection[str], scales: Mapping[str, TensorScale]) -> Feed:
        """The outputs with these groups in FP32; there are no scales.

        Raises:
            EngineError: The model does not open, or fails.
        """
        key = frozenset(high)
        if key not in self._engines:
            if len(self._engines) >= _HELD:
                del self._engines[next(iter(self._engines))]
            kept = fp32_nodes(self.network, Plan(dict.fromkeys(high, "fp32")))
            self._engines[key] = self._sessions.exact(to_fp16(self.network.model, kept, self._low).model)
        return self._engines[key](feed)
