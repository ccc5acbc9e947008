"""What reports say of each sample, by every renderer, as a user gets it.

After a change that is meant: REWRITE_GOLDEN=1 pytest tests/report/test_snapshots.py, and read the difference.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plugin_support import CONFTEST, LOAD, spec
from report_cases import SCHEMA, enumerated
from report_readers import by_case
from report_samples import RESULTS

SNAPSHOTS = Path(__file__).parent / "snapshots"
#: A conftest whose cases are measured as the sample of their name was.
MEASURED = f"""{CONFTEST}
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from dataclasses import replace

from pytest_int8acc.report.plain import restore
from report_samples import RESULTS


def measure(case, settings, goldens=None, clock=None, builders=None):
    result = restore(RESULTS[case.name])
    result = replace(result, seconds=result.seconds or 0.01)  # not what this run takes
    return types.SimpleNamespace(result=result, settings=settings, close=lambda: None)


stand_in("case.measured", measure=measure)
"""
#: Places in an entry of report.json that hold sentences, and what else is made of a result.
SAID = re.compile(
    r"\.(text|advice|note|alone|reason|summary|margin|interrupted)$|^(plan|trials|builds)\b|(remarks|written)\["
)
#: Elements of a page that begin a line, and those that stand apart from the text around them.
BLOCKS = {"tr", "p", "h2", "h3", "h4", "li", "summary", "caption", "pre", "div", "article", "section", "svg"}
APART = {"td", "th", "dt", "dd", "span", "small", "b", "em", "code", "text", "title"}


class Page(HTMLParser):
    """The visible lines of each case of a page: its row in the table of cases, then its section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.case = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if (tag == "tr" and "data-case" in known) or (tag == "details" and "data-verdict" in known):
            self.case = known.get("data-case") or known["id"] or ""
        elif tag == "script":
            self.case = ""
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in BLOCKS:
            self._put("\n")
        elif tag in APART:
            self._put(" ")

    def handle_data(self, data: str) -> None:
        self._put(re.sub(r"\s+", " ", data))

    def _put(self, text: str) -> None:
        if self.case:
            self.texts.setdefault(self.case, []).append(text)

    def lines(self, number: int) -> list[str]:
        """Those of a case, by its place in the report, but for the settings of this run."""
        text = "".join(self.texts[f"case-{number}"])
        lines = [" ".join(line.split()) for line in text.split("\n") if line.strip()]
        return [
            line for line in lines if line != "Settings" and not line.startswith("backend auto (default)")
        ]


def sentences(value: Any, place: str = "") -> Iterator[str]:
    """What an entry of report.json says beside what was measured, each with its place."""
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from sentences(inner, f"{place}[{number}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from sentences(inner, f"{place}.{key}".lstrip("."))
    elif value not in ("", None) and SAID.search(place):
        yield f"{place}: {value:.6g}" if isinstance(value, float) else f"{place}: {value}"


def strings(value: Any) -> Iterator[str]:
    """All strings in plain JSON types, keys left out."""
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, dict) else value
    for one in inner if isinstance(value, dict | list | tuple) else ():
        yield from strings(one)


def test_the_samples_show_every_value_that_a_result_may_have() -> None:
    known = SCHEMA["definitions"]
    shown = ("Cause", "Ablation", "DeadCandidate", "Ending", "LineFit", "Repair", "StageLine", "Stop")
    kinds = enumerated([known[name] for name in shown])
    assert kinds - {"framework"} <= set(strings([*RESULTS.values()]))


def without(lines: list[str], known: list[str]) -> list[str]:
    """The lines that are not ``known``."""
    return [line for line in lines if line and line not in known]


def test_every_sample_reads_as_it_was_kept(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2", reason="pip install jinja2")
    pytester.makeconftest(MEASURED)
    (pytester.path / "report.int8acc.yaml").write_text(spec(*RESULTS), encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "5000")  # nothing is wrapped
    few, more = (
        by_case(pytester.runpytest(*LOAD, "--int8acc", *flag).stdout.str(), RESULTS) for flag in ((), ("-v",))
    )
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    most = by_case(
        pytester.runpytest(*LOAD, "--int8acc", "-vv", "--int8acc-report=out").stdout.str(), RESULTS
    )
    page = Page((pytester.path / "out" / "report.html").read_text(encoding="utf-8"))
    report = json.loads((pytester.path / "out" / "report.json").read_text(encoding="utf-8"))
    summary = (pytester.path / "summary.md").read_text(encoding="utf-8").replace("\\", "").split("\n### ")
    sections = {section.partition("\n")[0]: section.splitlines()[1:] for section in summary[1:]}
    assert [entry["nodeid"] for entry in report["cases"]] == [
        f"report.int8acc.yaml::{name}" for name in RESULTS
    ]
    found = {}
    for number, (name, entry) in enumerate(zip(RESULTS, report["cases"], strict=True), 1):
        parts = {
            "terminal": few[name],
            "terminal, more with -v": without(more[name], few[name]),
            "terminal, more with -vv": without(most[name], few[name] + more[name]),
            "step summary": without(sections.get(entry["nodeid"], []), []),
            "report.html": page.lines(number),
            "report.json": list(sentences(entry)),
        }
        found[f"{name}.txt"] = "".join(
            f"=== {title}\n" + "\n".join(lines) + "\n" for title, lines in parts.items()
        )
    if os.environ.get("REWRITE_GOLDEN"):
        SNAPSHOTS.mkdir(exist_ok=True)
        for path in SNAPSHOTS.iterdir():
            path.unlink()
        for name, text in found.items():
            (SNAPSHOTS / name).write_text(text, encoding="utf-8")
    kept = {path.name: path.read_text(encoding="utf-8") for path in SNAPSHOTS.iterdir()}
    assert kept.keys() == found.keys()
    changed = [
        line
        for name in kept
        for line in difflib.unified_diff(kept[name].splitlines(), found[name].splitlines(), name, name, n=0)
    ]
    assert not changed, "\n".join(changed[:200])
