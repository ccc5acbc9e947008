"""What criteria do not see, in sentences: dead outputs that keep them, metrics at chance."""

from __future__ import annotations

from pytest_int8acc.report.catalogue import DEAD
from pytest_int8acc.report.words import NAME, few, middle, number, relation
from pytest_int8acc.results import BlindSpots, CaseResult, Score
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB, ChanceMetric, DeadCandidate


def blind_problems(result: CaseResult) -> list[str]:
    """Returns why a pass would say nothing, a sentence each; none where the criteria can fail."""
    blind = result.blind
    if blind is None or not result.is_blind:
        return []
    if at_chance := [_chance_text(metric) for metric in blind.at_chance if metric.as_well]:
        return at_chance
    near = blind.too_near
    if near is not None and _is_lost(near):
        lost = f"'{middle(near.subject, NAME)}' is lost in {result.low_format} (sqnr_db {number(near.value)})"
        return [f"{lost}, and no criterion notices"]
    fatal = [dead for dead in blind.undetected if dead.is_fatal]
    kept = " and ".join(_dead_text(dead) for dead in fatal)
    return [f"the criteria are too weak: {kept} would pass"]


def blind_cautions(result: CaseResult) -> list[str]:
    """Returns what the criteria of a case do not see, where that alone does not fail it."""
    blind = result.blind
    if blind is None:
        return []
    # The first line of a failure names the fatal ones, unless it names a metric at chance.
    named = result.is_blind and not any(metric.as_well for metric in blind.at_chance)
    missed = [dead for dead in blind.undetected if not (named and dead.is_fatal)]
    cautions = [_chance_text(m) for m in blind.at_chance if not (m.as_well and result.is_blind)]
    if missed:
        kept = few([_dead_text(dead) for dead in missed], 2)
        start = f"accepted ({middle(result.blind_reason, NAME)}): " if result.blind_reason else ""
        outputs = dict.fromkeys(f"'{middle(dead.output, NAME)}'" for dead in missed if dead.output)
        add = ""
        if outputs and not (result.blind_reason or named):
            add = f"; add a criterion on {next(iter(outputs))}"
        cautions.append(f"{start}{kept} would pass unnoticed{add}")
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
            which = (
                f"{small.count} of {output.samples} samples are {small.ratio:.0f} times smaller than others"
            )
            alone = f"and alone reach {relation(small.alone, NAME)}"
            cautions.append(f"{which} {alone}; write 'per: sample' into that criterion, to judge each")
    return cautions


def blind_fix(blind: BlindSpots, low_format: str) -> str:
    """Returns what to write into the spec, as far as a trial has shown that it helps."""
    for metric in blind.at_chance:
        if metric.as_well:
            return _chance_fix(metric)
    accept = "To accept weak criteria, give the case the key 'accept_blind: REASON'"
    if blind.remedy is not None:
        reached = f"{low_format} keeps it with {number(blind.remedy.value)} dB, and these outputs do not"
        return f"add to 'criteria:' {_wish(blind.remedy)}; {reached}. {accept}"
    by_task = "{metric: top1, max_drop: 1%} or {metric: FILE.py:FUNCTION, max_drop: 1%}, with 'labels: FILE'"
    near = blind.too_near
    if near is None or near.limit is None:
        return f"add to 'criteria:' a limit on the metric of your task, like {by_task}. {accept}"
    if _is_lost(near):
        return f"add to 'criteria:' {_wish(near)} and run again: it fails then, and layers are searched"
    return (
        f"no 'sqnr_db' limit works here: only {near.limit:g} dB and more would catch shuffled outputs, and "
        f"{low_format} has {number(near.value)} dB. Use inputs that differ more, or a metric of your task, "
        f"like {by_task}. {accept}"
    )


def _is_lost(score: Score) -> bool:
    """Whether the candidate would miss the usual limit, too, as outputs of no use do."""
    return score.limit is not None and score.limit <= DEFAULT_SQNR_DB


def _wish(score: Score) -> str:
    """A criterion as the spec writes it."""
    name = middle(score.subject, NAME)
    named = f"'{name}'" if "[" in name else name  # of a part: YAML's own signs
    return f"{{output: {named}, sqnr_db: {score.limit:g}}}"


def _dead_text(dead: DeadCandidate) -> str:
    output = f"'{middle(dead.output, NAME)}'" if dead.output else "every output"
    return DEAD[dead.kind].clause.format(output=output)


def _chance_text(metric: ChanceMetric) -> str:
    name, baseline, chance = middle(metric.metric, NAME), number(metric.baseline), number(metric.chance)
    if metric.is_constant:
        return f"{name} is {baseline} for the baseline, and the same for shuffled outputs"
    if not metric.as_well:
        return f"check the labels, too: {name} of the baseline is {baseline}, by chance {chance}"
    if _is_users(metric) and baseline != chance:
        better = "lower" if metric.baseline < metric.chance else "higher"
        return f"{name} is {baseline} for the baseline, {chance} for shuffled outputs: is {better} better?"
    return f"{name} of the baseline is {baseline}, of shuffled outputs {chance}: do the labels match?"


def _chance_fix(metric: ChanceMetric) -> str:
    """What to check where a metric of labels scores useless outputs as high as the baseline's."""
    name = middle(metric.metric, NAME)
    if metric.is_constant:
        ignores = f"if both differ, {name} ignores one of them or hides an exception"
        return (
            "compare the labels and the decoded outputs of three samples. If all labels are the same, check "
            "how their file is read; if all outputs are, check the float model and its inputs"
            + (f"; {ignores}" if _is_users(metric) else "")
        )
    labels = "one label per input, in the order of the inputs, numbered as the classes of the output"
    if not _is_users(metric) or metric.baseline == metric.chance:
        return f"check the labels: {labels} (from 0 or from 1?)"
    if metric.baseline < metric.chance:
        direction = "if a lower value is better, add 'lower_is_better: true' to the criterion"
    else:
        direction = "if a higher value is better, remove 'lower_is_better' from the criterion"
    return f"{direction}; else check that {name} compares each output with its own label: {labels}"


def _is_users(metric: ChanceMetric) -> bool:
    """Whether the metric is a function or class of the user, named ``file.py:name``."""
    return ":" in metric.metric
