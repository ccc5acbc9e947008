"""What a session writes when it ends, as a user of pytest meets it."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin_support import LOAD, spec
from report_cases import SCHEMA
from rich_project import RICH, normal

pytest.importorskip("jinja2", reason="pip install jinja2")

pytestmark = pytest.mark.usefixtures("quick_processes")

RUNS = {
    "plain": (),
    "loadgroup": ("-n2", "--dist", "loadgroup"),
    "no cache": ("-p", "no:cacheprovider"),
}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Cases of every verdict, one of them in a group of pytest-xdist's, and a spec that cannot be read."""
    pytester.makeconftest(RICH)
    pytester.makeini("[pytest]\nmarkers = xdist_group: run together")
    write(pytester, "a", spec("rich-bad", "rich-good", marks="[xdist_group]"))
    write(pytester, "b", spec("good", "broken", "bad-known", xfail="by hand"))
    write(pytester, "c", "modle: c.onnx\n")
    return pytester


def write(pytester: pytest.Pytester, name: str, text: str) -> None:
    (pytester.path / f"{name}.int8acc.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    args = (*LOAD, "--int8acc", "--continue-on-collection-errors")
    return lambda *more: pytester.runpytest(*args, *more)


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def section(result: pytest.RunResult) -> list[str]:
    """The lines of the terminal section."""
    lines = result.stdout.lines
    start = next(i for i, line in enumerate(lines) if re.match("=+ int8acc =+", line))
    rest = lines[start + 1 :]
    return rest[: next(i for i, line in enumerate(rest) if line.startswith("===="))]


def test_every_way_of_running_gives_the_same_files_and_the_same_section(project, run):
    jsonschema = pytest.importorskip("jsonschema")
    written, sections = [], []
    for name, args in RUNS.items():
        folder = project.path / f"out-{name.replace(' ', '')}"
        result = run("-v", "-p", "no:randomly", "--int8acc-report", folder.name, *args)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        sections.append(normal("\n".join(section(result))))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        written.append({str(path.relative_to(folder)): normal(path.read_text()) for path in files})
        jsonschema.validate(read(folder), SCHEMA, jsonschema.Draft7Validator)
    assert set(written[0]) == {"report.html", "report.json", "a/rich-bad/plan.yaml", "b/bad-known/plan.yaml"}
    assert all(files == written[0] for files in written)
    assert all(lines == sections[0] for lines in sections)
    assert "FAILED a.int8acc.yaml::rich-bad - 'logits' cosine 0.8741 < 0.999" in sections[0]
    assert "@" not in sections[0]
    report = json.loads(written[0]["report.json"].replace(": X", ": 0,").replace(",,", ","))
    verdicts = [(case["nodeid"], case["verdict"]) for case in report["cases"]]
    assert verdicts == [
        ("a.int8acc.yaml::rich-bad", "failed"),
        ("a.int8acc.yaml::rich-good", "passed"),
        ("b.int8acc.yaml::good", "passed"),
        ("b.int8acc.yaml::broken", "error"),
        ("b.int8acc.yaml::bad-known", "xfailed"),
    ]
    assert [error["nodeid"] for error in report["errors"]] == ["c.int8acc.yaml"]
    assert "c.int8acc.yaml:1:1:" in report["errors"][0]["message"]
    assert report["cases"][0]["written"] == ["a/rich-bad/plan.yaml"]


def test_the_path_of_the_report_is_printed_last(project, run):
    result = run("--int8acc-report", "out")
    lines = result.stdout.lines
    assert re.fullmatch(r"=+ 1 failed.* in .*=+", lines[-1])
    assert lines[-2] == f"int8acc: report in {project.path}/out/report.html, {project.path}/out/report.json"
    assert any("short test summary" in line for line in lines[:-2])


def test_without_jinja2_a_note_says_how_to_get_the_page(project, run, monkeypatch):
    monkeypatch.setattr("pytest_int8acc.report.folder.find_spec", lambda name: None)
    result = run("--int8acc-report", "out")
    assert result.stdout.lines[-3:-1] == [
        "int8acc: no report.html: jinja2 is not installed (pip install jinja2)",
        f"int8acc: report in {project.path}/out/report.json",
    ]
    assert not (project.path / "out" / "report.html").exists()


def test_nothing_is_written_where_nothing_ran(project, run, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    run("--int8acc-report", "out", "--collect-only")
    run("--int8acc-report", "out", "--setup-plan", "--ignore=c.int8acc.yaml")
    project.makepyfile("def test_x(): pass")
    project.runpytest(*LOAD, "--int8acc-report", "out")  # the gate is shut
    assert not (project.path / "out").exists()
    assert not (project.path / "summary.md").exists()


def test_a_shard_without_cases_still_writes_its_report(project, run):
    run("--int8acc-report", "out", "-k", "nothing", "--ignore=c.int8acc.yaml")
    assert read(project.path / "out")["cases"] == []


def test_a_case_that_fails_to_clean_up_is_an_error(project, run):
    folder = project.mkdir("models")
    write(project, "models/d", spec("good"))
    (folder / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def late():\n"
        "    yield\n"
        "    raise OSError('too late')\n"
    )
    result = run("models", "--int8acc-report", "out")
    (case,) = read(project.path / "out")["cases"]
    assert case["verdict"] == "error"
    assert "OSError: too late" in case["message"]
    result.assert_outcomes(passed=1, errors=1)
    said = [
        "PASSED models/d.int8acc.yaml::good - 'logits' *",
        "ERROR models/d.int8acc.yaml::good - OSError: *",
    ]
    result.stdout.fnmatch_lines(said)
    assert case["scores"][0]["value"] == 0.9996


def test_a_summary_for_github(project, run, monkeypatch):
    path = project.path / "summary.md"
    path.write_text("# Of the step before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    run()
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Of the step before\n## INT8 accuracy: 1 failed, 2 error, 1 xfailed, 2 passed\n")
    assert "| ❌ failed | a.int8acc.yaml\\:\\:rich\\-bad | 'logits' cosine 0.8741 &lt; 0.999" in text
    assert "100 % of the MACs stay in INT8" in text
    assert "0.01634 times as wide; 'logits' cosine 0.9993" in text


def test_a_summary_that_cannot_be_written_costs_a_line(project, run, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "none" / "summary.md"))
    result = run("a.int8acc.yaml", "--int8acc-report", "out")
    result.stdout.fnmatch_lines(
        ["int8acc: GITHUB_STEP_SUMMARY *summary.md: cannot be written: No such file or directory"]
    )
    assert (project.path / "out" / "report.json").exists()


def test_junit_holds_the_facts_of_the_verdict(project, run):
    run("a.int8acc.yaml", "--junitxml=junit.xml")
    suite = ElementTree.parse(project.path / "junit.xml").getroot()[0]
    found = {p.get("name"): p.get("value") for p in suite.find("testcase[@name='rich-bad']").iter("property")}
    assert found["int8acc.logits.cosine"] == "0.8741"
    assert found["int8acc.passed"] == "False"
    assert found["int8acc.culprits"] == "/layer2/0/conv1/Conv /layer4/1/conv2/Conv"
    assert found["int8acc.fix"] == "verified"
    assert found["int8acc.int8_share"] == "0.896"
    assert found["int8acc.int8_layers"] == "45 of 54"
    assert found["int8acc.speedup"] == "1.3443"
    assert found["int8acc.stage"] == "Q/DQ in ONNX Runtime"
    assert found["int8acc.why"].startswith("scales too wide in 1 layer; ")
    assert found["int8acc.cheaper_fix"].startswith("no layer needs FP16: other scales")
    good = suite.find("testcase[@name='rich-good']")
    names = {p.get("name") for p in good.iter("property")}
    assert "int8acc.passed" in names
    assert not {"int8acc.culprits", "int8acc.fix", "int8acc.why"} & names


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])
def test_pytest_html_shows_scores_and_culprits(project, pytester, workers):
    pytest.importorskip("pytest_html")
    wanted = {"-pno:html", "-pno:html_fixtures", "-pno:metadata"}
    load = (argument for argument in LOAD if argument not in wanted)
    options = ("--int8acc", "--html=plain.html", "--self-contained-html", *workers)
    pytester.runpytest(*load, "a.int8acc.yaml", *options)
    page = (project.path / "plain.html").read_text(encoding="utf-8")
    data = re.search(r'data-jsonblob="([^"]*)"', page)[1]
    tests = json.loads(html.unescape(data))["tests"]
    (extra,) = tests["a.int8acc.yaml::rich-bad"][0]["extras"]
    assert extra["format_type"] == "html"
    assert "INT8 accuracy: &#39;logits&#39; cosine 0.8741 &lt; 0.999" in extra["content"]
    assert "<td>/layer2/0/conv1/Conv</td>" in extra["content"]
    assert "<b>Fix</b> 100 % of the MACs stay in INT8: other scales for " in extra["content"]


def test_a_rerun_case_is_one_entry(project, run):
    pytest.importorskip("pytest_rerunfailures")
    reruns = ("-p", "pytest_rerunfailures", "--reruns=1")
    run("a.int8acc.yaml::rich-good", "b.int8acc.yaml::broken", *reruns, "--int8acc-report", "out")
    verdicts = [case["verdict"] for case in read(project.path / "out")["cases"]]
    assert verdicts == ["passed", "error"]
