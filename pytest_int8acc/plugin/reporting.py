"""Writes the reports of a session: the section in the terminal, the report folder, and recorded goldens."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_int8acc.errors import Int8accError, installed
from pytest_int8acc.names import shown, shown_lines, wrapped
from pytest_int8acc.plugin.session import golden_root
from pytest_int8acc.settings import SUFFIXES

if TYPE_CHECKING:
    from pytest_int8acc.report.json import Report
    from pytest_int8acc.report.view import CaseView

#: The name of an entry in ``user_properties`` of a case's report. The entry exists if scores miss limits.
MISSED = "int8acc.missed"
#: The categories by which pytest's terminal reporter stores reports.
VERDICTS = ("passed", "failed", "error", "xfailed", "xpassed", "skipped")
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
#: Maximum number of characters of a message, such as a traceback, in the report. The end of a longer message
#: is left out.
_MESSAGE = 20_000

#: A line to print, and whether the line reports a failure.
Line = tuple[str, bool]
#: A verdict in pytest's words, such as ``failed``, and the report that has this verdict.
Judged = tuple[str, pytest.TestReport]
#: The name of an entry in ``user_properties`` of a test's report. It holds lines on the goldens (files of
#: recorded outputs and scores) that the test has recorded.
RECORDED = "int8acc.recorded"
#: The name under which the only :class:`LiveReport` is registered as a plugin of pytest.
LIVE = "int8acc-live-report"
#: The name of the HTML page in the report folder.
PAGE = "report.html"


def judged_reports(
    terminalreporter: pytest.TerminalReporter,
) -> Iterator[tuple[str, pytest.TestReport | pytest.CollectReport]]:
    """Yield each report that pytest's terminal reporter has, of tests and of collectors, with its verdict."""
    for verdict in VERDICTS:
        for report in terminalreporter.getreports(verdict):
            yield verdict, report


def missed(report: pytest.TestReport) -> bool:
    """Return whether the report says that a case failed because its scores miss limits.

    The result is False for other failures: an error in the teardown, and a strict xfail that passed.
    """
    return report.when == "call" and MISSED in dict(report.user_properties)


def write_section(terminalreporter: pytest.TerminalReporter, verbosity: int) -> None:
    """Writes the plugin's section into the terminal: a line for each case, and details with -v and -vv.

    With -q only failed cases have a line.
    """
    from pytest_int8acc.report.verdict import status_line

    reports = [
        (verdict, report)
        for verdict, report in case_reports(terminalreporter)
        if verbosity >= 0 or report.failed
    ]
    width = terminal_width(terminalreporter)
    if reports:
        terminalreporter.write_sep("=", "int8acc")  # section() would not start on a new line
    for verdict, report in reports:
        word = verdict.upper()
        properties = dict(report.user_properties) if not report.failed or missed(report) else {}
        said = shown(status_line(nodeid_of(report), properties, first_line(report)))
        first, *more = wrapped(f"{word} {said}", width)
        terminalreporter.write(word, **{color(verdict): True})
        terminalreporter.write_line(first.removeprefix(word))
        if verbosity > 0:
            from pytest_int8acc.report.text import detail_lines

            details = detail_lines(properties, verbosity, width - 4, failed=report.failed)
            more += ["    " + shown(line) for line in details]
        for line in more:
            terminalreporter.write_line(line)


def terminal_width(terminalreporter: pytest.TerminalReporter) -> int:
    """Return the width of the terminal in characters."""
    width: int = terminalreporter.config.get_terminal_writer().fullwidth
    return width


def write_wrapped(terminalreporter: pytest.TerminalReporter, text: str, **markup: bool) -> None:
    """Writes ``text`` to the terminal. Lines that are too long are wrapped.

    ``markup`` are keywords of pytest's terminal writer, like ``red=True``.
    """
    width = terminal_width(terminalreporter)
    for line in text.split("\n"):
        for part in wrapped(line, width):
            terminalreporter.write_line(part, **markup)


def case_reports(terminalreporter: pytest.TerminalReporter) -> list[Judged]:
    """Return the verdict and the report of each case, sorted by the spec's path and the line of the case."""
    reports = [
        (verdict, report)
        for verdict, report in judged_reports(terminalreporter)
        if isinstance(report, pytest.TestReport) and report.location[0].endswith(SUFFIXES)
    ]
    return sorted(reports, key=lambda pair: (pair[1].location[0], pair[1].location[1] or 0))


def nodeid_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the node id of the report's test, without what pytest-xdist appends to it."""
    return without_group(report.nodeid)


