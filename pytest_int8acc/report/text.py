"""One case as text: the line, the table, the failure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pytest_int8acc.report.order import worst_first
from pytest_int8acc.report.search import brief, search_lines
from pytest_int8acc.report.table import number, number_pair, table
from pytest_int8acc.results import CaseResult, Score

#: How the first line of a failure begins.
FAILURE = "INT8 accuracy: "
_ROWS = 20
_NAMES = 3
_HEADER = ("", "output", "metric", "INT8", "limit", "noise", "baseline", "fixed")


def failure_line(result: CaseResult) -> str:
    """The first line of a failure: the worst miss with value and limit, how many more, and the fix."""
    missed = _missed(result)
    more = [f"+{len(missed) - 1} more"] if len(missed) > 1 else []
    if result.search is not None:
        more.append(brief(result.search))
    return f"{FAILURE}{missed[0]}" + (f" ({'; '.join(more)})" if more else "")


def failure(result: CaseResult, verbosity: int = 0) -> str:
    """What a failed case reads like: its first line, one table and the notes."""
    lines = [failure_line(result), "", headline(result)]
    lines += ["  " + line for line in details(result, verbosity)]
    if result.search is not None:
        lines += ["", *search_lines(result.search, verbosity)]
    if result.written:
        lines.append(f"Written: {', '.join(result.written)}")
    return "\n".join(lines)


def headline(result: CaseResult) -> str:
    """What was compared with what, on which data, where."""
    samples = _count(result.samples, "sample")
    return f"{result.candidate} against {result.baseline}; {samples}: {result.data}; {result.backend}"


def status(result: CaseResult) -> str:
    """One line for the terminal section: the most critical score, its limit and margin, the backend."""
    missed = _missed(result)
    judged = worst_first(result.scores)
    if missed:
        said = _worst_of(missed)
    elif judged:
        margin = judged[0].margin
        said = relation(judged[0]) + ("" if margin is None else f" (margin {number(margin, 2)})")
    else:
        said = "no limits"
    return "; warning: ".join([f"{said}, {result.backend}", *result.warnings])


def relation(score: Score) -> str:
    """A judged score as ``'logits' cosine 0.8741 < 0.999``."""
    name = _name(score)
    if score.limit is None:
        return f"{name} {number(score.value)}"
    value, limit = _value_and_limit(score, score.limit)
    if math.isnan(score.value):
        return f"{name} is nan, limit {limit}"
    least = score.bound == "min"
    sign = (">=" if least else "<=") if score.passed else ("<" if least else ">")
    return f"{name} {value} {sign} {limit}"


def details(result: CaseResult, verbosity: int = 0) -> list[str]:
    """Problems, the table of scores and the notes.

    Args:
        result: the case.
        verbosity: pytest's; from 2 on, the table is whole and holds the scores that have no limit, too.
    """
    scores = worst_first(result.scores)
    if verbosity >= 2:
        scores += [score for score in result.scores if score.limit is None]
    hidden = 0 if verbosity >= 2 else max(len(scores) - _ROWS, 0)
    fixed = {(s.subject, s.metric): s for s in result.search.fixed} if result.search else {}
    rows = [_row(score, fixed) for score in scores[: len(scores) - hidden]]
    lines = [f"'{output.name}': {output.problem}" for output in result.outputs if output.problem]
    lines += table(_HEADER, rows) if rows else []
    if hidden:
        lines.append(f"... and {_count(hidden, 'score')} more (all with -vv)")
    lines += [f"warning: {warning}" for warning in result.warnings]
    return lines + [f"note: {note}" for note in _notes(result, verbosity)]


def _row(score: Score, fixed: Mapping[tuple[str, str], Score]) -> tuple[str, ...]:
    value, limit = number(score.value), ""
    after = fixed.get((score.subject, score.metric))
    if score.limit is not None:
        value, limit = _value_and_limit(score, score.limit)
        limit = (">= " if score.bound == "min" else "<= ") + limit
    return (
        "" if score.passed else ">",
        score.subject,
        score.metric,
        value,
        limit,
        "" if score.noise is None else number(score.noise, 2),
        "" if score.baseline is None else number(score.baseline),
        "" if after is None else number(after.value),
    )


def _name(score: Score) -> str:
    """A user's function stands for itself, an output needs the metric beside it."""
    own = score.subject.endswith(f":{score.metric}")
    return f"'{score.subject}'" if own else f"'{score.subject}' {score.metric}"


def _value_and_limit(score: Score, limit: float) -> tuple[str, str]:
    """Both as text: a miss shows by how little it missed, a limit kept to the last digit may look equal."""
    return number_pair(score.value, limit, most=8 if score.passed else 17)


def _missed(result: CaseResult) -> list[str]:
    """Each problem and each missed limit, the worst first."""
    problems = [f"'{output.name}': {output.problem}" for output in result.outputs if output.problem]
    return problems + [relation(score) for score in worst_first(result.scores) if not score.passed]


def _worst_of(missed: list[str]) -> str:
    return f"{missed[0]} (+{len(missed) - 1} more)" if len(missed) > 1 else missed[0]


def _notes(result: CaseResult, verbosity: int) -> list[str]:
    """What else there is to say, most telling first."""
    notes = _notes_of_scores(s for s in result.scores if s.limit is not None or verbosity >= 2)
    for output in result.outputs:
        if output.note:
            notes.append(f"'{output.name}': {output.note}")
        if output.fit is not None and (output.fit.note or not output.passed or verbosity >= 2):
            fit = output.fit
            sign = "-" if fit.offset < 0 else "+"
            line = f"INT8 = {number(fit.slope)} * baseline {sign} {number(abs(fit.offset))}"
            said = f": {fit.note}" if fit.note else ""
            notes.append(f"'{output.name}': {line} (correlation {number(fit.correlation)}){said}")
        if output.worst_sample is not None and (verbosity >= 2 or not output.passed):
            notes.append(f"'{output.name}': sample {output.worst_sample} has the lowest SQNR")
    return notes + list(result.notes)


def _notes_of_scores(scores: Iterable[Score]) -> list[str]:
    """Each note once, after the first few scores that bear it."""
    bearers: dict[str, list[str]] = {}
    for score in scores:
        if score.note:
            bearers.setdefault(score.note, []).append(_name(score))
    return [
        ", ".join(names[:_NAMES])
        + (f" and {len(names) - _NAMES} more" if names[_NAMES:] else "")
        + f": {note}"
        for note, names in bearers.items()
    ]


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
