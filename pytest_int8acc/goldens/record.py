"""The record of a golden: the accepted scores, and the provenance, with which later changes are found.

The provenance is the files, settings and scripts on which a golden depends.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import onnx
from google.protobuf.message import DecodeError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import Int8accError, installed
from pytest_int8acc.files import readable
from pytest_int8acc.results import Acceptance, Bound
from pytest_int8acc.runtime.protocol import ENGINE
from pytest_int8acc.runtime.store import digest_file
from pytest_int8acc.spec.criteria import MetricCriterion
from pytest_int8acc.spec.int8 import BaselineModel
from pytest_int8acc.spec.models import Case, GoldenType


class GoldenError(Int8accError):
    """A golden is missing, stale or damaged, or cannot be written."""


def _plain(name: str) -> str:
    """Returns ``name`` unchanged; raises ValueError unless it is a file name without a folder."""
    if name in ("", ".", "..") or any(separator in name for separator in "/\\:"):
        raise ValueError(f"{name!r} lies in another folder")
    return name


class _Frozen(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Accepted(_Frozen):
    """One accepted score of the low-precision candidate."""

    subject: str
    """The name of the output, or of the metric as the spec writes it, like ``metrics.py:top1``."""
    metric: str
    value: float
    bound: Bound
    """``min`` if a smaller value is worse, ``max`` if a larger value is worse."""

    @property
    def key(self) -> tuple[str, str]:
        """The subject and the metric. This pair is unique among the scores of a case."""
        return self.subject, self.metric


class KeptOutput(_Frozen):
    """How the .npz of a golden stores one output."""

    dtype: str
    """The dtype of the baseline's output; ``object`` for strings."""
    parts: int | None = Field(default=None, ge=1)
    """Number of arrays, one per batch, if batches cannot be joined along the samples; None for one array."""


class Kept(_Frozen):
    """The entry of a golden's record on the .npz file with the baseline's outputs."""

    file: Annotated[str, AfterValidator(_plain)]
    sha256: str
    dtype: GoldenType
    samples: int = Field(ge=1)
    data: str
    """The hash of the input samples from which these outputs were computed."""
    outputs: dict[str, KeptOutput]


class Record(_Frozen):
    """The content of a golden's JSON file: accepted scores, and what the golden depends on."""

    format: Literal[1] = 1
    case: str
    files: dict[str, str]
    """SHA-256 of the files that the golden depends on: the model with its external data, and the baseline if
    it is a file. The keys are ``model``, ``baseline model`` and ``baseline engine``."""
    baseline: str
    """The kind of baseline: fp16, fp32, model (another ONNX file) or engine (a built engine)."""
    samples: int = Field(ge=1)
    """Number of samples from which the scores were computed."""
    data: str
    """The hash of the samples from which the scores were computed."""
    settings: dict[str, str]
    """The settings of the backend that change outputs, by name."""
    scripts: dict[str, str]
    """SHA-256 of the user's loader, metrics and labels, by the names of these files in the spec."""
    made_with: dict[str, str]
    """Versions of the libraries, and a description of the engine that the baseline ran on."""
    scores: tuple[Accepted, ...]
    kept: Kept | None = None
    """The stored outputs; None if the case keeps only its scores."""

    def text(self) -> str:
        """Return the content of the golden's JSON file."""
        return self.model_dump_json(indent=2) + "\n"


def read_record(text: bytes, where: str, again: str) -> Record:
    """Return the record in ``text``, the content of a golden's JSON file.

    Error messages name the file by ``where``, and end with the advice ``again``: how to record the golden.

    Raises:
        GoldenError: The JSON is no golden of this version.
    """
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        details = error.errors(include_url=False)
        if any(detail["loc"] == ("format",) for detail in details):
            raise GoldenError(
                f"{where}: written by another version of pytest-int8acc; install that, or {again}"
            ) from None
        said = ": ".join(filter(None, (".".join(map(str, details[0]["loc"])), details[0]["msg"])))
        raise GoldenError(
            f"{where}: the golden is damaged ({said}); restore it from version control, or {again}"
        ) from None


def compared(old: Record | None, new: Record) -> Iterator[Acceptance]:
    """Yield the accepted value of each score before and after: in ``old`` and in ``new``; None if missing."""
    before = {} if old is None else {score.key: score.value for score in old.scores}
    for score in new.scores:
        yield Acceptance(*score.key, before.pop(score.key, None), score.value)
    for (subject, metric), value in before.items():
        yield Acceptance(subject, metric, value, None)


logger = logging.getLogger("pytest_int8acc")
#: Minimum size of a file whose hashing is logged, in bytes. Hashing it takes more than a second.
_SLOW_BYTES = 1 << 30
_VERSIONS = ("pytest-int8acc", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx")


@dataclass(frozen=True)
class Provenance:
    """All that a golden of a case depends on, except its data; a :class:`Record` has the same fields."""

    files: dict[str, str] = field(default_factory=dict)
    baseline: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)


