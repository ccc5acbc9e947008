"""Sentences on how to fix a failed case: the recommended fix, or why there is none, and other fixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_int8acc.errors import listed
from pytest_int8acc.report.catalogue import (
    CHANGES,
    INSTEAD,
    STAGES,
    STOPS,
    Advice,
    ChangeKind,
    NoFix,
    Remedy,
)
from pytest_int8acc.report.cautions import at_worst, layers_text, least_sure, needed_samples
from pytest_int8acc.report.search import needed_layers, reason
from pytest_int8acc.report.why import at_fault, first_line, is_jumpy, is_other_model
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    few,
    first_fitting,
    fitted,
    interval_text,
    joined,
    limit_in_yaml,
    middle,
    name_in_yaml,
    name_of,
    number,
    percent,
    proof_word,
    quoted,
    relation,
    worst_first,
)
from pytest_int8acc.results import (
    BlindSpots,
    CaseResult,
    HeldOut,
    PrecisionContract,
    Repair,
    Role,
    Score,
    SearchOutcome,
)
from pytest_int8acc.results.causes import Jump, Rescale, SpeedSearch
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB, ChanceMetric, FittingMetric, FloatNan
from pytest_int8acc.results.search import Quantizer

#: A fix is worth shipping only if at least this share of the multiply-accumulates stays in the low format.
#: Tensor cores compute INT8 and FP8 at most twice as fast as FP16. A fifth of the work in INT8 therefore
#: saves a tenth of the time at most, and copies between the formats also take time.
WORTH_SHIPPING = 0.2
#: An engine is recommended only if it is faster than the baseline's engine by at least this share. Otherwise
#: the baseline is recommended, because it needs no calibration and loses no accuracy.
LEAST_GAIN = 0.05
#: The maximum number of layers that the text of a fix names. Of more layers it gives only the number.
_NAMED_LAYERS = 2
#: The maximum number of lines of a recommendation in the terminal.
_LINES = 2
#: Number of characters of each line that are left free for the label, the indent and the end of a wrapped
#: line.
_FREE = 10


@dataclass(frozen=True)
class Fix:
    """One recommendation. Together with its label it fits in two lines of ``WIDTH`` characters."""

    label: str
    """The word before the text: ``Fix``, or ``Or`` for a second recommendation."""
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


def fixes(result: CaseResult) -> list[Fix]:
    """Returns the recommendations to the user on a failed case.

    The first is the fix, or why there is none. Advice on mismatched preprocessing, which no trial has shown
    to help, comes after the fix.
    """
    if first := _before_layers(result):
        return [Fix("Fix", first)]
    room = _LINES * (WIDTH - _FREE)
    if not result.mismatches and (other := elsewhere(result)):
        return [Fix("Fix", fitted(other, room))]
    sentences = [] if hides_fault(result) else list(recommended(result))
    if not sentences and not result.mismatches:
        sentences = list(_no_fix(result))
    found = [Fix("Fix", first_fitting(sentences, room))] if sentences else []
    for mismatch in result.mismatches[:1]:
        advice = Advice.RUN_AGAIN.format(advice=mismatch.remedy)
        found.append(Fix("Or" if found else "Fix", fitted(advice, WIDTH - len("Fix: "))))
    return found


def hides_fault(result: CaseResult) -> bool:
    """Returns whether the fix only hides a fault of the data, and is therefore not recommended.

    Such a fix keeps layers in high precision, although only the preprocessing of the data is at fault.
    """
    if at_fault(result) or not result.mismatches:
        return False
    return result.answer is None or bool(result.answer.layers)


def _before_layers(result: CaseResult) -> str:
    """Returns advice on faults that the user should mend before any layer; empty if the case has none.

    They are layers in a wrong format, criteria that are too weak, too few samples, and NaN in the baseline.
    """
    contract, missed = result.precision, [score for score in result.scores if not score.passed]
    if contract is not None and result.is_misbuilt:
        return _fix_of_format(contract)
    share_alone = bool(missed) and all(score.metric == "int8_share" for score in missed)
    if contract is not None and share_alone and all(output.passed for output in result.outputs):
        return _fix_of_share(contract)
    if result.fatal_blind is not None and result.kept:
        return _fix_of_criteria(result.fatal_blind, result.low_format)
    if result.is_undecided:
        needed = needed_samples(result.unsteady)
        return Advice.DECIDE.format(
            samples="more samples" if needed is None else f"about {needed} samples in all"
        )
    return "" if result.float_nan is None else _fix_of_nan(result.float_nan)


def _fix_of_nan(found: FloatNan) -> str:
    """Returns advice for a case in which an output of the baseline holds NaN."""
    first = Advice.FIND_NAN
    if found.in_fp32 is False:
        first = Advice.IN_FP32
    elif found.node:
        first = Advice.MEND_NODE.format(op_type=middle(found.op_type), node=middle(found.node))
    return Advice.FLOAT_NAN.format(first=first, output=name_in_yaml(found.output))


def _fix_of_format(contract: PrecisionContract) -> str:
    """Returns advice for a case whose engine ran layers in another format than requested."""
    if contract.source != "candidate":
        return Advice.LOOK_AT_PAIRS
    return Advice.OBEY.format() if contract.can_obey else Advice.REPORT_LAYERS


def _fix_of_share(contract: PrecisionContract) -> str:
    """Returns advice for a case that misses its limit on the share of multiply-accumulates in INT8."""
    if contract.misplaced:
        layers = layers_text(contract.misplaced, contract.misplaced_count)
        return Advice.SHARE_RAN_OTHERWISE.format(layers=layers)
    return Advice.SHARE_LEFT_OUT.format(layers=layers_text(contract.left_out, contract.left_out_count))


def _fix_of_criteria(blind: BlindSpots, low_format: str) -> str:
    """Returns advice on the criterion that a case needs, because its criteria accept useless outputs.

    A limit on the SQNR is recommended only if it was shown to reject the useless outputs.
    """
    if blind.beaten:
        return _fix_of_metric(blind.beaten[0])
    near = blind.too_near
    if blind.remedy is not None:
        sqnr_db = number(blind.remedy.value)
        return Advice.ADD_LIMIT.format(
            criterion=limit_in_yaml(blind.remedy.subject, "sqnr_db", blind.remedy.limit),
            format=low_format,
            sqnr_db=sqnr_db,
        )
    if near is None or near.limit is None:
        metrics = dict.fromkeys([_metric_in_yaml(blind.metric), Advice.OWN_METRIC.format()])
        return Advice.ADD_METRIC.format(metrics=" or ".join(metrics))
    if near is blind.lost:
        return Advice.ADD_LIMIT_OF_LOST.format(criterion=limit_in_yaml(near.subject, "sqnr_db", near.limit))
    return Advice.OTHER_INPUTS.format(
        limit=near.limit,
        format=low_format,
        sqnr_db=number(near.value),
        metric=_metric_in_yaml(blind.metric),
    )


def _metric_in_yaml(metric: FittingMetric | None) -> str:
    """Returns a criterion on ``metric``, a built-in metric of labels, in the YAML of a spec.

    If ``metric`` is None, the criterion is an example with a user's metric.
    """
    if metric is None:
        return Advice.OWN_METRIC.format()
    keys = [f"metric: {metric.metric}"]
    if metric.output:
        keys.append(f"output: {name_in_yaml(metric.output)}")
    if metric.axis is not None:
        keys.append(f"axis: {metric.axis}")
    if metric.metric == "coco_map":
        keys.append(f"decode: {metric.decode or 'FILE.py:FUNCTION'}")
    return f"{{{', '.join(keys)}, max_drop: 1%}}"


def _fix_of_metric(metric: ChanceMetric) -> str:
    """Returns advice on what to check if useless outputs are as good as the baseline's by a metric of labels.

    Useless outputs are zeros, and outputs shuffled between samples.
    """
    if metric.is_constant:
        advice = Advice.COMPARE_LABELS_OF_USER if metric.is_users else Advice.COMPARE_LABELS
    elif not metric.is_reversed:
        advice = Advice.CHECK_LABELS
    else:
        lower = metric.baseline < metric.chance
        advice = Advice.LOWER_IS_BETTER if lower else Advice.HIGHER_IS_BETTER
    return advice.format(metric=middle(metric.metric))


def elsewhere(result: CaseResult) -> str:
    """Returns advice for a case in which quantization is not at fault, or outputs cannot be compared.

    The text is empty for any other case.
    """
    if result.diagnosis is None:
        return ""
    if is_jumpy(result):
        return _judging_before(result, result.diagnosis.jumps)
    line = first_line(result.diagnosis)
    if line is None or line.passed or line.name == "engine INT8":
        return ""
    return STAGES[line.name].advice


def _judging_before(result: CaseResult, jumps: Sequence[Jump]) -> str:
    """Returns what to write into the spec to judge tensors before nodes that choose among values, like TopK.

    The outputs that depend on these nodes cannot be compared.
    """
    known = {output.name for output in result.outputs}
    tensors = dict.fromkeys(name for jump in jumps for name in jump.tensors if name not in known)
    outputs = ", ".join(dict.fromkeys(f"'{name}'" for jump in jumps for name in jump.outputs))
    room = _LINES * (WIDTH - _FREE)
    if not tensors:
        return first_fitting([Advice.UNJUDGED.format(outputs=outputs), Advice.UNJUDGED_BRIEFLY], room)
    criteria = ", ".join(f"{{tensor: '{name}', sqnr_db: {DEFAULT_SQNR_DB:g}}}" for name in tensors)
    named = few(list(map(quoted, tensors)), 2)
    whole = Advice.JUDGE_BEFORE.format(criteria=criteria, outputs=outputs)
    brief = Advice.JUDGE_BEFORE_BRIEFLY.format(tensors=named, limit=DEFAULT_SQNR_DB)
    return first_fitting([whole, brief], room)


def recommended(result: CaseResult) -> Iterator[str]:
    """Yields sentences that recommend the fix, the longest first; nothing if there is no fix.

    Each sentence begins with the share of the multiply-accumulates that stays in the low format. If the share
    is below ``WORTH_SHIPPING``, the sentence first says what to ship in place of the fix.
    """
    repair, search, low = result.fix, result.search, result.low_format
    if repair is None:
        return
    added_ms = _added_ms(result, repair)
    if result.answer is None and search is not None:
        added_ms = search.price_ms
    spare = _spare(search, repair.layers) if search is not None and repair.kind == "high" else ()
    share = share_that_stays(result, 1 - repair.price)
    texts = _changes(repair, low, spare, _pairs(result)) if share >= WORTH_SHIPPING else [""]
    starts = [_priced(share, added_ms, repair.precision, low, written=False)]
    if result.written:
        starts.insert(0, _priced(share, added_ms, repair.precision, low, written=True))
    held_out = repair.evidence.held_out or HeldOut()
    key_score = _key_score(result, repair.scores)
    proofs = _proof_texts(result, repair, held_out, key_score)
    mends_more = sum(not score.passed for score in result.scores) > 1 and all(s.passed for s in repair.scores)
    is_proved = key_score is not None and name_of(key_score) in map(name_of, held_out.scores)
    samples = result.samples if is_proved and repair.holds and held_out.count else 0
    for start in starts:
        for text in texts:
            for score in _reached(key_score, samples, more=mends_more):
                yield from (f"{start}{text}{score}{how}" for how in proofs)
    yield from (f"{starts[-1]}{texts[-1]}{how}" for how in proofs)


def share_that_stays(result: CaseResult, share: float) -> float:
    """Returns the share of all the model's multiply-accumulates that a fix leaves in the low format, 0 to 1.

    Args:
        result: The case.
        share: The same share, but of the multiply-accumulates that the judged candidate has in the low
            format.
    """
    return share if result.int8_macs is None else share * result.int8_macs


def _priced(share: float, added_ms: float | None, precision: str, low_format: str, *, written: bool) -> str:
    """Returns the beginning of a sentence on a fix: which share stays in the low format, and if it is enough.

    Args:
        share: The share of the model's multiply-accumulates that stays in the low format.
        added_ms: By how many ms the fixed engine is slower than the candidate's engine; None if not timed.
        precision: The format of the layers that leave the low format.
        low_format: The format that the case is about, like ``INT8``.
        written: Whether the fix was written as ``fixed.onnx``.
    """
    if share >= WORTH_SHIPPING:
        return _staying(share, added_ms, low_format, file="use fixed.onnx, " if written else "")
    return Remedy.NOT_WORTH_IT.format(
        share=percent(share),
        time=_slower(added_ms),
        format=low_format,
        high=precision.upper(),
        others=INSTEAD[low_format],
        file="fixed.onnx" if written else "The fix found",
    )


def _staying(share: float, added_ms: float | None, low_format: str, file: str = "") -> str:
    """Returns the beginning of a sentence on a fix: its share in the low format, and how much slower it is.

    The share is of the multiply-accumulates. The result begins with ``file``. ``added_ms`` is None if the fix
    was not timed.
    """
    return Remedy.STAYS.format(share=percent(share), time=_slower(added_ms), format=low_format, file=file)


def _slower(added_ms: float | None) -> str:
    return "" if added_ms is None else f", {added_ms:+.2g} ms"


def _added_ms(result: CaseResult, repair: Repair) -> float | None:
    """Returns by how many ms the median latency of a fix exceeds the candidate's; None if not timed."""
    for engine in result.engines:
        if engine.role == Role.INT8 and engine.latency is not None and repair.latency is not None:
            return repair.latency.median_ms - engine.latency.median_ms
    return None


