"""pytest's hooks: options, ini keys, the marker, collection of spec files, and reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_int8acc.names import is_url, safe_url, shown, without_secrets
from pytest_int8acc.settings import SETTINGS, SUFFIXES, Kind, Setting

if TYPE_CHECKING:
    from pytest_int8acc.plugin.items import SpecFile
    from pytest_int8acc.results import CaseResult

#: The key, in pytest's stash, of the results that the running test got from the fixture ``int8acc``.
ASKED: pytest.StashKey[list[CaseResult]] = pytest.StashKey()
#: The key, in pytest's stash, of the exceptions that a test has raised. They are kept until pytest has
#: reported the test, and until a debugger that the user has opened has ended.
_RAISED: pytest.StashKey[list[BaseException]] = pytest.StashKey()
_NOT_RUN = pytest.StashKey[set[str]]()
_NOT_RUN_OUTPUT = "int8acc_not_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options and ini keys of this plugin to pytest.

    Without the option ``--int8acc``, or its ini key, only the spec files that the command line names run.
    """
    group = parser.getgroup("int8acc", "INT8 accuracy")
    gate = "run the cases in *.int8acc.yaml files; one named on the command line runs without this"
    # The default None means that the option is not on the command line. Then the ini key decides.
    group.addoption("--int8acc", action="store_true", default=None, help=gate)
    parser.addini("int8acc", gate, type="bool", default=False)
    for setting in SETTINGS:
        _add_setting(group, parser, setting)
    merge = (
        "run nothing: merge these report folders into --int8acc-report, and exit with 1 where a case failed"
    )
    group.addoption("--int8acc-merge", nargs="+", metavar="DIR", help=merge)
    init = "run nothing: write a commented spec beside each of these ONNX models"
    group.addoption("--int8acc-init", nargs="+", metavar="MODEL", help=init)
    data = "with --int8acc-init: data for them; a folder of images or of audio, an .npz, or a folder of .npy"
    group.addoption("--int8acc-data", metavar="PATH", help=data)
    device = "GPU, from 0 among those visible (default: each pytest-xdist worker takes the next one)"
    group.addoption("--int8acc-device", type=_device, metavar="N", help=device)
    parser.addini("int8acc_device", device, default=None)
    _add_golden_options(group, parser)


def _add_golden_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    group.addoption(
        "--int8acc-update",
        choices=("missing", "all"),
        help="record goldens: those that are missing, or all; prints what changes. Not where CI is set",
    )
    group.addoption(
        "--int8acc-update-in-ci",
        action="store_true",
        default=None,
        help="let --int8acc-update record goldens where the variable CI is set",
    )
    group.addoption(
        "--int8acc-prune",
        nargs="?",
        const="list",
        choices=("list", "delete"),
        help="list goldens that no case of a spec has any more, and with =delete delete them",
    )
    parser.addini(
        "int8acc_goldens",
        "where goldens are kept, a folder or an fsspec URL (default: __int8acc__ beside each spec)",
        default=None,
    )


def _add_setting(group: pytest.OptionGroup, parser: pytest.Parser, setting: Setting) -> None:
    ways: Mapping[Kind, dict[str, Any]] = {
        "choice": {"choices": setting.choices},
        "count": {"type": _argument(setting), "metavar": "N"},
        "size": {"type": _argument(setting), "metavar": "SIZE"},
        "flag": {"action": "store_true", "default": None},
        "folder": {"metavar": "DIR"},
    }
    group.addoption(setting.flag, help=setting.help, **ways[setting.kind])
    types: Mapping[Kind, Any] = {"count": "int", "flag": "bool"}
    parser.addini(setting.ini, setting.help, type=types.get(setting.kind), default=None)


