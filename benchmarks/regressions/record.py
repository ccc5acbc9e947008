"""What the plugin made of one entry, beside what is true of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.regressions import judge
from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import Entry, Planted, Truth, write
from benchmarks.regressions.plant import NARROW, WIDE
from benchmarks.regressions.truth import Prover, Verdict, prove
from pytest_int8acc.answer import conclude
from pytest_int8acc.case.measured import measure as run_case
from pytest_int8acc.case.plan_file import read_plan
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.graph.model import marked_fix, without_extra_outputs
from pytest_int8acc.report.search import reason
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.report.why import is_other_model
from pytest_int8acc.results import CaseResult, Culprit
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.spec.models import Case

#: Nearer to a limit than this, in decibels, FP16 may decide where FP32 did not.
NEAR = 0.3


@dataclass(frozen=True)
class Record:
    """One entry, measured; plain values, for JSON."""

    name: str
    kind: str
    network: str
    shows: str
    margin: float | None
    """Of the worst criterion in dB, by the second opinion; negative where it is missed. None: nothing ran."""
    verdict: str
    """passed, failed, refused (an Int8accError), or crashed."""
    message: str
    """What was refused, or the summary of the diagnosis."""
    detected: bool
    named: bool
    """By a finding, an error, a warning, or the causes of its culprits."""
    headline: bool | None = None
    """Whether *Why* says nothing that was not planted; None where no groups were planted, or it passes."""
    causes_right: int = 0
    causes_judged: int = 0
    """Culprits that the fault touches."""
    causes_found: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()
    planted: tuple[str, ...] = ()
    proof: Verdict | None = None
    """None where no culprits were to be found."""
    fix: str = ""
    """INT8, mixed, FP16, or empty."""
    int8_fix: bool | None = None
    reason: str = ""
    """Where there is no fix: why."""
    trials: int = 0
    cost: float = 0.0
    builds: int = 0
    plans: int = 0
    """plan.yaml files written."""
    plans_alike: int = 0
    """Of them, those that give fixed.onnx beside them byte for byte when they are read back."""
    seconds: float = 0.0
    findings: tuple[str, ...] = field(default=())
    """``severity rule`` of each finding, each once."""

    @property
    def moves(self) -> bool:
        """Whether a fault had to be found; others are harmless. Near a limit the plugin's FP16 decides."""
        if self.near:
            return self.verdict == "failed"
        if self.shows == "criteria":
            return self.margin is not None and self.margin < 0
        return self.shows != "healthy"

    @property
    def near(self) -> bool:
        """Whether the verdict hangs on less than what FP32 and FP16 differ by."""
        return self.shows == "criteria" and self.margin is not None and abs(self.margin) < NEAR


def measure(name: str, prove_culprits: bool = True) -> Record:
    """Make an entry's spec folder, run the plugin's check on it, and compare.

    Args:
        name: Of the corpus.
        prove_culprits: Whether the culprits are proven; else precision and recall are missing.
    """
    entry = corpus()[name]
    planted = entry.plant()
    with tempfile.TemporaryDirectory() as folder:
        (case,) = load_spec(write(entry, planted, Path(folder)))
        began = time.perf_counter()
        result, verdict, message, plans = None, "", "", (0, 0)
        try:
            result, plans = _checked(case, Path(folder) / "report")
            verdict = "passed" if result.passed else "failed"
        except Int8accError as error:
            verdict, message = "refused", str(error)
        except Exception as error:  # a crash is a figure too
            verdict, message = "crashed", f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - began
        if result is None:
            return _without_result(entry, planted, verdict, message, seconds)
        proof = None
        if prove_culprits and verdict == "failed" and planted.truth.causes and planted.candidate is not None:
            proof = prove(Prover(planted, Path(folder)), _layers(result), planted.truth.causes)
    record = _of_result(entry, planted, result, proof, seconds)
    return replace(record, plans=plans[0], plans_alike=plans[1])


def _checked(case: Case, folder: Path) -> tuple[CaseResult, tuple[int, int]]:
    """The case's result; how many plans were written, and how many give their model when read back."""
    measured = run_case(case, Settings(backend="onnxruntime"))
    try:
        result = conclude(measured, folder)
        plans = list(folder.rglob("plan.yaml"))
        alike = 0
        for path in plans:
            assert measured.int8 is not None
            form = measured.int8.under(read_plan(path, measured.int8.every))
            written = marked_fix(without_extra_outputs(form.model)).serialize()
            alike += written == path.with_name("fixed.onnx").read_bytes()
        return result, (len(plans), alike)
    finally:
        measured.close()


