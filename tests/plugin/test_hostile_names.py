"""Names of models, outputs, layers, metrics and files on their way through everything that a run writes."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import onnx
import pytest
from case_files import run, write
from hostile import HOSTILE, NOT_IN_ONNX, acts, in_a_line, obeyed
from plugin_support import CONFTEST, LOAD, spec

pytestmark = pytest.mark.usefixtures("quick_processes")

ALL = (*HOSTILE, *NOT_IN_ONNX)
#: Cases whose every text is a hostile name: those with an odd number fail, every third is an error.
MEASURE = f"""
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import dataclasses

import hostile
from pytest_int8acc.errors import DataError
from pytest_int8acc.report.plain import restore

ALL = (*hostile.HOSTILE, *hostile.NOT_IN_ONNX)


def named(case, settings, goldens=None, clock=None, builders=None):
    number = int(case.name.rpartition("-")[2])
    name = ALL[number]
    if number % 3 == 0:
        raise DataError(f"{{name}}: no such file as '{{name}}'")
    result = restore(hostile.renamed(name))
    if number % 2 == 0:
        free = lambda score: dataclasses.replace(score, limit=None)
        outputs = tuple(
            dataclasses.replace(o, problem="", scores=tuple(map(free, o.scores))) for o in result.outputs
        )
        result = dataclasses.replace(result, outputs=outputs, metrics=tuple(map(free, result.metrics)))
    return types.SimpleNamespace(result=result, settings=settings, close=lambda: None)


stand_in("case.measured", measure=named)
"""


#: A name that leads out of a folder, one that ends a table's cell, and one that is long and holds a command.
OF_LAYERS = ("../../../away", "a|b `c`<i>", "x" * 400 + "::error::owned")


@pytest.mark.parametrize("name", OF_LAYERS, ids=range(len(OF_LAYERS)))
def test_a_layer_s_name_in_a_reproducer(pytester: pytest.Pytester, name: str) -> None:
    criteria = [{"sqnr_db": 30}]
    said = {"network": "convs()", "ranges": {"relu1": 60}, "spec": {"criteria": criteria}}
    said["options"] = ["--int8acc-reduce"]
    write(pytester.path, said)
    model = onnx.load(pytester.path / "model.onnx")
    (layer,) = (node for node in model.graph.node if node.name == "conv2")
    layer.name = name
    onnx.save(model, pytester.path / "model.onnx")
    assert [culprit["layer"] for culprit in run(pytester, said)["culprits"]] == [in_a_line(name)]
    (readme,) = (pytester.path / "report").rglob("README.md")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", readme.parent.name)
    assert readme.parent.parent == pytester.path / "report" / "case" / "reduced"
    text = readme.read_text(encoding="utf-8")
    assert (acts(text), obeyed(text)) == ([], [])
    assert "<" not in text
    rows = [line for line in text.splitlines() if line.startswith("| `relu1`")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6]


class Elements(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, frozenset[str]]] = []
        self.parts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, frozenset(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


@pytest.mark.parametrize("xdist", [("-n0",), ("-n2",)], ids=["alone", "xdist"])
def test_every_name_comes_out_harmless_and_readable(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, xdist: tuple[str, ...]
) -> None:
    pytester.makeconftest(CONFTEST + MEASURE)
    names = [f"case-{number}" for number in range(len(ALL))]
    (pytester.path / "a.int8acc.yaml").write_text(spec(*names), encoding="utf-8")
    summary = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("COLUMNS", "5000")  # no name is wrapped
    args = ("--int8acc", "--int8acc-report", "out", "--junitxml", "junit.xml", "-vv", "-rA", *xdist)
    result = pytester.runpytest(*LOAD, *args)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    log = result.stdout.str() + result.stderr.str()
    assert (acts(log), obeyed(log)) == ([], [])
    assert "INTERNALERROR" not in log
    judged = [name for number, name in enumerate(ALL) if number % 3]
    for name in judged:
        assert in_a_line(name) in log
    _check_junit(pytester.path / "junit.xml", judged)
    _check_summary(summary.read_text(encoding="utf-8"))
    text = (pytester.path / "out" / "report.json").read_bytes().decode()
    assert len(json.loads(text)["cases"]) == len(ALL)
    _check_page((pytester.path / "out" / "report.html").read_text(encoding="utf-8"), judged)


def _check_junit(path: Path, judged: list[str]) -> None:
    """Well-formed for a strict parser, each case with all of its properties."""
    suite = ElementTree.fromstring(path.read_bytes())
    found = {case.get("name"): case for case in suite.iter("testcase")}
    assert len(found) == len(ALL)
    for name in judged:
        properties = {
            p.get("name"): p.get("value") for p in found[f"case-{ALL.index(name)}"].iter("property")
        }
        assert f"int8acc.{in_a_line(name)}.{in_a_line(name)}" in properties
        assert json.loads(properties["int8acc.details"])["name"] == in_a_line(name)


def _check_summary(text: str) -> None:
    assert not acts(text)
    rows = [line for line in text.splitlines() if line.startswith("| ") and r"yaml\:\:case\-" in line]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert len(rows) == len(ALL)
    assert not re.search(r"<(?!wbr)", text)


def _check_page(text: str, judged: list[str]) -> None:
    page = Elements(text)
    texts = "".join(page.parts)
    assert not acts(text)
    assert [tag for tag, _ in page.found].count("script") == 1
    assert not [names for _, names in page.found if any(name.startswith("on") for name in names)]
    assert all(in_a_line(name) in texts for name in judged)