def without_group(nodeid: str) -> str:
    """Return a node id without the suffix that pytest-xdist's ``--dist loadgroup`` appends."""
    path, separator, name = nodeid.rpartition("::")
    return path + separator + name.partition("@")[0] if separator else nodeid


def color(verdict: str) -> str:
    """Return the color in which the terminal shows a verdict."""
    return {"passed": "green", "failed": "red", "error": "red"}.get(verdict, "yellow")


def write_reports(terminalreporter: pytest.TerminalReporter, folder: Path | None) -> list[Line]:
    """Writes the report folder and GitHub's step summary, if they are requested, and returns lines to print.

    The lines say where the report is. If a folder or file cannot be written, a line says so, and no error is
    raised.
    """
    if folder is None and not os.environ.get(_STEP_SUMMARY):
        return []
    from pytest_int8acc.report.folder import write_folder

    report = gather(terminalreporter, folder)
    lines = _summarize(report)
    if folder is None:
        return lines
    try:
        return lines + _named(write_folder(folder, report))
    except OSError as error:
        return [*lines, (f"int8acc: {folder}: cannot be written: {_why(error)}", True)]


def _summarize(report: Report) -> list[Line]:
    path = os.environ.get(_STEP_SUMMARY)
    if not path:
        return []
    from pytest_int8acc.report.markdown import append_summary

    try:
        append_summary(Path(path), report)
    except OSError as error:
        return [(f"int8acc: {_STEP_SUMMARY} {path}: cannot be written: {_why(error)}", True)]
    return []


def _named(lines: Sequence[str]) -> list[Line]:
    return [(f"int8acc: {line}", False) for line in lines]


@dataclass
class _Case:
    """A case that has ended."""

    entry: dict[str, Any]
    """The case as ``report.json`` holds it."""
    place: tuple[str, int]
    """The spec's path, and the line of the case in it."""
    view: CaseView | None
    text: bytes = b""
    """The text of the case in ``report.json``; empty until it is first written."""


class Cases:
    """Collects the cases of this session that have ended, and makes the report of them.

    Args:
        folder: The report folder. Paths inside it are made relative to it.
    """

    def __init__(self, folder: Path | None) -> None:
        self.selected: dict[str, None] = {}
        """The node ids of the cases that this session is to run. The report lists cases without a result as
        missing."""
        self._folder = folder
        self._cases: dict[str, _Case] = {}
        self._added: dict[int, pytest.TestReport] = {}

    def add(self, verdict: str, report: pytest.TestReport) -> None:
        """Add pytest's report of a case with its verdict. A report that was added before changes nothing."""
        from pytest_int8acc.report.json import later, located
        from pytest_int8acc.report.view import CaseView, view_of

        if id(report) in self._added:
            return
        self._added[id(report)] = report
        view = view_of(dict(report.user_properties))
        if view is not None:
            view = CaseView(located(view.result, self._folder))
        entry, before = _entry(verdict, report, view), self._cases.get(nodeid_of(report))
        if before is not None:
            entry, view = later(before.entry, entry), view or before.view
        place = report.location[0], report.location[1] or 0
        self._cases[nodeid_of(report)] = _Case(entry, place, view)

    def report(self, errors: Mapping[str, str]) -> Report:
        """Returns the report of the cases that were added so far.

        ``errors`` are the messages on specs that could not be read, by the node id of the spec.
        """
        from pytest_int8acc.report.json import VERSION, Report, entry_text

        cases = dict(sorted(self._cases.items(), key=lambda item: item[1].place))
        for case in cases.values():
            case.text = case.text or entry_text(case.entry)
        plain = {
            "version": VERSION,
            "tool": tool(),
            "finished": _iso(None),
            "cases": [case.entry for case in cases.values()],
            "errors": [{"nodeid": nodeid, "message": text} for nodeid, text in sorted(errors.items())],
            "missing": [nodeid for nodeid in self.selected if nodeid not in cases],
        }
        views = {nodeid: case.view for nodeid, case in cases.items() if case.view is not None}
        return Report(plain, views, {nodeid: case.text for nodeid, case in cases.items()})


