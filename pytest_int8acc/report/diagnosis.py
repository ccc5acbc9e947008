"""Why a case fails and what mends it, as text: findings, repairs, layers, calibration methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_int8acc.errors import listed
from pytest_int8acc.report.words import count, number, relation, table, worst_first
from pytest_int8acc.results import CalibrationLine, CaseResult, Finding, LayerError, Repair

_FINDINGS = 5
_LAYERS = 40
_SEVERITIES = ("error", "warning", "note")


def finding_lines(findings: Sequence[Finding], verbosity: int = 0) -> list[str]:
    """Errors first, then warnings, a few of them; with ``verbosity`` 2 all, and the notes."""
    ranked = worst_findings(findings)
    shown = ranked if verbosity >= 2 else [f for f in ranked if f.severity != "note"][:_FINDINGS]
    lines = []
    for finding in shown:
        what = "data " if finding.source == "data" else ""
        lines.append(f"{what}{finding.severity}: '{finding.subject}': {finding.text} [{finding.rule}]")
        if finding.remedy:
            lines.append(f"    {finding.remedy}")
    more = len(ranked) - len(shown)
    return [*lines, f"... and {count(more, 'finding')} more (all with -vv)"] if more else lines


def worst_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, errors first."""
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))


def cheaper_fix(result: CaseResult) -> Repair | None:
    """The cheapest repair, where it leaves more of the network in INT8 than the plan found."""
    first, search = result.answer, result.search
    if first is None or search is None or not search.found:
        return first
    return first if first.kind != "high" and first.price < 1 - search.int8_share - 1e-9 else None


def repair_line(repair: Repair) -> str:
    """A repair in a sentence, with what it reaches and whether that was proved."""
    judged = worst_first(repair.scores)
    said = [relation(judged[0])] if judged else []
    said += ["verified" if repair.verified else "not verified"]
    said += [f"{repair.latency.median_ms:.3g} ms"] if repair.latency is not None else []
    return f"{repair_text(repair)} ({', '.join(said)})"


def repair_text(repair: Repair) -> str:
    """What is done, in a sentence or two; what matters most comes first."""
    if repair.told:
        return repair.told
    layers, precision = len(repair.layers), repair.precision.upper()
    if repair.kind == "high":
        return f"{count(layers, 'layer')} in {precision}"
    head = f"{layers} of {count(repair.culprits, 'layer')} in {precision}"
    done = "; ".join(_done(repair)) or "symmetric INT8 throughout"
    if repair.kind == "unfuse":
        return f"{head if layers else f'no layer needs {precision}'}: {done}"
    data = f"the calibration data, {repair.data}" if repair.data else "the compared inputs themselves"
    return f"{head if layers else f'no layer needs {precision}'}: {done}; ranges from {data}"


def _done(repair: Repair) -> Iterator[str]:
    if repair.outputs:
        several = count(len(repair.outputs), "more output")
        yield f"{several} of the engine, to be left unread ({listed(repair.outputs)}), breaks a wrong fusion"
    if repair.rescales:
        methods = ", ".join(dict.fromkeys(r.method for r in repair.rescales))
        yield f"other scales for {count(len(repair.rescales), 'tensor')} ({methods})"
    if repair.weights:
        yield f"scales of {count(len(repair.weights), 'weight')} taken anew from the values"
    if (moved := repair.migration) is not None:
        parts = [f"folded into {listed(moved.folded)}"] if moved.folded else []
        if moved.inserted:
            parts.append(f"{len(moved.inserted)} Mul inserted, one more elementwise pass over a tensor each")
        yield f"channels evened out by migration to the weights (alpha {moved.alpha:g}; {'; '.join(parts)})"


def layer_lines(layers: Sequence[LayerError]) -> list[str]:
    """The error of each layer, the largest of its own making first."""
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
    measured = ("alone", "all in INT8", "between engines")
    header = ("layer", "type", *(title for what in measured for title in (f"{what}: SQNR dB", "cosine")))
    lines = ["Layers (error against the baseline, the worst alone first)"]
    lines += ["  " + line for line in table(header, rows)]
    more = len(ranked) - len(rows)
    return [*lines, f"  ... and {more} more (all in report.json)"] if more else lines


def worst_layers(layers: Sequence[LayerError]) -> list[LayerError]:
    """The layers by the error of their own making, nan first."""
    return sorted(layers, key=lambda layer: (not math.isnan(layer.alone_sqnr_db), layer.alone_sqnr_db))


def calibration_lines(calibrations: Sequence[CalibrationLine]) -> list[str]:
    """What each calibration method reaches."""
    if not calibrations:
        return []
    rows = []
    for line in calibrations:
        judged = worst_first(line.scores)
        worst = relation(judged[0]) if judged else ""
        rows.append((line.method, "passes" if line.passed else "fails", worst))
    lines = table(("method", "verdict", "most critical"), rows)
    return ["Calibration methods", *("  " + line for line in lines)]
