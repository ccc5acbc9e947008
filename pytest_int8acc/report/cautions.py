"""Reasons to doubt a verdict, as sentences. Some of them fail a case even if it meets all limits.

Three reasons fail a case: the criteria also accept useless outputs, the engine ran in another format than
requested, or the samples are too few to decide and the spec demands a decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_int8acc.report.catalogue import DEAD, PARTS, STOPS, Caution, Why
from pytest_int8acc.report.why import is_jumpy, jump_text, values_texts
from pytest_int8acc.report.words import (
    NAME,
    count,
    few,
    interval_text,
    limit_in_yaml,
    middle,
    name_of,
    number,
    pairs_text,
    percent,
    quoted,
    relation,
    worst_first,
)
from pytest_int8acc.results import (
    CaseResult,
    DefaultSession,
    Finding,
    HeldOut,
    LayerShare,
    PrecisionContract,
    Repair,
    Role,
    Score,
    Stop,
    by_rule,
)
from pytest_int8acc.results.precision import MAX_REFUTED
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB, ChanceMetric, DeadCandidate, Preactivation

#: An engine may not report in which format some layers ran. A caution is shown if these layers have more than
#: this share of the MACs that were requested in low precision.
_MUCH_UNTOLD = 0.5
#: The share of the MACs whose format is not known is printed if it is at least this. A smaller share would be
#: printed as 0 %.
_LEAST_PRINTED = 0.0005
#: A caution says how many samples would decide the verdict, unless more samples than this are needed.
_MOST_NEEDED = 20_000
#: Maximum number of layers that a sentence names.
_NAMED_LAYERS = 2


def problems(result: CaseResult) -> list[str]:
    """Returns texts on the reasons, other than missed limits, why a case fails.

    There are three: layers of the engine ran in a wrong format, the criteria accept useless outputs, or the
    samples are too few to decide and the spec demands a decision.
    """
    found = []
    if result.precision is not None and result.precision.is_broken:
        found.append(_refuted(result.precision))
    if result.is_undecided:
        found.append(_undecided(result, result.unsteady[0], needed=None, heavy=False))
    return [*found, *_blind_problems(result)]


def cautions(result: CaseResult) -> list[str]:
    """Returns texts on all reasons to doubt the verdict, the worst first."""
    texts = []
    if broken := [f for f in result.findings if f.source == "lint" and f.severity == "error"]:
        rules = [f"{group[0].rule} ({count(len(group), 'node')})" for group in by_rule(broken)]
        texts.append(Caution.REFUSED.format(rules=", ".join(rules)))
    undecided = []
    if result.unsteady and not result.is_undecided:
        undecided.append(_undecided(result, result.unsteady[0], needed_samples(result.unsteady[:1])))
    texts += [] if result.random_inputs else undecided
    texts += [*_formats(result), *_deployed(result), *_hidden(result), *_blind_cautions(result)]
    texts += result.warnings
    texts += undecided if result.random_inputs else []
    if result.stopped is not None:
        texts.append(stop_text(result.stopped, result.low_format))
    data = [f for f in result.findings if f.source == "data" and f.severity != "note"]
    texts += [rule_line(group) for group in by_rule(f for f in data if f not in result.mismatches)]
    if result.diagnosis is not None and result.diagnosis.jumps and not is_jumpy(result):
        texts.append(jump_text(result.diagnosis.jumps, NAME))
    search = result.search
    # If the search found no plan, ``ending_text`` has named the Q/DQ nodes in ``fixed_pairs`` already.
    if search is not None and search.found and search.fixed_pairs:
        texts.append(Caution.FIXED_PAIRS.format(pairs=pairs_text(search.fixed_pairs)))
    return _unique(texts)


def warnings(result: CaseResult) -> list[str]:
    """Returns texts on those reasons to doubt the verdict that were known before the search for causes."""
    return _unique([*_formats(result), *_deployed(result), *_hidden(result), *result.warnings])


def _deployed(result: CaseResult) -> Iterator[str]:
    """Yields a text if the candidate fails in a default session of ONNX Runtime, which users deploy.

    It fails if it does not run there, or if it misses limits that it meets in the session of the verdict.
    """
    found = result.default_session
    if found is None or not found.is_caution:
        return
    # If users deploy the model in ONNX Runtime, a verified fix also passes in a default session.
    repair = None if result.passed or result.fixed_session is not None else result.answer
    if repair is not None and repair.verified:
        yield Caution.FIX_RUNS + default_session_text(found, why=False)
    else:
        yield default_session_text(found)


def default_session_text(found: DefaultSession, *, why: bool = True) -> str:
    """Returns a text on how results differ in a default session of ONNX Runtime, and by which optimizers.

    If ONNX Runtime refuses the model with certain optimizers, the text quotes the reason only with ``why``.
    """
    optimizers = ", ".join(map(repr, found.optimizers))
    level = Caution.DEFAULT_ALWAYS
    if found.optimizers:
        level = Caution.DEFAULT_BY.format(optimizers=optimizers)
    elif found.level != "none":
        level = Caution.DEFAULT_FROM.format(level=found.level)
    texts = {
        "refused": Caution.DEFAULT_REFUSES,
        "fails": Caution.DEFAULT_FAILS if found.optimizers else Caution.DEFAULT_FAILS_SOMEHOW,
        "passes": Caution.DEFAULT_PASSES,
        "differs": Caution.DEFAULT_DIFFERS,
        "saturates": Caution.DEFAULT_SATURATES,
    }
    exact = "a pass" if found.exact is None else number(found.exact.value)
    if found.kind == "refused" and found.optimizers:
        texts["refused"] = Caution.DEFAULT_REFUSES_BY + Caution.DEFAULT_REFUSES_WHY * why
    text = texts[found.kind].format(score=_by_default(found), exact=exact, level=level, optimizers=optimizers)
    return text + (Caution.DEFAULT_WITHOUT_KERNELS if found.without_kernels else "")


def fix_by_default(found: DefaultSession) -> list[str]:
    """Returns a text on why the recommended fix fails in a default session of ONNX Runtime.

    ``found`` compares the fix in both kinds of sessions. The list is empty if the fix passes.
    """
    if found.kind not in ("refused", "fails"):
        return []
    if found.optimizers:
        return [Caution.FIX_FAILS_BY.format(optimizers=", ".join(map(repr, found.optimizers)))]
    if found.kind == "refused":
        return [Caution.FIX_REFUSED]
    return [Caution.FIX_FAILS.format(score=_by_default(found))]


def fix_undecided(repair: Repair, samples: int) -> list[str]:
    """Returns a caution if a verified fix may miss a limit on other samples; otherwise an empty list.

    It may miss a limit that lies in the confidence interval of its score.

    Args:
        repair: The fix.
        samples: The number of all samples. The fix was proved on a part of them, the held-out samples.
    """
    held_out = repair.evidence.held_out
    worst = None if held_out is None else least_sure(held_out)
    if held_out is None or worst is None or not repair.verified:
        return []
    needed = needed_samples([worst])
    more = _needed(needed, held_out.count, Caution.NEEDED_TO_PROVE)
    if held_out.key == "inputs":
        total = None if needed is None else round(float(f"{needed * samples / held_out.count:.2g}"))
        more = _needed(total, samples)
    facts = {
        "samples": held_out.count,
        "score": name_of(worst, NAME),
        "value": number(worst.value),
        "interval": interval_text(worst),
        "confidence": percent(worst.interval.confidence if worst.interval else 0.0),
        "limit": number(worst.limit or 0.0),
        "needed": more,
    }
    return [Caution.FIX_UNDECIDED.format(**facts)]


def least_sure(held_out: HeldOut) -> Score | None:
    """Returns the score on the held-out samples that may miss its limit on others; None if there is none.

    Of several it is the score that needs the most samples to be sure.
    """
    unsure = [score for score in held_out.scores if not score.steady]
    return max(unsure, key=lambda score: needed_samples([score]) or math.inf, default=None)


def at_worst(score: Score) -> Score:
    """Returns a score with the worse end of its confidence interval as its value."""
    if score.interval is None:
        return score
    return replace(score, value=score.interval.low if score.bound == "min" else score.interval.high)


def _by_default(found: DefaultSession) -> str:
    """Returns a text with the score in the default session and its limit, or on why there is no score."""
    return found.problem or ("other results" if found.default is None else relation(found.default, NAME))


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def rule_line(group: Sequence[Finding]) -> str:
    """Returns a text with the first of ``group``, the findings of one rule, and the number of the others."""
    more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
    return f"'{group[0].subject}': {group[0].text}{more}"


def stop_text(stop: Stop, low_format: str) -> str:
    """Returns a text on what ended the work after the verdict early, and which steps were left out."""
    left = ", ".join(PARTS[part].format(format=low_format) for part in stop.left_out)
    return STOPS[stop.kind].sentence.format(seconds=number(stop.max_seconds), left=left or "nothing")


def _undecided(result: CaseResult, score: Score, needed: int | None, *, heavy: bool = True) -> str:
    """Returns a text on a score that might be on the other side of its limit with other samples.

    Args:
        result: The case.
        score: The score. Its confidence interval contains its limit.
        needed: How many samples would decide; None if the text is not to say that.
        heavy: Whether the text names the samples that cause most of the error, if they are few.
    """
    facts = {
        "score": name_of(score, NAME),
        "value": number(score.value),
        "interval": interval_text(score),
        "confidence": percent(score.interval.confidence if score.interval else 0.0),
        "needed": _needed(needed, result.samples),
        "unmended": "" if result.passed or result.answer is None else Caution.UNMENDED,
    }
    for output in result.outputs:
        if heavy and output.name == score.subject and output.heavy:
            return Caution.UNDECIDED_SAMPLES.format(
                **facts,
                limit=number(score.limit or 0.0),
                heavy=len(output.heavy),
                samples=output.samples,
                worst=", ".join(map(str, output.heavy[:3])) + (", ..." if len(output.heavy) > 3 else ""),
            )
    return Caution.UNDECIDED.format(**facts, limit=number(score.limit or 0.0))


def _needed(needed: int | None, samples: int, text: str = Caution.NEEDED) -> str:
    """Returns a text on how many samples would decide; empty if the number is not known or too large.

    Args:
        needed: The number of samples that would decide.
        samples: The number of samples that were compared.
        text: The text, which names the key of the spec.
    """
    known = needed is not None and needed <= _MOST_NEEDED
    return text.format(needed=needed, samples=samples) if known else ""


def needed_samples(undecided: Sequence[Score]) -> int | None:
    """Returns how many samples would decide whether each of ``undecided`` meets its limit.

    The number is rounded up to two significant digits. The result is None if it is not known for a score.
    """
    found = [None if score.interval is None else score.interval.needed for score in undecided]
    known = [number for number in found if number is not None]
    if not known or len(known) < len(found):
        return None
    needed = max(known)
    step = int(10 ** max(len(str(needed)) - 2, 0))
    return -(-needed // step) * step


def _hidden(result: CaseResult) -> Iterator[str]:
    """Yields cautions on errors that no score of an output shows.

    Such errors are NaN in both models, errors of samples with small values, and errors of a tensor that a
    Softmax or Sigmoid hides.
    """
    for output in result.outputs:
        name = quoted(output.name)
        if output.nan_share and not output.problem:
            yield Caution.NAN_IN_BOTH.format(output=name, share=output.nan_share)
        if (small := output.small) is not None:
            yield Caution.SMALL_SAMPLES.format(
                small=small.count,
                samples=output.samples,
                ratio=small.ratio,
                score=relation(small.alone, NAME),
                criterion=limit_in_yaml(output.name, small.alone.metric, small.alone.limit, per_sample=True),
            )
        if output.preactivation is not None and output.preactivation.fails and output.passed:
            yield _squashed(name, output.preactivation, is_simulated=result.place == "engine")


def _squashed(output: str, found: Preactivation, *, is_simulated: bool) -> str:
    """Returns a text on the errors that the Softmax or Sigmoid of an output hides, and a criterion on them.

    Args:
        output: The name of the output.
        found: The input of the Softmax or Sigmoid, with its scores.
        is_simulated: Whether the scores are of a simulation of the engine, and not of the engine itself.
    """
    caution = Caution.SQUASHED if found.is_known else Caution.SQUASHED_UNNAMED
    if found.fails == "pair":
        caution = Caution.SQUASHED_PAIR
    tensor = found.tensor.replace("'", "''")
    limits = "".join(f", {score.metric}: {score.limit:g}" for score in found.scores)
    return caution.format(
        output=output,
        operator=found.operator,
        score=relation(worst_first(found.scores)[0], NAME) + Caution.SIMULATED * is_simulated,
        criterion=f"{{tensor: '{tensor}'{limits}}}",
        node=quoted(found.node),
    )


def precision_text(contract: PrecisionContract) -> str:
    """Returns text like ``asked: 86 % of the MACs in INT8, 14 % in FP16; ran: 84 % in INT8, 16 % untold``."""
    asked = _shares(contract.asked)
    if contract.realized is None:
        return asked
    untold = 1.0 - sum(contract.realized.values())
    ran = _shares(contract.realized, "" if asked else " of the MACs")
    parts = [ran] if ran else []
    parts += [f"{percent(untold)} untold"] if untold >= _LEAST_PRINTED else []
    return "; ".join([*([f"asked: {asked}"] if asked else []), f"ran: {', '.join(parts)}"])


def _shares(shares: Mapping[str, float], of: str = " of the MACs") -> str:
    """Returns text on the share of each format, like ``86 % of the MACs in INT8, 14 % in FP16``.

    Shares of 0 are left out, except for the first format. ``of`` follows the first share.
    """
    kept = [(name, share) for place, (name, share) in enumerate(shares.items()) if share or not place]
    first = [f"{percent(share)}{of} in {name.upper()}" for name, share in kept[:1]]
    return ", ".join([*first, *(f"{percent(share)} in {name.upper()}" for name, share in kept[1:])])


def layers_text(layers: Sequence[LayerShare], count: int) -> str:
    """Returns text that names the first of ``layers`` with their shares of the MACs and their real formats.

    The text ends with the number of further layers. ``count`` is the number of all such layers.
    """
    named = []
    for layer in layers[:_NAMED_LAYERS]:
        ran = "" if layer.ran is None else f" in {layer.ran.upper()}"
        named.append(f"{quoted(layer.name)}{ran} ({percent(layer.share)})")
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return ", ".join(named) + more


def _refuted(contract: PrecisionContract) -> str:
    formats = dict.fromkeys(layer.ran.upper() for layer in contract.misplaced if layer.ran is not None)
    caution = Caution.RAN_IN if formats else Caution.RAN_OTHERWISE
    return caution.format(
        share=percent(contract.refuted), format=contract.low.upper(), others=" and ".join(formats)
    )


def precision_why(contract: PrecisionContract) -> str:
    """Returns a text on what layers in a wrong format mean for the scores, with the names of these layers."""
    low = contract.low.upper()
    if contract.identical:
        return Why.IDENTICAL.format(format=low)
    fastest = contract.source == "candidate" and contract.can_obey
    why = Why.FASTEST_FORMAT if fastest else Why.OTHER_FORMAT
    return why.format(format=low, layers=layers_text(contract.misplaced, contract.misplaced_count))


def _formats(result: CaseResult) -> Iterator[str]:
    """Yields cautions on the formats of layers.

    They say that layers ran in another format than requested, that the engine does not report the format, or
    that the low format was requested for few layers.
    """
    contract = result.precision
    if contract is None or not contract.asked:
        for engine in result.engines:
            if engine.role == Role.INT8 and engine.weighted and not engine.int8 and not engine.untold:
                runs = "1 layer runs" if engine.weighted == 1 else f"{engine.weighted} layers run"
                yield Caution.NO_LAYER.format(format=result.low_format, layers=runs)
    if contract is None:
        return
    low = contract.low.upper()
    if contract.policy != "off" and contract.refuted > MAX_REFUTED and not contract.is_broken:
        yield f"{_refuted(contract)}: {layers_text(contract.misplaced, contract.misplaced_count)}"
    if contract.policy != "off" and contract.untold > _MUCH_UNTOLD and not contract.obeyed:
        can_obey = contract.can_obey and contract.source == "candidate"
        untold = Caution.UNTOLD_CAN_OBEY if can_obey else Caution.UNTOLD
        yield untold.format(share=percent(contract.untold), format=low)
    if contract.realized is None and contract.identical:
        yield Caution.IDENTICAL.format(format=low)
    share = contract.asked.get(contract.low, 1.0)
    if share < contract.least_share:
        if low == "INT8":
            asked = Caution.FEW_QUANTIZED if share else Caution.NONE_QUANTIZED
        else:
            asked = Caution.FEW_ASKED if share else Caution.NONE_ASKED
        yield asked.format(
            share=percent(share),
            format=low,
            layers=layers_text(contract.left_out, contract.left_out_count),
            accepted=_rounded_down(share),
        )


def _rounded_down(share: float) -> float:
    """Returns ``share`` rounded down to two decimals, or to two significant digits if it is below 0.1."""
    digits: int = 2 if share <= 0 else max(2, 1 - math.floor(math.log10(share)))
    scale = 10.0**digits
    return math.floor(scale * share) / scale


def _blind_problems(result: CaseResult) -> list[str]:
    """Returns sentences on why the criteria of a case would pass any model; empty if criteria can fail."""
    blind = result.fatal_blind
    if blind is None:
        return []
    if blind.beaten:
        return list(map(_chance_text, blind.beaten))
    if blind.lost is not None:
        output, sqnr_db = quoted(blind.lost.subject), number(blind.lost.value)
        return [Caution.LOST.format(output=output, format=result.low_format, sqnr_db=sqnr_db)]
    outputs = " and ".join(map(_dead_text, blind.fatal_outputs))
    return [Caution.TOO_WEAK.format(outputs=outputs)]


def blind_whys(result: CaseResult) -> Iterator[str]:
    """Yields texts on how it was shown that the criteria would pass any model, the longest text first.

    Nothing is yielded if the criteria can fail.
    """
    blind = result.fatal_blind
    if blind is None:
        return
    samples = count(blind.samples, "sample") if blind.samples else "some samples"
    for metric in blind.beaten[:1]:
        template = Why.REVERSED if metric.is_reversed else Why.AT_CHANCE
        yield template.format(
            samples=samples,
            metric=middle(metric.metric),
            baseline=number(metric.baseline),
            chance=number(metric.chance),
        )
        return
    if blind.lost is not None:
        limits = [relation(score, NAME) for score in worst_first(result.scores)]
        for values in values_texts(result):
            yield from (Why.LET_PASS.format(values=values, scores=few(limits, most)) for most in (3, 1))
        return
    accepted = [
        Why.ACCEPTED.format(dead=_dead_text(dead), score=relation(dead.scores[0], NAME))
        for dead in blind.fatal_outputs
        if dead.scores
    ]
    for kept in filter(None, (accepted, accepted[:1])):
        yield Why.TRIED.format(samples=samples, format=result.low_format, accepted="; ".join(kept))


def _blind_cautions(result: CaseResult) -> Iterator[str]:
    """Yields cautions on useless outputs that the criteria accept, and on metrics no better than chance.

    Outputs and metrics that fail the case are left out, because the first line on the case names them.
    """
    blind = result.blind
    if blind is None:
        return
    for metric in blind.at_chance:
        if not (metric.as_well and result.is_blind):
            yield _chance_text(metric)
    # If the case fails because of useless outputs, its first line names them, unless it names a metric that
    # is no better than chance.
    named = result.is_blind and not blind.beaten
    missed = [dead for dead in blind.undetected if not (named and dead.is_fatal)]
    if not missed:
        return
    outputs = few([_dead_text(dead) for dead in missed], 2)
    changed = [dead.output for dead in missed if dead.output]
    if result.blind_reason:
        yield Caution.ACCEPTED.format(reason=middle(result.blind_reason), outputs=outputs)
    elif changed and not named:
        criterion = limit_in_yaml(changed[0], "sqnr_db", DEFAULT_SQNR_DB)
        yield Caution.UNNOTICED_OUTPUT.format(outputs=outputs, criterion=criterion)
    else:
        yield Caution.UNNOTICED.format(outputs=outputs)


def _dead_text(dead: DeadCandidate) -> str:
    output = quoted(dead.output) if dead.output else "every output"
    return DEAD[dead.kind].format(output=output)


def _chance_text(metric: ChanceMetric) -> str:
    if metric.is_constant:
        caution = Caution.CHANCE_SAME
    elif not metric.as_well:
        caution = Caution.CHANCE_NEAR
    elif metric.is_reversed:
        caution = Caution.CHANCE_BETTER
    else:
        caution = Caution.CHANCE_LABELS
    return caution.format(
        metric=middle(metric.metric),
        baseline=number(metric.baseline),
        chance=number(metric.chance),
        better="lower" if metric.baseline < metric.chance else "higher",
    )
