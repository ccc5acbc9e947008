"""What tensors of one float model hold on one dataset, each measured when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_int8acc.clock import current
from pytest_int8acc.engines.bins import Bins
from pytest_int8acc.engines.calibrators import Maxima, collect_histograms, collect_maxima
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.graph.model import Model

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset

#: Bins over [-amax, amax]: at the narrowest range tried, amax / 128, a bin is still no wider than a step.
BINS = 1 << 15


class Observed:
    """Maxima and histograms of a model's activations."""

    def __init__(self, model: Model, dataset: Dataset, sessions: Sessions) -> None:
        """Keep what is needed; nothing is run.

        Args:
            model: In float.
            dataset: Samples; must give the same ones each time.
            sessions: Where the model runs.
        """
        self.model, self.dataset = model, dataset
        self._sessions = sessions
        self._maxima: Maxima | None = None
        self._bins: dict[str, Bins] = {}

    def maxima(self, tensors: Iterable[str]) -> Maxima:
        """Greatest magnitudes of all tensors asked for so far; one pass for those that are new.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        known = {} if self._maxima is None else self._maxima.per_sample
        missing = [tensor for tensor in dict.fromkeys(tensors) if tensor not in known]
        if missing or self._maxima is None:
            current().check()
            found = collect_maxima(self.model, missing, self.dataset, self._sessions)
            self._maxima = found if self._maxima is None else self._maxima.plus(found)
        return self._maxima

    def bins(self, tensors: Iterable[str]) -> Mapping[str, Bins]:
        """Histograms of those tensors that have one: amax is neither 0 nor infinite; one pass more.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        requested = list(dict.fromkeys(tensors))
        maxima = self.maxima(requested)
        missing = [tensor for tensor in requested if tensor not in self._bins]
        if missing:
            current().check()
            self._bins |= collect_histograms(
                self.model, maxima.of(missing), self.dataset, BINS, sessions=self._sessions
            )
        return {tensor: self._bins[tensor] for tensor in requested if tensor in self._bins}
