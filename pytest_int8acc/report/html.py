"""``report.html``: one page that needs nothing else, and the piece of it that pytest-html shows.

Every text is escaped by jinja2; beyond that a content security policy lets no script run but the page's own.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_int8acc.names import shown_lines
from pytest_int8acc.report import drawing, view
from pytest_int8acc.report.answer import failure_line
from pytest_int8acc.report.causes import advice, cause_text
from pytest_int8acc.report.engines import role_text
from pytest_int8acc.report.labels import number_cells
from pytest_int8acc.report.plain import restore, to_plain
from pytest_int8acc.report.search import alone_text, tradeoff_text
from pytest_int8acc.report.summary import stage_text, stage_title
from pytest_int8acc.report.terminal import tallies
from pytest_int8acc.report.text import status
from pytest_int8acc.report.words import formats, number, relation
from pytest_int8acc.results import by_rule

if TYPE_CHECKING:
    import jinja2

_FOLDER = "report/templates"
#: Nothing from anywhere; the one script is known by its hash.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
    "base-uri 'none'; form-action 'none'"
)


def page(report: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """The whole page of what ``report.json`` holds, with the ``texts`` of files written by cases, by name."""
    environment = _environment()
    script = _source(environment, "script.js")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    return environment.get_template("page.html").render(
        report=report,
        cases=view.case_views(report, texts),
        tallies=tallies(report),
        formats=formats(report["cases"]),
        style=_source(environment, "style.css"),
        script=script,
        policy=_POLICY.format(digest=digest),
        width=view.WIDTH,
        height=view.HEIGHT,
        curve_height=drawing.CURVE_HEIGHT,
    )


def fragment(details: Mapping[str, Any]) -> str:
    """The scores and culprits of one case, ``to_plain`` of its result, to stand in another page."""
    result = restore(details)
    said = status(result) if result.passed else failure_line(result)
    return _environment().get_template("fragment.html").render(case=view.measured_view(result, {}), said=said)


@cache
def _environment() -> jinja2.Environment:
    """The templates; slow to read."""
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
        "relation": relation,
        "plain": to_plain,
        "cause_text": cause_text,
        "advice": advice,
        "stage_text": stage_text,
        "stage_title": stage_title,
        "role_text": role_text,
        "alone_text": alone_text,
        "by_rule": by_rule,
        "histogram": view.histogram,
        "drawing": drawing.drawing,
        "chart": drawing.chart,
        "tradeoff_text": tradeoff_text,
        "png": drawing.png,
        "curves": drawing.curves,
        "cells": number_cells,
        "time": view.time_text,
        "size": view.size_text,
        "share": "{:.1%}".format,
    }
    return environment


def _compiled() -> jinja2.BytecodeCache | None:
    """Compiled templates, kept where Python keeps its own of this package; None where it keeps none."""
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
    """A file of ours as it is: it goes into the page unescaped."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0].strip()