class LiveReport:
    """Writes ``report.json`` again whenever a case ends. If the run is killed, the ended cases are in it."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.cases = Cases(folder)
        self._config, self._folder = config, folder

    def begin(self, nodeids: Iterable[str]) -> None:
        """Write a report in which the cases with these node ids are missing.

        The HTML page of an earlier run is removed, because it does not belong to this report.
        """
        cases = [without_group(nodeid) for nodeid in nodeids if _is_case(nodeid)]
        if not cases or self.cases.selected.keys() >= set(cases):
            return
        self.cases.selected.update(dict.fromkeys(cases))
        self._write()
        with contextlib.suppress(OSError):
            (self._folder / PAGE).unlink(missing_ok=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a case that has ended to ``report.json``, before the terminal shows it."""
        if not report.location[0].endswith(SUFFIXES):
            return
        verdict = self._config.hook.pytest_report_teststatus(report=report, config=self._config)[0]
        if verdict in VERDICTS:
            # An error here must not end the session. It is raised again when the final report is written.
            with contextlib.suppress(Exception):
                self.cases.add(verdict, report)
                self._write()

    def _write(self) -> None:
        from pytest_int8acc.report.json import write_json

        with contextlib.suppress(OSError):  # the error is reported at the end of the session
            write_json(self._folder, self.cases.report({}))


def _is_case(nodeid: str) -> bool:
    path, separator, _ = nodeid.partition("::")
    return bool(separator) and path.endswith(SUFFIXES)


def gather(terminalreporter: pytest.TerminalReporter, folder: Path | None) -> Report:
    """Returns the report of this session. Paths of files in ``folder``, the report folder, are relative."""
    live: LiveReport | None = terminalreporter.config.pluginmanager.get_plugin(LIVE)
    cases = Cases(folder) if live is None else live.cases
    for verdict, report in case_reports(terminalreporter):
        cases.add(verdict, report)
    return cases.report(
        {
            nodeid_of(report): _whole(report, "")
            for report in terminalreporter.getreports("error")
            if isinstance(report, pytest.CollectReport) and report.nodeid.endswith(SUFFIXES)
        }
    )


@functools.cache
def tool() -> dict[str, str]:
    """Return the name and the version of this plugin, as the report contains them."""
    name = "pytest-int8acc"  # may not be installed: -p pytest_int8acc.plugin loads it from source
    return {"name": name, "version": installed([name]).get(name, "unknown")}


def _entry(verdict: str, report: pytest.TestReport, view: CaseView | None) -> dict[str, Any]:
    from pytest_int8acc.report.json import case_entry

    properties = dict(report.user_properties)
    first = first_line(report)
    whole = verdict in ("failed", "error") and not missed(report)
    message = _whole(report, first) if whole else first
    more: dict[str, Any] = {
        "line": (report.location[1] or 0) + 1,
        "finished": _iso(report.stop),
        "message": message,
    }
    if "int8acc.settings" in properties:
        more["settings"] = str(properties["int8acc.settings"])
    return case_entry(nodeid_of(report), verdict, report.duration, view, **more)


def _iso(seconds: float | None) -> str:
    now = datetime.now(timezone.utc)
    when = datetime.fromtimestamp(seconds, timezone.utc) if seconds else now
    return when.isoformat(timespec="milliseconds")


