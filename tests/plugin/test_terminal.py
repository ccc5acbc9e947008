"""What a terminal shows of cases that fail: each text once, in lines that fit."""

from __future__ import annotations

import re

import pytest
from plugin_support import LOAD, spec
from rich_project import RICH

pytestmark = pytest.mark.usefixtures("quick_processes")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Cases of every verdict, one of them with all that a result can hold."""
    pytester.makeconftest(RICH)
    for name, text in {"a": spec("rich-bad", "rich-good"), "b": spec("good", "broken", "bad")}.items():
        (pytester.path / f"{name}.int8acc.yaml").write_text(text)
    return pytester


LONG = "a-name-that-alone-takes-more-than-half-of-a-line-of-eighty-characters"


@pytest.mark.parametrize(
    ("columns", "verbosity", "workers"),
    [
        *((80, verbosity, ()) for verbosity in ("-q", "", "-v", "-vv")),
        (200, "-v", ()),
        (80, "-vv", ("-n2",)),
    ],
)
def test_lines_fit_the_terminal(
    project: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    verbosity: str,
    workers: tuple[str, ...],
) -> None:
    (project.path / "c.int8acc.yaml").write_text("modle: c.onnx\ninputs: no.npz\n")
    (project.path / f"{LONG}.int8acc.yaml").write_text(spec("rich-bad"))
    monkeypatch.setenv("COLUMNS", str(columns))
    command = [*LOAD, "--int8acc", "--continue-on-collection-errors", *workers, *filter(None, [verbosity])]
    result = project.runpytest(*command)
    result.assert_outcomes(passed=2, failed=3, errors=2)
    start, end = (
        next(i for i, line in enumerate(result.outlines) if f" {title} " in line)
        for title in ("ERRORS", "short test summary info")
    )
    ours = result.outlines[start : end if verbosity == "-vv" else None]  # with -vv pytest cuts no line
    assert [line for line in ours if len(line) > columns and LONG not in line] == []
    summary = " ".join(result.outlines[end:])
    assert f"FAILED {LONG}.int8acc.yaml::rich-bad" in summary
    assert re.search(r"FAILED a.int8acc.yaml::rich-bad - .*0.8741 < 0.999", summary)
    assert ("Stages: " in result.stdout.str()) == (verbosity in ("-v", "-vv"))
    if verbosity == "-vv":
        assert "of the MACs stay in INT8" in " ".join(result.stdout.str().split())


def test_a_narrow_terminal_cuts_nothing(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[int, list[str]] = {}
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = project.runpytest(*LOAD, "--int8acc").outlines
        failures, summary = (
            next(i for i, line in enumerate(lines) if f" {title} " in line and line.startswith("==="))
            for title in ("FAILURES", "short test summary info")
        )
        told[columns] = " ".join(line.strip("_= ") for line in lines[failures:summary]).split()
    assert told[80] == told[200]
    tensor = "'/layer1/1/relu/Relu_output_0', 0.01634 times as wide"
    fix = f"Fix: 100 % of the MACs stay in INT8: other scales for {tensor}; 'logits' cosine 0.9993 >= 0.999"
    assert fix in " ".join(told[80])


@pytest.mark.parametrize(
    ("arguments", "ci", "workers"),
    [(("-vv",), "", ()), ((), "1", ()), ((), "1", ("-n2",))],
    ids=["vv", "ci", "ci-n2"],
)
def test_a_failure_is_printed_once(
    project: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    ci: str,
    workers: tuple[str, ...],
) -> None:
    """pytest's short summary prints whole messages with -vv, and on a CI machine."""
    monkeypatch.setenv("CI", ci)
    result = project.runpytest(*LOAD, "--int8acc", *arguments, *workers, "--junitxml=junit.xml")
    result.assert_outcomes(passed=2, failed=2, errors=1)
    lines = result.outlines
    start = next(i for i, line in enumerate(lines) if "short test summary info" in line)
    assert [line.partition(" ")[0] for line in lines[start + 1 : -1]] == ["FAILED", "FAILED", "ERROR"]
    result.stdout.fnmatch_lines(["FAILED a.int8acc.yaml::rich-bad - INT8 accuracy: * < *"])
    fixes = [line for line in lines if line.startswith("Fix: ")]
    assert len(fixes) == 2
    assert "Fix: " in (project.path / "junit.xml").read_text()
