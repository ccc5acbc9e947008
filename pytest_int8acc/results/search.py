"""The outcome of a precision search: its culprits, its trials, and the reason why it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from pytest_int8acc.results.causes import Cause
from pytest_int8acc.results.evidence import Evidence, HeldOut
from pytest_int8acc.results.scores import Score

#: The reason why a search ended before its strategy finished. ``cut-short``: a plan passes, and a cheaper
#: plan would cost too many more trials.
_Early = Literal["trials-spent", "seconds-spent", "interrupted", "cut-short"]
#: The reason why a search ended. ``proven``: the criteria fail if any one layer of the plan returns to the
#: low format. ``int8-passes``: no layer has to leave the low format. ``high-fails``: the criteria fail with
#: all layers in high precision. ``nothing-left``: the criteria are met only with all layers in high
#: precision, or with all that have more than a few multiply-accumulates. ``plan-fails``: the plan to certify
#: fails. ``first``, ``last``, ``worst``, ``visited``: the strategy ended with the first layers in high
#: precision, the last layers, the layers that add most error, or the layers that it chose one by one.
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


#: The version of the format of ``plan.yaml``. A file of another version is refused.
PLAN_VERSION = 4


@dataclass(frozen=True)
class Wire:
    """One tensor between a layer and a neighbouring node, input, constant or output."""

    tensor: str
    kind: Literal["node", "input", "constant", "output"]
    """What is at the other end of the tensor: a node, or an input, constant or output of the model.

    ``input`` may also be an input of a graph inside an If, Loop or Scan.
    """
    node: str = ""
    """The name of the node at the other end; empty if there is no node."""
    op_type: str = ""
    """The operator of the node at the other end; empty if there is no node."""
    format: str = ""
    """The number format in which the reader reads the tensor, like ``int8`` or ``fp16``."""
    scale: float | None = None
    """The scale of the tensor, or the greatest of its scales; None if the tensor is not quantized."""
    scales: int = 0
    """The number of scales: 1 for a scale per tensor, more for scales per channel, 0 if not quantized."""


@dataclass(frozen=True)
class Neighbours:
    """The tensors that one layer reads and writes if the layer is in the low format."""

    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    """One entry for each reader of the layer's output."""
    more: int = 0
    """The number of tensors that ``inputs`` and ``outputs`` leave out."""


@dataclass(frozen=True)
class Quantizer:
    """A Q/DQ pair with whose result no node computes. The result is an output, or is only reshaped or moved.

    A layer that consists of such a pair computes nothing. Only the pair can lose accuracy.
    """

    tensor: str
    """The tensor that the pair quantizes."""
    output: str = ""
    """The name of the model's output, if the result of the pair is one; empty for a pair inside the model."""
    node: str = ""
    """The nearest earlier node that computes the tensor's values; empty if the tensor is a model input."""
    op_type: str = ""
    """The operator of ``node``."""


@dataclass(frozen=True)
class Culprit:
    """A layer (a group of nodes) that must leave the low format, because the criteria fail otherwise."""

    layer: str
    """The name of the layer, which is the name of its first ONNX node."""
    op_type: str
    nodes: tuple[str, ...]
    worst_alone: Score | None
    """The worst judged score with only this layer in the low format.

    None if all scores are perfect, or if the budget was spent before this trial.
    """
    price: float
    """The layer's share of the multiply-accumulates of all layers, from 0 to 1."""
    cause: Cause | None = None
    neighbours: Neighbours | None = None
    """The tensors that the layer reads and writes; None if they were not determined."""
    inside: str = ""
    """``If``, ``Loop`` or ``Scan`` if the layer lies in the body of such a node; empty in the main graph."""
    hidden: bool = False
    """Whether no run shows the layer's values: it lies in a graph inside the body of a Scan, or in a
    SequenceMap."""
    quantizer: Quantizer | None = None
    """The only Q/DQ pair of a layer that computes nothing; None for layers that compute."""

    @property
    def unexplained(self) -> bool:
        """Whether no cause was found. False for a hidden layer: without its values, no cause can be found."""
        return self.cause is None and not self.hidden


@dataclass(frozen=True)
class TrialLine:
    """One trial of a search: the layers in high precision and the result."""

    high: tuple[str, ...]
    passed: bool
    loss: float
    """The normalized loss of the worst criterion: 0 is perfect, 1 is at the limit, more misses the limit."""
    cost: float
    """The number of inferences of the trial, divided by the number of all samples."""
    why: str


@dataclass(frozen=True)
class LayerLine:
    """One layer in the table of the search strategy ``forward``, modelled on NVIDIA's layer analyzer."""

    index: int
    layer: str
    shape: str
    similarity: float
    chosen: bool
    line: str


