"""A precision search: the culprits it found, and what it tried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from pytest_int8acc.results.causes import Cause
from pytest_int8acc.results.scores import Score

_Certain = Literal["proven", "int8-passes", "high-fails", "nothing-left", "plan-fails"]
_Through = Literal["first", "last", "worst", "visited"]
_Early = Literal["trials-spent", "seconds-spent", "interrupted", "cut-short"]
#: Why a search ended. proven: each group kept high, sent back to INT8 alone, fails. int8-passes: nothing has
#: to leave INT8. high-fails: INT8 is not the cause. nothing-left: only without INT8 they are met.
#: plan-fails: the plan to certify fails. first, last, worst, visited: the strategy is through, with the first
#: or last groups high, those that add most error, or some. cut-short: a plan passes, a cheaper one would cost
#: too many more trials.
EndingKind = Literal[_Certain, _Through, _Early]


#: The version of the format of ``plan.yaml``; no other is read.
PLAN_VERSION = 4


@dataclass(frozen=True)
class Wire:
    """One tensor between a group and a neighbour."""

    tensor: str
    kind: Literal["node", "input", "constant", "output"]
    """The neighbour: another node, or the model's own input, constant or output."""
    node: str = ""
    """The neighbour's name, where it is a node."""
    op_type: str = ""
    """Of that node."""
    format: str = ""
    """The number format in which it is read: ``int8``, ``fp16``."""
    scale: float | None = None
    """The step between codes, the greatest where channels have their own; None where it is not quantized."""
    scales: int = 0
    """How many there are: 1 per tensor, more per channel, 0 where it is not quantized."""


@dataclass(frozen=True)
class Neighbours:
    """The graph around one group, in INT8."""

    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    """A wire for each reader."""
    more: int = 0
    """Wires that are left out."""


@dataclass(frozen=True)
class Culprit:
    """A group of the plan found: it must leave INT8."""

    layer: str
    """The ONNX node that leads the group."""
    op_type: str
    nodes: tuple[str, ...]
    worst_alone: Score | None
    """The judged score nearest to its limit, or farthest beyond it, when this group alone runs in INT8.

    None where all are perfect, and where the runs that may be spent on this were spent.
    """
    price: float
    """Its multiply-accumulates, as a share of those of all groups."""
    cause: Cause | None = None
    neighbours: Neighbours | None = None
    """The graph around it; None where it was not looked at."""
    inside: str = ""
    """``If``, ``Loop`` or ``Scan`` where it lies in a body of such a node, where causes are not looked for;
    empty in the main graph."""


@dataclass(frozen=True)
class TrialLine:
    """One plan that a search tried."""

    high: tuple[str, ...]
    passed: bool
    loss: float
    """The worst criterion's, 1 at the limit."""
    cost: float
    """In runs over all samples."""
    why: str


@dataclass(frozen=True)
class LayerLine:
    """A line of the layer analyzer's table (strategy ``forward``)."""

    index: int
    layer: str
    shape: str
    similarity: float
    chosen: bool
    line: str


@dataclass(frozen=True)
class Ending:
    """Why a search ended, and the numbers that go with it."""

    kind: EndingKind
    high: int = 0
    """Groups kept high."""
    groups: int = 0
    """Of so many."""
    max_trials: int = 0
    """The budget of trials, where that was spent."""
    max_seconds: float = 0.0
    """The budget of time, where that was spent."""

    @property
    def early(self) -> bool:
        """True where a budget or Ctrl-C ended the search before the strategy did."""
        return self.kind in get_args(_Early)


@dataclass(frozen=True)
class Certificate:
    """What came of proving a plan by built models alone."""

    builds: int
    passed: bool
    """Each culprit, sent back to INT8 in a built model, breaks the criteria."""
    ending: Ending


@dataclass(frozen=True)
class TradeoffPoint:
    """One plan that was tried on a few samples."""

    layers: int
    """The first so many of the trade-off's layers are kept high."""
    share: float
    """Of the multiply-accumulates of all groups, those of these layers."""
    score: Score
    """Of the criterion that all of INT8 misses most."""


@dataclass(frozen=True)
class Tradeoff:
    """What keeping more layers out of INT8 buys, where the noise of many adds up."""

    layers: tuple[str, ...]
    """By the error that they are foretold to take with them per price, the most first."""
    points: tuple[TradeoffPoint, ...]
    """From nothing kept high on."""
    samples: int
    """On which each was tried."""


@dataclass(frozen=True)
class SearchOutcome:
    """What a precision search found, and what came of building it."""

    strategy: str
    precision: str
    """What the culprits run in instead of INT8."""
    culprits: tuple[Culprit, ...]
    found: bool
    """The plan met the criteria in the search."""
    minimal: bool
    """Each culprit, sent back to INT8, breaks the criteria."""
    verified: bool
    """The fixed model was built and run by the case's own backend, on all samples, and met the criteria with
    a reserve: it would on other samples like these."""
    fixed: tuple[Score, ...]
    """The fixed model's scores; empty where none was built."""
    ending: Ending
    trials: tuple[TrialLine, ...]
    probes: int
    cost: float
    """Trials and probes together, in runs over all samples."""
    builds: int
    seconds: float
    int8_share: float
    """Share of the multiply-accumulates of all groups that stays in INT8, or in ``low``."""
    held_out: int
    """Samples that the search did not see and the proof did."""
    notes: tuple[str, ...] = ()
    table: tuple[LayerLine, ...] = ()
    price_ms: float | None = None
    """The fixed engine's median latency less the INT8 engine's; None where no engine was timed."""
    certificate: Certificate | None = None
    """None where none was wanted, or there was nothing to certify."""
    fixed_pairs: tuple[str, ...] = ()
    """Q/DQ nodes that are part of every plan: blocked, FP8, INT4, or no pair."""
    low: str = ""
    """What groups run in that no plan keeps high, ``fp16`` or ``bf16``; empty for INT8."""
    joined: tuple[str, ...] = ()
    """Groups in FP32 beside the culprits, so that there are fewer Casts between."""
    casts: int | None = None
    """Casts of the fixed model that the float model has not; None for INT8, and where none was built."""
    with_reserve: tuple[str, ...] = ()
    """Layers that the fix keeps high, where the culprits alone meet the criteria on these samples only."""
    tradeoff: Tradeoff | None = None
    """None where no noise adds up, or a plan keeps all in INT8."""

    def without_plan(self) -> SearchOutcome:
        """The same, where a plan that keeps nothing in INT8 is none."""
        early, groups = self.ending.early, self.ending.groups
        ending = self.ending if early else Ending("nothing-left", groups=groups)
        kept = replace(self, culprits=(), with_reserve=(), fixed=(), ending=ending)
        return replace(kept, found=False, minimal=False, verified=False)

    @property
    def kept(self) -> tuple[str, ...]:
        """Layers that the fix keeps high."""
        return self.with_reserve or tuple(culprit.layer for culprit in self.culprits)

    @property
    def spare(self) -> int:
        """How many layers the fix keeps high beyond the culprits."""
        return max(len(self.kept) - len(self.culprits), 0)
