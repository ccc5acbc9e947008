"""What mends a case, in sentences: the recommended fix, or why there is none, and other remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_int8acc.errors import listed
from pytest_int8acc.report.blind import blind_fix
from pytest_int8acc.report.catalogue import CHANGES, STAGES, Words
from pytest_int8acc.report.precision import precision_fix, share_fix
from pytest_int8acc.report.search import reason
from pytest_int8acc.report.summary import first_line, is_jumpy
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    drawn_again,
    few,
    first_fitting,
    fitted,
    middle,
    name_of,
    relation,
    worst_first,
)
from pytest_int8acc.results import CaseResult, Finding, Repair, Score, SearchOutcome
from pytest_int8acc.results.causes import Jump
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB

#: What to do where the float model gives NaN. No layer in high precision mends it.
_FLOAT_NAN = (
    "find what gives NaN in the float model, its inputs or a node; or list the output under 'unjudged'"
)


class Fix(NamedTuple):
    """One thing to do, in a line of at most ``WIDTH`` characters with its label."""

    label: str
    """``Fix``; ``Or`` for a second one."""
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


def fixes(result: CaseResult) -> list[Fix]:
    """Returns what to do: the data first where they are wrong, then the fix, or why there is none."""
    first = next(_before_layers(result), "")
    if first:
        return [Fix("Fix", first)]
    remedies = [f.remedy for f in result.findings if is_mismatch(result, f) and f.remedy]
    if not remedies and (other := elsewhere(result)):
        return [Fix("Fix", fitted(other, WIDTH - len("Fix: ")))]
    found = [Fix("Fix", fitted(f"{text}, and run again", WIDTH - len("Fix: "))) for text in remedies[:1]]
    label = "Or" if found else "Fix"
    sentences = list(recommended(result))
    if not sentences and not found:
        sentences = list(_no_fix(result))
    if sentences:
        found.append(Fix(label, first_fitting(sentences, WIDTH - len(f"{label}: "))))
    return found


def _before_layers(result: CaseResult) -> Iterator[str]:
    """Yields what to do where no layer in high precision mends the case."""
    if result.is_misbuilt and result.precision is not None:
        yield precision_fix(result.precision)
    elif _misses_share_alone(result) and result.precision is not None:
        yield share_fix(result.precision)
    elif result.kept and result.is_blind and result.blind is not None:
        yield blind_fix(result.blind, result.low_format)
    elif any(output.problem and output.nan_share for output in result.outputs):
        yield _FLOAT_NAN


def _misses_share_alone(result: CaseResult) -> bool:
    """Returns whether ``int8_share`` is the only missed limit. Layers in high precision make it worse."""
    missed = [score for score in result.scores if not score.passed]
    whole = all(output.passed for output in result.outputs)
    return whole and bool(missed) and all(score.metric == "int8_share" for score in missed)


def is_mismatch(result: CaseResult, finding: Finding) -> bool:
    """Returns whether a finding tells of the preprocessing mismatch that the diagnosis blames."""
    mismatch = result.diagnosis.preprocessing_mismatch if result.diagnosis is not None else ""
    return finding.source == "data" and finding.rule == mismatch


def elsewhere(result: CaseResult) -> str:
    """Returns what to do if quantization is not the problem, or outputs cannot be compared; else empty."""
    if result.diagnosis is not None and is_jumpy(result):
        return _judging_before(result, result.diagnosis.jumps)
    line = first_line(result.diagnosis) if result.diagnosis is not None else None
    if line is None or line.passed or line.name == "engine INT8":
        return ""
    return STAGES[line.name].advice


def _judging_before(result: CaseResult, jumps: Sequence[Jump]) -> str:
    """Returns what to write into the spec so that the tensors before a choice are judged."""
    known = {output.name for output in result.outputs}
    tensors = dict.fromkeys(name for jump in jumps for name in jump.tensors if name not in known)
    outputs = ", ".join(dict.fromkeys(f"'{name}'" for jump in jumps for name in jump.outputs))
    criteria = ", ".join(f"{{tensor: '{name}', sqnr_db: {DEFAULT_SQNR_DB:g}}}" for name in tensors)
    if not tensors:
        return first_fitting(
            [f"in the spec, unjudged: [{outputs}]", "name what is behind under 'unjudged'"], WIDTH - 5
        )
    named = few([f"'{middle(name, NAME)}'" for name in tensors], 2)
    whole = f"in the spec, criteria: [{criteria}], unjudged: [{outputs}]"
    brief = f"judge {named} by {{tensor: NAME, sqnr_db: {DEFAULT_SQNR_DB:g}}}, and "
    return first_fitting([whole, f"{brief}name what is behind under 'unjudged'"], WIDTH - 5)


def recommended(result: CaseResult) -> Iterator[str]:
    """Yields the recommended fix in a sentence, the fullest first; nothing where there is none."""
    repair, search = result.answer, result.search
    if repair is not None:
        spare = search.spare if search is not None and repair.kind == "high" else 0
        texts = list(changes(repair, result.low_format, spare))
        proofs = _proofs(result, repair.scores, verified=repair.verified)
        reached = _reached(repair.scores)
    elif search is not None and search.found and search.culprits:
        texts = list(_kept(search, result.low_format))
        proofs = _proofs(result, search.fixed, verified=search.verified)
        reached = _reached(search.fixed)
    else:
        return
    use = "use fixed.onnx: " if result.written else ""
    for text in texts:
        for score in reached:
            yield from (f"{use}{text}{score}{proof}" for proof in proofs)
    yield f"{use}{texts[-1]}{proofs[-1]}"


def _reached(scores: Sequence[Score]) -> list[str]:
    """Returns the worst score of a fix with its limit, the longest text first; else one empty text."""
    judged = worst_first(scores)
    if not judged:
        return [""]
    worst = judged[0]
    texts = [f"; {relation(worst, most)}" for most in (NAME, 16)]
    if worst.name != worst.subject:
        texts.append(f"; {worst.metric}{relation(worst).removeprefix(name_of(worst))}")
    return texts


def _proofs(result: CaseResult, scores: Sequence[Score], *, verified: bool) -> list[str]:
    """Returns how a fix was proved, in the longest form first."""
    if verified:
        by = result.backend.partition(",")[0]
        reserve = f", verified (built and run, limits kept with reserve) on {by}"
        return [reserve, f", verified (built and run) on {by}", f", verified on {by}", ", verified"]
    unsteady = [score for score in worst_first(scores) if not score.steady]
    if not unsteady or not all(score.passed for score in scores):
        return ["; not verified"]
    resampled = f", but {drawn_again(unsteady[0])} when samples are drawn again"
    return [resampled, "; unsteady", "; not verified"]


def _kept(search: SearchOutcome, low_format: str) -> Iterator[str]:
    kept = f"keep {count(len(search.kept), 'layer')} in {search.precision.upper()}"
    yield f"{kept}, {search.int8_share:.0%} of the multiply-accumulates stay in {low_format}"
    yield kept


def alternatives(result: CaseResult) -> list[str]:
    """Returns the remedies that are not recommended, cheapest first."""
    repairs = result.diagnosis.repairs[1:] if result.diagnosis is not None else ()
    return [_repair_line(repair, result.low_format) for repair in repairs]


def _repair_line(repair: Repair, low_format: str) -> str:
    scores = [relation(score) for score in worst_first(repair.scores)[:1]]
    verified = "verified" if repair.verified else "not verified"
    return "; ".join([next(changes(repair, low_format)), *scores, verified])


def _no_fix(result: CaseResult) -> Iterator[str]:
    """Yields why there is no fix, and what to do instead, the fullest first."""
    search, stopped = result.search, result.stopped
    if stopped is not None:
        late = "none found in the time; give it more: --int8acc-max-seconds N"
        yield "none found before Ctrl-C; run again" if stopped.kind == "interrupted" else late
    elif search is not None and search.found:
        yield reason(search)
    elif search is not None:
        lint = [f.remedy for f in result.findings if f.source == "lint" and f.severity != "note" and f.remedy]
        yield "; ".join([*lint[:1], f"none found: {reason(search)}"])
        if search.fixed_pairs:
            yield lint[0] if lint else "none found: Q/DQ is left in the model that no plan takes off"
        hopeless = f"none found: with every layer out of {result.low_format} the criteria fail too"
        yield lint[0] if lint else hopeless
    elif result.diagnosis is not None and result.diagnosis.first_stage == "engine INT8":
        yield STAGES["engine INT8"].advice
    elif not result.int8_groups:
        yield "an engine cannot be searched: name the model it was made from, 'int8: {model: FILE}'"
    else:
        yield "not searched; with --int8acc-search=always the layers at fault are named, and a fix is written"


def cheaper_fix(result: CaseResult) -> Repair | None:
    """Returns the recommended remedy, if it keeps more layers quantized than the plan of the search."""
    first, search = result.answer, result.search
    if first is None or search is None or not search.found:
        return first
    cheaper = first.kind == "fuse" or first.price < 1 - search.int8_share - 1e-9
    return first if first.kind != "high" and cheaper else None


def changes(repair: Repair, low_format: str, spare: int = 0) -> Iterator[str]:
    """Yields what a remedy changes, the fullest sentence first.

    Args:
        repair: The remedy.
        low_format: The format that the case is about, like ``INT8``.
        spare: The number of its layers that are in high precision as a reserve only.
    """
    layers, precision = len(repair.layers), repair.precision.upper()
    kept = f"{count(layers, 'layer')} in {precision}" if layers else f"all in {low_format}"
    done = [words.clause.format_map(facts) for words, facts in _changes(repair)]
    if repair.kind == "high" or not done:
        verb = f"keep {kept}" if layers else f"symmetric {low_format} throughout"
        verb += f", {spare} of them for a reserve" if spare else ""
        yield f"{verb}, {1 - repair.price:.0%} of the multiply-accumulates stay in {low_format}"
        yield verb
        return
    yield f"{' and '.join(done)}, {kept}"
    yield f"{kept} and {count(len(done), 'other change')}" if layers else " and ".join(done)


def _changes(repair: Repair) -> Iterator[tuple[Words, dict[str, str | float]]]:
    """Yields the words and the facts of each change that a remedy makes."""
    if repair.fused:
        norms = count(len(repair.fused), "norm")
        yield CHANGES["fused"], {"norms": norms, "names": listed(repair.fused)}
    if repair.outputs:
        outputs = count(len(repair.outputs), "more output")
        yield CHANGES["outputs"], {"outputs": outputs, "names": listed(repair.outputs)}
    if (moved := repair.migration) is not None:
        places = [f"folded into {listed(moved.folded)}"] if moved.folded else []
        if moved.inserted:
            places.append(f"{len(moved.inserted)} Mul inserted, one more elementwise pass over a tensor each")
        yield CHANGES["migration"], {"alpha": moved.alpha, "places": "; ".join(places)}
    if repair.rescales:
        methods = ", ".join(dict.fromkeys(rescale.method for rescale in repair.rescales))
        yield CHANGES["rescales"], {"tensors": count(len(repair.rescales), "tensor"), "methods": methods}
    if repair.weights:
        yield CHANGES["weights"], {"weights": count(len(repair.weights), "weight")}


def repair_text(repair: Repair, low_format: str) -> str:
    """Returns what a remedy does, in a sentence or two; what matters most comes first."""
    layers, precision = len(repair.layers), repair.precision.upper()
    if repair.kind == "high":
        return f"{count(layers, 'layer')} in {precision}"
    head = f"{layers} of {count(repair.culprits, 'layer')} in {precision}"
    sentences = [words.sentence.format_map(facts) for words, facts in _changes(repair)]
    done = "; ".join(sentences) or f"symmetric {low_format} throughout"
    if repair.kind in ("unfuse", "fuse"):
        return f"{head if layers else f'no layer needs {precision}'}: {done}"
    data = f"the calibration data, {repair.data}" if repair.data else "the compared inputs themselves"
    return f"{head if layers else f'no layer needs {precision}'}: {done}; ranges from {data}"
