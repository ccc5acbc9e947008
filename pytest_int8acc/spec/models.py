"""The keys of a spec as frozen pydantic models.

Paths are kept as written. ``Case.path`` returns them relative to the spec's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, PrivateAttr, Tag, model_validator

from pytest_int8acc.errors import blaming
from pytest_int8acc.results.precision import Realized
from pytest_int8acc.settings import Backend, Goal, Mode, Provider, Strategy, When, to_bytes
from pytest_int8acc.spec import fields
from pytest_int8acc.spec.criteria import Criterion
from pytest_int8acc.spec.fields import Closed, expect_list, one_of, option
from pytest_int8acc.spec.int8 import Baseline, Fp8, Int8, Low, Prove, ProveWish, Quantized, Source

Keep = Literal["fp16", "fp32"]
Undecided = Literal["score", "fail"]
GoldenType = Literal["float32", "float16"]


class OnnxRuntime(Closed):
    """Options of the ONNX Runtime backend.

    An option on the command line overrides the spec. An option that is given nowhere in the spec comes from
    pytest's configuration (ini), or has its default.
    """

    where = "onnxruntime"
    expected = "a mapping like {mode: exact, provider: cpu}"

    mode: Annotated[Mode, one_of(Mode)] | None = option(
        "exact: Q/DQ computed unfused, the same on every CPU; native: the fused INT8 kernels "
        "that ONNX Runtime would deploy (default: exact)."
    )
    provider: Annotated[Provider, one_of(Provider)] | None = option(
        "Where ONNX Runtime computes (default: cpu)."
    )


class TensorRt(Closed):
    """Options of the TensorRT backend."""

    where = "tensorrt"
    expected = "a mapping like {workspace: 4G, shapes: {image: [[1, 3, 224, 224], ...]}}"

    shapes: Annotated[
        Mapping[str, fields.Profile],
        fields.expect("a mapping of inputs to three shapes, like {image: [[1, 3], [8, 3], [32, 3]]}"),
    ] = Field(
        default_factory=dict,
        description="Per input its smallest, usual and largest shape (default: from the data).",
        examples=[{"image": [[1, 3, 224, 224], [8, 3, 224, 224], [32, 3, 224, 224]]}],
    )
    plugins: Annotated[tuple[fields.File, ...], expect_list("plugin libraries")] = option(
        "Shared libraries with plugins, loaded before the model is read.", ()
    )
    workspace: fields.Size | None = option(
        "Memory that the builder's tactics may take, like 4G (default: all).", examples=["4G"]
    )
    optimization_level: fields.Level | None = option(
        "The builder's effort, 0 to 5 (default: TensorRT's own, 3)."
    )
    tactic_sources: Annotated[tuple[fields.Text, ...], expect_list("tactic sources")] | None = option(
        "Tactic sources of the builder, like CUBLAS; [] takes none (default: TensorRT's)."
    )
    obey: fields.Flag = option(
        "Hold each layer in the precision that the model has there, by layer precisions that must be obeyed; "
        "without it TensorRT takes the fastest, FP32 too. For TensorRT 8.6 and 9: from 10 on the model's "
        "own types are obeyed.",
        False,
    )
    timeout: fields.Count = option("Seconds that one build may take.", 1800)


class Golden(Closed):
    """Which part of the baseline's outputs is kept in the repository."""

    where = "golden"
    expected = "true, or a mapping like {dtype: float16, samples: 64}"

    dtype: Annotated[GoldenType, one_of(GoldenType)] = option("How float outputs are kept.", "float32")
    samples: fields.Count | None = option("Keep only the first N samples.")


GoldenWish = Annotated[
    Annotated[bool, Field(strict=True), fields.expect(Golden.expected), Tag("(flag)")]
    | Annotated[Golden, Tag("(mapping)")],
    Discriminator(lambda value: "(mapping)" if isinstance(value, dict | BaseModel) else "(flag)"),
]


