"""What a spec may say, as frozen pydantic models.

Paths stay as written: ``Case.path`` makes them relative to the spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BaseModel, Discriminator, Field, PrivateAttr, Tag

from pytest_int8acc.settings import Backend, Mode, Provider, Strategy, When
from pytest_int8acc.spec import fields
from pytest_int8acc.spec.closed import Closed
from pytest_int8acc.spec.fields import closest, expect_list, found, one_of

CalibrationMethod = Literal["minmax", "entropy", "percentile", "mse", "topk"]
BaselinePrecision = Literal["fp16", "fp32"]


def _text_or(key: str) -> Discriminator:
    """Chooses between text and a mapping with ``key``; of any other mapping, text's own message says most."""

    def tag(value: Any) -> str:
        keys = value if isinstance(value, dict) else ()
        meant = isinstance(value, BaseModel) or any(closest(str(k), [key]) for k in keys)
        return "(mapping)" if meant else "(text)"

    return Discriminator(tag)


class RandomData(Closed):
    """Random samples: enough to see that a model runs, not to judge its accuracy."""

    where = "random"
    expected = "{samples: N, seed: N}"

    samples: fields.Count = Field(description="How many samples to draw.", examples=[64])
    seed: fields.Seed = Field(0, description="Seed of the generator.")


class RandomSource(Closed):
    """Random data in place of a file."""

    where = "inputs"
    expected = "{random: {samples: N}}"

    random: RandomData = Field(
        description="Random data; the report says so.", examples=[{"samples": 64, "seed": 0}]
    )


Source = Annotated[
    Annotated[fields.DataPath, Tag("(text)")] | Annotated[RandomSource, Tag("(mapping)")],
    _text_or("random"),
]