def _spare(search: SearchOutcome, layers: Sequence[str]) -> tuple[str, ...]:
    """Returns the layers in ``layers`` that are only a safety margin: the criteria are also met without them.

    ``layers`` are all layers that a fix keeps in high precision. The safety margin is the layers that are no
    culprits. The result is empty if the fix does not keep all culprits in high precision.
    """
    culprits = {culprit.layer for culprit in search.culprits}
    if not culprits <= {*layers}:
        return ()
    return tuple(layer for layer in layers if layer not in culprits)


def _key_score(result: CaseResult, scores: Sequence[Score]) -> Score | None:
    """Returns the score of a fix by the criterion that the candidate misses most.

    ``scores`` are all scores of the fix. If none is by a criterion that the candidate misses, the result is
    the worst score of the fix; None if no score has a limit.
    """
    judged = worst_first(scores)
    for missed in worst_first(result.scores):
        same = (missed.subject, missed.metric, missed.bound)
        fixed = [score for score in judged if (score.subject, score.metric, score.bound) == same]
        if fixed and not missed.passed:
            return fixed[0]
    return judged[0] if judged else None


def _reached(key_score: Score | None, samples: int, *, more: bool = False) -> list[str]:
    """Returns texts with a fix's score and its limit; one empty text without a score.

    The first text says most, and each later one says less or names less.

    Args:
        key_score: The score.
        samples: The number of all samples; 0 if the score was not measured on the held-out samples, too.
        more: Whether the candidate misses other limits, too. Then a text says that the fix meets all limits.
    """
    if key_score is None:
        return [""]
    texts = [f"; {relation(key_score, most)}" for most in (NAME, 16)]
    if key_score.name != key_score.subject:
        texts.append(f"; {key_score.metric}{relation(key_score).removeprefix(name_of(key_score))}")
    if samples:
        texts = [text + Remedy.ON_ALL.format(samples=samples) for text in texts] + texts
    if more:
        texts = [text + kept for kept in Remedy.ALL_KEPT for text in texts] + texts
    return texts


