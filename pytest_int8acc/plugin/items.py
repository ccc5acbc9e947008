"""Spec files and their cases as pytest collectors and items, and the GPU that they run on."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_int8acc.clock import Clock
from pytest_int8acc.errors import (
    EngineError,
    Int8accError,
    InternalError,
    MissingBackendError,
    SpecError,
    error_text,
    own_faults,
)
from pytest_int8acc.names import shown
from pytest_int8acc.plugin.progress import watching
from pytest_int8acc.plugin.reporting import MISSED, RECORDED, golden_folder, spec_stem
from pytest_int8acc.report.plain import for_people, properties
from pytest_int8acc.report.text import failure
from pytest_int8acc.report.view import CaseView, acceptances
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import SETTINGS, Settings, resolve

if TYPE_CHECKING:
    from pytest_int8acc.case.measured import Measured
    from pytest_int8acc.goldens import Goldens
    from pytest_int8acc.runtime.trt.children import Workers
    from pytest_int8acc.spec.models import Case

_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: One folder per GPU, written by NVIDIA's driver on Linux.
_DRIVER = Path("/proc/driver/nvidia/gpus")


def visible_devices(environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[str]:
    """The GPUs that the caller allows, as CUDA_VISIBLE_DEVICES names them; all where it says nothing.

    An index below 0 ends the list, as for CUDA itself.
    """
    if (given := environment.get(_VARIABLE)) is not None:
        entries = (part.strip() for part in given.split(","))
        return list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    try:
        return [str(i) for i in range(len(os.listdir(driver)))]
    except OSError:
        return []


def choose(worker: str | None, device: int | None, visible: list[str]) -> str | None:
    """The entry of ``visible`` that this process takes; None leaves all to it.

    ``worker`` is pytest-xdist's name of this process, like gw3, None outside of xdist; ``device`` the entry
    that the user asks for, from 0, for every worker. Raises ValueError where there is no such entry.
    """
    if device is not None:
        if device >= len(visible):
            seen = f"{len(visible)} GPUs are" if len(visible) != 1 else "1 GPU is"
            raise ValueError(f"there is no GPU {device}: {seen} visible; count from 0")
        return visible[device]
    if worker is None or not visible or not worker[2:].isdecimal():
        return None
    return visible[int(worker[2:]) % len(visible)]


class AccuracyError(AssertionError):
    """INT8 misses a case's criteria."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(CaseView(result).failure_line)
        self.result = result


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
    """One case: measured in the setup phase; judged, and searched where it fails, in the call phase."""

    def __init__(self, *, case: Case, **function: Any) -> None:
        super().__init__(**function)
        self.case = case
        self.measured: Measured | None = None
        self.result: CaseResult | None = None
        """What is known so far: None before setup, without a search before the call."""
        self.fault: InternalError | None = None
        """What the call phase did not foresee."""
        self.ending: BaseException | None = None
        """A ``pytest.exit`` of a user's function that came after the verdict."""
        self.clock = Clock()
        self.began = 0.0
        """By ``time.monotonic``."""

    @property
    def judged(self) -> bool:
        """Returns whether the case has a verdict; what follows it may be under way."""
        return self.measured is not None

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
        """Sets up fixtures, then runs the models and measures; Int8accError where that is impossible."""
        super().setup()
        if self.config.getoption("setuponly", False) or self.config.getoption("setupplan", False):
            return
        from pytest_int8acc.case.measured import measure

        self.clock, self.began = Clock(), time.monotonic()
        settings = settings_for(self.config, self.case.settings())
        goldens = self._goldens()
        try:
            with own_faults(), watching(self):
                self.measured = measure(self.case, settings, goldens, self.clock, builders(self.config))
        except MissingBackendError as error:
            skip_unavailable(error, settings)
            raise
        except pytest.exit.Exception as ending:
            self._stop(ending)
            raise
        result = for_people(self.measured.result)
        self._publish(result)
        if goldens and result.recorded is not None:
            self.user_properties.append((RECORDED, "\n".join([result.golden, *acceptances(result)])))

    def teardown(self) -> None:
        """Closes the engines and frees models and data; raises what has ended the call phase.

        The item lives until the session ends, so that it keeps its result alone.
        """
        measured, ended_by = self.measured, self.ending or self.fault
        self.measured = self.fault = self.ending = None
        try:
            if measured is not None:
                measured.close()
        finally:
            super().teardown()
        if ended_by is not None:
            raise ended_by

    def conclude(self) -> CaseResult:
        """The result, with what a search found where one was wanted; the report carries it from now on.

        Where something unforeseen or ``pytest.exit`` ends it, what was measured stands, and the teardown
        raises it.
        """
        from pytest_int8acc.answer import conclude

        assert self.measured is not None  # setup() has raised otherwise
        try:
            with own_faults(), watching(self):
                result = for_people(conclude(self.measured, self._folder(), report_folder(self.config)))
        except InternalError as fault:
            self.fault = fault
            return self.measured.result
        except pytest.exit.Exception as ending:
            self._stop(ending)
            self.ending = ending
            return self.measured.result
        self._publish(result)
        stop_where_interrupted(self.session, result)
        return result

    def reportinfo(self) -> tuple[Any, int, str]:
        """The case's own line in the spec."""
        return self.path, self.case.line, f"int8acc: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        """Missed criteria and errors of ours as text alone, anything else with its traceback."""
        if isinstance(excinfo.value, AccuracyError):
            return failure(excinfo.value.result, self.config.get_verbosity())
        return plain(self.config, excinfo.value) or super().repr_failure(excinfo)

    def _folder(self) -> Path | None:
        """This case's own folder in the report folder: the spec's path from the root, and the case's name."""
        reports, stem = report_folder(self.config), spec_stem(self.config, self.path)
        if reports is None:
            return None
        return reports / stem if stem.name == self.name else reports / stem / self.name

    def _goldens(self) -> Goldens | None:
        """Where this case's golden lies and what may be written; None for a case that keeps none."""
        from pytest_int8acc.goldens import Goldens, keeps_golden

        if not keeps_golden(self.case):
            return None
        folder = self._folder()
        return Goldens(
            golden_folder(self.config, self.path),
            self.config.getoption("int8acc_update") or "off",
            None if folder is None else folder / "golden",
            report_folder(self.config),
        )

    def _stop(self, ending: BaseException) -> None:
        """Let no case begin any more. Without this, pytest-xdist says that a worker crashed."""
        self.session.shouldstop = shown(f"pytest.exit in {self.name}: {error_text(ending)}")

    def _publish(self, result: CaseResult) -> None:
        assert self.measured is not None
        self.result = result
        settings = ("int8acc.settings", shown(self.measured.settings.describe()))
        self.user_properties[:] = (dict(self.user_properties) | dict([*properties(result), settings])).items()


