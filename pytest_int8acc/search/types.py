"""The evaluator that judges the plans of a search, and the types that both exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.results import Ending, LayerLine, TrialLine
from pytest_int8acc.scores.criteria import Criterion

#: Takes the parts of the samples that have run, [criteria, samples]; returns True if they decide the verdict.
Enough = Callable[[NDArray[np.float64]], bool]


@dataclass(frozen=True)
class GroupInfo:
    """A group as the search knows it: the nodes that change precision together."""

    name: str
    price: float = 1.0
    """The cost of keeping the group high, at least 0: its multiply-accumulates, or its measured latency.

    Only the ratios of prices matter.
    """
    shape: str = ""
    """The shape of the group's output, for tables."""


@dataclass(frozen=True)
class Target:
    """Which criterion an array of error vectors belongs to, and how its loss follows from their lengths."""

    criterion: int
    """Index into :attr:`Evaluator.criteria`."""
    power: int = 2
    """The loss grows with this power of the error's length: 2 for MSE, SQNR, cosine and KL; 1 for absolute
    and relative errors, top-k agreement and a user's metric."""


@dataclass(frozen=True, eq=False)
class Probe:
    """The errors that one plan makes on a few samples."""

    vectors: list[NDArray[np.float32]]
    """Per target [samples, elements]: candidate minus baseline, weighted so that a longer vector is worse.

    Linear in the error. Outputs of more than 4096 elements per sample are subsampled, always the same
    elements, and scaled so that squared lengths are kept on average.
    """
    parts: NDArray[np.float64]
    """[criteria, samples], as in :class:`Trial`."""
    known: bool = False
    """Whether the evaluator had measured the plan before, so that it cost nothing."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One plan, judged."""

    high: frozenset[int]
    """Indices of the groups kept in high precision; all others ran in the low format."""
    passed: bool
    """Whether all samples ran and every limit is met."""
    losses: tuple[float, ...]
    """The loss of each criterion over the samples that ran: 0 or more, 1 at the limit, inf if unknown."""
    scores: tuple[float, ...]
    """The score of each criterion, in its own unit, over the samples that ran."""
    parts: NDArray[np.float64]
    """What each sample adds to the loss (see :data:`Pool`), [criteria, samples], at least 0.

    It is nan for samples that did not run, and for all samples of a criterion of the pool ``whole``. For
    top-1 it says how far a sample is on its way to another class: the greatest
    ``(e_j - e_top) / (y_top - y_j)`` over all other classes j, with baseline y and error e. Above 1 the class
    has flipped.
    """
    cost: float
    """The samples that were run for this trial, as a share of all; 0 if the plan was judged before."""
    confirmed: bool
    """Whether all samples ran."""

    @property
    def loss(self) -> float:
        """The greatest of ``losses``."""
        return max(self.losses, default=0.0)


@dataclass(frozen=True)
class SearchResult:
    """The plan that a search found, and what the search cost."""

    high: tuple[str, ...]
    """Groups to keep in high precision, in topological order."""
    passed: bool
    """Whether exactly this plan was tried on all samples and met the criteria."""
    minimal: bool
    """Whether the plan breaks the criteria if any one group of ``high`` is sent back, as trials showed."""
    ending: Ending
    trials: tuple[TrialLine, ...]
    loss: float
    """The loss of the plan; 1 is the limit."""
    probes: int
    """The number of plans whose error vectors were measured on a few samples."""
    cost: float
    """The cost of trials and probes, in runs over all samples of the search."""
    price: float
    """The price of the groups kept high, as a share of the price of all groups."""
    table: tuple[LayerLine, ...] = ()
    """The layer analyzer's table; only the strategy ``forward`` fills it.

    A line holds the first criterion's score with the group and all groups before it in the low format,
    except those that were chosen to stay high.
    """
    order: tuple[str, ...] = ()
    """Groups by the error that they are predicted to remove per price; only ``minimal`` fills it."""


class Evaluator(Protocol):
    """Judges plans. A plan is the set of groups kept high, by index; all others run in the low format.

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
        """The meaning of each array of error vectors that :meth:`probe` returns; at least one."""

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge a plan on all samples.

        An evaluator that runs all samples at once, like an engine, may ignore ``order`` and ``enough``.

        Args:
            high: The groups kept in high precision.
            order: The samples in the order in which they should run.
            enough: Is called between batches; if it returns True, the remaining samples do not run.
        """

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of several plans on the given samples.

        Costs ``len(samples) / self.samples`` for each plan that it did not know.
        """