def _proof_texts(result: CaseResult, repair: Repair, held_out: HeldOut, key_score: Score | None) -> list[str]:
    """Returns texts on how a fix was proved, the longest first.

    Args:
        result: The case.
        repair: The fix, with its scores on all samples.
        held_out: The samples that were not used to choose the fix, with the scores of the fix on them.
        key_score: The score of the fix that the sentence contains already, before these texts.
    """
    if repair.holds and held_out.count:
        same = _key_score(result, held_out.scores)
        facts = {"samples": held_out.count, "score": "" if same is None else _value(same)}
        if repair.verified and (unsure := least_sure(held_out)) is not None:
            others = relation(at_worst(unsure), NAME)
            brief = others.replace(name_of(unsure, NAME), unsure.metric)
            texts = [(Remedy.PASSES, others), (Remedy.PASSES_BRIEFLY, others), (Remedy.PASSES_BRIEFLY, brief)]
            return [text.format(samples=held_out.count, score=score) for text, score in texts]
        proofs = [] if same is None else [Remedy.VERIFIED_SCORE]
        proofs += [Remedy.VERIFIED, Remedy.VERIFIED_BRIEFLY]
        return [proof.format(**facts) for proof in proofs]
    if repair.holds:
        if not held_out.missing:
            return [Remedy.NOT_PROVED]
        more = [Remedy.NOT_PROVED_MORE_OWN, Remedy.NOT_PROVED_MORE_OWN_BRIEFLY]
        if held_out.key == "inputs":
            more = [Remedy.NOT_PROVED_MORE, Remedy.NOT_PROVED_MORE_BRIEFLY]
        return [text.format(more=held_out.missing) for text in more]
    missed = [score for score in worst_first(held_out.scores) if not score.passed]
    if missed and all(score.passed for score in repair.scores):
        facts = {"samples": held_out.count, "score": relation(missed[0], NAME)}
        return [text.format(**facts) for text in (Remedy.FAILS_PROOF_SCORE, Remedy.FAILS_PROOF)]
    scores = worst_first([*held_out.scores, *repair.scores])
    unsteady = [score for score in scores if not score.steady]
    if not unsteady or not all(score.passed for score in scores):
        return [Remedy.NOT_VERIFIED]
    name = "it" if unsteady[0] == key_score else name_of(unsteady[0], NAME)
    resampled = Remedy.UNSTEADY_SCORE.format(name=name, interval=interval_text(unsteady[0]))
    return [resampled, Remedy.UNSTEADY, Remedy.NOT_VERIFIED]


