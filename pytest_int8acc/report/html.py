"""Makes the HTML page ``report.html``, which needs no other file, and HTML on a case for pytest-html's page.

jinja2 escapes every text. In addition, a content security policy allows only the page's own script.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_int8acc.names import shown_lines
from pytest_int8acc.report import charts
from pytest_int8acc.report.json import BAD, Report
from pytest_int8acc.report.text import entry_text, is_failure, tallies
from pytest_int8acc.report.view import CaseView, FileView
from pytest_int8acc.report.words import number

if TYPE_CHECKING:
    import jinja2

_FOLDER = "report/templates"
#: The content security policy of the page: it loads nothing, and only the script with this hash runs.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Section:
    """The section of the HTML page on one case."""

    anchor: str
    entry: Mapping[str, Any]
    view: CaseView | None
    """All sentences about the case; None if the case was not measured."""
    said: str
    """A summary of the case in one line."""
    message: str
    """The message on why the case did not pass; empty if ``view`` or ``said`` has the same text."""
    files: Mapping[str, Sequence[FileView]]

    @property
    def bad(self) -> bool:
        """Whether the case failed or could not be judged."""
        return self.entry["verdict"] in BAD


def page(report: Report, texts: Mapping[str, str]) -> str:
    """Returns the whole HTML page as text.

    Args:
        report: The report of all cases.
        texts: Path to content, for small text files that the cases wrote.
    """
    environment = _environment()
    script = _source(environment, "script.js")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    sections = [
        _section(f"case-{place}", entry, report, texts) for place, entry in enumerate(report.cases, 1)
    ]
    return environment.get_template("page.html").render(
        report=report.plain,
        cases=sorted(sections, key=lambda section: not section.bad),
        tallies=tallies(report),
        formats=report.formats,
        style=_source(environment, "style.css"),
        script=script,
        policy=_POLICY.format(digest=digest),
        width=charts.WIDTH,
        height=charts.HEIGHT,
        curve_height=charts.CURVE_HEIGHT,
    )


def _section(anchor: str, entry: Mapping[str, Any], report: Report, texts: Mapping[str, str]) -> Section:
    view, message = report.view(entry), str(entry.get("message", ""))
    said = entry_text(entry, view, brief=True)
    if message.strip() == said or (view is not None and is_failure(message, view)):
        message = ""
    return Section(anchor, entry, view, said, message, {} if view is None else view.files(texts))


def fragment(view: CaseView) -> str:
    """Returns HTML with the scores and the layers at fault of one case, for the page of pytest-html."""
    said = view.status if view.result.passed else view.failure_line
    return _environment().get_template("fragment.html").render(view=view, said=said)


@cache
def _environment() -> jinja2.Environment:
    """Returns jinja2's environment with the templates of the page. Creating it is slow, so it is cached."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_int8acc", _FOLDER),
        bytecode_cache=_compiled(),
        autoescape=True,
        finalize=lambda value: shown_lines(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "exact": jinja2.filters.do_forceescape,
        "number": number,
        "histogram": charts.histogram,
    }
    return environment


def _compiled() -> jinja2.BytecodeCache | None:
    """Returns a cache of compiled templates in the folder ``__pycache__``; None if it cannot be written."""
    import jinja2

    module = str(Path(__file__).with_name("templates") / "page.py")
    folder = Path(importlib.util.cache_from_source(module)).parent
    with contextlib.suppress(OSError):
        if not sys.dont_write_bytecode:
            folder.mkdir(parents=True, exist_ok=True)
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    versions = f"jinja2-{importlib.metadata.version('jinja2')}.{sys.implementation.cache_tag}"
    return jinja2.FileSystemBytecodeCache(str(folder), f"%s.{versions}.cache")


def _source(environment: jinja2.Environment, name: str) -> str:
    """Returns the text of the file ``name`` in the folder of templates. The page contains it unescaped."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0].strip()
