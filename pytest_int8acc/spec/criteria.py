"""The kinds of criteria in a spec: limits on outputs, on metrics, on the engine, and on regressions.

A regression is a score that has become worse than the score that the user accepted in a golden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import Discriminator, Field, Tag

from pytest_int8acc.spec import fields
from pytest_int8acc.spec.fields import Closed, closest, found, option

ToleranceCheck = Literal["elemwise", "max", "mean", "median", "quantile"]
#: The built-in metrics that use labels. The key ``metric`` accepts one of them, or a ``file.py:function``.
TaskName = Literal["top1", "top5", "f1", "miou", "coco_map", "wer", "ssim", "psnr"]
Average = Literal["macro", "micro", "weighted", "binary"]
BoxLayout = Literal["xyxy", "yolov5", "yolov8"]
_Metric = Annotated[
    str, Field(strict=True, pattern=fields.or_function(TaskName)), fields.expect_or_function(TaskName)
]
_Decode = Annotated[
    str, Field(strict=True, pattern=fields.or_function(BoxLayout)), fields.expect_or_function(BoxLayout)
]
#: The keys that only some built-in metrics accept, each with the names of the metrics that accept it.
_KEYS_OF: Mapping[str, tuple[TaskName, ...]] = {
    "axis": ("top1", "top5", "f1", "miou", "ssim"),
    "ignore": ("top1", "top5", "f1", "miou"),
    "average": ("f1",),
    "data_range": ("ssim", "psnr"),
    "confidence": ("top1", "top5", "f1", "miou", "wer", "ssim", "psnr"),
    "min_detectable": ("top1", "top5"),
}
#: The keys of a metric criterion that only built-in metrics accept.
_OF_TASKS = ("output", "decode", "label", *_KEYS_OF)
#: The keys of a metric criterion that only a user's own function accepts.
_OF_FUNCTIONS = ("lower_is_better", "streaming")


class _Limits(Closed):
    """Base class of the kinds of criteria. A criterion without any limit is a mistake."""

    where = "criteria"
    expected = "a criterion like {output: logits, cosine: 0.99} or {metric: metrics.py:top1, max_drop: 0.01}"
    what: ClassVar[str] = "criterion"
    modifiers: ClassVar[tuple[str, ...]] = ()
    """The keys of the criterion that set no limit, such as ``output``."""
    instead: ClassVar[tuple[str, ...]] = ()
    """The keys in ``modifiers`` that suffice without a limit: a criterion with one of them is valid."""

    @classmethod
    def limits(cls) -> tuple[str, ...]:
        """Return the names of the keys that set a limit."""
        return tuple(key for key in cls.model_fields if key not in cls.modifiers)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield a message if ``given``, the criterion as written, sets no limit."""
        if not any(key in given for key in (*cls.limits(), *cls.instead)):
            yield None, f"a {cls.what} needs a limit; add one or more of {', '.join(cls.limits())}"


class Tolerance(Closed):
    """Polygraphy's tolerance: an error within the absolute or within the relative tolerance passes."""

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
        """Yield a message if 'quantile' is given but 'check' does not use a quantile."""
        other_checks = [check for check in get_args(ToleranceCheck) if check != "quantile"]
        if "quantile" in given and given.get("check", "elemwise") in other_checks:
            yield "quantile", "'quantile' has no effect here; remove it, or set 'check: quantile'"


