"""One case as text: the line, the table, the failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_int8acc.names import shown, wrapped
from pytest_int8acc.report.answer import alternatives, answer, cautions, failure_line, fix_lines, worst_miss
from pytest_int8acc.report.course import course_lines
from pytest_int8acc.report.diagnosis import calibration_lines, finding_lines, layer_lines
from pytest_int8acc.report.engines import engine_lines, no_int8
from pytest_int8acc.report.precision import precision_cautions, precision_text
from pytest_int8acc.report.search import search_lines
from pytest_int8acc.report.summary import fit_note, stage_lines, summary
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    few,
    fitted,
    name_of,
    number,
    relation,
    score_cells,
    table,
    worst_first,
)
from pytest_int8acc.results import CaseResult
from pytest_int8acc.results.scores import Score, score_name

_ROWS = 20
_NAMES = 3


def failure(result: CaseResult, verbosity: int = 0, width: int | None = None) -> str:
    """What a failed case reads like: ``answer.LINES`` lines at most; more with -v, everything with -vv.

    Lines have at most ``width`` characters, where that is given; narrow ones make more lines than the above.
    """
    if verbosity < 2:
        lines = answer(result, verbosity, wraps=width is None or width >= WIDTH)
        if verbosity == 1:
            rest = [line for line in details(result, 1, _less(width, 2)) if line not in lines]
            lines += ["", headline(result), *("  " + line for line in rest), *remedies(result, 1, width)]
    else:
        lines = [failure_line(result), "", *filter(None, [summary(result)]), *fix_lines(result), ""]
        rest = details(result, verbosity, _less(width, 2))
        lines += [headline(result), *("  " + line for line in rest)]
        lines += remedies(result, verbosity, width)
    if result.written and verbosity > 0:
        lines.append(shown(f"Written: {_gathered(result.written)}"))
    if width is not None:
        lines = [part for line in lines for part in wrapped(line, width)]
    return "\n".join(lines)


def _less(width: int | None, indent: int) -> int | None:
    """The width that is left beside an indent."""
    return None if width is None else width - indent


def _gathered(paths: Sequence[str]) -> str:
    """Paths, those of one folder as ``folder/{a, b}``."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        folders.setdefault(folder + slash, []).append(name)
    return ", ".join(
        folder + (names[0] if len(names) == 1 else f"{{{', '.join(names)}}}")
        for folder, names in folders.items()
    )


def remedies(result: CaseResult, verbosity: int = 0, width: int | None = None) -> list[str]:
    """Where the accuracy is lost, and what else mends it; begins with an empty line where there is any.

    ``width`` is that of tables.
    """
    lines = []
    diagnosis = result.diagnosis
    if diagnosis is not None:
        lines += stage_lines(diagnosis, result.low_format)
    if result.search is not None:
        repairs = diagnosis.repairs if diagnosis else ()
        lines += search_lines(result.search, verbosity, repairs, width)
    lines += [f"Another way: {way}" for way in alternatives(result)]
    if diagnosis is not None:
        lines += calibration_lines(diagnosis.calibrations, width)
        lines += layer_lines(diagnosis.layers, result.low_format, width) if verbosity >= 2 else []
        lines += [f"note: {note}" for note in diagnosis.notes]
    lines += course_lines(result, verbosity)
    return ["", *lines] if lines else []


def headline(result: CaseResult) -> str:
    """What was compared with what, on which data, where."""
    samples = count(result.samples, "sample")
    formats = "" if result.precision is None else f"{precision_text(result.precision)}; "
    return (
        f"{result.candidate} against {result.baseline}; {formats}{samples}: {result.data}; {result.backend}"
    )


def status(result: CaseResult) -> str:
    """One line for the terminal section: the worst score, the backend, the formats, the worst warning."""
    caution_texts = cautions(result)
    worst = fitted(caution_texts[0], 2 * WIDTH) if caution_texts else ""
    many = (
        f"{len(caution_texts)} warnings, the worst: {worst}"
        if len(caution_texts) > 1
        else f"warning: {worst}"
    )
    cautioned = [many] if caution_texts else []
    formats = [] if result.precision is None else [precision_text(result.precision)]
    return "; ".join([f"{most_critical(result)}, {result.backend}", *formats, *cautioned])


