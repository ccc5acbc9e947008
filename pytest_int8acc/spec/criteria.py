"""Criteria of a case: limits on outputs, on your metrics, on the engine, and against what was accepted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import Discriminator, Field, Tag

from pytest_int8acc.spec import fields
from pytest_int8acc.spec.fields import Closed, closest, found, option

ToleranceCheck = Literal["elemwise", "max", "mean", "median", "quantile"]


class _Limits(Closed):
    """A criterion, which needs a limit."""

    where = "criteria"
    expected = "a criterion like {output: logits, cosine: 0.99} or {metric: metrics.py:top1, max_drop: 0.01}"
    what: ClassVar[str] = "criterion"
    beside: ClassVar[tuple[str, ...]] = ()
    """Keys that set no limit."""

    @classmethod
    def limits(cls) -> tuple[str, ...]:
        """The keys that set a limit."""
        return tuple(key for key in cls.model_fields if key not in cls.beside)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """No limit at all."""
        if not any(key in given for key in cls.limits()):
            yield None, f"a {cls.what} needs a limit; add one or more of {', '.join(cls.limits())}"


class Tolerance(Closed):
    """Polygraphy's tolerance: what is within the absolute or the relative one passes."""

    where = "criteria.tolerance"
    expected = "a mapping like {abs: 1e-3, rel: 1e-3, check: elemwise}"

    abs: fields.NonNegative = option("Greatest absolute error.", 1e-5)
    rel: fields.NonNegative = option("Greatest relative error, of the baseline's value.", 1e-5)
    check: Annotated[ToleranceCheck, fields.one_of(ToleranceCheck)] = option(
        "What must be within the tolerance: each element, or of all samples the max, mean, median or "
        "quantile of the errors.",
        "elemwise",
    )
    quantile: fields.Fraction = option("For the check quantile: which one.", 0.99)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """A quantile of another check."""
        if "quantile" in given and given.get("check", "elemwise") in set(get_args(ToleranceCheck)) - {
            "quantile"
        }:
            yield "quantile", "'quantile' has no effect here; remove it, or set 'check: quantile'"


class OutputCriterion(_Limits):
    """Limits on how far an output may be from the baseline's."""

    beside = ("output", "axis", "rel_floor")

    output: fields.GraphName = option("The output's name, or a pattern (*, ?, [seq]) of names.", "*")
    axis: fields.Axis = option("The axis of classes, for kl and the top-k agreements.", -1)
    cosine: fields.Cosine | None = option("Least cosine similarity.")
    sqnr_db: fields.Number | None = option(
        "Least signal-to-quantization-noise ratio in dB; 20: noise is a tenth of the signal."
    )
    psnr_db: fields.Number | None = option("Least peak signal-to-noise ratio, in dB.")
    max_abs: fields.NonNegative | None = option("Greatest absolute error of any element.")
    mean_abs: fields.NonNegative | None = option("Greatest mean absolute error.")
    mse: fields.NonNegative | None = option("Greatest mean squared error.")
    max_rel: fields.NonNegative | None = option("Greatest relative error of any element.")
    mean_rel: fields.NonNegative | None = option("Greatest mean relative error.")
    rel_floor: fields.Positive = option(
        "For max_rel and mean_rel: baseline values below this fraction of the output's largest "
        "absolute baseline value count as that large, so that values near zero do not blow the error up.",
        1e-3,
    )
    kl: fields.NonNegative | None = option("Greatest mean KL divergence of the softmax over 'axis', in nats.")
    tolerance: Tolerance | None = option(
        "Polygraphy's tolerance, by the names of its options.",
        examples=[{"abs": 1e-3, "rel": 1e-3, "check": "elemwise"}],
    )
    agreement: fields.Fraction | None = option(
        "Least fraction of equal elements, for outputs without floats."
    )
    top1_agreement: fields.Fraction | None = option(
        "Least fraction of samples whose top class over 'axis' is the baseline's."
    )
    top5_agreement: fields.Fraction | None = option(
        "Least fraction of samples with the baseline's top class among their five greatest."
    )


