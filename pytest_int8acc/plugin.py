"""pytest entry point: options, ini keys, marker, collection and the terminal report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.settings import SETTINGS, SUFFIXES, Setting

if TYPE_CHECKING:
    from pytest_int8acc.items import SpecFile

_NOT_RUN = pytest.StashKey[set[str]]()
_NOT_RUN_OUTPUT = "int8acc_not_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the gate and every setting, each as an option and as an ini key."""
    group = parser.getgroup("int8acc", "INT8 accuracy")
    gate = "run the cases in *.int8acc.yaml files; one named on the command line runs without this"
    # Defaults are None so that an option not given is told from one that says no: ini keys come next.
    group.addoption("--int8acc", action="store_true", default=None, help=gate)
    parser.addini("int8acc", gate, type="bool", default=False)
    for setting in SETTINGS:
        _add_setting(group, parser, setting)


def _add_setting(group: pytest.OptionGroup, parser: pytest.Parser, setting: Setting) -> None:
    """One setting as an option and as an ini key."""
    if setting.kind == "choice":
        group.addoption(setting.flag, choices=setting.choices, help=setting.help)
        parser.addini(setting.ini, setting.help, default=None)
    elif setting.kind == "count":
        group.addoption(setting.flag, type=_argument(setting), metavar="N", help=setting.help)
        parser.addini(setting.ini, setting.help, type="int", default=None)
    elif setting.kind == "flag":
        group.addoption(setting.flag, action="store_true", default=None, help=setting.help)
        parser.addini(setting.ini, setting.help, type="bool", default=None)
    else:
        group.addoption(setting.flag, metavar="DIR", help=setting.help)
        parser.addini(setting.ini, setting.help, default=None)


def _argument(setting: Setting) -> Callable[[str], object]:
    """What argparse calls to read ``setting``."""

    def parse(text: str) -> object:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker; raises UsageError for a value in the configuration that is not accepted."""
    config.addinivalue_line("markers", "int8acc: a case of an *.int8acc.yaml file")
    config.stash[_NOT_RUN] = set()
    _getini(config, "int8acc", "true or false")
    for setting in SETTINGS:
        value = _getini(config, setting.ini, setting.expected)
        try:
            if value is not None:
                setting.parse(value)
        except ValueError as error:
            raise pytest.UsageError(f"{setting.ini} in the pytest configuration: {error}") from None


def _getini(config: pytest.Config, key: str, expected: str) -> Any:
    """The configured value; UsageError where pytest itself cannot read it as the key's type."""
    try:
        return config.getini(key)
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"{key} in the pytest configuration: {error}; expected {expected}") from None


def _gate(config: pytest.Config) -> bool:
    """True where all spec files run."""
    return bool(config.getoption("int8acc") or config.getini("int8acc"))


def pytest_report_header(config: pytest.Config) -> str | None:
    """The runtimes installed, where the gate is open."""
    if not _gate(config):
        return None
    from importlib import metadata

    found = []
    for name in ("onnxruntime", "onnxruntime-gpu", "tensorrt"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return "int8acc: " + (", ".join(found) or "no runtime installed (pip install 'pytest-int8acc[cpu]')")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SpecFile | None:
    """Collects a spec file where the gate is open or the file was named, and counts it otherwise."""
    if not file_path.name.endswith(SUFFIXES):
        return None
    named = parent.session.isinitpath
    if _gate(parent.config) or named(file_path):
        from pytest_int8acc.items import SpecFile

        collected: SpecFile = SpecFile.from_parent(parent, path=file_path)
        return collected
    # pytest also visits the neighbours of a file that was named; nobody asked for those.
    if any(named(folder) for folder in file_path.parents):
        parent.config.stash[_NOT_RUN].add(str(file_path))
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports a case that cannot be judged as text alone: pytest asks no item how a setup error reads."""
    report = yield
    if call.when == "setup" and call.excinfo is not None and isinstance(call.excinfo.value, Int8accError):
        from pytest_int8acc.items import SpecItem

        if isinstance(item, SpecItem):
            report.longrepr = str(call.excinfo.value)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands a pytest-xdist worker's count of spec files not run to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        not_run = session.config.stash[_NOT_RUN]
        output[_NOT_RUN_OUTPUT] = sorted(not_run)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over a worker's spec files not run; every worker sees the same ones."""
    output = getattr(node, "workeroutput", None) or {}  # a worker that crashed has none
    node.config.stash[_NOT_RUN].update(output.get(_NOT_RUN_OUTPUT, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes one line per case, more with -v and -vv, and a hint where spec files were left out."""
    reports = _case_reports(terminalreporter)
    if config.get_verbosity() < 0:
        reports = [(verdict, report) for verdict, report in reports if report.failed]
    if reports:
        _write_section(terminalreporter, reports, config.get_verbosity())
    if config.getoption("int8acc_report") or config.getini("int8acc_report"):
        _write_report(terminalreporter, config)
    if count := len(config.stash[_NOT_RUN]):
        files = "spec file" if count == 1 else "spec files"
        terminalreporter.write_line(
            f"int8acc: {count} {files} not run (pass --int8acc, or set int8acc = true in the pytest "
            "configuration)",
            yellow=True,
        )


def _write_report(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes report.json of all cases, and says where it is."""
    import json

    from pytest_int8acc.items import report_folder
    from pytest_int8acc.report.json import case_entry, write_json

    folder = report_folder(config)
    assert folder is not None
    entries = []
    for verdict, report in _case_reports(terminalreporter):
        details = dict(report.user_properties).get("int8acc.details")
        plain = None if details is None else json.loads(str(details))
        entries.append(case_entry(report.nodeid, verdict, report.duration, plain))
    try:
        terminalreporter.write_line(f"int8acc: report in {write_json(folder, entries)}")
    except OSError as error:
        terminalreporter.write_line(f"int8acc: {folder}: cannot be written: {error.strerror}", red=True)


def _write_section(
    terminalreporter: pytest.TerminalReporter, reports: list[tuple[str, pytest.TestReport]], verbosity: int
) -> None:
    """Writes a line for each case, and its details below."""
    from pytest_int8acc.report.terminal import detail_lines, status_line
    from pytest_int8acc.report.text import FAILURE

    terminalreporter.write_sep("=", "int8acc")  # section() leaves its line open
    for verdict, report in reports:
        color = "red" if report.failed else "green" if verdict == "passed" else "yellow"
        terminalreporter.write(f"{verdict.upper()} ", **{color: True})
        message = _message(report)
        # A case may also fail for another reason than its scores: a teardown, a strict xfail that passes.
        told = not report.failed or message.startswith(FAILURE)
        said = dict(report.user_properties) if told else {}
        terminalreporter.write_line(status_line(report.nodeid, said, message))
        for line in detail_lines(said, verbosity, failed=report.failed):
            terminalreporter.write_line("    " + line)


def _case_reports(terminalreporter: pytest.TerminalReporter) -> list[tuple[str, pytest.TestReport]]:
    """Verdict and report of each case that was reported, in the order of files and lines."""
    reports = [
        (verdict, report)
        for verdict in ("passed", "failed", "error", "xfailed", "xpassed", "skipped")
        for report in terminalreporter.getreports(verdict)
        if isinstance(report, pytest.TestReport) and report.location[0].endswith(SUFFIXES)
    ]
    return sorted(reports, key=lambda pair: (pair[1].location[0], pair[1].location[1] or 0))


def _message(report: pytest.TestReport) -> str:
    """The first line of why a case did not pass."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "").partition("\n")[0]
