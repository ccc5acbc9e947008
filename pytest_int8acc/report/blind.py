"""What criteria do not see, in sentences: dead outputs that keep them, metrics at chance."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_int8acc.report.words import NAME, few, middle, number, relation
from pytest_int8acc.results import BlindSpots, CaseResult
from pytest_int8acc.results.scores import ChanceMetric, DeadCandidate, DeadKind

_DEAD: Mapping[DeadKind, str] = {
    "zeros": "outputs of zeros",
    "shuffled": "the outputs of other samples",
    "mean": "the same mean output for every sample",
    "shifted": "classes of {output} shifted by one",
    "replaced": "zeros in place of {output}",
    "greatest": "the greatest value everywhere in {output}",
}


def blind_problems(result: CaseResult) -> list[str]:
    """Returns why a pass would say nothing, a sentence each; none where the criteria can fail."""
    blind = result.blind
    if blind is None or not result.is_blind:
        return []
    fatal = [dead for dead in blind.undetected if dead.kind in ("zeros", "shuffled")]
    problems = []
    if fatal:
        kept = " and ".join(_dead_text(dead) for dead in fatal)
        problems.append(f"the criteria cannot fail: {kept} keep all of them")
    return [*problems, *(_chance_text(metric) for metric in blind.at_chance if metric.as_well)]


def blind_cautions(result: CaseResult) -> list[str]:
    """Returns what the criteria of a case do not see, where that alone does not fail it."""
    blind = result.blind
    if blind is None:
        return []
    fatal = ("zeros", "shuffled") if result.is_blind else ()
    missed = [dead for dead in blind.undetected if dead.kind not in fatal]
    cautions = [_chance_text(m) for m in blind.at_chance if not (m.as_well and result.is_blind)]
    if missed:
        kept = few([_dead_text(dead) for dead in missed], 2)
        start = f"accepted ({middle(result.blind_reason, NAME)}): " if result.blind_reason else ""
        cautions.append(f"{start}{kept} would pass, too: no criterion sees that")
    return cautions


def hidden_cautions(result: CaseResult) -> list[str]:
    """Returns what limits on all samples together do not see: NaN in both forms, samples far smaller."""
    cautions = []
    for output in result.outputs:
        name = f"'{middle(output.name, NAME)}'"
        if output.nan_share and not output.problem:
            share = f"{output.nan_share:.2%} of its elements"
            cautions.append(f"{name} is NaN in both forms in {share}, which are left out")
        small = output.small
        if small is not None:
            which = f"{small.count} of {output.samples} samples are {small.ratio:.0f} times smaller"
            alone = f"{which} than others; by themselves they reach {relation(small.alone, NAME)}"
            cautions.append(f"{alone}: judge each with 'per: sample'")
    return cautions


def blind_fix(blind: BlindSpots) -> str:
    """Returns what to write into the spec, as far as a trial has shown that it helps."""
    accept = "or say why that is accepted: 'accept_blind: REASON'"
    if blind.remedy is not None and blind.remedy.limit is not None:
        subject = middle(blind.remedy.subject, NAME)
        named = f"'{subject}'" if "[" in subject else subject  # of a part: YAML's own signs
        wish = f"{{output: {named}, sqnr_db: {blind.remedy.limit:g}}}"
        reached = f"which they miss and INT8 keeps ({number(blind.remedy.value)} dB)"
        return f"add the criterion {wish}, {reached}; {accept}"
    if any(metric.as_well for metric in blind.at_chance):
        return f"put the labels into the order of the inputs, numbered as the outputs are; {accept}"
    return f"add a criterion that they miss, like a limit on the metric of your task; {accept}"


def _dead_text(dead: DeadCandidate) -> str:
    if dead.kind == "greatest" and not dead.output:
        return "the greatest value everywhere in all outputs"
    return _DEAD[dead.kind].format(output=f"'{middle(dead.output, NAME)}'")


def _chance_text(metric: ChanceMetric) -> str:
    values = f"{number(metric.baseline)} for the baseline, {number(metric.chance)} for shuffled outputs"
    place = "at chance" if metric.as_well else "hardly above chance"
    return f"{middle(metric.metric, NAME)} is {place}: {values} (labels in another order?)"
