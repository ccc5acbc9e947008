"""Spec files and their cases as pytest collectors and items."""

from __future__ import annotations

import atexit
import gc
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_int8acc.errors import Int8accError, InternalError, SpecError, error_text, own_faults
from pytest_int8acc.names import shown
from pytest_int8acc.plugin.progress import watching
from pytest_int8acc.plugin.reporting import MISSED, RECORDED
from pytest_int8acc.plugin.session import (
    case_folder,
    open_run,
    report_folder,
    skipping_unavailable,
    stop_where_interrupted,
)
from pytest_int8acc.report.plain import for_people
from pytest_int8acc.report.verdict import VerdictView, properties
from pytest_int8acc.results import CaseResult

if TYPE_CHECKING:
    from pytest_int8acc.api import Run
    from pytest_int8acc.settings import Settings
    from pytest_int8acc.spec.models import Case

# When Python exits, its garbage collector searches all objects. This takes a tenth of the time of a small
# case, and is useless, because the process then gives back all its memory. ``gc.freeze`` prevents the search.
atexit.register(gc.freeze)


class AccuracyError(AssertionError):
    """A case fails: its low-precision candidate misses the criteria."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(VerdictView(result).failure_line)
        self.result = result


class SpecFile(pytest.Module):
    """A spec file, ``*.int8acc.yaml``, as a collector of pytest.

    It is a ``pytest.Module``, so that fixtures of every scope work, but it imports no Python module.
    """

    obj = None

    def collect(self) -> Iterator[SpecItem]:
        """Yields one item per case; reads no model.

        Raises:
            SpecError: The spec has mistakes. The message names every mistake.
        """
        from pytest_int8acc.spec.load import load_spec

        with own_faults():
            cases = load_spec(self.path)
        for case in cases:
            item = SpecItem.from_parent(self, name=case.name, callobj=verdict, case=case)
            item.mark()
            yield item

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """Returns what pytest shows if collecting fails: mistakes in the spec as text, else a traceback."""
        return plain(self.config, excinfo.value) or super().repr_failure(excinfo)


class SpecItem(pytest.Function):
    """One case. The setup phase judges the case. If it fails, the call phase searches causes and fixes."""

    def __init__(self, *, case: Case, **function: Any) -> None:
        super().__init__(**function)
        self.case = case
        self.run: Run | None = None
        """The run of this case, from its setup to its teardown."""
        self.result: CaseResult | None = None
        """The result so far. Hooks in a user's conftest may read it. It is None until the setup phase has
        judged the case, and lacks causes and fixes until the call phase has searched them."""
        self.ending: BaseException | None = None
        """The exception that ended the search for causes and fixes: a bug of this plugin, or ``pytest.exit``
        in a user's function."""

    def mark(self) -> None:
        """Adds the marks of the case to the item; raises SpecError if pytest refuses a mark."""
        self.add_marker("int8acc")
        for name in self.case.marks:
            try:
                self._add_named(name)
            except (pytest.fail.Exception, Warning) as error:  # raised with --strict-markers or -W error
                from pytest_int8acc.spec.load import display

                place = f"{display(self.path)}:{self.case.line + 1}:1"
                raise SpecError(f"{place}: mark '{name}' of case '{self.name}': {error}") from None
        if self.case.skip is not None:
            self.add_marker(pytest.mark.skip(reason=shown(self.case.skip)))
        if self.case.xfail is not None:
            # Only missed criteria are an expected failure. A case that cannot be judged is an error in spite
            # of the mark.
            self.add_marker(pytest.mark.xfail(reason=shown(self.case.xfail), raises=AccuracyError))

    def _add_named(self, name: str) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.add_marker(name)
        for warning in caught:
            self.warn(pytest.PytestUnknownMarkWarning(str(warning.message)))

    def setup(self) -> None:
        """Sets up fixtures, runs the models and judges the candidate.

        Raises:
            Int8accError: The case cannot be judged.
        """
        super().setup()
        if self.config.getoption("setuponly", False) or self.config.getoption("setupplan", False):
            return
        self.run = run = open_run(self.config, self.case, records=True)
        try:
            with skipping_unavailable(run.settings), watching(self.config, self.nodeid, run):
                result = for_people(run.judge())
        except pytest.exit.Exception as ending:
            self._stop(ending)
            raise
        self._publish(result, run.settings)
        if result.recorded is not None:
            accepted = VerdictView(result).acceptances
            self.user_properties.append((RECORDED, "\n".join([result.golden, *accepted])))

    def teardown(self) -> None:
        """Closes the case, which frees its memory; raises the exception that ended the call phase early."""
        run, ending = self.run, self.ending
        self.run = self.ending = None
        try:
            if run is not None:
                run.close()
        finally:
            super().teardown()
        if ending is not None:
            raise ending

    def answer(self) -> CaseResult:
        """Searches for causes and fixes of a failed case, and returns the result.

        pytest's report of the case then contains this result. If a bug of this plugin or ``pytest.exit`` ends
        the search, the verdict of the setup phase remains valid, and the teardown raises the exception.
        """
        run, verdict = self.run, self.result
        assert run is not None  # otherwise setup() would have raised an error
        assert verdict is not None
        try:
            with watching(self.config, self.nodeid, run):
                result = for_people(
                    run.answer(case_folder(self.config, self.case), report_folder(self.config))
                )
        except InternalError as fault:
            self.ending = fault
            return verdict
        except pytest.exit.Exception as ending:
            self._stop(ending)
            self.ending = ending
            return verdict
        stop_where_interrupted(self.session, result)
        self._publish(result, run.settings)
        return result

    def reportinfo(self) -> tuple[Any, int, str]:
        """Returns the spec, the line of the case in it (counted from 0), and the item's title in reports."""
        return self.path, self.case.line, f"int8acc: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """Returns what pytest shows if the case fails: missed criteria as text, else text or a traceback.

        An error of this plugin is shown as text, any other exception with its traceback.
        """
        if isinstance(excinfo.value, AccuracyError):
            from pytest_int8acc.report.text import failure
            from pytest_int8acc.report.view import CaseView

            return failure(CaseView(excinfo.value.result), self.config.get_verbosity())
        return plain(self.config, excinfo.value) or super().repr_failure(excinfo)

    def _stop(self, ending: BaseException) -> None:
        """Makes pytest start no further test after ``pytest.exit``.

        Otherwise pytest-xdist would report that a worker crashed.
        """
        self.session.shouldstop = shown(f"pytest.exit in {self.name}: {error_text(ending)}")

    def _publish(self, result: CaseResult, settings: Settings) -> None:
        """Stores the result and the settings in ``user_properties``, which pytest's reports contain.

        They replace an earlier result of the same case.
        """
        self.result = result
        found = [*properties(VerdictView(result)), ("int8acc.settings", shown(settings.describe()))]
        if result.search is not None or result.diagnosis is not None:
            from pytest_int8acc.report.json import answer_properties
            from pytest_int8acc.report.view import CaseView

            found += answer_properties(CaseView(result))
        self.user_properties[:] = (dict(self.user_properties) | dict(found)).items()


def plain(config: pytest.Config, error: BaseException) -> str | None:
    """Returns the message of ``error`` if it is shown as text alone; None if its traceback is shown.

    An ``Int8accError`` is shown as text alone. With ``--tb=long`` or ``--tb=native``, however, a bug of this
    plugin (``InternalError``) is shown with its traceback, like all other errors.
    """
    whole = isinstance(error, InternalError) and config.getoption("tbstyle") in ("long", "native")
    return str(error) if isinstance(error, Int8accError) and not whole else None


def verdict(request: pytest.FixtureRequest) -> None:
    """The test function of a case: raises AccuracyError if the candidate misses the criteria."""
    result = request.node.answer()
    if not result.passed:
        request.node.user_properties.append((MISSED, True))
        raise AccuracyError(result)
