"""What a search is told and what it returns; and the evaluator, which judges its plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.results import Ending, LayerLine
from pytest_int8acc.scores.criteria import Criterion

#: Told the parts of the samples seen so far; True where the verdict needs no more of them.
Enough = Callable[[NDArray[np.float64]], bool]


@dataclass(frozen=True)
class GroupInfo:
    """One unit of the search, in topological order among its fellows."""

    name: str
    price: float = 1.0
    """What keeping it high costs, not negative: MACs, or measured latency. Only ratios matter."""
    shape: str = ""
    """Its output's shape, for tables."""


@dataclass(frozen=True)
class Target:
    """What one array of error vectors means."""

    criterion: int
    """Index into :attr:`Evaluator.criteria`."""
    power: int = 2
    """The loss grows with this power of the error's length: 2 for MSE, SQNR, cosine and KL; 1 for absolute
    and relative errors, top-k agreement and a user's metric."""


@dataclass(frozen=True, eq=False)
class Probe:
    """What one plan does to a few samples."""

    vectors: list[NDArray[np.float32]]
    """Per target [samples, elements]: candidate minus baseline, weighted so that a longer vector is worse.

    Linear in the error. Outputs of more than 4096 elements per sample are subsampled, always the same
    elements, and scaled so that squared lengths are kept on average.
    """
    parts: NDArray[np.float64]
    """[criteria, samples], as in :class:`Trial`."""
    known: bool = False
    """The evaluator knew it already: it cost nothing."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One plan, judged."""

    high: frozenset[int]
    """Indices of the groups kept in high precision; all others ran in INT8."""
    passed: bool
    """True only where all samples were seen and every limit is kept."""
    losses: tuple[float, ...]
    """Per criterion, at least 0, over the samples seen: 1 is exactly the limit; inf where not computable."""
    scores: tuple[float, ...]
    """Per criterion, in its own unit, over the samples seen."""
    parts: NDArray[np.float64]
    """[criteria, samples], at least 0: what each sample adds to the loss (see :data:`Pool`).

    For top-1 a sample's part says how far it is on the way to another class: over all other classes j, the
    greatest ``(e_j - e_top) / (y_top - y_j)`` of baseline y and error e; above 1 it has flipped.
    nan where the sample was not seen, and everywhere for a criterion of the pool ``whole``.
    """
    cost: float
    """Samples run for this answer / all samples; 0 where the evaluator knew it already."""
    confirmed: bool
    """True where all samples were seen."""

    @property
    def loss(self) -> float:
        """The greatest of ``losses``."""
        return max(self.losses, default=0.0)


@dataclass(frozen=True)
class TrialRecord:
    """A trial as reports show it."""

    high: tuple[str, ...]
    passed: bool
    confirmed: bool
    """True where all samples were run."""
    loss: float
    scores: tuple[float, ...]
    cost: float
    seconds: float
    """Since the search began, when the trial ended."""
    why: str
    """What the strategy wanted to know."""


@dataclass(frozen=True)
class SearchResult:
    """What a strategy found, and what it cost."""

    strategy: str
    high: tuple[str, ...]
    """Groups to keep in high precision, in topological order."""
    passed: bool
    """True where exactly this plan was evaluated on all samples and met the criteria."""
    minimal: bool
    """True where each single group of ``high``, sent back to INT8, was tried and breaks the criteria."""
    ending: Ending
    trials: tuple[TrialRecord, ...]
    loss: float
    """Of the plan; 1 is exactly the limit."""
    scores: tuple[float, ...]
    """Of the plan, per criterion."""
    probes: int
    """Runs on a few samples that measured error vectors only."""
    cost: float
    """Trials and probes together, in equivalents of one run over all samples."""
    seconds: float
    price: float
    """Of the groups kept high, as a share of the price of all groups."""
    table: tuple[LayerLine, ...] = ()
    """The layer analyzer's table, only from ``forward``: with each group and all before it in INT8, save
    those chosen, the first criterion's score, and why the layer was chosen."""
    order: tuple[str, ...] = ()
    """Groups by the error that they are foretold to take with them per price, only from ``minimal``."""


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
        """What :meth:`probe` measures; at least one."""

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge a plan on all samples, which should run in ``order``.

        ``enough`` is asked between batches with the parts so far, [criteria, samples], nan where not seen;
        True ends the trial at once, without the samples left. None: run all. An evaluator for which samples
        come together (an engine) may ignore both.
        """

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of several plans on the given samples.

        Costs ``len(samples) / self.samples`` for each plan that it did not know.
        """
