"""What comes of a spec, and whether its fix holds on samples that the case did not have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime

from pytest_int8acc.answer import conclude
from pytest_int8acc.case.measured import Measured, measure
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.results import CaseResult, Role
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.scores.judge import Comparison
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.tensors import Feed


@dataclass(frozen=True)
class Outcome:
    """The verdict on a case, what was said of its fix, and what the other samples say."""

    verdict: str
    """``passed``, ``failed`` or ``error``."""
    word: str = "none"
    """``verified``; ``not proved``: there is a reserve, but no sample that chose nothing; ``not verified``;
    ``none``: no fix."""
    exact: bool | None = None
    """Whether the fix meets the criteria on the other samples in an exact session, without fused kernels.

    None without a fix."""
    default: bool | None = None
    """The same in a default session of ONNX Runtime."""
    ending: str = ""
    """How the search ended: the kind of its ``Ending``."""
    seconds: float = 0.0
    """Wall time of the case, without that of the other samples."""
    error: str = ""
    """Why there is no verdict, or why a session refuses the fix."""


def outcome(spec: Path, other: Feed, rows: int = 32, max_seconds: int = 300) -> Outcome:
    """Judge a spec with one case, and its fix on ``other`` samples, ``rows`` of them at a time.

    The answer takes ``max_seconds`` at most. The fix is left in the folder ``report`` beside the spec.
    """
    began = time.perf_counter()
    try:
        (case,) = load_spec(spec)
        settings = Settings(backend="onnxruntime", lint="warn", max_seconds=max_seconds)
        measured = measure(case, settings)
        if measured.result.passed:
            return Outcome("passed", seconds=time.perf_counter() - began)
        result = conclude(measured, spec.parent / "report")
    except Int8accError as error:
        return Outcome(
            "error", seconds=time.perf_counter() - began, error=f"{type(error).__name__}: {error}"[:500]
        )
    ending = result.search.ending.kind if result.search else ""
    found = Outcome("failed", _word(result), ending=ending, seconds=time.perf_counter() - began)
    fixed = spec.parent / "report" / "fixed.onnx"
    if found.word == "none" or not fixed.exists():
        return replace(found, word="none")
    exact = _passes(measured, OrtEngine(read_model(fixed)), other, rows)
    try:
        return replace(found, exact=exact, default=_passes(measured, _default(fixed), other, rows))
    except Exception as error:  # ONNX Runtime raises classes of its own for each of its errors
        return replace(found, exact=exact, default=False, error=f"default session: {error}"[:500])


def _default(path: Path) -> Engine:
    """A model as a user opens it, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(None, feed), strict=True))  # type: ignore[return-value]


def _word(result: CaseResult) -> str:
    answer = result.answer
    if answer is None:
        return "none"
    return "verified" if answer.verified else "not proved" if answer.holds else "not verified"


def _passes(measured: Measured, tested: Engine, feed: Feed, rows: int) -> bool:
    baseline = measured.backend.open(measured.reference, Role.BASELINE, measured.inputs)
    comparison = Comparison(measured.judge)
    for count, batch in _batches(feed, rows):
        one, two = baseline(batch), tested(batch)
        if count < rows:
            one, two = ({name: array[:count] for name, array in outputs.items()} for outputs in (one, two))
        comparison.add(one, {name: two[name] for name in one}, count)
    return comparison.verdict().passed


def _batches(feed: Feed, rows: int) -> Iterator[tuple[int, Feed]]:
    """Batches of ``rows`` samples; the last sample fills the last batch."""
    count = len(next(iter(feed.values())))
    for start in range(0, count, rows):
        places = np.minimum(np.arange(start, start + rows), count - 1)
        yield min(rows, count - start), {name: array[places] for name, array in feed.items()}
