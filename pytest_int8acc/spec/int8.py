"""The sections of a spec that name data, the INT8 or FP8 quantization of the model, and the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, Discriminator, Field, Tag

from pytest_int8acc.spec import fields
from pytest_int8acc.spec.fields import Closed, closest, expect_list, one_of, option

CalibrationMethod = Literal["minmax", "entropy", "percentile", "mse", "topk"]
#: The calibrators of TensorRT's implicit quantization, which exists before TensorRT 11.
Algorithm = Literal["entropy2", "entropy", "minmax", "legacy"]
BaselinePrecision = Literal["fp16", "fp32", "golden"]
#: The formats that the key ``candidate`` accepts. A case has this key in place of ``int8`` or ``fp8``.
Low = Literal["fp16", "bf16"]


def _text_or(*known: str) -> Discriminator:
    """Return a pydantic discriminator that chooses between text and a mapping.

    A mapping with a key that is in ``known``, or similar to one, is validated as a mapping. Any other mapping
    is validated as text, because the error message for text names both alternatives.
    """

    def tag(value: Any) -> str:
        keys = value if isinstance(value, dict) else ()
        meant = isinstance(value, BaseModel) or any(closest(str(k), known) for k in keys)
        return "(mapping)" if meant else "(text)"

    return Discriminator(tag)


class RandomData(Closed):
    """Random samples: enough to see that a model runs, not to judge its accuracy."""

    where = "random"
    expected = "{samples: N, seed: N}"

    samples: fields.Count = Field(description="How many samples to draw.", examples=[64])
    seed: fields.NonNegativeInteger = option("Seed of the generator.", 0)


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


class Prove(Closed):
    """Samples on which fixes are verified. They are not used to choose a fix."""

    where = "prove"
    expected = "a file of samples, or a mapping like {inputs: test.npz, labels: test_labels.npy}"

    inputs: Source = Field(description="The samples, given like 'inputs'.", examples=["data/test.npz"])
    labels: fields.LabelsPath | None = option("Their labels, where the case has 'labels'.")
    groups: fields.GroupsPath | None = option("Which of them belong together, where the case has 'groups'.")
    samples: fields.Count | None = option("Use only the first N samples.")


ProveWish = Annotated[
    Annotated[fields.ProvePath, Tag("(text)")] | Annotated[Prove, Tag("(mapping)")],
    _text_or("inputs", "labels", "groups", "samples"),
]


class Calibration(Closed):
    """How scales are found by calibration, which runs the float model on samples."""

    where = "int8.calibrate"
    expected = "a mapping like {data: calib.npz, method: entropy}"

    data: Source | None = option("Calibration samples, given like 'inputs' (default: the case's inputs).")
    method: Annotated[CalibrationMethod, one_of(CalibrationMethod)] = option(
        "How a tensor's range follows from the values seen: all of it (minmax), least KL "
        "divergence (entropy), a percentile, least squared error (mse), mean of the largest maxima (topk).",
        "entropy",
    )
    samples: fields.Count | None = option("Use only the first N samples.")
    percentile: fields.Percentile = option(
        "For method percentile: the part of the absolute values, in %, that is not clipped.", 99.99
    )
    top_k: fields.Count = option("For method topk: how many of the largest maxima are averaged.", 5)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield a message for each parameter in ``given`` that belongs to another calibration method."""
        method = given.get("method", cls.model_fields["method"].default)
        for key, owner in (("percentile", "percentile"), ("top_k", "topk")):
            if key in given and method != owner and method in get_args(CalibrationMethod):
                yield key, f"'{key}' has no effect on method {method}; remove it, or set 'method: {owner}'"


class ImplicitCalibration(Closed):
    """How TensorRT's own calibrator is run."""

    where = "int8.implicit.calibrate"
    expected = "a mapping like {data: calib.npz, algorithm: entropy2}"

    data: Source | None = option("Calibration samples, given like 'inputs' (default: the case's inputs).")
    algorithm: Annotated[Algorithm, one_of(Algorithm)] = option(
        "TensorRT's calibrator: entropy2 for CNNs, minmax for transformers.", "entropy2"
    )
    samples: fields.Count | None = option("Use only the first N samples.")


