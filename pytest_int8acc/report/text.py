"""One case as text: the failure, and what -v and -vv add."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from posixpath import commonpath, dirname

from pytest_int8acc.names import shown, wrapped
from pytest_int8acc.report.fixes import recommended
from pytest_int8acc.report.view import CaseView, FindingView
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
from pytest_int8acc.results import CaseResult

#: Lines of a failure at most, without -v: 1 verdict, 2 why, 2 fix (3 where no layers follow), 7 layers,
#: 2 cautions, 1 more.
LINES = 15
_CULPRITS, _CAUTIONS, _LINES_OF_WHY, _LINES_OF_FIX = 5, 2, 2, 3
#: Rows of a table of scores, culprits with -v and -vv, trials and layers at most.
_ROWS, _MORE_CULPRITS, _TRIALS, _LAYERS = 20, 20, 40, 40


def failure(result: CaseResult, verbosity: int = 0, width: int | None = None) -> str:
    """Returns what a failed case reads like: ``LINES`` lines at most; more with -v, everything with -vv.

    Lines have at most ``width`` characters, where that is given; narrow ones make more lines than the above.
    """
    view = CaseView(result)
    inner = None if width is None else width - 2
    if verbosity >= 2:
        lines = [view.failure_line, "", *filter(None, [view.why]), *map(str, view.fixes), ""]
    else:
        lines = _brief(view, verbosity, wraps=width is None or width >= WIDTH)
        lines += [""] if verbosity else []
    if verbosity:
        said = set(lines)
        rest = [line for line in details(view, verbosity, inner) if line not in said]
        lines += [view.headline, *("  " + line for line in rest), *remedies(view, verbosity, width)]
    if result.written and verbosity:
        lines.append(shown(f"Written: {_gathered(result.written)}"))
    if width is not None:
        lines = [part for line in lines for part in wrapped(line, width)]
    return "\n".join(lines)


def _brief(view: CaseView, verbosity: int, *, wraps: bool) -> list[str]:
    """A failure in at most ``LINES`` lines of ``WIDTH`` characters; with ``verbosity`` 1 all cautions, uncut.

    Without ``wraps`` each sentence is one line, to be wrapped at another width.
    """
    lines = [view.failure_line]
    if view.is_about_golden:  # the golden's text says what to do, too
        return [*lines, *_wrapped(f"Why: {view.result.golden}", 4, wraps), _more(view, verbosity)]
    cautions = [*view.cautions, *view.fix_cautions]
    if whys := [f"Why: {why}" for why in view.whys if why]:
        why = whys[0] if view.result.is_misbuilt else first_fitting(whys, _LINES_OF_WHY * WIDTH - 15)
        lines += _wrapped(why, _LINES_OF_WHY, wraps)
    for fix in view.fixes:
        lines += _wrapped(str(fix), _LINES_OF_FIX, wraps)
    if view.result.is_misbuilt:  # what follows from the scores comes after the formats
        cautions = [*(f"missed as well: {miss}" for miss in view.misses(NAME)[1:]), *cautions]
    else:
        lines += culprit_lines(view, _MORE_CULPRITS if verbosity else _CULPRITS)
    lines += [f"Caution: {text}" for text in cautions] if verbosity else _caution_lines(cautions, _CAUTIONS)
    return [*lines, _more(view, verbosity)]


def _wrapped(text: str, most_lines: int, wraps: bool) -> list[str]:
    """Returns ``text`` cut to ``most_lines`` lines; without ``wraps`` as one line of that length."""
    for most in range(most_lines * WIDTH, 0, -4):  # words that do not fit leave a line short
        kept = fitted(text, most).replace(" %", "\N{NO-BREAK SPACE}%")
        lines = textwrap.wrap(kept, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        if len(lines) <= most_lines:
            break
    if not wraps:
        lines = [kept]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def culprit_lines(view: CaseView, most: int) -> list[str]:
    """Returns the culprits, a line each with cause and number; nothing for one, since *Why* names it."""
    if len(view.culprits) < 2 or not view.blames_layers:
        return []
    low = view.low_format
    title = f"Layers kept out of {low} (some may be innocent):"
    if view.is_minimal:
        title = f"Layers at fault (put any one of them back into {low}, and the criteria fail):"
    lines = [title, *(culprit.line for culprit in view.culprits[:most])]
    more = len(view.culprits) - most
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _caution_lines(sentences: Sequence[str], most: int) -> list[str]:
    lines = [fitted(f"Caution: {text}") for text in sentences[:most]]
    hidden = len(sentences) - most
    if hidden > 0:
        more = f" (and {count(hidden, 'more caution')})"
        lines[-1] = fitted(lines[-1], WIDTH - len(more)) + more
    return lines


def _more(view: CaseView, verbosity: int) -> str:
    """Returns the line that names the files and the options that show more."""
    written = view.result.written
    shows = "-vv shows all there is" if verbosity > 0 else "-v shows scores, stages and other ways"
    if not written:
        what = "fixed.onnx and a report" if any(recommended(view.result)) else "a report"
        return f"More: {shows}; --int8acc-report DIR writes {what}"
    folder = (
        commonpath([dirname(path) for path in written]) if len({p[:1] == "/" for p in written}) == 1 else ""
    )
    names = (
        {path.removeprefix(f"{folder}/").partition("/")[0] for path in written} if folder else set(written)
    )
    what = count(len(names), "file")
    if "fixed.onnx" in names:
        what = "fixed.onnx" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    files = f"More: {what} in {folder}" if folder else f"More: {what}"
    return first_fitting([f"{files}; {shows}", files])


def _gathered(paths: Sequence[str]) -> str:
    """Returns the paths in one text; files of one folder stand as ``folder/{a, b}``."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        folders.setdefault(folder + slash, []).append(name)
    texts = []
    for folder, names in folders.items():
        texts.append(folder + (names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"))
    return ", ".join(texts)


def details(view: CaseView, verbosity: int = 0, width: int | None = None) -> list[str]:
    """Returns problems, the table of scores, warnings, findings, engines and notes.

    With ``verbosity`` 2 the table is whole and holds the scores that have no limit, too. Lines of the table
    have at most ``width`` characters.
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
    if result.passed or whole:  # else they stand among the cautions
        lines += [f"warning: {warning}" for warning in view.warnings]
    lines += finding_lines(view.findings, verbosity)
    lines += [engine.line for engine in view.engines if whole or not engine.is_baseline]
    lines += [f"golden: {result.golden}"] if result.golden else []
    return lines + [f"note: {note}" for note in view.notes(verbosity)]


def finding_lines(findings: Sequence[FindingView], verbosity: int = 0) -> list[str]:
    """Returns a line for each rule; with ``verbosity`` 2 each finding, and notes, too."""
    lines = []
    hidden = 0
    for finding in findings:
        if finding.severity == "note" and verbosity < 2:
            hidden += 1
            continue
        lines.append(finding.line)
        if verbosity >= 2:
            lines += [f"    {other}" for other in finding.others]
        if finding.remedy:
            lines.append(f"    {finding.remedy}")
    return [*lines, f"... and notes of {count(hidden, 'rule')} (all with -vv)"] if hidden else lines


def remedies(view: CaseView, verbosity: int = 0, width: int | None = None) -> list[str]:
    """Returns where the accuracy is lost, and what else mends it, below an empty line.

    Lines of tables have at most ``width`` characters.
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
        more = len(view.trials) - _TRIALS
        lines += [f"... and {more} more (all in report.json)"] if more > 0 else []
    lines += [f"Another way: {way}" for way in view.alternatives]
    if view.calibrations:
        titles = ("method", "verdict", "most critical")
        lines += ["Calibration methods", *indented_table(titles, view.calibrations, width)]
    lines += _layer_table(view, width) if verbosity >= 2 else []
    lines += [f"Stopped early: {view.stopped}"] if view.stopped else []
    lines += [f"Time: {view.phases}"] if verbosity and view.phases else []
    return ["", *lines] if lines else []


def stage_lines(view: CaseView) -> list[str]:
    """Returns the stages in one line, and what the first that fails means."""
    texts = []
    for stage in view.stages:
        why = f" ({shorten(stage.missed, 60)})" if stage.missed else ""
        texts.append(f"{stage.title} {'ok' if stage.passed else 'off'}{why}")
    lines = ["Stages: " + " > ".join(texts)] if texts else []
    return [*lines, f"  {view.stage_meaning}"] if texts and view.stage_meaning else lines


def _culprit_table(view: CaseView, width: int | None) -> list[str]:
    if not view.culprits:
        return []
    low = view.low_format
    title = "Layers to keep high (not shown to be minimal)"
    if view.is_minimal:
        title = f"Culprits (minimal: leave any one in {low} and the criteria fail)"
    rows = []
    for row in view.culprits[:_MORE_CULPRITS]:
        names = (row.culprit.layer, row.culprit.op_type)
        rows.append((*names, row.alone, row.sentence, f"{row.price} of MACs"))
    header = ("layer", "type", f"alone in {low}", "cause", "price")
    more = len(view.culprits) - len(rows)
    return [title, *indented_table(header, rows, width), *([f"  ... and {more} more"] if more else [])]


def _layer_table(view: CaseView, width: int | None) -> list[str]:
    """Returns a table of the layers' errors, the largest error of a layer alone first."""
    if not view.layer_errors:
        return []
    rows = []
    for layer in view.layer_errors[:_LAYERS]:
        row = [layer.layer, layer.op_type, number(layer.alone_sqnr_db, 3), number(layer.alone_cosine)]
        row += [number(layer.sqnr_db, 3), number(layer.cosine)]
        row += ["" if v is None else number(v) for v in (layer.engine_sqnr_db, layer.engine_cosine)]
        rows.append(row)
    header = ["layer", "type"]
    for measured in ("alone", f"all in {view.low_format}", "between engines"):
        header += [f"{measured}: SQNR dB", "cosine"]
    lines = [
        "Layers (error against the baseline, the worst alone first)",
        *indented_table(header, rows, width),
    ]
    more = len(view.layer_errors) - len(rows)
    return [*lines, f"  ... and {more} more (all in report.json)"] if more else lines
