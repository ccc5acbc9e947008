"""A project whose cases show all that a report can show."""

from __future__ import annotations

import re
from pathlib import Path

from plugin_support import CONFTEST

#: A conftest whose cases show all that a report can show; workers have a path of their own.
RICH = (
    CONFTEST
    + f"sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})"
    + """
import dataclasses

import report_cases
from pytest_int8acc.report.plain import restore

simple = measure


def rich(case, settings, goldens=None, clock=None, builders=None):
    if not case.name.startswith("rich"):
        return simple(case, settings)
    result = restore(report_cases.case(case.name, 0.9999 if case.name.endswith("good") else 0.8741))
    return types.SimpleNamespace(result=result, settings=settings, close=lambda: None)


def conclude(measured, folder, root):
    result = measured.result
    if folder is None or result.passed:
        return result
    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text("high: {a: fp16}\\n")
    return dataclasses.replace(result, written=(str(folder / "plan.yaml"),))


stand_in("case.measured", measure=rich)
stand_in("answer", conclude=conclude)
"""
)


def normal(text: str) -> str:
    """A file without what differs from run to run: times, and the folder's name."""
    text = re.sub(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.0-9]*(\+00:00)?", "TIME", text)
    text = re.sub(r'("seconds"|"cpu_seconds"|"passes"|"peak_bytes"|"settings"): [^\n]*', r"\1: X", text)
    text = re.sub(r'(data-label="Seconds") data-v="[\d.e-]+">[\d.]+<', r"\1>X<", text)
    return re.sub(r"/out-[a-z0-9]+|report out-[a-z0-9]+ \S+", "/out", text)
