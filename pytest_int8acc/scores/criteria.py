"""The limits of a case on outputs and on metrics, and which limits apply to which output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.graph.flow import SCORES
from pytest_int8acc.results import Bound, Score
from pytest_int8acc.results.scores import CONFIDENCE, DEFAULT_SQNR_DB
from pytest_int8acc.scores.metrics import METRICS, Metric, per_sample
from pytest_int8acc.scores.rows import Options
from pytest_int8acc.scores.shares import Pool
from pytest_int8acc.tensors import Array, Part, did_you_mean

#: The default limit on an output that holds no floats: the minimum ratio of equal elements, 0 to 1.
_DEFAULT_AGREEMENT = 0.99
#: The character of NumPy's ``dtype.kind``, to the name of the kind of element in messages. Object arrays are
#: missing here, because ``kind_of`` looks at their first element.
_KINDS = {"f": "floats", "i": "integers", "u": "integers", "b": "booleans", "S": "strings", "U": "strings"}


@dataclass(frozen=True)
class Criterion:
    """One limit on one metric of one output, or on a user's metric, as the search for a fix uses it."""

    subject: str
    """The name of the output, or of the metric as the spec writes it, like ``metrics.py:top1``."""
    metric: str
    limit: float
    bound: Bound
    pool: Pool = "mean"
    allowed: int = 0
    """Maximum number of samples that may miss the limit, if ``pool`` is ``rank``; otherwise not used. With 0,
    the worst sample decides."""

    @property
    def text(self) -> str:
        """The criterion as text, like ``logits cosine ≥ 0.99``."""
        return f"{self.score(self.limit).name} {'≥' if self.bound == 'min' else '≤'} {self.limit:g}"

    def score(self, value: float) -> Score:
        """Returns a score with the value ``value`` and the limit of this criterion."""
        return Score(self.subject, self.metric, value, self.limit, self.bound)


@dataclass(frozen=True)
class OutputLimits:
    """Limits on the outputs whose name equals or matches ``output``."""

    output: str
    """An output's name, or a pattern as in ``fnmatch``."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The limit of each metric, by the metric's name. ``Metric.bound`` says whether a limit is a minimum or a
    maximum."""
    options: Options = field(default_factory=Options)
    """The options, such as the class axis, with which metrics are computed for these limits."""
    note: str = ""
    """A note that is shown with every score that these limits judge."""
    unjudged: bool = False
    """Whether the spec says that the outputs are not judged at all."""
    inner: bool = False
    """Whether the limits are on a tensor inside the model. Limits on outputs do not apply to such a tensor,
    even if their name pattern matches it."""
    accepted: bool = False
    """Whether the limits follow from scores that a user accepted by recording a golden. Such limits judge an
    output as a whole if it was accepted as a whole, even if other limits judge it by its parts."""
    spared: float | None = None
    """If each sample is judged by itself: the ratio of samples that may miss the limits, 0 to 1. None if all
    samples are judged together."""

    def metric(self, name: str) -> Metric:
        """Returns the metric ``name``: over all samples, or of each sample by itself if ``spared`` is set."""
        return METRICS[name] if self.spared is None else per_sample(METRICS[name], self.spared)


@dataclass(frozen=True)
class MetricLimit:
    """Limits on a metric of labels, or on a user's own metric."""

    ref: str
    """The name of the metric: ``file.py:function`` for a user's metric, otherwise a name like ``top1``."""
    min: float | None = None
    max: float | None = None
    max_drop: float | None = None
    """The maximum loss against the metric of the baseline, in the metric's own unit."""
    max_drop_relative: float | None = None
    """The maximum loss as a ratio to the absolute value of the baseline's metric."""
    confidence: float = CONFIDENCE
    """The confidence of the interval that decides the verdict, above 0 and below 1."""
    blind: frozenset[str] = frozenset()
    """The names of tensors inside the model that run as extra outputs for other criteria. The metric does not
    get these outputs."""
    lower_is_better: bool = False
    """Whether a lower value is better."""
    streaming: bool = False
    """Whether the user's function is called batch by batch. The metric is then the mean of the returned
    values, weighted by the number of samples in each batch."""


def kind_of(array: Array) -> str:
    """Returns the kind of an array's elements: floats, integers, booleans or strings; otherwise its dtype."""
    if array.dtype.kind == "O":
        flat = array.ravel()
        return "strings" if flat.size == 0 or isinstance(flat[0], str | bytes) else "objects"
    return _KINDS.get(array.dtype.kind) or str(array.dtype)


def limits_for(name: str, criteria: Sequence[OutputLimits]) -> list[OutputLimits]:
    """Returns the criteria that apply to the output ``name``, in their order in ``criteria``.

    If some of them are on a tensor inside the model of this name, only these apply. Otherwise, if some leave
    the output unjudged, only these apply.
    """
    return _limits_for_any((name,), criteria)


def _limits_for_any(names: Sequence[str], criteria: Sequence[OutputLimits]) -> list[OutputLimits]:
    """Returns the criteria that apply to an output if they match any of ``names``; see ``limits_for``."""
    mine = [c for c in criteria if any(c.output == name or fnmatchcase(name, c.output) for name in names)]
    return [c for c in mine if c.inner] or [c for c in mine if c.unjudged] or mine


