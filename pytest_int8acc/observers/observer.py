"""Measures the values of a float model's tensors on a dataset, if possible in two passes over the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_int8acc.clock import current
from pytest_int8acc.graph.formats import INT8, Format
from pytest_int8acc.graph.model import Model
from pytest_int8acc.observers.collect import collect_histograms, collect_maxima
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset


class Observer:
    """Measures tensors of one float model on one dataset, each tensor once.

    The first pass measures maxima. The second pass counts histograms, whose bins end at the maxima. Each pass
    measures the tensors that its caller asks for, and the tensors that were announced with ``want``. Tensors
    that were not announced may need more passes.
    """

    def __init__(self, model: Model, dataset: Dataset, sessions: Sessions = CPU, low: Format = INT8) -> None:
        """Create an observer; the model is not run yet.

        Args:
            model: A float model.
            dataset: The samples. Each pass must give the same samples.
            sessions: Opens the model, on a CPU or a GPU.
            low: The format that the tensors are quantized to.
        """
        self.model, self.dataset = model, dataset
        self._sessions, self._low = sessions, low
        self._announced: dict[str, None] = {}
        self._held: dict[str, TensorValues] = {}
        self._counted: set[str] = set()

    def want(self, tensors: Iterable[str]) -> None:
        """Announce tensors that the next passes measure as well. The model is not run now."""
        self._announced |= dict.fromkeys(tensors)

    def maxima(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """The values of each tensor: its maxima, and a histogram if one was counted before.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: The time limit is reached before a pass begins.
        """
        asked = list(dict.fromkeys(tensors))
        if not self._held.keys() >= set(asked):
            current().check()
            missing = [t for t in dict.fromkeys([*asked, *self._announced]) if t not in self._held]
            self._held |= collect_maxima(self.model, missing, self.dataset, self._sessions, self._low)
        return {tensor: self._held[tensor] for tensor in asked}

    def of(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """The values of each tensor: maxima, and a histogram if :attr:`TensorValues.is_counted` is True.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: The time limit is reached before a pass begins.
        """
        asked = self.maxima(tensors)
        if not self._counted >= asked.keys():
            current().check()
            known = self.maxima([*asked, *self._announced])
            missing = {tensor: values for tensor, values in known.items() if tensor not in self._counted}
            self._held |= collect_histograms(self.model, missing, self.dataset, self._sessions)
            self._counted |= missing.keys()
        return {tensor: self._held[tensor] for tensor in asked}
