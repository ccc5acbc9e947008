"""Runs a network with any choice of precisions and scales in one ONNX Runtime session.

The precisions of groups of layers and the scales of activations are inputs of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from pytest_int8acc.graph.instrument import Setting, build_instrument
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Precision, TensorScale
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.tensors import Feed


class Board:
    """A model of one network, whose inputs select precisions and scales, open in an ONNX Runtime session."""

    def __init__(self, network: Network, rest: Precision, sessions: Sessions) -> None:
        """Build the instrumented model and open it.

        Args:
            network: The network whose groups of layers change their precision.
            rest: The precision of all nodes that are not quantized.
            sessions: Opens the session.

        Raises:
            EngineError: ONNX Runtime refuses the model.
        """
        self.network = network

        def instrumented() -> Model:
            instrument = build_instrument(network, rest)
            self._controls = instrument.controls
            return instrument.model

        self._engine = sessions.exact(instrumented)

    def setting(
        self, high: Collection[str], scales: Mapping[str, TensorScale] = MappingProxyType({})
    ) -> Setting:
        """The inputs that select a plan: the groups in high precision, and the scales of activations."""
        return self._controls.setting(high, scales)

    def run(self, feed: Feed, setting: Setting) -> Feed:
        """The outputs of a run on ``feed`` with the precisions and scales of ``setting``.

        Raises:
            EngineError: The model fails.
        """
        return self._engine({**feed, **setting.inputs})