class OutputCriterion(_Limits):
    """Limits on the difference between an output and the same output of the baseline."""

    modifiers = ("output", "tensor", "axis", "rel_floor", "per", "quantile", "parts")
    instead = ("parts",)

    output: fields.GraphName = option("The output's name, or a pattern (*, ?, [seq]) of names.", "*")
    tensor: fields.GraphName | None = option(
        "In place of 'output': a tensor inside the float model, by its name, judged as an output is.",
        examples=["/head/boxes"],
    )
    parts: fields.Parts | None = option(
        "Sizes along 'axis': each part is judged by itself, under these limits or the default ones. Without "
        "it, an output that the graph joins of parts of unlike kind is judged by those; 'off': as a whole.",
        examples=[[4, 80]],
    )
    axis: fields.Integer = option(
        "The axis of classes, for kl and the top-k agreements; of 'parts', where these are given.", -1
    )
    cosine: fields.Correlation | None = option("Least cosine similarity.")
    sqnr_db: fields.Number | None = option(
        "Least signal-to-quantization-noise ratio in dB; 20: noise is a tenth of the signal."
    )
    psnr_db: fields.Number | None = option("Least peak signal-to-noise ratio, in dB.")
    max_abs: fields.NonNegative | None = option("Greatest absolute error of any element.")
    mean_abs: fields.NonNegative | None = option("Greatest mean absolute error.")
    mse: fields.NonNegative | None = option("Greatest mean squared error.")
    max_rel: fields.NonNegative | None = option("Greatest relative error of any element.")
    mean_rel: fields.NonNegative | None = option("Greatest mean relative error.")
    per: Annotated[Literal["sample"], fields.one_of(Literal["sample"])] | None = option(
        "'sample': each sample must keep the limits by itself. Without it, all samples are judged together, "
        "so that large ones hide what becomes of small ones. Samples in which neither form has anything to "
        "compare are left out, and counted in a note.",
        examples=["sample"],
    )
    quantile: fields.Fraction = option(
        "With 'per: sample': the share of the compared samples that may miss the limits.",
        0.0,
        examples=[0.05],
    )
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

    @property
    def limits_given(self) -> bool:
        """Whether any limit is set. A criterion that has only the key 'parts' sets none."""
        return any(getattr(self, key) is not None for key in self.limits())

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield a message for each of three mistakes: no limit, two names, 'quantile' without 'per'.

        The two names are 'output' and 'tensor', which exclude each other.
        """
        yield from super().conflicts(given)
        if "output" in given and "tensor" in given:
            yield "tensor", "'output' and 'tensor' exclude each other: write a criterion for each"
        if "quantile" in given and "per" not in given:
            yield "quantile", "'quantile' has no effect here; remove it, or set 'per: sample'"


class MaxDrop(NamedTuple):
    """How much worse than the baseline the value of a metric may be."""

    amount: float
    """The maximum loss: in the metric's own unit, or if ``relative`` a ratio such as 0.01 for '1%'."""
    relative: bool
    """Whether ``amount`` is a ratio to the absolute value that the metric has for the baseline."""


