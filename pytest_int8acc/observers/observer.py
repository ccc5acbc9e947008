"""Measures what the tensors of a float model hold on a dataset, in at most two passes over the data."""

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
    measures the tensors that are asked for, and those that ``want`` announced before. So a tensor costs a
    third pass only if it was not announced.
    """

    def __init__(self, model: Model, dataset: Dataset, sessions: Sessions = CPU, low: Format = INT8) -> None:
        """Keep the arguments; nothing is run.

        Args:
            model: A float model.
            dataset: Samples; each pass must give the same ones.
            sessions: Where the model runs.
            low: The format that the tensors are quantized to.
        """
        self.model, self.dataset = model, dataset
        self._sessions, self._low = sessions, low
        self._announced: dict[str, None] = {}
        self._held: dict[str, TensorValues] = {}
        self._counted: set[str] = set()

    def want(self, tensors: Iterable[str]) -> None:
        """Measure these tensors, too, in the passes to come; nothing is run now."""
        self._announced |= dict.fromkeys(tensors)

    def maxima(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """The values of each tensor; a histogram may be missing.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        asked = list(dict.fromkeys(tensors))
        if not self._held.keys() >= set(asked):
            current().check()
            missing = [t for t in dict.fromkeys([*asked, *self._announced]) if t not in self._held]
            self._held |= collect_maxima(self.model, missing, self.dataset, self._sessions, self._low)
        return {tensor: self._held[tensor] for tensor in asked}

    def of(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """The values of each tensor with its histogram; see :attr:`TensorValues.is_counted`.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        asked = self.maxima(tensors)
        if not self._counted >= asked.keys():
            current().check()
            known = self.maxima([*asked, *self._announced])
            missing = {tensor: values for tensor, values in known.items() if tensor not in self._counted}
            self._held |= collect_histograms(self.model, missing, self.dataset, self._sessions)
            self._counted |= missing.keys()
        return {tensor: self._held[tensor] for tensor in asked}
