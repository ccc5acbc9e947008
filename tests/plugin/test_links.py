"""A link in the report folder is no way out of it: what it leads to stays as it was, and the run says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from golden_support import BASE, MINMAX, write_project
from plugin_support import CONFTEST, LOAD, spec

pytestmark = pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
LEADS_OUT = "is a link that leads out of the report folder, to "
FIX = ("fixed.onnx", "plan.yaml", "commands.txt")


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the report folder, with a file of every name that a fix has."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in (*FIX, "report.json", "report.html"):
        (folder / name).write_text("somebody's")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*")}


def failing(report: dict[str, object]) -> dict[str, object]:
    (case,) = [case for case in report["cases"] if case["nodeid"].endswith("by-hand")]
    return case


@pytest.mark.parametrize("link", ["digits/by-hand", "digits/by-hand/reduced"])
def test_in_place_of_a_folder(digits: pytest.Pytester, elsewhere: Path, link: str) -> None:
    place = digits.path / "out" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    before = content(elsewhere)
    arguments = ("--int8acc", "--int8acc-report=out", "--int8acc-reduce", "-k", "by-hand", "-v")
    result = digits.runpytest(*LOAD, *arguments)
    result.assert_outcomes(failed=1, xfailed=1, deselected=3)
    assert content(elsewhere) == before
    result.stdout.fnmatch_lines([f"*: {place} {LEADS_OUT}{elsewhere}: nothing is written through it; *"])
    case = failing(json.loads((digits.path / "out" / "report.json").read_text()))
    assert case["verdict"] == "failed"
    assert any(LEADS_OUT in warning for warning in case["warnings"])
    fixed = digits.path / "out" / "digits" / "by-hand" / "fixed.onnx"
    assert (fixed.exists() and not fixed.samefile(elsewhere / "fixed.onnx")) is (link.count("/") == 2)


def test_in_place_of_a_file_and_within_the_folder(digits: pytest.Pytester, elsewhere: Path) -> None:
    out = digits.path / "out"
    (out / "kept" / "by-hand").mkdir(parents=True)
    (out / "digits").symlink_to("kept")
    for name in FIX:
        (out / "kept" / "by-hand" / name).symlink_to(elsewhere / name)
    for name in ("report.json", "report.html"):
        (out / name).symlink_to(elsewhere / name)
    before = content(elsewhere)
    result = digits.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", "-k", "by-hand")
    result.assert_outcomes(failed=1, xfailed=1, deselected=3)
    assert content(elsewhere) == before
    case = failing(json.loads((out / "report.json").read_text()))
    assert {f"digits/by-hand/{name}" for name in FIX} <= set(case["written"])
    assert all((out / "kept" / "by-hand" / name).is_file() for name in FIX)
    assert not (out / "report.json").is_symlink()


def test_in_place_of_a_candidate_golden(pytester: pytest.Pytester, elsewhere: Path) -> None:
    write_project(pytester.path)
    (pytester.path / "net.int8acc.yaml").write_text(f"{BASE}{MINMAX}golden: true\n")
    pytester.makepyfile("def test_own(int8acc_golden):\n    int8acc_golden('x', [1.0])\n")
    out = pytester.path / "out"
    (out / "net").mkdir(parents=True)
    for place in (out / "golden", out / "net" / "golden"):
        place.symlink_to(elsewhere)
    before = content(elsewhere)
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out")
    result.assert_outcomes(failed=1, errors=1)
    assert content(elsewhere) == before
    result.stdout.fnmatch_lines([f"*no golden yet*No candidate was left: {out}/net/golden {LEADS_OUT}*"])
    result.stdout.fnmatch_lines([f"*no golden yet*No candidate was left: {out}/golden {LEADS_OUT}*"])


def test_where_reports_are_merged(pytester: pytest.Pytester, elsewhere: Path) -> None:
    pytester.makeconftest(CONFTEST)
    (pytester.path / "a.int8acc.yaml").write_text(spec("bad"))
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=shard")
    (pytester.path / "shard" / "a").mkdir()
    (pytester.path / "shard" / "a" / "plan.yaml").write_text("a plan")
    (pytester.path / "out").mkdir()
    (pytester.path / "out" / "a").symlink_to(elsewhere)
    before = content(elsewhere)
    result = pytester.runpytest(*LOAD, "--int8acc-merge", "shard", "--int8acc-report=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*out/a: cannot be written: *{LEADS_OUT}*"])
    assert content(elsewhere) == before
