"""The outcome of a precision search: its culprits, its trials, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from pytest_int8acc.results.causes import Cause
from pytest_int8acc.results.evidence import Evidence
from pytest_int8acc.results.scores import Score

#: Why a search ended before its strategy did. cut-short: a plan passes, and a cheaper one would cost too many
#: more trials.
_Early = Literal["trials-spent", "seconds-spent", "interrupted", "cut-short"]
#: Why a search ended. proven: with any one group of the plan back in the low format, the criteria fail.
#: int8-passes: no group has to leave the low format. high-fails: the criteria fail with all groups in high
#: precision. nothing-left: the criteria are only met with all groups in high precision. plan-fails: the plan
#: to certify fails. first, last, worst, visited: the strategy ended with the first groups in high precision,
#: the last, those that add most error, or those that it chose on its way.
EndingKind = Literal[
    "proven",
    "int8-passes",
    "high-fails",
    "nothing-left",
    "plan-fails",
    "first",
    "last",
    "worst",
    "visited",
    _Early,
]


#: The version of the format of ``plan.yaml``. Files of another version are refused.
PLAN_VERSION = 4


@dataclass(frozen=True)
class Wire:
    """One tensor between a group and a neighbour."""

    tensor: str
    kind: Literal["node", "input", "constant", "output"]
    """The neighbour: another node, or the model's own input, constant or output."""
    node: str = ""
    """The neighbour's name, if it is a node."""
    op_type: str = ""
    """The neighbour's operator, if it is a node."""
    format: str = ""
    """The number format in which the tensor is read, like ``int8`` or ``fp16``."""
    scale: float | None = None
    """The scale, or the greatest of several; None if the tensor is not quantized."""
    scales: int = 0
    """The number of scales: 1 per tensor, more per channel, 0 if the tensor is not quantized."""


@dataclass(frozen=True)
class Neighbours:
    """The tensors that one group reads and writes, in the low format."""

    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    """A wire for each reader of the group's output."""
    more: int = 0
    """The number of wires that are left out."""


@dataclass(frozen=True)
class Culprit:
    """A group that must leave the low format."""

    layer: str
    """The name of the group: that of its first ONNX node."""
    op_type: str
    nodes: tuple[str, ...]
    worst_alone: Score | None
    """The worst judged score with this group alone in the low format; None if all scores are perfect, or the
    budget was spent before."""
    price: float
    """The share of the multiply-accumulates of all groups that this group has."""
    cause: Cause | None = None
    neighbours: Neighbours | None = None
    """The tensors around the group; None if they were not looked at."""
    inside: str = ""
    """``If``, ``Loop`` or ``Scan`` if the group lies in the body of such a node, where causes are not looked
    for; empty in the main graph."""


@dataclass(frozen=True)
class TrialLine:
    """One plan that a search tried."""

    high: tuple[str, ...]
    passed: bool
    loss: float
    """The normalized loss of the worst criterion, 1 at its limit."""
    cost: float
    """The cost of the trial, in runs over all samples."""
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
    """The number of groups in high precision."""
    groups: int = 0
    """The number of all groups."""
    max_trials: int = 0
    """The budget of trials, if it was spent."""
    max_seconds: float = 0.0
    """The budget of time in seconds, if it was spent."""

    @property
    def early(self) -> bool:
        """Whether a budget or Ctrl-C ended the search before its strategy did."""
        return self.kind in get_args(_Early)


@dataclass(frozen=True)
class Certificate:
    """The outcome of certifying a plan, which builds every model instead of simulating it."""

    evidence: Evidence
    """The models that were built, and the samples on which they were judged."""
    passed: bool
    """Whether each culprit, put back into the low format in a built model, breaks the criteria."""
    ending: Ending

    @property
    def builds(self) -> int:
        """The number of models that were built."""
        return self.evidence.cost.builds


@dataclass(frozen=True)
class TradeoffPoint:
    """One plan of a trade-off, tried on a few samples."""

    layers: int
    """The plan keeps this many of the trade-off's first layers in high precision."""
    share: float
    """The share of all multiply-accumulates that these layers have."""
    score: Score
    """The score of the criterion that is missed most with all groups in the low format."""


@dataclass(frozen=True)
class Tradeoff:
    """How the score improves with more layers in high precision, if the noise of many layers adds up."""

    layers: tuple[str, ...]
    """The layers by the error that each is expected to remove per price, the largest first."""
    points: tuple[TradeoffPoint, ...]
    """The plans that were tried. The first keeps no layer in high precision."""
    evidence: Evidence
    """The trials of all plans, and the samples on which each was tried."""

    @property
    def samples(self) -> int:
        """The number of samples on which each plan was tried."""
        return self.evidence.proved_on.count


@dataclass(frozen=True)
class SearchOutcome:
    """The plan that a precision search found, and the result of building it."""

    strategy: str
    precision: str
    """The format of the culprits in the fixed model."""
    culprits: tuple[Culprit, ...]
    found: bool
    """Whether the plan met the criteria in the search."""
    minimal: bool
    """Whether each culprit, put back into the low format, breaks the criteria."""
    verified: bool
    """Whether the case's own backend built the fixed model, ran it on all samples, and met the criteria with
    a reserve, so that it would also meet them on other samples like these."""
    fixed: tuple[Score, ...]
    """The scores of the fixed model; empty if none was built."""
    ending: Ending
    trials: tuple[TrialLine, ...]
    probes: int
    cost: float
    """The cost of trials and probes together, in runs over all samples."""
    builds: int
    seconds: float
    int8_share: float
    """The share of the multiply-accumulates of all groups that stays in the low format."""
    held_out: int
    """The number of samples that the proof used and the search did not."""
    notes: tuple[str, ...] = ()
    table: tuple[LayerLine, ...] = ()
    price_ms: float | None = None
    """The median latency of the fixed engine minus that of the candidate's engine; None if not timed."""
    certificate: Certificate | None = None
    """The outcome of certifying the plan; None if that was not asked for, or there is no plan."""
    fixed_pairs: tuple[str, ...] = ()
    """Q/DQ nodes that are part of every plan: blocked, FP8, INT4, or no pair."""
    low: str = ""
    """The low format of the search, ``fp16`` or ``bf16``; empty for INT8."""
    joined: tuple[str, ...] = ()
    """Groups between culprits that run in FP32 as well, so that fewer Casts are needed."""
    casts: int | None = None
    """The number of Casts that the fixed model adds; None for INT8, or if none was built."""
    with_reserve: tuple[str, ...] = ()
    """The layers that the fix keeps in high precision, if they are others than the culprits. They keep the
    criteria with a reserve, which the culprits alone do not."""
    tradeoff: Tradeoff | None = None
    """None if no noise adds up, or no layer has to leave the low format."""

    def without_plan(self) -> SearchOutcome:
        """Returns the outcome without a plan, for a plan that would keep no group in the low format."""
        early, groups = self.ending.early, self.ending.groups
        ending = self.ending if early else Ending("nothing-left", groups=groups)
        kept = replace(self, culprits=(), with_reserve=(), fixed=(), ending=ending)
        return replace(kept, found=False, minimal=False, verified=False)

    @property
    def kept(self) -> tuple[str, ...]:
        """The layers that the fix keeps in high precision."""
        return self.with_reserve or tuple(culprit.layer for culprit in self.culprits)

    @property
    def spare(self) -> int:
        """The number of layers that the fix keeps in high precision in addition to the culprits."""
        return max(len(self.kept) - len(self.culprits), 0)