class Calibration(Closed):
    """Scales from running the float model over samples."""

    where = "int8.calibrate"
    expected = "a mapping like {data: calib.npz, method: entropy}"

    data: Source | None = Field(
        None, description="Calibration samples, given like 'inputs' (default: the case's inputs)."
    )
    method: Annotated[CalibrationMethod, one_of(CalibrationMethod)] = Field(
        "entropy",
        description="How a tensor's range follows from the values seen: all of it (minmax), least KL "
        "divergence (entropy), a percentile, least squared error (mse), mean of the largest maxima (topk).",
    )
    samples: fields.Count | None = Field(None, description="Use only the first N samples.")
    percentile: fields.Percentile = Field(
        99.99,
        description="For method percentile: the part of the absolute values, in %, that is not clipped.",
    )
    top_k: fields.Count = Field(
        5, description="For method topk: how many of the largest maxima are averaged."
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Parameters of a method that is not the one chosen."""
        method = given.get("method", "entropy")
        for key, owner in (("percentile", "percentile"), ("top_k", "topk")):
            if key in given and method != owner and method in get_args(CalibrationMethod):
                yield key, f"'{key}' has no effect on method {method}; remove it, or set 'method: {owner}'"


class Int8(Closed):
    """Where INT8 comes from: exactly one of calibrate, scales and model."""

    where = "int8"
    expected = "a mapping with one of 'calibrate', 'scales' or 'model'"
    sources: ClassVar[tuple[str, ...]] = ("calibrate", "scales", "model")

    calibrate: Calibration | None = Field(
        None, description="Find scales by calibration; {} takes the defaults."
    )
    scales: fields.File | None = Field(
        None,
        description="Scales from a file: a TensorRT calibration cache, or a JSON of dynamic ranges.",
        examples=["calibration.cache"],
    )
    model: fields.File | None = Field(
        None,
        description="An ONNX model that is quantized already (Q/DQ), as by ModelOpt, ONNX Runtime or QAT.",
        examples=["resnet50.qdq.onnx"],
    )
    exclude: Annotated[tuple[fields.Text, ...], expect_list("node names or patterns")] = Field(
        (), description="ONNX nodes kept out of INT8, by name or pattern (*, ?, [seq])."
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """None or several sources."""
        present = [key for key in given if key in cls.sources]
        for key in present[1:]:
            yield key, f"'{key}' and '{present[0]}' exclude each other: keep one"
        if not present:
            yield (
                None,
                "one of 'calibrate: {}', 'scales: FILE' or 'model: FILE' must say how INT8 comes about",
            )


class BaselineModel(Closed):
    """A model of its own as the baseline."""

    where = "baseline"
    expected = "fp16, fp32 or {model: FILE}"

    model: fields.File = Field(
        description="The baseline's ONNX model, run as it is.", examples=["resnet50.onnx"]
    )


Baseline = Annotated[
    Annotated[BaselinePrecision, one_of(BaselinePrecision, " or {model: FILE}"), Tag("(text)")]
    | Annotated[BaselineModel, Tag("(mapping)")],
    _text_or("model"),
]


class OnnxRuntime(Closed):
    """Options of the ONNX Runtime backend; what is left out follows from command line, ini and defaults."""

    where = "onnxruntime"
    expected = "a mapping like {mode: exact, provider: cpu}"

    mode: Annotated[Mode, one_of(Mode)] | None = Field(
        None,
        description="exact: Q/DQ computed unfused, the same on every CPU; native: the fused INT8 kernels "
        "that ONNX Runtime would deploy (default: exact).",
    )
    provider: Annotated[Provider, one_of(Provider)] | None = Field(
        None, description="Where ONNX Runtime computes (default: cpu)."
    )


class Search(Closed):
    """How the layers that must leave INT8 are searched; the rest follows from command line and ini."""

    where = "search"
    expected = "a mapping like {strategy: minimal, keep: fp16, max_builds: 8}"

    when: Annotated[When, one_of(When)] | None = Field(
        None, description="auto: where the case fails; always; or off (default: auto)."
    )
    strategy: Annotated[Strategy, one_of(Strategy)] | None = Field(
        None, description="How to search (default: minimal, the fewest and cheapest layers)."
    )
    keep: Annotated[BaselinePrecision, one_of(BaselinePrecision)] = Field(
        "fp16", description="The precision of the layers that leave INT8."
    )
    max_builds: fields.Count | None = Field(
        None, description="Engines that one search may build, the proof included (default: 8)."
    )
    max_seconds: fields.Count | None = Field(
        None, description="Stop after this many seconds with the best plan so far (default: never)."
    )
    certify: fields.Flag | None = Field(
        None, description="Prove on engines of its own that each culprit must leave INT8 (default: false)."
    )


_CRITERION = "a criterion like {output: logits, cosine: 0.99} or {metric: metrics.py:top1, max_drop: 0.01}"


class OutputCriterion(Closed):
    """Limits on how far an output may be from the baseline's."""

    where = "criteria"
    expected = _CRITERION

    output: fields.Text = Field("*", description="The output's name, or a pattern (*, ?, [seq]) of names.")
    axis: fields.Axis = Field(-1, description="The axis of classes, for kl and the top-k agreements.")
    cosine: fields.Cosine | None = Field(None, description="Least cosine similarity.")
    sqnr_db: fields.Number | None = Field(
        None,
        description="Least signal-to-quantization-noise ratio in dB; 20: noise is a tenth of the signal.",
    )
    psnr_db: fields.Number | None = Field(None, description="Least peak signal-to-noise ratio, in dB.")
    max_abs: fields.NonNegative | None = Field(None, description="Greatest absolute error of any element.")
    mean_abs: fields.NonNegative | None = Field(None, description="Greatest mean absolute error.")
    max_rel: fields.NonNegative | None = Field(None, description="Greatest relative error of any element.")
    mean_rel: fields.NonNegative | None = Field(None, description="Greatest mean relative error.")
    rel_floor: fields.Positive = Field(
        1e-3,
        description="For max_rel and mean_rel: baseline values below this fraction of the output's largest "
        "absolute baseline value count as that large, so that values near zero do not blow the error up.",
    )
    kl: fields.NonNegative | None = Field(
        None, description="Greatest mean KL divergence of the softmax over 'axis', in nats."
    )
    agreement: fields.Fraction | None = Field(
        None, description="Least fraction of equal elements, for outputs without floats."
    )
    top1_agreement: fields.Fraction | None = Field(
        None, description="Least fraction of samples whose top class over 'axis' is the baseline's."
    )
    top5_agreement: fields.Fraction | None = Field(
        None,
        description="Least fraction of samples with the baseline's top class among their five greatest.",
    )

    @classmethod
    def limits(cls) -> tuple[str, ...]:
        """The keys that set a limit."""
        return tuple(key for key in cls.model_fields if key not in ("output", "axis", "rel_floor"))

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """No limit at all."""
        if not any(key in given for key in cls.limits()):
            yield None, f"a criterion needs a limit; add one or more of {', '.join(cls.limits())}"


class MaxDrop(NamedTuple):
    """How much worse than the baseline's a metric's value may be."""

    amount: float
    """In the metric's own unit; a fraction (0.01 for '1%') where ``relative``."""
    relative: bool
    """Whether ``amount`` is to be multiplied by the absolute value that the baseline reaches."""


class MetricCriterion(Closed):
    """Limits on a function of your own."""

    where = "criteria"
    expected = _CRITERION

    metric: fields.Function = Field(
        description="Your function (outputs, labels) -> number, as 'file.py:function'.",
        examples=["metrics.py:top1"],
    )
    min: fields.Number | None = Field(None, description="Least value that INT8 must reach.")
    max: fields.Number | None = Field(None, description="Greatest value that INT8 may reach.")
    max_drop: fields.Drop | None = Field(
        None,
        description="How much worse than the baseline INT8 may be: a number in the metric's own unit, or a "
        "percentage of the baseline's value like '1%'.",
    )
    lower_is_better: fields.Flag = Field(
        False, description="Whether a lower value is better; 'max_drop' is then a rise."
    )

    @property
    def drop(self) -> MaxDrop | None:
        """``max_drop`` as a number."""
        if isinstance(self.max_drop, str):
            return MaxDrop(float(self.max_drop.rstrip(" %")) / 100, relative=True)
        return None if self.max_drop is None else MaxDrop(self.max_drop, relative=False)

    @classmethod
    def limits(cls) -> tuple[str, ...]:
        """The keys that set a limit."""
        return ("min", "max", "max_drop")

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """No limit at all, or limits that nothing meets."""
        if not any(key in given for key in cls.limits()):
            yield None, f"a metric needs a limit; add one or more of {', '.join(cls.limits())}"
        low, high = given.get("min"), given.get("max")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            yield "min", f"'min' {found(low)} is greater than 'max' {found(high)}: nothing can pass"


def _criterion(value: Any) -> str:
    """The tag of the kind of criterion that ``value`` means."""
    keys: Iterable[str] = value if isinstance(value, dict) else ()
    own = set(MetricCriterion.model_fields)
    if isinstance(value, MetricCriterion) or "metric" in keys:
        return "(metric)"
    return "(metric)" if own & set(keys) and not set(OutputCriterion.model_fields) & set(keys) else "(output)"


Criterion = Annotated[
    Annotated[OutputCriterion, Tag("(output)")] | Annotated[MetricCriterion, Tag("(metric)")],
    Discriminator(_criterion),
]


class Case(Closed):
    """A model, its data, how its INT8 form comes about, and what it must keep to."""

    where = ""
    expected = "a mapping like {name: resnet50, model: resnet50.onnx, ...}"

    name: fields.Name = Field(
        description="The test's name: letters, digits, '_', '-' and '.'; the file's own name by default, "
        "required where a file has several cases.",
        examples=["resnet50"],
    )
    model: fields.File = Field(description="The float ONNX model.", examples=["resnet50.onnx"])
    inputs: Source = Field(
        description="Samples to compare on, one array per model input, samples first: an .npz, a folder "
        "of .npy, Polygraphy's JSON, a loader 'file.py:function', or {random: {samples: N}}.",
        examples=["data/val.npz"],
    )
    labels: fields.LabelsPath | None = Field(
        None, description="Labels for metrics: a .npy or .npz file, or 'file.py:function'."
    )
    batch: fields.Count | None = Field(
        None, description="Samples per run where the model leaves its batch size open."
    )
    samples: fields.Count | None = Field(None, description="Use only the first N samples.")
    int8: Int8 = Field(
        description="How the INT8 form of the model comes about.",
        examples=[{"calibrate": {"data": "calib.npz"}}],
    )
    baseline: Baseline = Field(
        "fp16", description="What INT8 is compared with: the model in FP16 or FP32, or another model."
    )
    backend: Annotated[Backend, one_of(Backend)] | None = Field(
        None, description="The runtime; auto takes the best that can run here (default: auto)."
    )
    onnxruntime: OnnxRuntime | None = Field(None, description="Options of the ONNX Runtime backend.")
    search: Search = Field(Search(), description="How the layers that must leave INT8 are searched.")
    criteria: Annotated[tuple[Criterion, ...], expect_list("criteria")] = Field(
        (),
        description="What INT8 must keep to. If nothing is given: an SQNR of 20 dB on every output, or 99 % "
        "equal elements where an output holds no floats.",
    )
    marks: Annotated[tuple[fields.MarkName, ...], expect_list("pytest marks")] = Field(
        (), description="Names of pytest marks that the test carries."
    )
    xfail: fields.Reason | None = Field(None, description="Why the test is expected to fail.")
    skip: fields.Reason | None = Field(None, description="Why the test is not run.")

    _file: Path = PrivateAttr(Path("case.int8acc.yaml"))
    _line: int = PrivateAttr(0)

    @property
    def file(self) -> Path:
        """The spec."""
        return self._file

    @property
    def line(self) -> int:
        """The line in ``file`` where the case starts, counted from 0 as pytest does."""
        return self._line

    def settings(self) -> dict[str, object]:
        """What the case says of the settings that command line and configuration may say as well."""
        runtime = self.onnxruntime or OnnxRuntime()
        return {
            "backend": self.backend,
            "mode": runtime.mode,
            "provider": runtime.provider,
            "samples": self.samples,
            "search": self.search.when,
            **self.search.model_dump(include={"strategy", "max_builds", "max_seconds", "certify"}),
        }

    def path(self, value: str) -> Path:
        """A path written in the spec, relative to the spec's folder."""
        return self._file.parent / value

    def placed(self, file: Path, line: int) -> Case:
        """The same case as read from ``line`` (from 0) of ``file``."""
        case = self.model_copy()
        case._file, case._line = file, line
        return case
