"""Makes the texts on cases for the terminal: failures, one line per case, and the details of -v and -vv."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from posixpath import commonpath, dirname
from typing import Any

from pytest_int8acc.names import shown, wrapped
from pytest_int8acc.report.catalogue import MISSING
from pytest_int8acc.report.json import BAD, RANK, Report
from pytest_int8acc.report.verdict import FAILURE, status_line
from pytest_int8acc.report.view import CaseView, FindingView, view_of
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    first_fitting,
    fitted,
    indented_table,
    number,
    shorten,
    table,
)

#: The maximum number of lines on a failed case without -v. They are 1 for the verdict, 1 for *Compared*, 2
#: for *Why*, 2 for *Fix* (3 if no layers follow), 6 for layers, 2 for cautions (more if lines are left) and 1
#: for *More*.
LINES = 15
#: The maximum numbers of lines of *Why*, of *Fix*, and of one caution in the text on a failed case.
_LINES_OF_WHY, _LINES_OF_FIX, _LINES_OF_CAUTION = 2, 3, 2
#: The maximum numbers of layers at fault, and of cautions, that are shown without -v.
_CULPRITS, _CAUTIONS = 4, 2
#: The maximum number of samples that are listed, for one output, because their class differs.
_DECISIONS = 10
#: The maximum numbers of rows in the tables of scores, of layers at fault with -v, of trials, and of layers.
_ROWS, _MORE_CULPRITS, _TRIALS, _LAYERS = 20, 20, 40, 40


def failure(view: CaseView, verbosity: int = 0, width: int | None = None) -> str:
    """Returns the text on a failed case for the terminal.

    It has at most ``LINES`` lines with ``verbosity`` 0, more with 1 (-v), and everything with 2 (-vv). A
    negative number, as with -q, counts as 0. If ``width`` is given, longer lines are wrapped, and there may
    be more than ``LINES`` lines.
    """
    verbosity = max(verbosity, 0)
    inner = None if width is None else width - 2
    if verbosity >= 2:
        lines = [view.failure_line, "", *filter(None, [view.why]), *map(str, view.fixes), ""]
    else:
        lines = _brief(view, verbosity, wraps=width is None or width >= WIDTH)
        lines += [""] if verbosity else []
    if verbosity:
        shown_as_one = " ".join(line.strip() for line in lines)
        said = {*lines, *(str(fix) for fix in view.fixes if str(fix) in shown_as_one)}
        rest = [line for line in details(view, verbosity, inner) if line not in said]
        lines += [view.headline, *("  " + line for line in rest), *remedies(view, verbosity, width)]
        if view.result.written:
            lines.append(shown(f"Written: {_gathered(view.result.written)}"))
    if width is not None:
        lines = [part for line in lines for part in wrapped(line, width)]
    return "\n".join(lines)


def _brief(view: CaseView, verbosity: int, *, wraps: bool) -> list[str]:
    """Returns the text on a failed case in at most ``LINES`` lines; more with ``verbosity`` 1.

    Args:
        view: All sentences about the case.
        verbosity: 0, or 1 for all cautions in full and more layers at fault.
        wraps: Whether lines have at most ``WIDTH`` characters. Otherwise each sentence is one line, which the
            caller wraps.
    """
    lines = [view.failure_line]
    if view.is_about_golden:  # the text on the golden also says what to do
        return [*lines, *_wrapped(f"Why: {view.result.golden}", 4, wraps), _more(view, verbosity)]
    lines.append(first_fitting([f"Compared: {text}" for text in view.compared]))
    cautions = [*view.cautions, *view.fix_cautions]
    if whys := [f"Why: {why}" for why in view.whys if why]:
        why = whys[0] if view.result.is_misbuilt else first_fitting(whys, _LINES_OF_WHY * WIDTH - 15)
        lines += _wrapped(why, _LINES_OF_WHY, wraps)
    for fix in view.fixes:
        lines += _wrapped(str(fix), _LINES_OF_FIX, wraps)
    # A wrong format of the engine matters more than the scores, so missed limits are shown as cautions.
    if view.result.is_misbuilt:
        cautions = [*(f"missed as well: {miss}" for miss in view.misses(NAME)[1:]), *cautions]
    else:
        lines += _culprit_lines(view, _MORE_CULPRITS if verbosity else _CULPRITS)
    if verbosity:
        lines += [f"Caution: {text}" for text in cautions]
    else:
        lines += _caution_lines(cautions, LINES - len(lines) - 1, wraps)
    return [*lines, _more(view, verbosity)]


def _wrapped(text: str, most_lines: int, wraps: bool, end: str = "") -> list[str]:
    """Returns the lines of ``text``, which is cut so that it has at most ``most_lines`` lines.

    Without ``wraps``, the cut text is returned as one long line. ``end`` is appended, and never cut.
    """
    # Lines break between words and may be short. So a text of this length may need more lines; then it is cut
    # further.
    for most in range(most_lines * WIDTH, 0, -4):
        kept = (fitted(text, most - len(end)) + end).replace(" %", "\N{NO-BREAK SPACE}%")
        lines = textwrap.wrap(kept, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        if len(lines) <= most_lines:
            break
    if not wraps:
        lines = [kept]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _culprit_lines(view: CaseView, most: int) -> list[str]:
    """Returns a line for each of the first ``most`` layers at fault, with its cause.

    A single layer at fault has no line, because *Why* names it.
    """
    if len(view.guilty) < 2:
        return []
    low = view.low_format
    title = "Layers at fault, as far as the search came (some may be innocent):"
    if view.is_minimal:
        title = f"Layers at fault (with any one of them in {low} as it is, the criteria fail):"
    lines = [title, *(culprit.line for culprit in view.guilty[:most])]
    more = len(view.guilty) - most
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _rest(rows: int, most: int, indent: str = "", where: str = "") -> list[str]:
    """Returns a line on the rows of a table beyond the first ``most``; no line if there are none."""
    return [f"{indent}... and {rows - most} more{where}"] if rows > most else []


def _caution_lines(sentences: Sequence[str], room: int, wraps: bool) -> list[str]:
    """Returns the lines of the first cautions, and the number of further cautions.

    Args:
        sentences: All cautions.
        room: The number of lines that are left for them. The first caution has a line in any case.
        wraps: Whether lines have at most ``WIDTH`` characters.
    """
    lines: list[str] = []
    shown_ones = sentences[: min(_CAUTIONS, max(room, 1))]
    hidden = len(sentences) - len(shown_ones)
    for place, sentence in enumerate(shown_ones, 1):
        left = len(shown_ones) - place
        most = min(_LINES_OF_CAUTION, max(room - len(lines) - left, 1))
        end = f" (and {count(hidden, 'more caution')})" if hidden and not left else ""
        lines += _wrapped(f"Caution: {sentence}", most, wraps, end)
    return lines


def _more(view: CaseView, verbosity: int) -> str:
    """Returns the line *More*: which files the case has written, and which options show more."""
    written = view.result.written
    shows = "-vv shows all there is" if verbosity > 0 else "-v shows scores, stages and other fixes"
    if not written:
        if view.has_fix:
            what = "fixed.onnx to ship, and plan.yaml for 'plan:' in the spec"
            return f"More: --int8acc-report DIR writes {what}; -v{'v' * verbosity} shows more"
        return f"More: {shows}; --int8acc-report DIR writes a report"
    folder, names = "", set(written)
    if len({path.startswith("/") for path in written}) == 1:
        folder = commonpath([dirname(path) for path in written])
    if folder:
        names = {path.removeprefix(f"{folder}/").partition("/")[0] for path in written}
    what = count(len(names), "file")
    if "fixed.onnx" in names:
        what = "fixed.onnx" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    files = f"More: {what} in {folder}" if folder else f"More: {what}"
    return first_fitting([f"{files}; {shows}", files])


def _gathered(paths: Sequence[str]) -> str:
    """Returns all paths in one text, in which files of the same folder are joined as ``folder/{a, b}``."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        folders.setdefault(folder + slash, []).append(name)
    texts = []
    for folder, names in folders.items():
        texts.append(folder + (names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"))
    return ", ".join(texts)


def details(view: CaseView, verbosity: int = 0, width: int | None = None) -> list[str]:
    """Returns lines with problems, the table of scores, warnings, findings, engines and notes of a case.

    With ``verbosity`` 2 the table has all scores, also those without a limit. Lines of the table have at most
    ``width`` characters.
    """
    result, whole = view.result, verbosity >= 2
    rows = [*view.scores, *view.unjudged] if whole else view.scores[:_ROWS]
    cells = []
    for row in rows:
        limit = row.limit and f"{'>=' if row.score.bound == 'min' else '<='} {row.limit}"
        missed = "" if row.score.passed else ">"
        names = (missed, row.score.subject, row.score.metric)
        cells.append((*names, row.value, limit, row.noise, row.baseline, row.fixed))
    header = ("", "output", "metric", view.low_format, "limit", "noise", "baseline", "fixed")
    lines = [f"'{output.name}': {output.problem}" for output in result.outputs if output.problem]
    lines += table(header, cells, width) if cells else []
    if not whole and len(view.scores) > _ROWS:
        lines.append(f"... and {count(len(view.scores) - _ROWS, 'score')} more (all with -vv)")
    lines += _decision_lines(view, width) if verbosity else []
    if result.passed or whole:  # otherwise the cautions contain the warnings
        lines += [f"warning: {warning}" for warning in view.warnings]
    lines += finding_lines(view.findings, verbosity)
    lines += [engine.line for engine in view.engines if whole or not engine.is_baseline]
    lines += [f"golden: {result.golden}"] if result.golden else []
    return lines + [f"note: {note}" for note in view.notes(verbosity)]


def _decision_lines(view: CaseView, width: int | None) -> list[str]:
    """Returns a table of the samples whose class differs, for each output that is judged by class."""
    lines = []
    header = ("sample", "file", "baseline", view.low_format, "label", "right", "margin")
    for decisions in view.decisions:
        lines += [decisions.title, *indented_table(header, decisions.rows[:_DECISIONS], width)]
        every = len(decisions.rows) + decisions.hidden
        lines += _rest(every, _DECISIONS, "  ", " (report.json has up to 100)")
    return lines


def finding_lines(findings: Sequence[FindingView], verbosity: int = 0) -> list[str]:
    """Returns lines on the findings in the model and the data: one line for each rule that has any.

    With ``verbosity`` 2 there is a line for each finding, also for findings that are only notes.
    """
    lines = []
    hidden = 0
    for finding in findings:
        if finding.first.severity == "note" and verbosity < 2:
            hidden += 1
            continue
        lines.append(finding.line)
        if verbosity >= 2:
            lines += [f"    {other}" for other in finding.others]
        if finding.first.remedy:
            lines.append(f"    {finding.first.remedy}")
    return [*lines, f"... and notes of {count(hidden, 'rule')} (all with -vv)"] if hidden else lines


def remedies(view: CaseView, verbosity: int = 0, width: int | None = None) -> list[str]:
    """Returns lines on which stages and layers lose accuracy, and on further fixes. The first line is empty.

    With a higher ``verbosity`` there are more lines. Lines of tables have at most ``width`` characters.
    """
    lines = stage_lines(view)
    if verbosity >= 2:
        lines += _culprit_table(view, width)
    lines += [f"note: {remark}" for remark in view.remarks]
    if verbosity >= 2:
        lines += filter(None, [view.plan, view.cost])
    if verbosity and (offer := view.tradeoff) is not None:
        header = ("MACs", offer.metric, "", "these layers and those above")
        lines += [offer.title, *indented_table(header, [row[:4] for row in offer.rows], width)]
    if view.similarities and view.result.search is not None:
        lines += table(("index", "layer", "shape", "similarity", ""), view.similarities, width)
        lines += [row.line for row in view.result.search.table if row.line]
    if verbosity >= 2 and view.trials:
        lines += table(("trial", "verdict", "loss", "cost", "why", "kept high"), view.trials[:_TRIALS], width)
        lines += _rest(len(view.trials), _TRIALS, where=" (all in report.json)")
    lines += [f"Another way: {way}" for way in view.alternatives]
    if view.calibrations:
        titles = ("method", "verdict", "most critical")
        lines += ["Calibration methods", *indented_table(titles, view.calibrations, width)]
    lines += _layer_table(view, width) if verbosity >= 2 else []
    lines += [f"Stopped early: {view.stopped}"] if view.stopped else []
    lines += [f"Time: {view.phases}"] if verbosity and view.phases else []
    lines += [f"Cost: {view.costs}"] if verbosity and view.costs else []
    return ["", *lines] if lines else []


def stage_lines(view: CaseView) -> list[str]:
    """Returns a line that says which stages pass, and a line on the first stage that fails.

    A stage is a form of the model between the framework and the engine.
    """
    texts = []
    for stage in view.stages:
        why = f" ({shorten(stage.missed, 60)})" if stage.missed else ""
        texts.append(f"{stage.title} {'ok' if stage.passed else 'off'}{why}")
    lines = ["Stages: " + " > ".join(texts)] if texts else []
    return [*lines, f"  {view.stage_meaning}"] if texts and view.stage_meaning else lines


def _culprit_table(view: CaseView, width: int | None) -> list[str]:
    if not view.guilty:
        return []
    low = view.low_format
    title = "Layers to keep high (not shown to be minimal)"
    if view.is_minimal:
        title = f"Culprits (minimal: leave any one in {low} and the criteria fail)"
    rows = []
    for row in view.guilty[:_MORE_CULPRITS]:
        names = (row.culprit.layer, row.op_type)
        rows.append((*names, row.alone, row.sentence, f"{row.price} of MACs"))
    header = ("layer", "type", f"alone in {low}", "cause", "price")
    return [title, *indented_table(header, rows, width), *_rest(len(view.guilty), len(rows), "  ")]


def _layer_table(view: CaseView, width: int | None) -> list[str]:
    """Returns a table of the errors of layers. Layers with the largest error, quantized alone, come first."""
    if not view.layer_errors:
        return []
    layers = view.layer_errors[:_LAYERS]
    header, rows = ["layer", "type"], [[layer.layer, layer.op_type] for layer in layers]
    if any(layer.engine_sqnr_db is not None for layer in layers):
        # Cosines are left out here: with three columns of SQNR the table would be wider than 80 columns.
        # ``report.json`` and the HTML page have the cosines.
        header += [f"SQNR dB {where}" for where in ("alone", f"all in {view.low_format}", "between engines")]
        for row, layer in zip(rows, layers, strict=True):
            for value in (layer.alone_sqnr_db, layer.sqnr_db, layer.engine_sqnr_db):
                row.append("" if value is None else number(value, 3))
    else:
        header += ["alone: SQNR dB", "cosine", f"all in {view.low_format}: SQNR dB", "cosine"]
        for row, layer in zip(rows, layers, strict=True):
            row += [number(layer.alone_sqnr_db, 3), number(layer.alone_cosine)]
            row += [number(layer.sqnr_db, 3), number(layer.cosine)]
    lines = [
        "Layers (error against the baseline, the worst alone first)",
        *indented_table(header, rows, width),
    ]
    return lines + _rest(len(view.layer_errors), len(rows), "  ", " (all in report.json)")


def detail_lines(properties: Mapping[str, Any], verbosity: int, width: int, *, failed: bool) -> list[str]:
    """Returns the lines that -v adds to a case in the terminal: scores, notes, search and settings.

    If the case ``failed``, only the settings are returned, because pytest shows the rest as the failure.
    Lines have at most ``width`` characters. ``properties`` are the ``user_properties`` of the case's report.
    """
    view = view_of(properties) if verbosity > 0 else None
    if view is None:
        return []
    settings = f"settings: {properties['int8acc.settings']}"
    if failed:
        return wrapped(settings, width)
    lines = [view.headline, *details(view, verbosity, width), *remedies(view, verbosity, width)]
    sentences = [*filter(None, lines), settings]
    return [part for line in sentences for part in wrapped(line, width)]


def merged_lines(report: Report) -> list[str]:
    """Returns lines on the result of merging several reports into ``report``.

    They name the cases that failed or are missing, and the files that could not be read. The last line counts
    the cases of each verdict.
    """
    lines = []
    for entry in report.cases:
        if entry["verdict"] in BAD:
            text = status_line(entry["nodeid"], {}, entry_text(entry, report.view(entry)))
            lines.append(f"{entry['verdict'].upper()} {text}")
    for error in report.errors:
        message = error["message"].partition("\n")[0]
        lines.append(f"ERROR {error['nodeid']} - {message}")
    lines += [f"MISSING {nodeid} - {MISSING}" for nodeid in report.missing]
    total = f"{count(len(report.cases), 'case')} of {count(len(report.plain['merged']), 'report')}"
    return [*lines, f"int8acc: {total}: {counts_text(report)}"]


def is_failure(message: str, view: CaseView) -> bool:
    """Returns whether ``message`` says that the case misses its criteria, and not that an error occurred."""
    return message.startswith(view.low_format + FAILURE)


def entry_text(entry: Mapping[str, Any], view: CaseView | None, *, brief: bool = False) -> str:
    """Returns one line on a case: its worst score and other facts, or why it was not measured.

    Args:
        entry: The case as ``report.json`` holds it.
        view: All sentences about the case; None if it was not measured.
        brief: Whether the line has the score alone, without backend, formats and cautions.
    """
    message = str(entry.get("message", ""))
    if view is None or (entry["verdict"] in BAD and not is_failure(message, view)):
        return message.strip().partition("\n")[0]
    return view.most_critical if brief else view.status


def counts_text(report: Report) -> str:
    """Returns text like ``1 failed, 1 error, 20 passed, 2 missing`` on the cases of a report.

    Each file that could not be read counts as an error.
    """
    unread = ["error"] * len(report.errors)
    counts = [f"{n} {verdict}" for verdict, n in tallies(report, unread)]
    missing = [f"{len(report.missing)} missing"] if report.missing else []
    return ", ".join(counts + missing) or "nothing ran"


def tallies(report: Report, more: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Returns each verdict with the number of its cases, the worst verdict first.

    ``more`` are verdicts that are counted in addition to those of the cases.
    """
    verdicts = [*(entry["verdict"] for entry in report.cases), *more]
    return [(verdict, n) for verdict in reversed(RANK) if (n := verdicts.count(verdict))]