class Search(Closed):
    """How the layers that must leave INT8 are searched.

    An option on the command line overrides the spec. The spec overrides pytest's configuration (ini).
    """

    where = "search"
    expected = "a mapping like {strategy: minimal, keep: fp16, max_builds: 8}"

    when: Annotated[When, one_of(When)] | None = option(
        "auto: where the case fails; always; or off (default: auto)."
    )
    goal: Annotated[Goal, one_of(Goal)] = option(
        "What is searched. accuracy: the layers that must leave INT8; a faster plan only where 'speedup' is "
        "missed. latency: a faster plan for a case that passes, too. TensorRT alone times its engines.",
        "accuracy",
        alias="for",
    )
    strategy: Annotated[Strategy, one_of(Strategy)] | None = option(
        "How to search (default: minimal, the fewest and cheapest layers)."
    )
    keep: Annotated[Keep, one_of(Keep)] = option(
        "The precision of the layers that leave INT8; fp32 wherever the baseline is in FP32.", "fp16"
    )
    max_builds: fields.Count | None = option(
        "Engines that one search may build, the proof included (default: 8)."
    )
    max_seconds: fields.Count | None = option(
        "End all that follows the verdict after this many seconds, with what is known by then (default: 300)."
    )
    certify: fields.Flag | None = option(
        "Prove on engines of its own that each culprit must leave INT8 (default: false)."
    )


#: The keys that set the number format of a case. A case has exactly one of them.
FORMAT_KEYS = ("int8", "fp8", "candidate")