@dataclass(frozen=True)
class Ending:
    """The reason why a search ended, and the numbers that a report names with it."""

    kind: EndingKind
    high: int = 0
    """The number of layers in high precision."""
    groups: int = 0
    """The number of all layers."""
    max_trials: int = 0
    """The maximum number of trials, if reaching it ended the search; otherwise 0."""
    max_seconds: float = 0.0
    """The maximum time in seconds, if reaching it ended the search; otherwise 0."""

    @property
    def early(self) -> bool:
        """Whether a budget or Ctrl-C ended the search before its strategy finished."""
        return self.kind in get_args(_Early)


@dataclass(frozen=True)
class Certificate:
    """The result of certifying a plan. Certification builds every model and does not simulate any."""

    evidence: Evidence
    """The models that were built, and the samples on which they were judged."""
    passed: bool
    """Whether the built models prove the plan: its model meets the criteria, and each model with one culprit
    back in the low format fails them."""
    ending: Ending

    @property
    def builds(self) -> int:
        """The number of models that were built."""
        return self.evidence.cost.builds


@dataclass(frozen=True)
class TradeoffPoint:
    """One plan of a trade-off: a number of layers in high precision, tried on a few samples."""

    layers: int
    """The number of layers in high precision: this many of the first layers in ``Tradeoff.layers``."""
    share: float
    """The share of the model's multiply-accumulates that is in high precision, from 0 to 1."""
    score: Score
    """The plan's score by one criterion. For all plans it is the one that the model misses most with all
    layers in the low format."""


@dataclass(frozen=True)
class Tradeoff:
    """How the score improves with more layers in high precision, for models in which noise adds up."""

    layers: tuple[str, ...]
    """The layers, ordered by the error that high precision is expected to remove per multiply-accumulate, the
    largest first."""
    points: tuple[TradeoffPoint, ...]
    """The plans that were tried. The first plan has no layer in high precision."""
    evidence: Evidence
    """The trials of all plans, and the samples on which the plans were tried."""

    @property
    def samples(self) -> int:
        """The number of samples on which each plan was tried."""
        return self.evidence.proved_on.count


@dataclass(frozen=True)
class SearchOutcome:
    """The plan that a precision search found, and the scores of the model that was built for it."""

    strategy: str
    precision: str
    """The format of the culprits in the fixed model, like ``fp16``."""
    culprits: tuple[Culprit, ...]
    found: bool
    """Whether the plan met the criteria in the search."""
    minimal: bool
    """Whether the criteria fail if any one culprit returns to the low format."""
    verified: bool
    """Whether the fixed model meets the criteria with a safety margin, also on held-out samples, on which no
    choice was based, and the samples are enough to prove each score."""
    fixed: tuple[Score, ...]
    """The scores of the fixed model; empty if no fixed model was built."""
    ending: Ending
    trials: tuple[TrialLine, ...]
    probes: int
    cost: float
    """The cost of the search, as the number of inferences divided by the number of all samples."""
    builds: int
    seconds: float
    int8_share: float
    """The share of the multiply-accumulates of all layers that stays in the low format, from 0 to 1."""
    held_out: HeldOut
    """The held-out samples, on which no choice was based, and the scores of the fixed model on them."""
    holds: bool = False
    """Whether the fixed model met the criteria with a safety margin, on all samples, in the case's backend.

    With this margin, the fixed model probably also meets the criteria on other samples of the same kind.
    """
    notes: tuple[str, ...] = ()
    table: tuple[LayerLine, ...] = ()
    price_ms: float | None = None
    """The median latency of the fixed engine minus that of the candidate's engine, in ms.

    None if the engines were not timed.
    """
    certificate: Certificate | None = None
    """The result of certifying the plan; None if it was not certified."""
    fixed_pairs: tuple[str, ...] = ()
    """Names of Q/DQ nodes that no plan removes: their quantization is blocked, in FP8 or INT4, or a Q has no
    DQ or a DQ no Q."""
    low: str = ""
    """The low format of the search: ``fp16`` or ``bf16``; empty for INT8."""
    joined: tuple[str, ...] = ()
    """Layers between culprits that also run in FP32, so that fewer Cast nodes are needed."""
    casts: int | None = None
    """The number of Cast nodes that the fixed model adds; None for INT8, or if no fixed model was built."""
    with_reserve: tuple[str, ...] = ()
    """The layers that the fix keeps in high precision, if they differ from the culprits; otherwise empty.

    With these layers the safety margin is large enough. With the culprits alone the margin is too small.
    """
    tradeoff: Tradeoff | None = None
    """How the score improves with more layers in high precision. None if this was not tried. It is tried only
    if the errors of many layers add up."""

    def without_plan(self) -> SearchOutcome:
        """Returns a copy without a plan. Call it if the plan would keep no layer in the low format."""
        early, groups = self.ending.early, self.ending.groups
        ending = self.ending if early else Ending("nothing-left", high=len(self.kept), groups=groups)
        kept = replace(self, culprits=(), with_reserve=(), fixed=(), ending=ending)
        return replace(kept, found=False, minimal=False, verified=False, holds=False)

    @property
    def kept(self) -> tuple[str, ...]:
        """The layers that the fix keeps in high precision."""
        return self.with_reserve or tuple(culprit.layer for culprit in self.culprits)