def plain(config: pytest.Config, error: BaseException) -> str | None:
    """An error of ours as text alone; None where a traceback is due, as for faults of ours with --tb=long."""
    whole = isinstance(error, InternalError) and config.getoption("tbstyle") in ("long", "native")
    return str(error) if isinstance(error, Int8accError) and not whole else None


def stop_where_interrupted(session: pytest.Session, result: CaseResult) -> None:
    """Ends the session where Ctrl-C has ended what followed a verdict."""
    if result.stopped is not None and result.stopped.kind == "interrupted":
        session.shouldstop = f"interrupted (Ctrl-C) after the verdict on {result.name}"


def skip_unavailable(error: MissingBackendError, settings: Settings) -> None:
    """Skips a test whose backend is not there, unless the settings want it to fail."""
    if settings.missing == "skip":
        pytest.skip(str(error))


def settings_for(config: pytest.Config, spec: Mapping[str, object]) -> Settings:
    """What command line, spec and configuration say together; plugin.py has checked the configuration."""
    _take_device(config)
    return resolve(
        {setting.name: config.getoption(setting.ini) for setting in SETTINGS},
        spec,
        {s.name: s.read(config.getini(s.ini)) for s in SETTINGS},
    )


_BUILDERS = pytest.StashKey["Workers"]()


def builders(config: pytest.Config) -> Workers:
    """What TensorRT builds in until the session ends: its start takes longer than most builds."""
    if _BUILDERS not in config.stash:
        from pytest_int8acc.runtime.trt.children import Workers

        config.stash[_BUILDERS] = Workers()
        config.add_cleanup(config.stash[_BUILDERS].close)
    return config.stash[_BUILDERS]


_TAKEN = pytest.StashKey[bool]()


def _take_device(config: pytest.Config) -> None:
    """Let CUDA see this process's own GPU, once, before anything starts it."""
    if config.stash.get(_TAKEN, False):
        return
    config.stash[_TAKEN] = True
    device = config.getoption("int8acc_device")
    if device is None and config.getini("int8acc_device"):
        device = int(config.getini("int8acc_device"))
    worker = getattr(config, "workerinput", {}).get("workerid")
    try:
        chosen = choose(worker, device, visible_devices())
    except ValueError as error:
        raise EngineError(f"--int8acc-device: {error}") from None
    if chosen is not None:
        os.environ[_VARIABLE] = chosen


def report_folder(config: pytest.Config) -> Path | None:
    """Where reports go: from where pytest was started, or from the root where the configuration says it."""
    if given := config.getoption("int8acc_report"):
        return config.invocation_params.dir / str(given)
    given = config.getini("int8acc_report")
    return config.rootpath / str(given) if given else None


def verdict(request: pytest.FixtureRequest) -> None:
    """Passes where the case's INT8 model meets its criteria."""
    result = request.node.conclude()
    if not result.passed:
        request.node.user_properties.append((MISSED, True))
        raise AccuracyError(result)
