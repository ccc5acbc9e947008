"""pytest's side of goldens: when they are recorded, where they lie, and what is told of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.plugin.reporting import judged_reports

#: What a report carries of a golden that was recorded: its lines.
RECORDED = "int8acc.recorded"


class GoldenHooks:
    """What pytest calls when goldens are recorded or pruned."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Raises UsageError where goldens must not be recorded, or nothing says how."""
        update = config.getoption("int8acc_update")
        if update and _in_ci() and not config.getoption("int8acc_update_in_ci"):
            raise pytest.UsageError(
                "--int8acc-update records nothing where the variable CI is set: goldens are looked at and "
                "committed by people. Run it on your own machine; or run with --int8acc-report DIR here, "
                "fetch the candidates from DIR and commit them; or add --int8acc-update-in-ci"
            )

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Tells old and new scores of each golden recorded, and what is orphaned."""
        if hasattr(config, "workerinput"):  # pytest calls this in pytest-xdist's workers, too
            return
        if config.getoption("int8acc_update") and not config.getoption("collectonly", False):
            _tell_recorded(terminalreporter)
        if wish := config.getoption("int8acc_prune"):
            _prune(terminalreporter, config, delete=wish == "delete")


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _tell_recorded(terminalreporter: pytest.TerminalReporter) -> None:
    recorded = sorted(_recorded(terminalreporter))
    if not recorded:
        terminalreporter.write_line("int8acc: no case's golden was recorded", yellow=True)
        return
    terminalreporter.write_sep("=", "int8acc goldens")
    for nodeid, text in recorded:
        terminalreporter.write_line(f"{nodeid}: " + text.replace("\n", "\n    "))


def _recorded(terminalreporter: pytest.TerminalReporter) -> Iterator[tuple[str, str]]:
    """Node id and lines of each golden recorded, once."""
    found = {}
    for _, report in judged_reports(terminalreporter):
        properties = dict(getattr(report, "user_properties", ()))
        if RECORDED in properties:
            path, _, name = report.nodeid.rpartition("::")
            found[f"{path}::{name.partition('@')[0]}"] = str(properties[RECORDED])
    yield from found.items()


def _prune(terminalreporter: pytest.TerminalReporter, config: pytest.Config, *, delete: bool) -> None:
    """Lists orphans, or deletes them; a controller does, never a worker."""
    from pytest_int8acc.goldens import prune

    try:
        found = prune.survey(config.rootpath, golden_root(config), config.getini("norecursedirs"))
    except (Int8accError, OSError) as error:
        terminalreporter.write_line(f"int8acc: {error}", red=True)
        return
    for text in found.unknown:
        terminalreporter.write_line(f"int8acc: {text}", yellow=True)
    count = len(found.orphans)
    said = "1 orphan" if count == 1 else f"{count} orphans"
    how = " (--int8acc-prune=delete deletes them)" if count and not delete else ""
    terminalreporter.write_line(f"int8acc: {said if count else 'no orphans'} among the goldens{how}")
    for orphan in found.orphans:
        _list_or_delete(terminalreporter, orphan, delete=delete)


def _list_or_delete(terminalreporter: pytest.TerminalReporter, orphan: Any, *, delete: bool) -> None:
    from pytest_int8acc.goldens import prune

    try:
        gone = delete and prune.delete(orphan)
    except Int8accError as error:
        terminalreporter.write_line(f"    {error}", red=True)
        return
    terminalreporter.write_line(f"    {'deleted ' if gone else ''}{orphan}")


def golden_folder(config: pytest.Config, spec: Path) -> str | None:
    """The folder or URL of the goldens of ``spec``; None where they lie beside it."""
    root = golden_root(config)
    return None if root is None else f"{root.rstrip('/')}/{spec_stem(config, spec).as_posix()}"


def spec_stem(config: pytest.Config, spec: Path) -> Path:
    """A spec's path from the root, without its suffix; its name alone where it lies elsewhere."""
    below = config.rootpath in spec.parents
    path = spec.relative_to(config.rootpath) if below else Path(spec.name)
    return path.with_name(path.name.partition(".int8acc.")[0])


def golden_root(config: pytest.Config) -> str | None:
    """The folder or URL of all goldens; None where each lies beside its spec."""
    given = config.getini("int8acc_goldens")
    if not given:
        return None
    return str(given) if "://" in str(given) else str(config.rootpath / str(given))
