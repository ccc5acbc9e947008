"""The one service that measures what the tensors of a float model hold on a dataset."""

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

    Maxima take one pass over the data. Histograms take a second pass, since their bins end at the greatest
    magnitude. ``want`` collects tensors that may be asked for later, so that the next pass measures their
    maxima as well.
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
        self._requested: dict[str, None] = {}
        self._held: dict[str, TensorValues] = {}
        self._counted: set[str] = set()

    def want(self, tensors: Iterable[str]) -> None:
        """Have the next pass measure the maxima of these tensors, too; nothing is run."""
        self._requested |= dict.fromkeys(tensors)

    def maxima(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """What each tensor holds; histograms may be empty.

        One pass measures all tensors that are not known yet.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        requested = list(dict.fromkeys(tensors))
        if not self._held.keys() >= set(requested):
            current().check()
            missing = [tensor for tensor in (*requested, *self._requested) if tensor not in self._held]
            found = collect_maxima(
                self.model, list(dict.fromkeys(missing)), self.dataset, self._sessions, self._low
            )
            self._held |= found
        return {tensor: self._held[tensor] for tensor in requested}

    def of(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """What each tensor holds, with its histogram; see :attr:`TensorValues.is_counted`.

        One more pass than for ``maxima`` measures all histograms that are not known yet.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        held = self.maxima(tensors)
        missing = {tensor: values for tensor, values in held.items() if tensor not in self._counted}
        if missing:
            current().check()
            self._held |= collect_histograms(self.model, missing, self.dataset, self._sessions)
            self._counted |= missing.keys()
        return {tensor: self._held[tensor] for tensor in held}