class Implicit(Closed):
    """Implicit quantization: TensorRT (below 11) calibrates, and chooses which layers run in INT8."""

    where = "int8.implicit"
    expected = "a mapping with 'calibrate', 'cache' or both"

    calibrate: ImplicitCalibration | None = option("Calibrate with TensorRT; {} takes the defaults.")
    cache: fields.File | None = option(
        "A calibration cache to read; with 'calibrate', it is written where it is not there.",
        examples=["calibration.cache"],
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield a message if ``given`` has neither 'calibrate' nor 'cache'."""
        if not any(key in given for key in ("calibrate", "cache")):
            yield None, "'calibrate: {}' or 'cache: FILE' must say where the ranges come from"


class Quantized(Closed):
    """How the model is quantized. Exactly one of the keys in ``sources`` must be given."""

    where = "int8"
    sources: ClassVar[tuple[str, ...]] = ("calibrate", "scales", "model")

    calibrate: Calibration | None = option("Find scales by calibration; {} takes the defaults.")
    scales: fields.File | None = option(
        "Scales from a file: a TensorRT calibration cache, or a JSON of dynamic ranges.",
        examples=["calibration.cache"],
    )
    model: fields.File | None = option(
        "An ONNX model that is quantized already (Q/DQ), as by ModelOpt, ONNX Runtime or QAT.",
        examples=["resnet50.qdq.onnx"],
    )
    exclude: Annotated[tuple[fields.GraphName, ...], expect_list("node names or patterns")] = option(
        "ONNX nodes kept in high precision, by name or pattern (*, ?, [seq]).", ()
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield messages unless ``given`` has exactly one of the keys in ``sources``."""
        present = [key for key in given if key in cls.sources]
        for key in present[1:]:
            yield key, f"'{key}' and '{present[0]}' exclude each other: keep one"
        if not present:
            low = cls.where.upper()
            text = f"one of 'calibrate: {{}}', 'scales: FILE' or 'model: FILE' must say how {low} comes about"
            yield None, text


class Int8(Quantized):
    """How the INT8 model is made: by ``calibrate``, ``scales``, ``model``, ``implicit`` or ``engine``."""

    where = "int8"
    expected = "a mapping with one of 'calibrate', 'scales', 'model', 'implicit' or 'engine'"
    sources = ("calibrate", "scales", "model", "implicit", "engine")

    implicit: Implicit | None = option(
        "Implicit quantization by TensorRT 8.6 to 10: {calibrate: {}} or {cache: FILE}."
    )
    engine: fields.File | None = option(
        "A TensorRT engine that is built already.", examples=["resnet50_int8.engine"]
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield messages unless ``given`` has exactly one of ``sources``, and if 'exclude' has no effect."""
        yield from super().conflicts(given)
        if given.get("exclude") and "engine" in given:
            yield "exclude", "'exclude' has no effect on an engine that is built already; remove it"
        elif given.get("exclude") and "implicit" in given:
            text = "'exclude' has no effect on implicit quantization, where TensorRT chooses; use 'calibrate'"
            yield "exclude", text


class Fp8Calibration(Calibration):
    """How scales of FP8 are found by calibration, which runs the float model on samples."""

    where = "fp8.calibrate"
    expected = "a mapping like {data: calib.npz, method: minmax}"

    method: Annotated[CalibrationMethod, one_of(CalibrationMethod)] = option(
        "How a tensor's range follows from the values seen, as for INT8; small values keep their digits in "
        "FP8, so there is little to gain by clipping large ones.",
        "minmax",
    )


class Fp8(Quantized):
    """How the FP8 model (E4M3) is made: by exactly one of ``calibrate``, ``scales`` and ``model``."""

    where = "fp8"
    expected = "a mapping with one of 'calibrate', 'scales' or 'model'"

    calibrate: Fp8Calibration | None = option("Find scales by calibration; {} takes the defaults.")


class BaselineModel(Closed):
    """A separate model or engine that is the baseline."""

    where = "baseline"
    expected = "fp16, fp32, golden, {model: FILE} or {engine: FILE}"

    model: fields.File | None = option("The baseline's ONNX model, run as it is.", examples=["resnet50.onnx"])
    engine: fields.File | None = option("The baseline's TensorRT engine.", examples=["resnet50_fp16.engine"])

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield a message unless ``given`` has exactly one of 'model' and 'engine'."""
        if "model" in given and "engine" in given:
            yield "engine", "'engine' and 'model' exclude each other: keep one"
        if not given:
            yield None, "one of 'model: FILE' and 'engine: FILE' must name the baseline"


Baseline = Annotated[
    Annotated[
        BaselinePrecision, one_of(BaselinePrecision, ", {model: FILE} or {engine: FILE}"), Tag("(text)")
    ]
    | Annotated[BaselineModel, Tag("(mapping)")],
    _text_or("model", "engine"),
]
