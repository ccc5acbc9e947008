"""Why a case fails and what mends it, as text: findings, repairs, layers, calibration methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_int8acc.errors import listed
from pytest_int8acc.report.catalogue import CHANGES, Words
from pytest_int8acc.report.words import count, indented_table, number, relation, worst_first
from pytest_int8acc.results import CalibrationLine, CaseResult, Finding, LayerError, Repair, by_rule

_LAYERS = 40


def finding_lines(findings: Sequence[Finding], verbosity: int = 0) -> list[str]:
    """A line for each rule, errors first, then warnings; with ``verbosity`` 2 each finding, notes too."""
    groups = [group for group in by_rule(findings) if verbosity >= 2 or group[0].severity != "note"]
    lines = []
    for group in groups:
        first = group[0]
        what = "data " if first.source == "data" else ""
        lines.append(f"{what}{first.severity}: {rule_line(group)} [{first.rule}]")
        if verbosity >= 2:
            lines += [f"    '{finding.subject}': {finding.text}" for finding in group[1:]]
        if first.remedy:
            lines.append(f"    {first.remedy}")
    hidden = len({finding.rule for finding in findings if finding.severity == "note"})
    more = [f"... and notes of {count(hidden, 'rule')} (all with -vv)"] if hidden and verbosity < 2 else []
    return [*lines, *more]


def rule_line(group: Sequence[Finding]) -> str:
    """What a rule has found, by its first finding, and how many more there are."""
    more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
    return f"'{group[0].subject}': {group[0].text}{more}"


def rules_text(findings: Sequence[Finding]) -> str:
    """Like ``nonzero-zero-point (172 nodes), int32-bias (1 node)``."""
    return ", ".join(f"{group[0].rule} ({count(len(group), 'node')})" for group in by_rule(findings))


def cheaper_fix(result: CaseResult) -> Repair | None:
    """The cheapest repair, where it leaves more of the network in INT8 than the plan found."""
    first, search = result.answer, result.search
    if first is None or search is None or not search.found:
        return first
    cheaper = first.kind == "fuse" or first.price < 1 - search.int8_share - 1e-9
    return first if first.kind != "high" and cheaper else None


def changes(repair: Repair, low_format: str, spare: int = 0) -> Iterator[str]:
    """What is changed, the fullest first: words for the line that recommends it.

    ``spare``: how many of its layers leave the format for a reserve only.
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


def layer_lines(layers: Sequence[LayerError], low_format: str, width: int | None = None) -> list[str]:
    """The error of each layer, the largest of its own making first; ``width`` is that of the table."""
    if not layers:
        return []
    ranked = worst_layers(layers)
    rows = [
        (
            layer.layer,
            layer.op_type,
            number(layer.alone_sqnr_db, 3),
            number(layer.alone_cosine),
            number(layer.sqnr_db, 3),
            number(layer.cosine),
            *("" if v is None else number(v) for v in (layer.engine_sqnr_db, layer.engine_cosine)),
        )
        for layer in ranked[:_LAYERS]
    ]
    measured = ("alone", f"all in {low_format}", "between engines")
    header = ("layer", "type", *(title for what in measured for title in (f"{what}: SQNR dB", "cosine")))
    lines = ["Layers (error against the baseline, the worst alone first)"]
    lines += indented_table(header, rows, width)
    more = len(ranked) - len(rows)
    return [*lines, f"  ... and {more} more (all in report.json)"] if more else lines


def worst_layers(layers: Sequence[LayerError]) -> list[LayerError]:
    """The layers by the error of their own making, nan first."""
    return sorted(layers, key=lambda layer: (not math.isnan(layer.alone_sqnr_db), layer.alone_sqnr_db))


def calibration_lines(calibrations: Sequence[CalibrationLine], width: int | None = None) -> list[str]:
    """What each calibration method reaches; ``width`` is that of the table."""
    if not calibrations:
        return []
    rows = []
    for line in calibrations:
        judged = worst_first(line.scores)
        worst = relation(judged[0]) if judged else ""
        rows.append((line.method, "passes" if line.passed else "fails", worst))
    header = ("method", "verdict", "most critical")
    return ["Calibration methods", *indented_table(header, rows, width)]
