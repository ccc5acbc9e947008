"""What a strategy talks to: plans go in, verdicts and error vectors come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.search.types import Criterion, GroupInfo, Probe, Target, Trial

#: Told the parts of the samples seen so far; True where the verdict needs no more of them.
Enough = Callable[[NDArray[np.float64]], bool]


class Evaluator(Protocol):
    """Judges plans; a plan is the set of groups kept high, by index, all others being INT8.

    Trials and error vectors may come from different places: engines to judge, a simulation to rank.
    """

    @property
    def groups(self) -> Sequence[GroupInfo]:
        """What can be switched, in topological order."""

    @property
    def criteria(self) -> Sequence[Criterion]:
        """What is judged; losses and scores follow this order."""

    @property
    def samples(self) -> int:
        """Number of samples, at least 1."""

    @property
    def targets(self) -> Sequence[Target]:
        """What :meth:`probe` measures; may be empty where nothing but the verdict is known."""

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge a plan on all samples.

        Args:
            high: Groups kept in high precision.
            order: All sample indices, in the order in which they should run.
            enough: Asked between batches with the parts so far, [criteria, samples], nan where not seen; True
                ends the trial at once, without the samples left. None: run all. An evaluator for which
                samples come together (an engine) may ignore both.
        """

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of several plans on the given samples.

        Costs ``len(plans) * len(samples) / self.samples``.
        """

    def layer_errors(self) -> Sequence[float] | None:
        """Per group, the error at its own output with everything in INT8; None where that cannot be seen."""


def square_vectors(error: NDArray[np.generic], allowed: float) -> NDArray[np.float32]:
    """Error vectors whose squared length is a sample's part of an MSE or SQNR loss.

    Args:
        error: Candidate minus baseline, [samples, ...].
        allowed: Squared error per sample that exactly meets the limit. For SQNR the mean energy of a baseline
            sample divided by ``10 ** (limit_db / 10)``; for MSE the limit times the elements of a sample.
    """
    flat = error.reshape(len(error), -1).astype(np.float64)
    return (flat / np.sqrt(max(allowed, np.finfo(np.float64).tiny))).astype(np.float32)


def cosine_vectors(
    error: NDArray[np.generic], baseline: NDArray[np.generic], energy: float, limit: float
) -> NDArray[np.float32]:
    """Error vectors whose squared length is a sample's part of the loss of a cosine over all samples.

    To second order ``1 - cos(y, y + e) = |e_perp|^2 / (2 |y|^2)``, where ``e_perp`` is the part of the
    error perpendicular to the baseline ``y``, all samples taken as one vector.

    Args:
        error: Candidate minus baseline, [samples, ...].
        baseline: Same shape as ``error``.
        energy: Mean squared length of a baseline sample, over all samples.
        limit: The least cosine similarity accepted, below 1.
    """
    e = error.reshape(len(error), -1).astype(np.float64)
    y = baseline.reshape(len(baseline), -1).astype(np.float64)
    tiny = np.finfo(np.float64).tiny
    perpendicular = e - y * ((e * y).sum() / max((y * y).sum(), tiny))
    return (perpendicular / np.sqrt(max(2.0 * energy * (1.0 - limit), tiny))).astype(np.float32)