def first_line(report: pytest.TestReport) -> str:
    """Return the first line of a report's message, or the reason why the test was skipped."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "").partition("\n")[0]


def _whole(report: pytest.TestReport | pytest.CollectReport, first: str) -> str:
    """Return the message of a report with its traceback, at most ``_MESSAGE`` characters.

    ``first``, the first line of the message, is put above the traceback.
    """
    if isinstance(report.longrepr, str):  # longreprtext would begin with the name of the worker
        return report.longrepr[:_MESSAGE]
    text = report.longreprtext
    if text.startswith("[gw"):
        text = text.partition("\n")[2]
    return f"{first}\n\n{text}".strip()[:_MESSAGE]


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def attach(pytest_html: Any, report: Any) -> None:
    """Adds the scores and the layers at fault of a case to its row in the page of pytest-html.

    Args:
        pytest_html: The plugin pytest-html.
        report: pytest's report of the case, of the call phase.
    """
    from pytest_int8acc.report.html import fragment
    from pytest_int8acc.report.view import view_of

    view = view_of(dict(report.user_properties))
    if view is not None:
        extra = pytest_html.extras.html(fragment(view))
        report.extras = [*getattr(report, "extras", []), extra]


def merge(config: pytest.Config, folders: Sequence[str], out: Path | None) -> int:
    """Merges report folders into the folder ``out``, and prints the result.

    Each of ``folders`` is the report folder of a shard, a part of a test run that was split. Returns pytest's
    exit status: 1 if a case failed or is missing, or if a spec or a report could not be read; otherwise 0.

    Raises:
        pytest.UsageError: There is no ``--int8acc-report``, no folder holds a report, or ``out`` cannot be
            written.
    """
    from pytest_int8acc.report.folder import merge_folders, write_folder
    from pytest_int8acc.report.text import merged_lines

    if out is None:
        raise pytest.UsageError("--int8acc-merge needs the folder to write: add --int8acc-report DIR")
    shards = [config.invocation_params.dir / folder for folder in folders]
    try:
        report = merge_folders(shards, out, tool=tool())
        written = write_folder(out, report)
    except Int8accError as error:
        raise pytest.UsageError(f"--int8acc-merge: {error}") from None
    except OSError as error:
        raise pytest.UsageError(
            f"--int8acc-merge: {error.filename or out}: cannot be written: {_why(error)}"
        ) from None
    finding_lines = [line for line, _ in (*_summarize(report), *_named(written))]
    print(*map(shown, (*merged_lines(report), *finding_lines)), sep="\n")
    failed = any(case["verdict"] in ("failed", "error") for case in report.cases)
    bad = failed or report.errors or report.missing
    return pytest.ExitCode.TESTS_FAILED if bad else pytest.ExitCode.OK


class GoldenHooks:
    """Hooks of pytest that record and prune goldens, the files of recorded outputs and accepted scores.

    They are registered only if the command line asks for it.
    """

    def __init__(self) -> None:
        self.arrays: list[str] = []
        """One line for each golden that the running test has recorded by the fixture ``int8acc_golden``."""
        self._recorded: dict[str, dict[str, None]] = {}
        """Node id of a test to the texts about the goldens that it has recorded. With pytest-xdist only the
        controller prints them."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Raises UsageError for ``--int8acc-update`` in CI without ``--int8acc-update-in-ci``."""
        update = config.getoption("int8acc_update")
        in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        if update and in_ci and not config.getoption("int8acc_update_in_ci"):
            raise pytest.UsageError(
                "--int8acc-update records nothing where the variable CI is set: goldens are looked at and "
                "committed by people. Run it on your own machine; or run with --int8acc-report DIR here, "
                "fetch the candidates from DIR and commit them; or add --int8acc-update-in-ci"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds the texts about the goldens that a test has recorded to pytest's report of this test."""
        report = yield
        if self.arrays:
            entry = (RECORDED, "\n".join(self.arrays))
            item.user_properties.append(entry)
            report.user_properties.append(entry)
            self.arrays.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the texts about recorded goldens from pytest's reports.

        All phases are read, because a case records its golden in the setup phase.
        """
        for name, text in report.user_properties:
            if name == RECORDED:
                self._recorded.setdefault(nodeid_of(report), {})[str(text)] = None

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Writes the old and the new scores of recorded goldens, and prunes goldens if asked to."""
        if hasattr(config, "workerinput"):  # pytest calls this in pytest-xdist's workers, too
            return
        if config.getoption("int8acc_update") and not config.getoption("collectonly", False):
            self._tell_recorded(terminalreporter)
        if wish := config.getoption("int8acc_prune"):
            _prune(terminalreporter, config, delete=wish == "delete")

    def _tell_recorded(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._recorded:
            text = "int8acc: no golden was recorded: no test that ran keeps one"
            if terminalreporter.config.getoption("int8acc_update") == "missing":
                text += " that is missing; --int8acc-update=all records all anew"
            write_wrapped(terminalreporter, text, yellow=True)
            return
        terminalreporter.write_sep("=", "int8acc goldens")
        for nodeid, texts in sorted(self._recorded.items()):
            for text in texts:
                lines = f"{nodeid}: " + text.replace("\n", "\n    ")
                write_wrapped(terminalreporter, shown_lines(lines))


def _prune(terminalreporter: pytest.TerminalReporter, config: pytest.Config, *, delete: bool) -> None:
    """Lists the goldens that belong to no case any more; with ``delete`` they are also deleted."""
    from pytest_int8acc.goldens import prune

    try:
        found = prune.survey(config.rootpath, golden_root(config), config.getini("norecursedirs"))
    except (Int8accError, OSError) as error:
        write_wrapped(terminalreporter, f"int8acc: {error}", red=True)
        return
    for text in found.unknown:
        write_wrapped(terminalreporter, shown(f"int8acc: {text}"), yellow=True)
    count = len(found.orphans)
    said = "1 orphan" if count == 1 else f"{count} orphans"
    how = " (--int8acc-prune=delete deletes them)" if count and not delete else ""
    write_wrapped(terminalreporter, f"int8acc: {said if count else 'no orphans'} among the goldens{how}")
    for orphan in found.orphans:
        try:
            gone = delete and prune.delete(orphan)
        except Int8accError as error:
            write_wrapped(terminalreporter, f"    {error}", red=True)
        else:
            write_wrapped(terminalreporter, shown(f"    {'deleted ' if gone else ''}{orphan}"))
