"""A pytest plugin that runs beside the tests of a mutant; it is copied into the folder of the run.

MUTANT_PROBE names a JSON file that says what to do. 'map': write for each test its outcome, its seconds, and
the functions of the package that it called. 'check': run the tests that are named, in that order, and stop
when the time is over. The file may hold neither the plugin's nor the tests' modules: only pytest is imported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

TASK: dict[str, Any] = json.loads(Path(os.environ["MUTANT_PROBE"]).read_text())
STARTED = time.monotonic()
#: Exit status where the time was over before a test failed.
TIME_OVER = 77


class Outcomes:
    """Seconds and outcome of each test, and the first failures' names."""

    def __init__(self) -> None:
        self.tests: dict[str, list[Any]] = {}
        self.broken: list[str] = []
        self.calls: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase's seconds; a failure in any phase fails the test."""
        row = self.tests.setdefault(report.nodeid, ["passed", 0.0])
        row[1] = round(row[1] + report.duration, 3)
        if report.failed:
            row[0] = "failed"
        elif report.skipped and row[0] == "passed":
            row[0] = "skipped"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note files that cannot be collected."""
        if report.failed:
            self.broken.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write what was found."""
        found = {"tests": self.tests, "broken": self.broken, "calls": self.calls}
        Path(TASK["found"]).write_text(json.dumps(found))


class Calls:
    """Records which functions of the package each test calls in this process.

    What a fixture of a module or a session calls counts for all tests that use the fixture.
    """

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes
        self.seen: set[CodeType] = set()
        #: Functions by the name of a fixture and the place where it is defined.
        self.lasting: dict[tuple[str, str], set[CodeType]] = {}

    def enter(self, frame: FrameType, _event: str, _value: object) -> None:
        """Note that a function is entered; its lines are not traced."""
        self.seen.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace one test with its fixtures."""
        self.seen.clear()
        sys.settrace(self.enter)
        threading.settrace(self.enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            used = set(getattr(item, "fixturenames", ()))
            for (name, place), codes in self.lasting.items():
                if name in used and item.nodeid.startswith(place):
                    self.seen |= codes
            self.outcomes.calls[item.nodeid] = self.functions()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Note what the setup of a fixture calls that several tests may use."""
        before, self.seen = self.seen, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.lasting[fixturedef.argname, fixturedef.baseid] = self.seen
            self.seen = before | self.seen

    def functions(self) -> list[str]:
        """Return file and first line of each function of the package that was entered."""
        package = os.path.join(TASK["tree"], "pytest_int8acc") + os.sep
        found = [code for code in self.seen if code.co_filename.startswith(package)]
        start = len(TASK["tree"]) + 1
        return sorted({f"{code.co_filename[start:]}:{code.co_firstlineno}" for code in found})


class Nearest:
    """Keeps the tests that are asked for, in their order, and tells which one runs."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that are asked for, in their order."""
        order = {name: place for place, name in enumerate(TASK["order"])}
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Write which test begins, or end the run where the time is over."""
        if time.monotonic() - STARTED > TASK["seconds"]:
            pytest.exit("time is over", returncode=TIME_OVER)
        Path(TASK["running"]).write_text(item.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Add the hooks that the task needs."""
    outcomes = Outcomes()
    config.pluginmanager.register(outcomes, "mutant-outcomes")
    if TASK["do"] == "map":
        config.pluginmanager.register(Calls(outcomes), "mutant-calls")
    else:
        config.pluginmanager.register(Nearest(), "mutant-nearest")