def limits_of_part(
    part: Part, array: Array, siblings: Sequence[Part], criteria: Sequence[OutputLimits]
) -> list[OutputLimits]:
    """Returns the criteria that apply to a part of an output; empty if the default limit applies.

    A part is a range of the output along one axis, such as the boxes or the scores of a detector. Metrics of
    classes along this axis apply only to the part with the scores, if there is one: a part with boxes holds
    coordinates instead of classes. These metrics do not apply to a part with too few classes.

    Args:
        part: The part.
        array: The baseline's array of the whole output.
        siblings: All parts of that output.
        criteria: All criteria of the case.
    """
    shape = part.of(array).shape
    no_classes = part.kind != SCORES and any(sibling.kind == SCORES for sibling in siblings)
    found = []
    own = [c for c in criteria if not c.accepted or fnmatchcase(part.name, c.output)]
    for criterion in _limits_for_any((part.name, part.place, part.output), own):
        along = criterion.options.axis % len(shape) == part.axis if shape else False
        kept = dict(criterion.limits)
        for metric in criterion.limits if along else ():
            if METRICS[metric].min_classes and (no_classes or shape[part.axis] < METRICS[metric].min_classes):
                del kept[metric]
        if kept or not criterion.limits:
            found.append(replace(criterion, limits=kept))
    return found


def limits_of_small_channels(
    part: Part, rank: int, criteria: Sequence[OutputLimits]
) -> list[OutputLimits] | None:
    """Returns the criteria that apply to the small channels of an output.

    Small channels are channels whose values are far smaller than those of the largest channel. A limit on the
    whole output applies to them only if its metric is a ratio to the baseline's energy (``fits_channels``).
    Such a limit applies to all samples together, since small channels may be almost 0 in a sample without
    objects.

    Args:
        part: The small channels.
        rank: The number of axes of the output.
        criteria: All criteria of the case.

    Returns:
        The criteria; if the list is empty, the default limit applies. None if the small channels are not
            judged by themselves: a criterion compares the channels as classes, which all have one unit.
    """
    found = []
    for criterion in _limits_for_any((part.name, part.place, part.output), criteria):
        by_class = any(METRICS[metric].min_classes for metric in criterion.limits)
        if by_class and criterion.options.axis % rank == part.axis:
            return None
        if criterion.accepted and not fnmatchcase(part.name, criterion.output):
            continue
        own = criterion.accepted or criterion.output in (part.name, part.place)
        kept = {
            metric: limit
            for metric, limit in criterion.limits.items()
            if own or METRICS[metric].fits_channels
        }
        if kept or not criterion.limits:
            found.append(replace(criterion, limits=kept, spared=criterion.spared if own else None))
    return found


def default_limits(name: str, array: Array) -> list[OutputLimits]:
    """Returns the default limit of the output ``name``: on the SQNR for floats, else on the agreement."""
    limits = {"agreement": _DEFAULT_AGREEMENT}
    if kind_of(array) == "floats":
        limits = {"sqnr_db": DEFAULT_SQNR_DB}
    return [OutputLimits(name, limits=limits, note="default limit")]


def check_patterns(criteria: Sequence[OutputLimits], outputs: Sequence[str]) -> None:
    """Raises CriterionError if one of ``criteria`` matches none of ``outputs``, the names of the outputs."""
    for criterion in criteria:
        if any(limits_for(name, [criterion]) for name in outputs):
            continue
        if criterion.accepted:
            raise CriterionError(
                f"the golden accepts a score of '{criterion.output}', which is not judged any more; "
                "record it anew: --int8acc-update=all"
            )
        what = "unjudged:" if criterion.unjudged else "criterion for output"
        raise CriterionError(
            f"{what} '{criterion.output}' matches no output of the model"
            f"{did_you_mean(criterion.output, outputs)}; outputs: {', '.join(outputs) or 'none'}"
        )


def check_fits(metric: Metric, name: str, array: Array, axis: int) -> None:
    """Raises CriterionError if ``metric`` cannot judge ``array``, which the output ``name`` gives.

    It cannot if it does not fit the kind of elements, or if ``axis`` is no class axis or has too few classes.
    """
    kind, shape = kind_of(array), array.shape
    if kind not in metric.kinds:
        fitting = ", ".join(m.name for m in METRICS.values() if kind in m.kinds and not m.min_classes)
        raise CriterionError(
            f"output '{name}': {metric.name} needs {' or '.join(metric.kinds)}, but the output holds {kind} "
            f"({array.dtype}); " + (f"use one of: {fitting}" if fitting else "no metric can judge it")
        )
    if not metric.min_classes:
        return
    if not -len(shape) <= axis < len(shape):
        wrong = f"along axis {axis}, but the output has shape {shape}"
    elif axis % len(shape) == 0:
        wrong = f"along axis {axis}, but axis 0 of shape {shape} counts the samples"
    elif shape[axis] < metric.min_classes:
        few = f"but axis {axis} of shape {shape} has {shape[axis]}"
        wrong = f"needs at least {metric.min_classes} classes, {few}"
    else:
        return
    largest = max(shape[1:], default=0)
    remedy = (
        "limit another metric in its place, like 'sqnr_db: 20', or set `axis:` if classes lie on another axis"
    )
    if largest < metric.min_classes:
        fewer = [m.name for m in METRICS.values() if 0 < m.min_classes <= largest]
        remedy = f"use {' or '.join(fewer) or 'another metric, like sqnr_db'}"
    raise CriterionError(f"output '{name}': {metric.name} {wrong}; {remedy}")
