"""Runs the steps after a verdict: the search for layers at fault, for causes and for fixes, and files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from pytest_int8acc.case.measured import Measured, is_explained, timed
from pytest_int8acc.case.records import Records
from pytest_int8acc.results import CaseResult


def conclude(measured: Measured, folder: Path | None = None, root: Path | None = None) -> CaseResult:
    """The result of a measured case after all steps that the settings ask for.

    Each step adds to the result. If a step ends with an error, the result has a warning, and the other steps
    go on. After ``max_seconds``, or on Ctrl-C, no further trial or build begins, with one exception: after
    ``max_seconds`` the best plan so far is still built and judged. The files of plans that were built and
    met the criteria are written in any case.

    Args:
        measured: The case, from ``measure``.
        folder: The folder for the files of the fix; with None no files are written.
        root: The report folder. No symbolic link may lead out of it. With None, links are followed.

    Raises:
        DataError: The inputs differ between two passes over the data, so that no measurement is valid.
    """
    # Results of trials may be recorded here, because ``records.forget`` below removes the records.
    measured = replace(measured, resumes=True)
    clock, settings, passed = measured.clock, measured.settings, measured.int8_passed
    searches = settings.search == "always" or (settings.search == "auto" and not passed)
    explained = is_explained(measured.case, settings, int8_passed=passed)
    faster = seeks_speed(measured)
    clock.limit(settings.max_seconds)
    if not searches and not explained and not faster:
        return timed(measured.result, clock)
    steps = None
    with clock.running():
        try:
            # The module is imported only for a failing case, because its import takes time.
            from pytest_int8acc.answer.steps import Steps

            steps = Steps(measured, folder, measured.result, root)
            steps.run(searches=searches, explained=explained, faster=faster)
        except KeyboardInterrupt:
            clock.interrupt()
            # An interrupted search has no result. It is noted here as left out.
            if searches and (steps is None or steps.found is None):
                clock.leave("search")
    result = timed(measured.result if steps is None else steps.result, clock)
    records: Records | None = vars(measured).get("records")  # None if nothing was tried
    if records is None:
        return result
    if result.stopped is None:
        records.forget()
    return replace(result, notes=(*result.notes, *records.notes))


def seeks_speed(measured: Measured) -> bool:
    """Whether a faster plan is searched: the speedup alone misses its limit, or the spec asks for latency.

    No faster plan is searched if the candidate misses another limit, because that limit must be met first.
    """
    scores, int8 = measured.result.scores, measured.int8
    if measured.settings.search == "off" or not measured.backend.times_engines:
        return False
    if int8 is None or not int8.low.takes_scales:
        return False
    if not measured.int8_passed or measured.result.is_misbuilt:
        return False
    if all(score.metric != "speedup" for score in scores):  # the engines were not timed
        return False
    missed = [score for score in scores if not score.passed]
    if missed:
        return [score.metric for score in missed] == ["speedup"] and not math.isnan(missed[0].value)
    return measured.case.search.goal == "latency"