def _value(score: Score) -> str:
    """Returns a score with its metric and interval, like ``sqnr_db 28.4, 27.1 to 29.6 on others (95 %)``."""
    interval = interval_text(score)
    value = f"{score.metric} {number(score.value)}"
    if not interval or score.interval is None:
        return value
    return f"{value}, {interval} on others ({percent(score.interval.confidence)})"


def _kept(repair: Repair, spare: Sequence[str], pairs: Mapping[str, Quantizer]) -> list[str]:
    """Returns texts on layers that a fix keeps in high precision, the longest first.

    Args:
        repair: The fix.
        spare: The layers that are only a safety margin: the criteria are also met without them.
        pairs: The only Q/DQ pair of each layer that computes nothing, by layer name.
    """
    layers, precision = repair.layers, repair.precision.upper()
    kept = Remedy.KEEP.format(layers=count(len(layers), "layer"), precision=precision)
    if not spare:
        return [*_kept_by_name(layers, precision, pairs), kept]
    names = few(list(map(quoted, spare)), 2)
    margin = Remedy.SPARE.format(spare=len(spare), names=names)
    return [kept + margin, kept + Remedy.SPARE_BRIEFLY.format(spare=len(spare))]


def _kept_by_name(layers: Sequence[str], precision: str, pairs: Mapping[str, Quantizer]) -> Iterator[str]:
    """Yields one text with the names of the layers that are kept in high precision.

    Nothing is yielded for more than ``_NAMED_LAYERS`` layers. The arguments are those of ``_kept``.
    """
    if len(layers) > _NAMED_LAYERS:
        return
    texts = []
    if computing := [quoted(name) for name in layers if name not in pairs]:
        texts.append(Remedy.KEEP.format(layers=" and ".join(computing), precision=precision))
    if tensors := [_tensor_of(pairs[name]) for name in layers if name in pairs]:
        texts.append(Remedy.UNQUANTIZED.format(tensors=" and ".join(tensors)))
    yield " and ".join(texts)