def provenance_of(case: Case, output_settings: Mapping[str, str]) -> Provenance:
    """Return the provenance that a golden recorded in this run has. The case's files are hashed for it.

    Args:
        case: From ``load_spec``.
        output_settings: The settings of the backend that change outputs.
    """
    files = {"model": digest_model(case.path(case.model))}
    baseline: str = case.baseline if isinstance(case.baseline, str) else "model"
    if isinstance(case.baseline, BaselineModel):
        if case.baseline.engine is not None:
            baseline, path = "engine", case.path(case.baseline.engine)
            files["baseline engine"] = digest_file(path) if path.is_file() else ""
        elif case.baseline.model is not None:
            files["baseline model"] = digest_model(case.path(case.baseline.model))
    return Provenance(files, baseline, dict(output_settings), dict(sorted(_scripts(case))))


def digest_model(path: Path) -> str:
    """Return the SHA-256 of an ONNX file and its external data, in hex; empty if a file is missing.

    The bytes of the files are hashed. A hash of the parsed graph could change with the library's version.
    """
    try:
        if readable(path).stat().st_size > _SLOW_BYTES:
            logger.info("hashing %s", path)
        names = {
            entry.value
            for tensor in onnx.load(path, load_external_data=False).graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        files = (path, *(path.parent / name for name in sorted(names)))
        digests = [digest_file(readable(file)) for file in files]
    except (OSError, DecodeError):
        return ""  # the user sees the error that loading the model raises later
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _scripts(case: Case) -> Iterator[tuple[str, str]]:
    """Yield name and SHA-256 of each script and label file of the user that the scores depend on."""
    own = [c for c in case.criteria if isinstance(c, MetricCriterion)]
    for ref in (case.inputs, case.labels, *(c.metric for c in own), *(c.decode for c in own)):
        if not isinstance(ref, str):
            continue
        script, colon, _ = ref.rpartition(":")
        is_function = colon and script.endswith(".py")
        name = script if is_function else ref
        path = case.path(name)
        if not (is_function or ref == case.labels) or not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".py":  # Git may change line ends, which must not change the hash
            content = content.replace(b"\r\n", b"\n")
        yield name, hashlib.sha256(content).hexdigest()


def made_with(engine: str) -> dict[str, str]:
    """Return the versions of the libraries, and the description of the engine that the baseline ran on."""
    return {"engine": engine, **installed(_VERSIONS)}


def changes(record: Record, now: Provenance, case: Case) -> Iterator[str]:
    """Yield each reason, except a change of the data, why a golden no longer fits its case.

    Args:
        record: The golden.
        now: The provenance that the golden would have if it were recorded in this run.
        case: The case.
    """
    if record.case != case.name:
        yield f"it is of case '{record.case}'"
    # With ``baseline: golden``, the golden replaces the files of the baseline. These files may be gone.
    is_baseline = case.baseline == "golden"
    for role in now.files if is_baseline else {**record.files, **now.files}:
        if now.files.get(role) != record.files.get(role):
            path = case.model if role == "model" else "of the spec"
            yield f"the {role} ({path}) has changed"
    if not is_baseline and record.baseline != now.baseline:
        yield f"its baseline is {record.baseline}, the spec's is {now.baseline}"
    for key, value in now.settings.items():
        was = record.settings.get(key)
        # A golden may be recorded with a built engine and used with another runtime, or the reverse. Then
        # ``remarks`` gives a note instead.
        if was != value and ENGINE not in (was, value):
            yield f"{key} was {'not said' if was is None else was}, this run has {value}"


def data_changes(samples: int, digest: str, inputs: Dataset) -> Iterator[str]:
    """Yield each reason why ``inputs``, which were read once, are not the data of the golden.

    Args:
        samples: The golden's count of samples.
        digest: The golden's digest of its samples.
        inputs: The data of this run.
    """
    if inputs.samples != samples:
        yield f"it is of {samples} samples, this run has {inputs.samples} ({inputs.description})"
    elif inputs.digest != digest:
        yield f"the data ({inputs.description}) has changed"


def remarks(record: Record, now: Provenance, engine: str) -> Iterator[str]:
    """Yield a note on each change that leaves the golden usable: changed scripts, or another engine.

    Args:
        record: The golden.
        now: The provenance that the golden would have if it were recorded in this run.
        engine: A description of the engine that the baseline of this run ran on.
    """
    changed = [name for name, digest in now.scripts.items() if record.scripts.get(name, digest) != digest]
    if changed:
        yield f"golden: {', '.join(changed)} changed since it was recorded; model and data did not"
    then = record.made_with.get("engine", "")
    if then != engine:
        yield f"golden: recorded with {then}, this is {engine}"