def _argument(setting: Setting) -> Callable[[str], object]:
    def parse(text: str) -> object:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _device(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a GPU's number: expected 0, 1 or so on")
    return int(text)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Merges report folders or writes specs instead of running tests, if the command line requests it."""
    if config.getoption("help"):
        return None
    models, data = config.getoption("int8acc_init"), config.getoption("int8acc_data")
    if models:
        from pytest_int8acc.init import run

        folder = config.invocation_params.dir
        return int(run([folder / model for model in models], sys.stdout, data and folder / data) > 0)
    if data:
        raise pytest.UsageError("--int8acc-data has no effect without --int8acc-init MODEL")
    folders = config.getoption("int8acc_merge")
    if not folders:
        return None
    from pytest_int8acc.plugin.reporting import merge
    from pytest_int8acc.plugin.session import report_folder

    return merge(config, folders, report_folder(config))


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker ``int8acc`` and further hooks, and checks the options and ini keys.

    Raises:
        pytest.UsageError: A value in the configuration is not accepted.
    """
    config.addinivalue_line("markers", "int8acc: a case of an *.int8acc.yaml file")
    config.stash[_NOT_RUN] = set()
    config.pluginmanager.register(_Last(), "int8acc-last")
    if config.getoption("int8acc_update") or config.getoption("int8acc_prune"):
        from pytest_int8acc.plugin.reporting import GoldenHooks

        config.pluginmanager.register(GoldenHooks(), "int8acc-goldens")
    _getini(config, "int8acc", "true or false")
    try:
        _device(str(_getini(config, "int8acc_device", "a GPU's number") or 0))
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"int8acc_device in the pytest configuration: {error}") from None
    for setting in SETTINGS:
        value = _getini(config, setting.ini, setting.expected)
        try:
            if value is not None:
                setting.parse(value)
        except ValueError as error:
            raise pytest.UsageError(f"{setting.ini} in the pytest configuration: {error}") from None
    for name, given in (
        ("--int8acc-report", config.getoption("int8acc_report")),
        ("int8acc_report in the pytest configuration", config.getini("int8acc_report")),
    ):
        if given and is_url(str(given)):
            raise pytest.UsageError(
                f"{name}: {safe_url(str(given))} is a URL: reports are written to a folder of this machine; "
                "give a folder, and upload it when the run has ended"
            )


def _getini(config: pytest.Config, key: str, expected: str) -> Any:
    """Returns the value of the ini key ``key``; ``expected`` says in messages which values are accepted.

    Raises:
        pytest.UsageError: pytest cannot read the value as the type of the key.
    """
    try:
        return config.getini(key)
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"{key} in the pytest configuration: {error}; expected {expected}") from None


