"""The interface of evaluators, which judge the plans of a search, and the types that it uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.results import Ending, LayerLine, TrialLine
from pytest_int8acc.scores.criteria import Criterion

#: A function that takes the losses of the samples so far, [criteria, samples], and returns True if they
#: decide the verdict.
Enough = Callable[[NDArray[np.float64]], bool]


@dataclass(frozen=True)
class GroupInfo:
    """A group of layers as the search knows it: nodes that change their precision together."""

    name: str
    price: float = 1.0
    """The cost of high precision for the group, at least 0: its multiply-accumulates or its measured latency.

    Only the ratios of prices matter.
    """
    shape: str = ""
    """The shape of the group's output as text, for tables; empty if it is not known."""


@dataclass(frozen=True)
class Target:
    """The meaning of an array of error vectors: the criterion, and how the loss grows with the errors."""

    criterion: int
    """Index into :attr:`Evaluator.criteria`."""
    power: int = 2
    """The loss grows with this power of the length of the error vector.

    It is 2 for MSE, SQNR, cosine and KL divergence. It is 1 for absolute and relative errors, top-k agreement
    and a user's metric.
    """


@dataclass(frozen=True, eq=False)
class Probe:
    """The errors on a few samples under one plan, a choice of groups in high precision."""

    vectors: list[NDArray[np.float32]]
    """For each target an array [samples, elements]: candidate minus baseline, weighted by importance.

    The vectors are linear in the error. Outputs of more than 4096 elements per sample are subsampled. The
    elements are always the same, and are scaled so that squared lengths are kept on average.
    """
    parts: NDArray[np.float64]
    """The loss of each sample, [criteria, samples], as in :class:`Trial`."""
    known: bool = False
    """Whether the evaluator had measured the plan before, so that the measurement cost nothing."""


@dataclass(frozen=True, eq=False)
class Trial:
    """The result of judging one plan."""

    high: frozenset[int]
    """The indices of the groups in high precision; all other groups ran in the low format."""
    passed: bool
    """Whether all samples ran and every limit is met."""
    losses: tuple[float, ...]
    """The loss of each criterion over the samples that ran: at least 0, 1 at the limit, inf if unknown."""
    scores: tuple[float, ...]
    """The score of each criterion, in its own unit, over the samples that ran."""
    parts: NDArray[np.float64]
    """The part of the loss that each sample causes (see :data:`Pool`), [criteria, samples], at least 0.

    It is nan for samples that did not run, and for criteria that can only be computed for all samples
    together. For top-1 agreement the number says how close a sample is to another class: the greatest ``(e_j
    - e_top) / (y_top - y_j)`` over all other classes j, with the baseline's output y and the error e. Above 1
    the class has changed.
    """
    cost: float
    """The number of samples that were run for this trial, as a share of all samples.

    The cost is 0 if the plan was judged before.
    """
    confirmed: bool
    """Whether all samples ran, so that the verdict is final."""

    @property
    def loss(self) -> float:
        """The greatest of ``losses``; 0 without criteria."""
        return max(self.losses, default=0.0)


@dataclass(frozen=True)
class SearchResult:
    """The plan that a search found, and the cost of the search."""

    high: tuple[str, ...]
    """The groups of layers to keep in high precision, in topological order."""
    passed: bool
    """Whether exactly this plan was tried on all samples and met the criteria."""
    minimal: bool
    """Whether trials have shown that the plan fails if any one group of ``high`` returns to the low
    format."""
    ending: Ending
    trials: tuple[TrialLine, ...]
    loss: float
    """The loss of the plan; 1 is at the limit."""
    probes: int
    """The number of plans whose error vectors were measured on a few samples."""
    cost: float
    """The cost of trials and measurements, as the number of inferences divided by the number of samples."""
    price: float
    """The price of the groups in high precision, as a share of the price of all groups."""
    table: tuple[LayerLine, ...] = ()
    """The table of NVIDIA's layer analyzer; only the strategy ``forward`` fills it.

    A row holds the score of the first criterion with the group and all earlier groups in the low format,
    except earlier groups that were put back into high precision.
    """
    order: tuple[str, ...] = ()
    """Groups, ranked by predicted gain: the error that high precision removes, divided by the price.

    Only the strategy ``minimal`` ranks groups.
    """


class Evaluator(Protocol):
    """Judges plans.

    A plan is the set of groups in high precision, by index. Other groups run in the low format.

    Trials and error vectors may come from different places, for instance from engines and from a simulation.
    """

    @property
    def groups(self) -> Sequence[GroupInfo]:
        """The groups whose precision can be switched, in topological order."""

    @property
    def criteria(self) -> Sequence[Criterion]:
        """The criteria that are judged; losses and scores follow this order."""

    @property
    def samples(self) -> int:
        """The number of samples, at least 1."""

    @property
    def targets(self) -> Sequence[Target]:
        """For each array of error vectors that :meth:`probe` returns, its criterion; at least one."""

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge a plan on all samples.

        An evaluator that runs all samples at once, like an engine, may ignore ``order`` and ``enough``.

        Args:
            high: The indices of the groups in high precision.
            order: The samples in the order in which they should run.
            enough: Called between batches with the losses so far; if it returns True, no further samples run.
        """

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of several plans on the given samples.

        Costs ``len(samples) / self.samples`` runs for each plan that was not measured before.
        """
