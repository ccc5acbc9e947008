"""Spec files and their cases as pytest collectors and items."""

from __future__ import annotations

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
from pytest_int8acc.report.json import properties
from pytest_int8acc.report.plain import for_people
from pytest_int8acc.report.text import failure
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.results import CaseResult

if TYPE_CHECKING:
    from pytest_int8acc.api import Run
    from pytest_int8acc.settings import Settings
    from pytest_int8acc.spec.models import Case


class AccuracyError(AssertionError):
    """INT8 misses a case's criteria."""

    def __init__(self, view: CaseView) -> None:
        super().__init__(view.failure_line)
        self.view = view


class SpecFile(pytest.Module):
    """One ``*.int8acc.yaml``; a module without a Python object, so that fixtures of every scope work."""

    obj = None

    def collect(self) -> Iterator[SpecItem]:
        """One item per case; raises SpecError with every mistake in the file. Reads no model."""
        from pytest_int8acc.spec.load import load_spec

        with own_faults():
            cases = load_spec(self.path)
        for case in cases:
            item = SpecItem.from_parent(self, name=case.name, callobj=verdict, case=case)
            item.mark()
            yield item

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """A mistake in the spec as text alone, anything else with its traceback."""
        return plain(self.config, excinfo.value) or super().repr_failure(excinfo)


class SpecItem(pytest.Function):
    """One case: judged in the setup phase; answered, where it fails, in the call phase."""

    def __init__(self, *, case: Case, **function: Any) -> None:
        super().__init__(**function)
        self.case = case
        self.run: Run | None = None
        """The case under way, from setup to teardown."""
        self.view: CaseView | None = None
        """The view of the result so far: None before the setup, without an answer before the call phase."""
        self.ending: BaseException | None = None
        """What ended the answer: a fault of ours, or a ``pytest.exit`` of a user's function."""

    @property
    def result(self) -> CaseResult | None:
        """The result so far, for hooks in a user's conftest."""
        return None if self.view is None else self.view.result

    def mark(self) -> None:
        """Gives the item the case's marks; raises SpecError where pytest refuses one."""
        self.add_marker("int8acc")
        for name in self.case.marks:
            try:
                self._add_named(name)
            except (pytest.fail.Exception, Warning) as error:  # --strict-markers, -W error
                from pytest_int8acc.spec.load import display

                place = f"{display(self.path)}:{self.case.line + 1}:1"
                raise SpecError(f"{place}: mark '{name}' of case '{self.name}': {error}") from None
        if self.case.skip is not None:
            self.add_marker(pytest.mark.skip(reason=shown(self.case.skip)))
        if self.case.xfail is not None:
            # Accuracy alone may fail as expected: a case that cannot be judged stays an error.
            self.add_marker(pytest.mark.xfail(reason=shown(self.case.xfail), raises=AccuracyError))

    def _add_named(self, name: str) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.add_marker(name)
        for warning in caught:
            self.warn(pytest.PytestUnknownMarkWarning(str(warning.message)))

    def setup(self) -> None:
        """Sets up fixtures, then runs the models and scores them; Int8accError where that is impossible."""
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
        view = self._publish(result, run.settings)
        if result.recorded is not None:
            self.user_properties.append((RECORDED, "\n".join([result.golden, *view.acceptances])))

    def teardown(self) -> None:
        """Closes the case, which frees its memory; raises what ended the call phase."""
        run, ending = self.run, self.ending
        self.run = self.ending = None
        try:
            if run is not None:
                run.close()
        finally:
            super().teardown()
        if ending is not None:
            raise ending

    def answer(self) -> CaseView:
        """Returns the view of the result with its answer, which the report carries from now on.

        If a fault of ours or ``pytest.exit`` ends the answer, the verdict stands, and the teardown raises
        what ended it.
        """
        run, verdict = self.run, self.view
        assert run is not None  # otherwise setup() has raised
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
        return self._publish(result, run.settings)

    def reportinfo(self) -> tuple[Any, int, str]:
        """The case's own line in the spec."""
        return self.path, self.case.line, f"int8acc: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """Missed criteria and errors of ours as text alone, anything else with its traceback."""
        if isinstance(excinfo.value, AccuracyError):
            return failure(excinfo.value.view, self.config.get_verbosity())
        return plain(self.config, excinfo.value) or super().repr_failure(excinfo)

    def _stop(self, ending: BaseException) -> None:
        """Let no case begin any more. Without this, pytest-xdist says that a worker crashed."""
        self.session.shouldstop = shown(f"pytest.exit in {self.name}: {error_text(ending)}")

    def _publish(self, result: CaseResult, settings: Settings) -> CaseView:
        """Attaches the result and the settings to the report, in place of earlier ones."""
        self.view = view = CaseView(result)
        described = ("int8acc.settings", shown(settings.describe()))
        self.user_properties[:] = (dict(self.user_properties) | dict([*properties(view), described])).items()
        return view


def plain(config: pytest.Config, error: BaseException) -> str | None:
    """An error of ours as text alone; None where a traceback is due, as for faults of ours with --tb=long."""
    whole = isinstance(error, InternalError) and config.getoption("tbstyle") in ("long", "native")
    return str(error) if isinstance(error, Int8accError) and not whole else None


def verdict(request: pytest.FixtureRequest) -> None:
    """Fails if the candidate of the case misses its criteria."""
    view = request.node.answer()
    if not view.result.passed:
        request.node.user_properties.append((MISSED, True))
        raise AccuracyError(view)