def _tensor_of(pair: Quantizer) -> str:
    """Returns text like ``output 'boxes'`` for the tensor that a Q/DQ pair quantizes."""
    return f"output {quoted(pair.output)}" if pair.output else quoted(pair.tensor)


def _pairs(result: CaseResult) -> dict[str, Quantizer]:
    """Returns a mapping of layer name to Q/DQ pair, for each layer at fault that is only a Q/DQ pair."""
    return {culprit.layer: culprit.quantizer for culprit in result.culprits if culprit.quantizer is not None}


def alternatives(result: CaseResult) -> list[str]:
    """Returns a text on each remedy that meets the criteria but is not recommended, the cheapest first."""
    repairs = result.diagnosis.repairs[1:] if result.diagnosis is not None else ()
    lines = []
    for repair in repairs:
        scores = [relation(score) for score in worst_first(repair.scores)[:1]]
        share = share_that_stays(result, 1 - repair.price)
        start = _staying(share, _added_ms(result, repair), result.low_format)
        change = _changes(repair, result.low_format, (), _pairs(result))[0]
        lines.append(joined(start + change, *scores, proof_word(repair)))
    return lines


def _no_fix(result: CaseResult) -> Iterator[str]:
    """Yields texts on why there is no fix and what to do, the longest first."""
    search, stopped = result.search, result.stopped
    speed = None if result.diagnosis is None else result.diagnosis.speed
    if speed is not None and not _is_cut_short(result):
        yield from _not_faster(result, speed)
    elif stopped is not None:
        yield STOPS[stopped.kind].no_fix
    elif search is not None and search.ending.kind == "nothing-left":
        high, others = search.precision.upper(), INSTEAD[result.low_format]
        layers = needed_layers(search.ending)
        yield NoFix.NOTHING_LEFT.format(format=result.low_format, layers=layers, high=high, others=others)
    elif search is not None and search.found:
        yield reason(search, result.low_format)
    elif search is not None and (other := is_other_model(result)) is not None and other.differs:
        advice = NoFix.OTHER_WEIGHTS if other.differing else NoFix.OTHER_MODEL
        yield advice.format(model=other.model, file=other.file, key=other.key)
    elif search is not None:
        lint = [
            NoFix.NOT_TRIED.format(advice=finding.remedy)
            for finding in result.findings
            if finding.source == "lint" and finding.severity != "note" and finding.remedy
        ]
        yield "; ".join([*lint[:1], NoFix.ENDED.format(ending=reason(search, result.low_format))])
        if search.fixed_pairs:
            yield lint[0] if lint else NoFix.FIXED_PAIRS
        yield lint[0] if lint else NoFix.HIGH_FAILS.format(format=result.low_format)
    elif result.diagnosis is not None and result.diagnosis.first_stage == "engine INT8":
        yield STAGES["engine INT8"].advice
    elif not result.int8_groups:
        yield NoFix.ENGINE.format()
    else:
        yield NoFix.NOT_SEARCHED