class MaxDrop(NamedTuple):
    """How much worse than the baseline's a metric's value may be."""

    amount: float
    """In the metric's own unit; a fraction (0.01 for '1%') where ``relative``."""
    relative: bool
    """Whether ``amount`` is to be multiplied by the absolute value that the baseline reaches."""


class MetricCriterion(_Limits):
    """Limits on a function of your own."""

    what = "metric"
    beside = ("metric", "lower_is_better", "streaming")

    metric: fields.Function = Field(
        description="Your function (outputs, labels) -> number, or your class with update(outputs, labels), "
        "called batch by batch, and compute() -> number, as 'file.py:function'. For a function all outputs "
        "are kept in memory.",
        examples=["metrics.py:top1"],
    )
    min: fields.Number | None = option("Least value that INT8 must reach.")
    max: fields.Number | None = option("Greatest value that INT8 may reach.")
    max_drop: fields.Drop | None = option(
        "How much worse than the baseline INT8 may be: a number in the metric's own unit, or a "
        "percentage of the baseline's value like '1%'."
    )
    lower_is_better: fields.Flag = option(
        "Whether a lower value is better; 'max_drop' is then a rise.", False
    )
    streaming: fields.Flag = option(
        "Whether your function may be called batch by batch, its value being the mean of what it returns, "
        "weighted by samples; like a class's update, it may then take (baseline, candidate, labels).",
        False,
    )

    @property
    def drop(self) -> MaxDrop | None:
        """``max_drop`` as a number."""
        if isinstance(self.max_drop, str):
            return MaxDrop(float(self.max_drop.rstrip(" %")) / 100, relative=True)
        return None if self.max_drop is None else MaxDrop(self.max_drop, relative=False)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """No limit at all, or limits that nothing meets."""
        yield from super().conflicts(given)
        low, high = given.get("min"), given.get("max")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            yield "min", f"'min' {found(low)} is greater than 'max' {found(high)}: nothing can pass"


class EngineCriterion(_Limits):
    """Limits on what an engine of TensorRT is and gains; ONNX Runtime cannot judge them."""

    int8_layers: fields.Fraction | None = option(
        "Least share of the engine's layers with weights that run in INT8.", examples=[0.9]
    )
    speedup: fields.Positive | None = option(
        "How many times as fast as the baseline's engine the INT8 engine must be (medians).", examples=[1.3]
    )


class RegressionCriterion(_Limits):
    """How much worse than the accepted scores, kept with the golden, a case may become."""

    regression: Annotated[
        dict[str, fields.NonNegative],
        Field(min_length=1),
        fields.expect("a mapping of metrics to how much worse they may become, like {cosine: 0.0001}"),
    ] = Field(
        description="Metric name (a key of an output's criteria, or the name of your function) to how much "
        "worse than accepted it may become, in the metric's own unit.",
        examples=[{"cosine": 0.0001}],
    )


_KINDS: Mapping[str, type[Closed]] = {
    "(metric)": MetricCriterion,
    "(engine)": EngineCriterion,
    "(regression)": RegressionCriterion,
    "(output)": OutputCriterion,
}


def _criterion(value: Any) -> str:
    """The tag of the kind of criterion that ``value`` means: the kind that knows most of its keys."""
    if isinstance(value, Closed):
        return next(tag for tag, model in _KINDS.items() if isinstance(value, model))
    keys: Iterable[str] = value if isinstance(value, dict) else ()
    if "metric" in keys:
        return "(metric)"
    known = {
        tag: (
            sum(k in model.model_fields for k in keys),
            sum(bool(closest(k, model.model_fields)) for k in keys),
        )
        for tag, model in _KINDS.items()
    }  # how many keys the kind has, and how many are near to one that it has
    best = max(known.values())
    return "(output)" if known["(output)"] == best else max(known, key=lambda tag: known[tag])


Criterion = Annotated[
    Annotated[OutputCriterion, Tag("(output)")]
    | Annotated[MetricCriterion, Tag("(metric)")]
    | Annotated[EngineCriterion, Tag("(engine)")]
    | Annotated[RegressionCriterion, Tag("(regression)")],
    Discriminator(_criterion),
]
