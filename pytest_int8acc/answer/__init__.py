"""One case from spec to result: measured, and what follows where that is wanted."""

from __future__ import annotations

from pathlib import Path

from pytest_int8acc.case.measured import Measured, is_explained, timed
from pytest_int8acc.results import CaseResult


def conclude(measured: Measured, folder: Path | None = None, root: Path | None = None) -> CaseResult:
    """The result of a measured case, with search, diagnosis and repair where the settings want them.

    Each step adds to the result. Where one ends with an error, the result says so, and what the steps before
    it added stands. Where ``max_seconds`` have passed, or on Ctrl-C, no further trial or build begins, but
    for the proof of the best plan so far after ``max_seconds``; what was proved is written all the same.

    Args:
        measured: From ``measure``.
        folder: Where the fix goes as files; None writes none.
        root: The report folder above it, which no link may lead out of; None: links are followed.

    Raises:
        DataError: The inputs are others on each reading: nothing measured on them stands.
    """
    clock, settings, passed = measured.clock, measured.settings, measured.int8_passed
    searches = settings.search == "always" or (settings.search == "auto" and not passed)
    explained = is_explained(measured.case, settings, int8_passed=passed)
    clock.limit(settings.max_seconds)
    if not searches and not explained:
        return timed(measured.result, clock)
    steps = None
    with clock.running():
        try:
            from pytest_int8acc.answer.steps import Steps  # what a case that passes does not need

            steps = Steps(measured, folder, measured.result, root)
            steps.run(searches=searches, explained=explained)
        except KeyboardInterrupt:
            clock.interrupt()
            if searches and (steps is None or steps.found is None):  # before the first step could say so
                clock.leave("search")
    return timed(measured.result if steps is None else steps.result, clock)