def _gate(config: pytest.Config) -> bool:
    return bool(config.getoption("int8acc") or config.getini("int8acc"))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Returns a header line with the installed runtimes; None unless ``--int8acc`` or its ini key is set."""
    if not _gate(config):
        return None
    from pytest_int8acc.errors import installed

    runtimes = installed(("onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx"))
    found = [f"{name} {version}" for name, version in runtimes.items()]
    return "int8acc: " + (", ".join(found) or "no runtime installed (pip install onnxruntime)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SpecFile | None:
    """Collects a spec file if ``--int8acc`` or its ini key is set, or if the command line names the file.

    Any other spec file is not run. It is remembered, so that the summary can say how many were not run.
    """
    if not file_path.name.endswith(SUFFIXES):
        return None
    named = parent.session.isinitpath
    if _gate(parent.config) or named(file_path):
        from pytest_int8acc.plugin.items import SpecFile

        collected: SpecFile = SpecFile.from_parent(parent, path=file_path)
        return collected
    # pytest also visits the neighbours of a named file. They were not requested, so they are not counted.
    if any(named(folder) for folder in file_path.parents):
        parent.config.stash[_NOT_RUN].add(str(file_path))
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts progress display and report if cases were collected, and makes SIGTERM act like Ctrl-C."""
    if any(item.path.name.endswith(SUFFIXES) for item in session.items):
        from pytest_int8acc.plugin import progress, termination

        progress.start(session.config)
        termination.start(session.config)
        if not _is_idle(session.config):
            _begin_report(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Starts the report in the controller of pytest-xdist, if a worker has collected cases.

    ``ids`` are the node ids of all tests that the worker has collected.
    """
    if any(nodeid.partition("::")[0].endswith(SUFFIXES) for nodeid in ids):
        _begin_report(node.config, ids)


def _begin_report(config: pytest.Config, nodeids: list[str]) -> None:
    """Writes a report in which the cases with these node ids are missing. Each is added when it ends."""
    from pytest_int8acc.plugin.reporting import LIVE, LiveReport
    from pytest_int8acc.plugin.session import report_folder

    folder = report_folder(config)
    if folder is None:
        return
    live: LiveReport | None = config.pluginmanager.get_plugin(LIVE)
    if live is None:
        live = LiveReport(config, folder)
        config.pluginmanager.register(live, LIVE)
    live.begin(nodeids)


def _is_idle(config: pytest.Config) -> bool:
    """Returns whether this process writes no report, as it is a worker of pytest-xdist or runs no test."""
    return hasattr(config, "workerinput") or any(
        config.getoption(option, False) for option in ("collectonly", "setuponly", "setupplan")
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Starts the progress display before a worker of pytest-xdist starts; SIGTERM then acts like Ctrl-C."""
    if _gate(node.config) or any(".int8acc.y" in arg for arg in node.config.args):
        from pytest_int8acc.plugin import progress, termination

        progress.start(node.config).share(node)
        termination.start(node.config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Returns the number of GPUs as the number of workers for ``-n auto`` if specs run on TensorRT.

    Otherwise it returns None, and pytest-xdist decides.
    """
    backend = config.getoption("int8acc_backend") or config.getini("int8acc_backend")
    if not _gate(config) or backend != "tensorrt":
        return None
    from pytest_int8acc.plugin.session import visible_devices

    return len(visible_devices()) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Frees the local variables of a failed test, which would otherwise stay until a garbage collection."""
    try:
        return (yield)
    finally:
        if raised := item.stash.get(_RAISED, []):
            from pytest_int8acc.plugin.tracebacks import clear_frames

            for error in raised:
                clear_frames(error)
            raised.clear()


def _holds_cases(item: pytest.Item) -> bool:
    """Returns whether ``item`` is a case, or a user's own test that uses fixtures of this plugin."""
    fixtures = getattr(item, "fixturenames", ())
    return item.path.name.endswith(SUFFIXES) or any(name.startswith("int8acc") for name in fixtures)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adjusts the report of a case, or of a user's test that uses fixtures of this plugin.

    A case that cannot be judged is reported as text without a traceback. In the call phase pytest gets this
    text from the item; for setup and teardown it is set here. The report of a user's own test gets the
    messages of the cases that failed in it. Passwords in URLs are hidden.
    """
    with _traceback_for_users(item, call):
        report = yield
    if call.when != "call" and call.excinfo is not None and item.path.name.endswith(SUFFIXES):
        from pytest_int8acc.plugin.items import SpecItem, plain

        if isinstance(item, SpecItem) and (text := plain(item.config, call.excinfo.value)) is not None:
            report.longrepr = text
        elif isinstance(item, SpecItem) and report.skipped and isinstance(report.longrepr, tuple):
            # A skip is reported at the line of the case in the spec, instead of a line of this plugin.
            report.longrepr = (str(item.path), item.case.line + 1, report.longrepr[2])
    if call.when == "call" and report.failed:
        _show_cases(item, report)
    if call.when == "teardown":
        item.config.stash.get(ASKED, []).clear()
    if call.when == "call" and item.config.getoption("htmlpath", None) and item.path.name.endswith(SUFFIXES):
        from pytest_int8acc.plugin.reporting import attach

        attach(item.config.pluginmanager.getplugin("html"), report)
    _hide_secrets(item.config, report)
    return report


def _hide_secrets(config: pytest.Config, report: pytest.TestReport) -> None:
    """Removes the passwords of configured URLs from a report.

    Tracebacks show arguments, and libraries log URLs, so both may contain passwords.
    """
    keys = ("int8acc_cache_dir", "int8acc_goldens")
    given = [config.getoption("int8acc_cache_dir"), *map(config.getini, keys)]
    urls = [str(url) for url in given if url and is_url(str(url))]
    if not urls:
        return
    report.sections = [(title, without_secrets(text, *urls)) for title, text in report.sections]
    text = str(report.longrepr)
    hidden = without_secrets(text, *urls)
    if hidden != text and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = path, line, without_secrets(reason, *urls)
    elif hidden != text:
        report.longrepr = hidden


def _traceback_for_users(item: pytest.Item, call: pytest.CallInfo[None]) -> AbstractContextManager[None]:
    """Returns a context in which the traceback of a failed test ends at the user's own line.

    This applies to cases and to tests that use fixtures of this plugin, unless ``--full-trace`` is given. A
    case that is reported as text alone has no traceback. The raised exception is remembered, so that the
    variables of its frames can be freed after pytest has reported the test.
    """
    if call.excinfo is None or not _holds_cases(item):
        return nullcontext()
    from pytest_int8acc.plugin.items import SpecItem, plain
    from pytest_int8acc.plugin.tracebacks import ending_at_users_line, without_frames

    error = call.excinfo.value
    item.stash.setdefault(_RAISED, []).append(error)
    if isinstance(item, SpecItem) and call.when != "call" and plain(item.config, error) is not None:
        return without_frames(error)
    return nullcontext() if item.config.getoption("fulltrace", False) else ending_at_users_line(error)


def _show_cases(item: pytest.Item, report: pytest.TestReport) -> None:
    """Adds the messages of failed cases to the report of the user's test that ran these cases.

    The test got the results of these cases from the fixture ``int8acc``, or as values of its own fixtures.
    """
    asked = item.config.stash.get(ASKED, [])
    given = getattr(item, "funcargs", {}).values() if ASKED in item.config.stash else ()
    if not asked and not given:
        return
    from pytest_int8acc.plugin.terminal import SECTION
    from pytest_int8acc.report.plain import for_people
    from pytest_int8acc.report.text import failure
    from pytest_int8acc.report.view import CaseView
    from pytest_int8acc.results import CaseResult

    known = {id(result): result for result in (*asked, *given) if isinstance(result, CaseResult)}
    for result in map(for_people, known.values()):
        if not result.passed:
            title = SECTION + result.name
            report.sections.append((title, failure(CaseView(result), item.config.get_verbosity())))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the list of spec files that were not run from a worker of pytest-xdist to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        not_run = session.config.stash[_NOT_RUN]
        output[_NOT_RUN_OUTPUT] = sorted(not_run)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receives a worker's list of the spec files that were not run. All workers send the same list."""
    output = getattr(node, "workeroutput", None) or {}  # a crashed worker has no output
    node.config.stash[_NOT_RUN].update(output.get(_NOT_RUN_OUTPUT, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes one line per case, more with -v and -vv, and a hint if spec files were not run."""
    if _reported(terminalreporter):
        from pytest_int8acc.plugin.reporting import write_section

        write_section(terminalreporter, config.get_verbosity())
    if count := len(config.stash[_NOT_RUN]):
        from pytest_int8acc.plugin.reporting import write_wrapped

        files = "spec file" if count == 1 else "spec files"
        hint = "pass --int8acc, or set int8acc = true in the pytest configuration"
        write_wrapped(terminalreporter, f"int8acc: {count} {files} not run ({hint})", yellow=True)


def _reported(terminalreporter: pytest.TerminalReporter) -> bool:
    """Returns whether pytest has a report of a spec file or of a case."""
    from pytest_int8acc.plugin.reporting import judged_reports

    nodeids = (getattr(report, "nodeid", "") for _, report in judged_reports(terminalreporter))
    return any(nodeid.partition("::")[0].endswith(SUFFIXES) for nodeid in nodeids)


def _summed_up(terminalreporter: pytest.TerminalReporter) -> AbstractContextManager[None]:
    """Returns a context in which pytest's summary prints failures of cases in lines that fit the terminal."""
    if not _reported(terminalreporter):
        return nullcontext()
    from pytest_int8acc.plugin.terminal import summed_up

    return summed_up(terminalreporter)


class _Last:
    """Writes the report after all other parts of the summary, so that the report's path is printed last."""

    def __init__(self) -> None:
        self._written = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Writes the report if pytest prints no summary, as after ``pytest.exit`` with a return code."""
        result = yield
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if not self._written and reporter is not None:
            self._write(reporter, session.config)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> Generator[None, Any, Any]:
        """Writes the report folder and GitHub's step summary, and prints where they are."""
        with _summed_up(terminalreporter):
            result = yield
        self._write(terminalreporter, config)
        return result

    def _write(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        self._written = True
        if not _is_idle(config) and (_reported(terminalreporter) or _gate(config)):
            from pytest_int8acc.plugin.reporting import write_reports, write_wrapped
            from pytest_int8acc.plugin.session import report_folder

            for line, failed in write_reports(terminalreporter, report_folder(config)):
                write_wrapped(terminalreporter, shown(line), red=failed)