def speed_note(result: CaseResult) -> str:
    """Returns a text on the result of the search for a faster plan, for a case that passes.

    The text is empty if nothing was searched.
    """
    if not result.passed or result.diagnosis is None or result.diagnosis.speed is None:
        return ""
    if _is_cut_short(result) and result.answer is None:
        return ""
    answer = result.answer
    found = recommended(result) if answer is not None and answer.kind == "faster" else iter(())
    return next(found, "") or next(_not_faster(result, result.diagnosis.speed))


def _is_cut_short(result: CaseResult) -> bool:
    """Returns whether the time limit or Ctrl-C ended the search for a faster plan."""
    return result.stopped is not None and "speed" in result.stopped.left_out


def _not_faster(result: CaseResult, speed: SpeedSearch) -> Iterator[str]:
    """Yields a text that says that no plan is fast enough, with the latencies that show it."""
    timed = [trial.latency.median_ms for trial in speed.trials if trial.latency is not None]
    best = min([speed.candidate.median_ms, *timed])
    plans = count(len(timed), "plan")
    facts = {"format": result.low_format, "baseline": result.baseline}
    said = ""
    if timed:
        said = NoFix.BEST_OF.format(count=plans, best=number(min(timed), 3))
    elif speed.trials:
        said = NoFix.NONE_TIMED.format(count=count(len(speed.trials), "plan"))
    times = NoFix.TIMES.format(
        **facts,
        candidate=number(speed.candidate.median_ms, 3),
        plans=said,
        ms=number(speed.baseline.median_ms, 3),
    )
    speedup = speed.baseline.median_ms / best
    if speedup < 1 + LEAST_GAIN:
        gain = NoFix.GAINS_LITTLE.format(share=percent(LEAST_GAIN)) if speedup > 1 else NoFix.GAINS_NOTHING
        yield NoFix.SHIP_BASELINE.format(**facts, gain=gain, times=times)
        return
    if result.passed:
        yield NoFix.NONE_FASTER.format(times=times)
        return
    fastest = "the best plan" if best in timed else result.low_format
    yield NoFix.TOO_SLOW.format(
        **facts,
        fastest=fastest,
        speedup=number(speedup, 3),
        limit=number(speed.limit, 3),
        times=times,
    )


def cheaper_fix(result: CaseResult) -> Repair | None:
    """Returns the recommended remedy if it keeps more work in the low format than the plan of the search.

    Without a plan of the search, any recommended remedy is returned; None if there is no such remedy.
    """
    first, search = result.answer, result.search
    if first is None or search is None or not search.found:
        return first
    cheaper = first.kind == "fuse" or first.price < 1 - search.int8_share - 1e-9
    return first if first.kind != "high" and cheaper else None


