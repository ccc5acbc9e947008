"""Spec files and their cases as pytest collectors and items."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_int8acc.errors import Int8accError, SpecError
from pytest_int8acc.report.text import failure, failure_line, status
from pytest_int8acc.results import CaseResult, to_plain
from pytest_int8acc.settings import SETTINGS, Settings, resolve

if TYPE_CHECKING:
    from pytest_int8acc.spec.models import Case


class AccuracyError(AssertionError):
    """INT8 misses a case's criteria."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(failure_line(result))
        self.result = result


class SpecFile(pytest.File):
    """One ``*.int8acc.yaml``."""

    def collect(self) -> Iterator[SpecItem]:
        """One item per case; raises SpecError with every mistake in the file. Reads no model."""
        from pytest_int8acc.spec.load import load_spec

        for case in load_spec(self.path):
            item = SpecItem.from_parent(self, name=case.name, callobj=verdict, case=case)
            item.mark()
            yield item

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """A mistake in the spec as text alone, anything else with its traceback."""
        if isinstance(excinfo.value, Int8accError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class SpecItem(pytest.Function):
    """One case: measured in the setup phase, judged in the call phase."""

    def __init__(self, *, case: Case, **function: Any) -> None:
        super().__init__(**function)
        self.case = case
        self.result: CaseResult | None = None

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
            self.add_marker(pytest.mark.skip(reason=self.case.skip))
        if self.case.xfail is not None:
            # Accuracy alone may fail as expected: a case that cannot be judged stays an error.
            self.add_marker(pytest.mark.xfail(reason=self.case.xfail, raises=AccuracyError))

    def _add_named(self, name: str) -> None:
        """Adds a mark; a warning of it points to the spec, not to this line."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.add_marker(name)
        for warning in caught:
            self.warn(pytest.PytestUnknownMarkWarning(str(warning.message)))

    def setup(self) -> None:
        """Sets up fixtures, then runs the models and measures; Int8accError where that is impossible."""
        super().setup()
        if self.config.getoption("setuponly", False) or self.config.getoption("setupplan", False):
            return
        from pytest_int8acc.check import check

        settings = self._settings()
        self.result = check(self.case, settings)
        self.user_properties += properties(self.result)
        self.user_properties.append(("int8acc.settings", settings.describe()))

    def reportinfo(self) -> tuple[Any, int, str]:
        """The case's own line in the spec."""
        return self.path, self.case.line, f"int8acc: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """Missed criteria as text alone, anything else with its traceback."""
        if isinstance(excinfo.value, AccuracyError):
            return failure(excinfo.value.result, self.config.get_verbosity())
        return super().repr_failure(excinfo)

    def _settings(self) -> Settings:
        """What this case runs with; plugin.py has checked the configuration."""
        return resolve(
            {setting.name: self.config.getoption(setting.ini) for setting in SETTINGS},
            self.case.settings(),
            {setting.name: self.config.getini(setting.ini) for setting in SETTINGS},
        )


def verdict(request: pytest.FixtureRequest) -> None:
    """Passes where the case's INT8 model meets its criteria."""
    result = request.node.result
    if not result.passed:
        raise AccuracyError(result)


def properties(result: CaseResult) -> list[tuple[str, object]]:
    """What a case's report carries to the controller of pytest-xdist and to JUnit: plain types only."""
    scores = [(f"int8acc.{score.subject}.{score.metric}", to_plain(score.value)) for score in result.scores]
    details = json.dumps(to_plain(result), allow_nan=False, ensure_ascii=False)
    return [*scores, ("int8acc.summary", status(result)), ("int8acc.details", details)]