class MetricCriterion(_Limits):
    """Limits on a metric of all samples and their labels: a built-in one, or a function of your own."""

    what = "metric"
    modifiers = ("metric", *_OF_TASKS, *_OF_FUNCTIONS)

    metric: _Metric = Field(
        description="One of "
        + ", ".join(get_args(TaskName))
        + "; or your function (outputs, labels) -> number, or your class with update(outputs, labels), "
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
    confidence: fields.Confidence | None = option(
        "The confidence of the interval that says whether the samples decide the verdict (default: 0.95)."
    )
    min_detectable: fields.Share | None = option(
        "The smallest drop that the labels must be able to show, as a share of the samples like 0.005 or "
        "'0.5%'. With fewer labels than that takes, the case is an error before anything runs.",
        examples=["0.5%"],
    )
    output: fields.GraphName | None = option(
        "For a named metric: the output that it judges (default: the only one)."
    )
    decode: _Decode | None = option(
        "For a named metric: what makes predictions of outputs. Your function (outputs) -> one prediction "
        "per sample, as 'file.py:function': texts for wer, arrays [boxes, 6] of x1, y1, x2, y2, score, class "
        "for coco_map, else an array in place of the output. Or, for coco_map, a layout of the output: xyxy "
        "(such boxes already), yolov5 or yolov8 (before NMS).",
        examples=["decode.py:texts"],
    )
    label: fields.Text | None = option(
        "For a named metric: which array of the labels it takes, where there are several."
    )
    axis: fields.Integer | None = option(
        "The axis of classes, of channels for ssim (default: the one that the labels lack; 1 for ssim)."
    )
    ignore: fields.Integer | None = option("A class id whose labels do not count, like 255.")
    average: Annotated[Average, fields.one_of(Average)] | None = option(
        "For f1: the mean over classes (macro, the default), over all labels (micro), weighted by labels, or "
        "class 1 alone (binary)."
    )
    data_range: fields.Positive | None = option(
        "For ssim and psnr: from the least to the greatest possible value (default: 1, or 255 where the "
        "labels are uint8)."
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
    def named(self) -> bool:
        """Whether the metric is a built-in one."""
        return self.metric in get_args(TaskName)

    @property
    def ref(self) -> str:
        """The metric's name in scores, like ``top1``; with output and average like ``logits:f1_macro``."""
        name = self.metric if self.average is None else f"{self.metric}_{self.average}"
        return name if self.output is None else f"{self.output}:{name}"

    @property
    def detectable(self) -> float | None:
        """``min_detectable``, a share of the samples, as a number above 0 and below 1; None if not set."""
        if isinstance(self.min_detectable, str):
            return float(self.min_detectable.rstrip(" %")) / 100
        return self.min_detectable

    @property
    def drop(self) -> MaxDrop | None:
        """``max_drop`` as an amount, and whether the amount is relative; None if the spec sets no limit."""
        if isinstance(self.max_drop, str):
            return MaxDrop(float(self.max_drop.rstrip(" %")) / 100, relative=True)
        return None if self.max_drop is None else MaxDrop(self.max_drop, relative=False)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield a message for each of these mistakes: no limit, keys without effect, 'min' above 'max'."""
        yield from super().conflicts(given)
        metric = given.get("metric")
        if isinstance(metric, str):
            yield from _strange_keys(metric, given)
        low, high = given.get("min"), given.get("max")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            yield "min", f"'min' {found(low)} is greater than 'max' {found(high)}: nothing can pass"


def _strange_keys(metric: str, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """Yield a message for each key in ``given`` that has no effect on ``metric``.

    Another message says that the metric ``coco_map`` needs 'decode', if that key is missing.
    """
    tasks = get_args(TaskName)
    named = metric in tasks
    for key in given:
        if named and key in _OF_FUNCTIONS:
            owner = "a function of your own"
        elif not named and key in _OF_TASKS:
            owner = f"a named metric ({', '.join(tasks)})"
        elif named and metric not in _KEYS_OF.get(key, tasks):
            owner = ", ".join(_KEYS_OF[key])
        else:
            continue
        yield key, f"'{key}' has no effect on metric {metric}: it is for {owner}"
    layout = given.get("decode") in get_args(BoxLayout)
    if named and layout and metric != "coco_map":
        yield "decode", f"'decode: {given['decode']}' is a layout of boxes; {metric} needs 'file.py:function'"
    if named and "output" in given and "decode" in given and not layout:
        yield "output", "'output' has no effect beside your decode function, which gets all outputs"
    if metric == "coco_map" and "decode" not in given:
        yield None, f"coco_map needs 'decode': {', '.join(get_args(BoxLayout))}, or 'file.py:function'"


class EngineCriterion(_Limits):
    """Limits on the share of the model that runs in INT8, and on the speed-up of a TensorRT engine.

    With ONNX Runtime only ``int8_share`` can be judged. The share is then the one that the case requests,
    because ONNX Runtime does not report the formats in which it ran the layers.
    """

    int8_share: fields.Fraction | None = option(
        "Least share of the model's multiply-accumulates in INT8: as the engine runs them; on ONNX Runtime "
        "as Q/DQ or calibration ask for them.",
        examples=[0.9],
    )
    int8_layers: fields.Fraction | None = option(
        "Least share of the engine's layers with weights that run in INT8.", examples=[0.9]
    )
    speedup: fields.Positive | None = option(
        "How many times as fast as the baseline's engine the INT8 engine must be (medians).", examples=[1.3]
    )


class RegressionCriterion(_Limits):
    """How much worse than its accepted scores a case may become. The golden holds these scores."""

    regression: Annotated[
        dict[str, fields.NonNegative],
        Field(min_length=1),
        fields.expect("a mapping of metrics to how much worse they may become, like {cosine: 0.0001}"),
    ] = Field(
        description="Metric name (a key of an output's criteria, or the name of your function) to how much "
        "worse than accepted it may become, in the metric's own unit.",
        examples=[{"cosine": 0.0001}],
    )


#: The kinds of criteria by their pydantic union tag. If a user's keys match several kinds equally well, the
#: first of these kinds in this order is chosen.
_KINDS: Mapping[str, type[Closed]] = {
    "(output)": OutputCriterion,
    "(metric)": MetricCriterion,
    "(engine)": EngineCriterion,
    "(regression)": RegressionCriterion,
}


def _criterion(value: Any) -> str:
    """Return the union tag of the kind of criterion that ``value``, a mapping of the user, most probably is.

    It is the kind that has most of the keys in ``value``.
    """
    if isinstance(value, Closed):
        return next(tag for tag, model in _KINDS.items() if isinstance(value, model))
    keys: Iterable[str] = value if isinstance(value, dict) else ()
    if "metric" in keys:
        return "(metric)"

    def similarity(tag: str) -> tuple[int, int]:
        """Return how many of the user's keys this kind of criterion has: as written, and after correction."""
        known = _KINDS[tag].model_fields
        return sum(key in known for key in keys), sum(closest(key, known) is not None for key in keys)

    return max(_KINDS, key=similarity)


Criterion = Annotated[
    Annotated[OutputCriterion, Tag("(output)")]
    | Annotated[MetricCriterion, Tag("(metric)")]
    | Annotated[EngineCriterion, Tag("(engine)")]
    | Annotated[RegressionCriterion, Tag("(regression)")],
    Discriminator(_criterion),
]
