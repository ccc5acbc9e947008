"""What a golden depends on, as it is now; and what has changed since one was recorded."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import installed
from pytest_int8acc.files import readable
from pytest_int8acc.goldens.record import Record
from pytest_int8acc.runtime.protocol import ENGINE
from pytest_int8acc.runtime.store import digest_file
from pytest_int8acc.spec.criteria import MetricCriterion
from pytest_int8acc.spec.int8 import BaselineModel
from pytest_int8acc.spec.models import Case

logger = logging.getLogger("pytest_int8acc")
#: Hashing more bytes than this takes over a second.
_SLOW_BYTES = 1 << 30
_VERSIONS = ("pytest-int8acc", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx")


@dataclass(frozen=True)
class Origin:
    """What a golden of this case would depend on, but for its data; the fields are those of a record."""

    files: dict[str, str]
    baseline: str
    settings: dict[str, str]
    scripts: dict[str, str]


def origin_of(case: Case, output_settings: Mapping[str, str]) -> Origin:
    """Hash the case's files; ``output_settings`` are those that the backend says change outputs."""
    files = {"model": digest_model(case.path(case.model))}
    baseline: str = case.baseline if isinstance(case.baseline, str) else "model"
    if isinstance(case.baseline, BaselineModel):
        if case.baseline.engine is not None:
            baseline, path = "engine", case.path(case.baseline.engine)
            files["baseline engine"] = digest_file(path) if path.is_file() else ""
        elif case.baseline.model is not None:
            files["baseline model"] = digest_model(case.path(case.baseline.model))
    return Origin(files, baseline, dict(output_settings), dict(sorted(_scripts(case))))


def digest_model(path: Path) -> str:
    """SHA-256 of an ONNX file and its external data, in hex; empty where a file is not there.

    Bytes are hashed rather than the graph, since a golden outlives versions of the library that reads it.
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
        return ""  # whoever loads the model says what is wrong
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _scripts(case: Case) -> Iterator[tuple[str, str]]:
    """What of the user's code and labels has a part in the scores: name in the spec, and hash."""
    own = [c for c in case.criteria if isinstance(c, MetricCriterion)]
    named = [case.inputs, case.labels, *(c.metric for c in own), *(c.decode for c in own)]
    for ref in named:
        if not isinstance(ref, str):
            continue
        script, colon, _ = ref.rpartition(":")
        name = script if colon and script.endswith(".py") else ref if ref == case.labels else None
        if name is not None and (path := case.path(name)).is_file():
            content = path.read_bytes()
            if path.suffix == ".py":  # Git may change how lines end
                content = content.replace(b"\r\n", b"\n")
            yield name, hashlib.sha256(content).hexdigest()


def made_with(engine: str) -> dict[str, str]:
    """Versions of what took part, and where the baseline ran."""
    return {"engine": engine, **installed(_VERSIONS)}


def changes(record: Record, now: Origin, case: Case) -> Iterator[str]:
    """Why a golden is no longer one of this case, but for its data."""
    if record.case != case.name:
        yield f"it is of case '{record.case}'"
    own = case.baseline == "golden"  # what the golden came from need not be there any more
    for role in now.files if own else {**record.files, **now.files}:
        if now.files.get(role) != record.files.get(role):
            path = case.model if role == "model" else "of the spec"
            yield f"the {role} ({path}) has changed"
    if not own and record.baseline != now.baseline:
        yield f"its baseline is {record.baseline}, the spec's is {now.baseline}"
    for key, value in now.settings.items():
        was = record.settings.get(key)
        if was != value and ENGINE not in (was, value):  # an engine's golden serves elsewhere, with a remark
            yield f"{key} was {'not said' if was is None else was}, this run has {value}"


def data_changes(samples: int, digest: str, inputs: Dataset) -> Iterator[str]:
    """Why ``inputs``, read once, are not the data of a golden of so many samples and this digest."""
    if inputs.samples != samples:
        yield f"it is of {samples} samples, this run has {inputs.samples} ({inputs.description})"
    elif inputs.digest != digest:
        yield f"the data ({inputs.description}) has changed"


def remarks(record: Record, now: Origin, engine: str) -> Iterator[str]:
    """What is not as it was, and need not change anything."""
    changed = [name for name, digest in now.scripts.items() if record.scripts.get(name, digest) != digest]
    if changed:
        yield f"golden: {', '.join(changed)} changed since it was recorded; model and data did not"
    then = record.made_with.get("engine", "")
    if then != engine:
        yield f"golden: recorded with {then}, this is {engine}"