def _changes(
    repair: Repair, low_format: str, spare: Sequence[str], pairs: Mapping[str, Quantizer]
) -> list[str]:
    """Returns texts on what a remedy changes, the longest first.

    Args:
        repair: The remedy.
        low_format: The format that the case is about, like ``INT8``.
        spare: The layers that are in high precision only as a safety margin: the criteria are also met
            without them.
        pairs: The only Q/DQ pair of each layer that computes nothing, by layer name.
    """
    done, brief = _clauses(repair, ratio=True), _clauses(repair, ratio=False)
    if repair.kind == "high" or not done:
        if repair.layers:
            return _kept(repair, spare, pairs)
        return [Remedy.SYMMETRIC.format(format=low_format)]
    if not repair.layers:
        return [done, brief]
    layers = count(len(repair.layers), "layer")
    high = Remedy.HIGH.format(layers=layers, precision=repair.precision.upper())
    return [f"{done}, {high}", f"{high} and {count(len(list(_changed(repair))), 'other change')}"]


def _clauses(repair: Repair, *, ratio: bool) -> str:
    """Returns a text on all changes that a remedy makes besides high precision; see ``_changed``."""
    return " and ".join(
        CHANGES[kind].clause.format_map(facts) for kind, facts in _changed(repair, ratio=ratio)
    )


def _changed(repair: Repair, *, ratio: bool = True) -> Iterator[tuple[ChangeKind, dict[str, str | float]]]:
    """Yields each kind of change that a remedy makes, with the facts that the texts in ``CHANGES`` need.

    With ``ratio``, the text on a single new scale gives its ratio to the old one.
    """
    if repair.fused:
        norms = count(len(repair.fused), "norm")
        yield "fused", {"norms": norms, "names": listed(repair.fused)}
    if repair.outputs:
        outputs = count(len(repair.outputs), "more output")
        yield "outputs", {"outputs": outputs, "names": listed(repair.outputs)}
    if (moved := repair.migration) is not None:
        places = [f"folded into {listed(moved.folded)}"] if moved.folded else []
        if moved.inserted:
            places.append(f"{len(moved.inserted)} Mul inserted, one more elementwise pass over a tensor each")
        yield "migration", {"alpha": moved.alpha, "places": "; ".join(places)}
    if repair.method:
        yield "method", {"method": repair.method}
    if repair.rescales:
        methods = ", ".join(dict.fromkeys(rescale.method for rescale in repair.rescales))
        yield "rescales", {"tensors": _tensors(repair.rescales, ratio=ratio), "methods": methods}
    if repair.biases:
        yield (
            "biases",
            {"biases": count(len(repair.biases), "bias"), "names": listed(repair.biases)},
        )
    if repair.corrected:
        yield "corrected", {"biases": count(len(repair.corrected), "bias")}
    if repair.weights:
        yield "weights", {"weights": count(len(repair.weights), "weight")}


def _tensors(rescales: Sequence[Rescale], *, ratio: bool) -> str:
    """Returns text like ``2 tensors ('a', 'b')``, without the names if they are longer than ``NAME``.

    For one tensor the text is its name. With ``ratio`` it also has the ratio of the new scale to the old one.
    """
    if len(rescales) > 1:
        names = ", ".join(f"'{rescale.tensor}'" for rescale in rescales)
        return count(len(rescales), "tensor") + (f" ({names})" if len(names) <= NAME else "")
    (only,) = rescales
    if not ratio:
        return quoted(only.tensor)
    how = f"{number(only.new / only.old)} times as wide" if only.old else "new"
    return f"{quoted(only.tensor)}, {how}"


def repair_text(repair: Repair, low_format: str) -> str:
    """Returns a text on what a remedy does, the most important change first.

    ``low_format`` is the format that the case is about, like ``INT8``.
    """
    precision = repair.precision.upper()
    if repair.kind in ("high", "faster"):
        words = Remedy.HIGH if repair.kind == "high" else Remedy.FASTER
        return words.format(layers=count(len(repair.layers), "layer"), precision=precision)
    head = Remedy.NONE_HIGH.format(precision=precision)
    if repair.layers:
        culprits = count(repair.culprits, "layer")
        head = Remedy.SOME_HIGH.format(layers=len(repair.layers), culprits=culprits, precision=precision)
    sentences = [CHANGES[kind].sentence.format_map(facts) for kind, facts in _changed(repair)]
    text = f"{head}: {'; '.join(sentences) or Remedy.SYMMETRIC.format(format=low_format)}"
    if repair.kind in ("unfuse", "fuse") or repair.biases:
        return text
    ranges = Remedy.RANGES_FROM_DATA if repair.data else Remedy.RANGES_FROM_INPUTS
    return text + ranges.format(data=repair.data)