def most_critical(result: CaseResult) -> str:
    """The worst miss and how many more, or the score nearest to its limit and by how much it keeps it."""
    if not result.passed:
        return worst_miss(result)
    judged = worst_first(result.scores)
    if not judged:
        return "no limits"
    margin = judged[0].margin
    return relation(judged[0], NAME) + ("" if margin is None else f" (margin {number(margin, 2)})")


def warnings_of(result: CaseResult) -> list[str]:
    """What makes the verdict worth less than it looks, an engine without INT8 first."""
    caution_texts = [*no_int8(result), *precision_cautions(result.precision), *result.warnings]
    return list(dict.fromkeys(caution_texts))


def details(result: CaseResult, verbosity: int = 0, width: int | None = None) -> list[str]:
    """Problems, the table of scores, warnings, findings, engines and the notes.

    From pytest's ``verbosity`` 2 on, the table is whole and holds the scores that have no limit, too.
    ``width`` is that of the table.
    """
    scores = worst_first(result.scores)
    if verbosity >= 2:
        scores += [score for score in result.scores if score.limit is None]
    hidden = 0 if verbosity >= 2 else max(len(scores) - _ROWS, 0)
    fixed = {(s.subject, s.metric): s for s in result.fixed}
    rows = [
        ("" if s.passed else ">", *score_cells(s, fixed.get((s.subject, s.metric))).values())
        for s in scores[: len(scores) - hidden]
    ]
    header = ("", "output", "metric", result.low_format, "limit", "noise", "baseline", "fixed")
    lines = [f"'{output.name}': {output.problem}" for output in result.outputs if output.problem]
    lines += table(header, rows, width) if rows else []
    if hidden:
        lines.append(f"... and {count(hidden, 'score')} more (all with -vv)")
    lines += [f"warning: {warning}" for warning in warnings_of(result)]
    lines += finding_lines(result.findings, verbosity)
    lines += engine_lines(result.engines, result.low_format, verbosity)
    lines += [f"golden: {result.golden}"] if result.golden else []
    return lines + [f"note: {note}" for note in notes_of(result, verbosity)]


def notes_of(result: CaseResult, verbosity: int) -> list[str]:
    """What else there is to say, most telling first."""
    notes = _notes_of_scores(s for s in result.scores if s.limit is not None or verbosity >= 2)
    for output in result.outputs:
        if output.note:
            notes.append(f"'{output.name}': {output.note}")
        fit, meaning = output.fit, fit_note(output.fit, result.low_format) if output.fit is not None else ""
        if fit is not None and (meaning or (verbosity >= 2 and not output.passed)):
            sign = "-" if fit.offset < 0 else "+"
            line = f"{result.low_format} = {number(fit.slope)} * baseline {sign} {number(abs(fit.offset))}"
            said = f": {meaning}" if meaning else ""
            notes.append(f"'{output.name}': {line} (correlation {number(fit.correlation)}){said}")
        if output.worst_sample is not None and (verbosity >= 2 or not output.passed):
            notes.append(f"'{output.name}': sample {output.worst_sample} has the lowest SQNR")
    return [*notes, *result.notes, *acceptances(result)]


def acceptances(result: CaseResult) -> list[str]:
    """Each score that the golden accepts from now on, like ``accepted logits cosine: 0.9996 -> 0.9998``."""
    return [
        f"accepted {score_name(s.subject, s.metric)}: {_accepted(s.before)} -> {_accepted(s.now)}"
        for s in result.recorded or ()
    ]


def _accepted(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _notes_of_scores(scores: Iterable[Score]) -> list[str]:
    """Each note once, after the first few scores that bear it."""
    bearers: dict[str, list[str]] = {}
    for score in scores:
        if score.note:
            bearers.setdefault(score.note, []).append(name_of(score))
    return [f"{few(names, _NAMES)}: {note}" for note, names in bearers.items()]