def _conflicts_of_low(given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """Yield messages on keys that contradict ``candidate: fp16`` or ``candidate: bf16``."""
    low, search = given["candidate"], given.get("search")
    if given.get("baseline") == "fp16":
        yield "baseline", f"'candidate: {low}' is compared with FP32: remove 'baseline', or write 'fp32'"
    if isinstance(search, dict) and search.get("keep") == "fp16":
        yield "search", f"with 'candidate: {low}', layers are kept in FP32: remove 'keep'"


def _conflicts_of_prove(given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """Yield messages on ``prove`` with ``baseline: golden``, and on missing labels or groups.

    If the case names a file of labels, ``prove`` needs labels, too. If ``prove`` has labels, the case needs
    labels, too. The same holds for ``groups``, which say which samples belong together.
    """
    prove = given.get("prove")
    if prove is not None and given.get("baseline") == "golden":
        yield "prove", "'baseline: golden' keeps no outputs for the samples of 'prove': remove one of them"
    for key in ("labels", "groups"):
        has = isinstance(prove, dict) and prove.get(key) is not None
        if prove is not None and not has and _is_file(given.get(key)):
            yield "prove", f"the case has '{key}': write 'prove: {{inputs: FILE, {key}: FILE}}'"
        elif has and key not in given:
            yield "prove", f"'prove' has {key}, and the case has none: remove them, or add '{key}'"


def _is_file(value: object) -> bool:
    """Whether ``value``, given for ``labels`` or ``groups``, is a file and not the name of an array."""
    return isinstance(value, str) and "." in value


class Case(Closed):
    """A model, its data, how it is quantized, and the criteria that it must meet."""

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
    labels: fields.LabelsPath | None = option(
        "Labels for metrics: a .npy or .npz file, .txt with a line per sample, .json of COCO's boxes, or "
        "'file.py:function'."
    )
    prove: ProveWish | None = option(
        "Samples that prove fixes, given like 'inputs' or as {inputs: FILE, labels: FILE, groups: FILE}. All "
        "samples of 'inputs' then choose (default: a third of 24 inputs or more proves).",
        examples=["data/test.npz"],
    )
    batch: fields.Count | None = option("Samples per run where the model leaves its batch size open.")
    samples: fields.Count | None = option("Use only the first N samples.")
    max_data: fields.Size = option(
        "What random data, an .npz unpacked, and a loader without 'samples' may give.", "4G"
    )
    int8: Int8 = Field(
        default_factory=Int8.model_construct,
        description="How the INT8 form of the model comes about.",
        examples=[{"calibrate": {"data": "calib.npz"}}],
    )
    fp8: Fp8 | None = option(
        "In place of 'int8': how the model's FP8 form (E4M3) comes about.",
        examples=[{"calibrate": {"data": "calib.npz"}}],
    )
    candidate: Annotated[Low, one_of(Low)] | None = option(
        "In place of 'int8': the model in fp16 or bf16, compared with FP32.", examples=["fp16"]
    )
    baseline: Baseline = option(
        "What is compared with: the model in FP16 or FP32, another model or engine, or outputs kept in "
        "the repository (golden); with 'candidate' FP32 by default.",
        "fp16",
    )
    golden: GoldenWish = option(
        "Compare the baseline's outputs with those kept in the repository, too, and keep the "
        "accepted scores.",
        False,
    )
    reference: fields.File | None = option(
        "The training framework's outputs, an .npz of one array per output: shows where a drop begins.",
        examples=["torch_outputs.npz"],
    )
    plan: fields.File | None = option(
        "A plan.yaml, as written for a failed case: layers kept out of INT8, scales, floats, moves, outputs.",
        examples=["plan.yaml"],
    )
    backend: Annotated[Backend, one_of(Backend)] | None = option(
        "The runtime; auto takes the best that can run here (default: auto)."
    )
    realized: Annotated[Realized, one_of(Realized)] | None = option(
        "What becomes of an engine that provably runs more than 10 % of the multiply-accumulates asked for, "
        "by Q/DQ or by 'candidate', in another format. require: the case fails; warn; or off (default: "
        "require, and warn with 'int8: {implicit: ...}').",
    )
    onnxruntime: OnnxRuntime | None = option("Options of the ONNX Runtime backend.")
    tensorrt: TensorRt = option("How TensorRT builds its engines.", TensorRt())
    search: Search = option("How the layers that must leave INT8 are searched.", Search())
    criteria: Annotated[tuple[Criterion, ...], expect_list("criteria")] = option(
        "What INT8 must keep to. An output that none of them names must keep an SQNR of 20 dB, or 99 % "
        "equal elements where it holds no floats, unless a metric of your own judges.",
        (),
    )
    groups: fields.GroupsPath | None = option(
        "Which samples belong together, like the frames of a video: a .npy, .npz or .txt file with a number "
        "or name for each sample, 'file.py:function', or the name of an array of 'labels'. Confidence "
        "intervals count a group as one sample.",
        examples=["data/videos.txt"],
    )
    undecided: Annotated[Undecided, one_of(Undecided)] = option(
        "What becomes of a case that passes, but that other samples may reverse. score: it passes, and the "
        "report says so; fail.",
        "score",
    )
    unjudged: Annotated[tuple[fields.GraphName, ...], expect_list("output names or patterns")] = option(
        "Outputs that no criterion judges, by name or pattern (*, ?, [seq]); the report says so.", ()
    )
    accept_blind: fields.Reason | None = option(
        "Why criteria are accepted that outputs of zeros, or another sample's outputs, keep as well; "
        "without a reason such a case fails.",
        examples=["one output is constant by design"],
    )
    marks: Annotated[tuple[fields.MarkName, ...], expect_list("pytest marks")] = option(
        "Names of pytest marks that the test carries.", ()
    )
    xfail: fields.Reason | None = option("Why the test is expected to fail.")
    skip: fields.Reason | None = option("Why the test is not run.")

    @model_validator(mode="before")
    @classmethod
    def _against_fp32(cls, given: Any) -> Any:
        """Return the case as written. If it has 'candidate' and no baseline, ``baseline: fp32`` is added."""
        lacks = isinstance(given, dict) and "candidate" in given and "baseline" not in given
        return {**given, "baseline": "fp32"} if lacks else given

    @classmethod
    def lacking(cls, given: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message if the case has none of the keys 'int8', 'fp8' and 'candidate'."""
        if not any(key in given for key in FORMAT_KEYS):
            yield (
                "'int8' is missing: add 'int8: {calibrate: {data: calib.npz}}', the same with 'fp8', or "
                "'candidate: fp16'"
            )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
        """Yield messages on more than one format, and on keys that have no effect with the case's format."""
        formats = [key for key in FORMAT_KEYS if key in given]
        for key in formats[:-1]:
            yield key, f"'{key}' and '{formats[-1]}' exclude each other: keep one"
        if "candidate" in given:
            yield from _conflicts_of_low(given)
        criteria = given.get("criteria")
        if formats[-1:] != ["int8"] and isinstance(criteria, list | tuple):
            keys = {key for criterion in criteria if isinstance(criterion, dict) for key in criterion}
            for key in ("int8_layers", "int8_share"):
                if formats and key in keys:
                    yield "criteria", f"'{key}' says nothing of a case with '{formats[-1]}': remove it"
        int8 = given.get("int8")
        sources = int8 if isinstance(int8, dict) else {}
        if "realized" in given and "engine" in sources:
            text = "has no effect on 'int8: {engine: ...}', which does not tell what was asked for"
            yield "realized", f"'realized' {text}: use the criterion {{int8_share: 0.9}}"
        for key in ("plan", "prove"):
            if key in given and "engine" in sources:
                text = f"'{key}' has no effect on 'int8: {{engine: ...}}'"
                yield key, f"{text}: name the model it was made from"
        yield from _conflicts_of_prove(given)
        if "plan" in given and "implicit" in sources:
            yield "plan", "'plan' has no effect on 'int8: {implicit: ...}': use 'int8: {calibrate: {}}'"

    _file: Path = PrivateAttr(Path("case.int8acc.yaml"))
    _line: int = PrivateAttr(0)
    _places: Mapping[str, str] = PrivateAttr({})

    @property
    def source(self) -> Quantized:
        """The section 'int8' or 'fp8'; an empty section if the case is in FP16 or BF16."""
        return self.int8 if self.fp8 is None else self.fp8

    @property
    def proving(self) -> Prove | None:
        """The samples under 'prove' with their labels and groups; None if the case has no such key."""
        return Prove(inputs=self.prove) if isinstance(self.prove, str) else self.prove

    @property
    def file(self) -> Path:
        """The path of the spec file that the case was read from."""
        return self._file

    @property
    def line(self) -> int:
        """The line in ``file`` where the case starts, counted from 0 as pytest does."""
        return self._line

    def settings(self) -> dict[str, object]:
        """Return the settings in the spec, by their names in ``Settings``; None for those that it lacks."""
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
        """Return the path of a file that the spec names by ``value``, relative to the spec's folder."""
        return self._file.parent / value

    @property
    def most_bytes(self) -> int:
        """``max_data``, the maximum size of the data of the case, in bytes."""
        return to_bytes(self.max_data)

    def at(self, key: str = "") -> AbstractContextManager[None]:
        """Return a context in which errors of this package get the :meth:`place` of ``key`` in the spec.

        Their messages then begin with ``file:line:col``.
        """
        return blaming(self.place(key))

    def place(self, key: str = "") -> str:
        """Return the place, as ``file:line:col``, of the value of a dotted key.

        Args:
            key: For example ``int8.calibrate.data`` or ``criteria.0``; empty for the case.

        Returns:
            The place. If the spec lacks the key, the place of the nearest mapping that would contain it.
            Empty if the case was not read from a file.
        """
        while key not in self._places and key:
            key = key.rpartition(".")[0]
        return self._places.get(key, "")

    def placed(self, file: Path, line: int, places: Mapping[str, str] | None = None) -> Case:
        """Return a copy of the case that records where the case was read.

        Args:
            file: The spec.
            line: The line where the case starts, counted from 0.
            places: Dotted key to place, as ``file:line:col``.
        """
        case = self.model_copy()
        case._file, case._line, case._places = file, line, places or {}
        return case
