"""What a terminal shows of cases that fail: each text once, in lines that fit."""

from __future__ import annotations

import pytest
from plugin_support import LOAD, spec
from rich_project import RICH

WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Cases of every verdict, one of them with all that a result can hold."""
    pytester.makeconftest(RICH)
    for name, text in {"a": spec("rich-bad", "rich-good"), "b": spec("good", "broken", "bad")}.items():
        (pytester.path / f"{name}.int8acc.yaml").write_text(text)
    return pytester


@WORKERS
@pytest.mark.parametrize(("arguments", "ci"), [(("-vv",), ""), ((), "1")], ids=["vv", "ci"])
def test_a_failure_is_printed_once(
    project: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    workers: tuple[str, ...],
    arguments: tuple[str, ...],
    ci: str,
) -> None:
    """pytest's short summary prints whole messages with -vv, and on a CI machine."""
    if workers:
        pytest.importorskip("xdist")
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