def _without_result(entry: Entry, planted: Planted, verdict: str, message: str, seconds: float) -> Record:
    truth, refused = planted.truth, verdict == "refused"
    named = refused and bool(truth.words) and any(word in message for word in truth.words)
    if (
        refused and truth.shows != "refused"
    ):  # a fault that should have shown otherwise: named by its groups' names
        named = any(group in message for group in truth.causes)
    return Record(
        entry.name,
        entry.kind,
        entry.network,
        truth.shows,
        _margin(planted),
        verdict,
        message,
        detected=refused,
        named=named,
        planted=tuple(sorted(truth.causes)),
        seconds=seconds,
    )


def _of_result(
    entry: Entry, planted: Planted, result: CaseResult, proof: Verdict | None, seconds: float
) -> Record:
    truth, search = planted.truth, result.search
    by_finding = any(fnmatchcase(f.rule, rule) for f in result.findings for rule in truth.rules)
    said = [*result.warnings, *result.notes]
    by_words = bool(truth.words) and any(word in line for word in truth.words for line in said)
    judged = list(_judged(truth, search.culprits if search else ()))
    right = sum(judged)
    enough = len(judged) if truth.causes else (len(judged) + 1) // 2
    fix, why_not = _fix(result)
    return Record(
        entry.name,
        entry.kind,
        entry.network,
        truth.shows,
        _margin(planted),
        "passed" if result.passed else "failed",
        CaseView(result).summary,
        detected=not result.passed or by_finding or by_words,
        named=by_finding or by_words or (bool(judged) and right >= enough),
        headline=_headline(truth, result) if truth.causes and not result.passed else None,
        causes_right=right,
        causes_judged=len(judged),
        causes_found=tuple(f"{c.layer}: {c.cause.kind if c.cause else '-'}" for c in _culprits(result)),
        culprits=tuple(_layers(result)),
        planted=tuple(sorted(truth.causes)),
        proof=proof,
        fix=fix,
        int8_fix=truth.int8_fix,
        reason=why_not,
        trials=len(search.trials) if search else 0,
        cost=search.cost if search else 0.0,
        builds=search.builds if search else 0,
        seconds=seconds,
        findings=tuple(dict.fromkeys(f"{f.severity} {f.rule}" for f in result.findings)),
    )


def _judged(truth: Truth, culprits: Iterable[Culprit]) -> Iterator[bool]:
    """Of each culprit that the fault touches, whether its cause names it, by kind and by tensor."""
    for culprit in culprits:
        accepted = truth.causes.get(culprit.layer, frozenset()) if truth.causes else truth.anywhere
        if accepted:
            cause, tensors = culprit.cause, truth.tensors.get(culprit.layer)
            at = tensors is None or (cause is not None and cause.tensor in tensors)
            yield at and cause is not None and cause.kind in accepted


def _headline(truth: Truth, result: CaseResult) -> bool:
    """Whether the ranges, layers and causes that *Why* names were planted."""
    diagnosis, search = result.diagnosis, result.search
    if diagnosis is None or search is None or is_other_model(result) is not None:
        return False
    planted = {kind for kinds in truth.causes.values() for kind in kinds}
    if diagnosis.ranges is not None:  # it names ranges in place of layers and their causes
        return bool(planted & (WIDE | NARROW))
    if not search.culprits:  # it names a pair that no plan takes off
        pairs = [f.subject for f in result.findings if f.rule == "unequal-pair" and f.rule in truth.rules]
        return bool(pairs) and all(pair.startswith(tuple(truth.causes)) for pair in pairs)
    innocent = any(culprit.layer not in truth.causes for culprit in search.culprits)
    return not innocent and all(_judged(truth, search.culprits))


def _fix(result: CaseResult) -> tuple[str, str]:
    """What mends the case by the result's own word, and where nothing does, why."""
    verified = [r for r in result.diagnosis.repairs if r.verified] if result.diagnosis else []
    if verified:
        first = verified[0]
        return ("INT8" if not first.layers else "mixed" if first.kind == "mixed" else "FP16"), ""
    if result.search is None:
        return "", ""
    return ("FP16", "") if result.search.verified else ("", reason(result.search, result.low_format))


def _margin(planted: Planted) -> float | None:
    if planted.candidate is None:
        return None
    baseline, candidate = (judge.run(m, planted.inputs) for m in (planted.model, planted.candidate))
    return judge.margin(judge.scores(baseline, candidate, planted.limits), planted.limits)


def _culprits(result: CaseResult) -> tuple[Culprit, ...]:
    return result.search.culprits if result.search else ()


def _layers(result: CaseResult) -> list[str]:
    return [culprit.layer for culprit in _culprits(result)]
