"""Reports of shards, merged into one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin_support import LOAD, spec
from report_cases import case, entry, report
from rich_project import RICH, normal

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.report.folder import merge_folders
from pytest_int8acc.report.json import read_json, write_json

TOOL = {"name": "pytest-int8acc", "version": "0.1.0"}
EARLY, LATE = "2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00"


def shard(folder: Path, *entries: dict[str, Any], finished: str = EARLY, **more: Any) -> Path:
    """A report folder; each file that an entry names is written, and tells the folder's name."""
    write_json(folder, {**report(*entries, **more), "finished": finished})
    for name in [name for one in entries for name in one.get("written", ())]:
        write(folder / name, folder.name)
    (folder / "report.html").write_text("of the shard")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def ran(name: str, finished: str, *, good: bool = False, **changes: Any) -> dict[str, Any]:
    return entry(case(name, 0.9999 if good else 0.8741, **changes), name, finished=finished)


def merge(out: Path, *folders: Path) -> dict[str, Any]:
    return merge_folders(folders, out, tool=TOOL)


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_cases_stand_in_the_order_of_files_and_lines_and_files_are_copied(tmp_path):
    first = shard(tmp_path / "1", ran("b", EARLY, written=("b/fixed.onnx",)), {**ran("c", EARLY), "line": 9})
    write(first / "golden" / "x.npz", "of no case")
    second = shard(tmp_path / "2", {**ran("a", LATE), "line": 30}, finished=LATE)
    merged = merge(tmp_path / "out", second, first)
    assert [one["name"] for one in merged["cases"]] == ["a", "b", "c"]
    assert merged["merged"] == ["2", "1"]
    assert merged["finished"] == LATE
    assert tree(tmp_path / "out") == {"b/fixed.onnx": "1", "golden/x.npz": "of no case"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_run_that_finished_last_counts_with_its_files_alone(tmp_path, order):
    name = "a/plan.yaml"
    early = shard(
        tmp_path / "1", ran("a", EARLY, written=(name, "a/old.txt")), ran("b", LATE, written=("b/x",))
    )
    late = shard(
        tmp_path / "2",
        ran("a", LATE, written=(name,)),
        ran("b", EARLY, written=("b/x", "b/old.txt")),
        finished=LATE,
    )
    merged = merge(tmp_path / "out", *((early, late)[i] for i in order))
    assert [one["finished"] for one in merged["cases"]] == [LATE, LATE]
    assert tree(tmp_path / "out") == {name: "2", "b/x": "1"}


def test_a_rerun_that_passes_leaves_no_fix_behind(tmp_path):
    failed = shard(tmp_path / "1", ran("a", EARLY, written=("a/fixed.onnx",)))
    passed = shard(tmp_path / "2", ran("a", LATE, good=True), finished=LATE)
    (one,) = merge(tmp_path / "out", failed, passed)["cases"]
    assert one["verdict"] == "passed"
    assert not (tmp_path / "out").exists()


def test_a_spec_that_could_not_be_read_counts_until_a_later_run_reads_it(tmp_path):
    error = {"nodeid": "models/a.int8acc.yaml", "message": "models/a.int8acc.yaml:1:1: 'modle'"}
    other = {"nodeid": "models/z.int8acc.yaml", "message": "models/z.int8acc.yaml:1:1: 'modle'"}
    first = shard(tmp_path / "1", errors=[error, other])
    second = shard(tmp_path / "2", ran("b", EARLY), errors=[error])
    assert merge(tmp_path / "out", first, second)["errors"] == [error, other]
    third = shard(tmp_path / "3", ran("a", LATE), finished=LATE)
    assert merge(tmp_path / "out", third, first, second)["errors"] == [other]


def test_the_merged_folder_may_be_one_of_the_shards_and_may_hold_them(tmp_path):
    first = shard(tmp_path / "1", ran("a", EARLY, written=("a/x",)))
    second = shard(tmp_path / "1" / "2", ran("b", LATE, written=("b/x",)), finished=LATE)
    merged = merge(first, first, second)
    assert [one["name"] for one in merged["cases"]] == ["a", "b"]
    assert (first / "a" / "x").read_text() == "1"
    assert (first / "b" / "x").read_text() == "2"
    write_json(first, merged)
    assert [one["name"] for one in merge(first, first)["cases"]] == ["a", "b"]


def test_links_are_not_followed(tmp_path):
    folder = shard(tmp_path / "1", ran("a", EARLY, written=("../secret.txt",)))
    write(tmp_path / "secret.txt", "secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "links").symlink_to(tmp_path)
    merge(tmp_path / "out", folder)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_report_is_an_error_and_nothing_is_written(tmp_path):
    good = shard(tmp_path / "1", ran("a", EARLY, written=("a/x",)))
    with pytest.raises(Int8accError, match=r"2/report\.json: No such file"):
        merge(tmp_path / "out", good, tmp_path / "2")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Runs a project of six cases in three files."""
    pytester.makeconftest(RICH)
    for name, cases in {
        "a": ("rich-bad", "rich-good"),
        "b": ("good", "broken"),
        "c": ("fine", "well"),
    }.items():
        (pytester.path / f"{name}.int8acc.yaml").write_text(spec(*cases))
    return lambda *args: pytester.runpytest(*LOAD, *args)


@pytest.mark.parametrize(
    ("plugin", "flags"),
    [("pytest_split", ("--splits=2", "--group={}")), ("pytest_shard", ("--num-shards=2", "--shard-id={}"))],
)
def test_shards_merged_are_the_report_of_the_whole(run, pytester, monkeypatch, plugin, flags):
    pytest.importorskip(plugin)
    start = 1 if plugin == "pytest_split" else 0
    whole = run("--int8acc", "--int8acc-report", "out-whole")
    counts = []
    for i in range(2):
        args = [flag.format(start + i) for flag in flags]
        run("--int8acc", "--int8acc-report", f"out-{i}", *args)
        counts.append(len(read_json(pytester.path / f"out-{i}")["cases"]))
    assert sum(counts) == 6
    assert all(counts)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    result = run("--int8acc-merge", "out-0", "out-1", "--int8acc-report", "out-merged")
    assert result.ret == whole.ret == pytest.ExitCode.TESTS_FAILED
    assert result.stdout.lines == [
        "FAILED a.int8acc.yaml::rich-bad - 'logits' cosine 0.8741 < 0.999 (+1 more missed), TensorRT 10.4, "
        "NVIDIA L4; 2 warnings, the worst: TensorRT refuses this model: nonzero-zero-point (1 node)",
        "ERROR b.int8acc.yaml::broken - broken.onnx: no such file; write the model's path relative to the "
        "spec",
        "int8acc: 6 cases of 2 reports: 1 failed, 1 error, 4 passed",
        f"int8acc: report in {pytester.path}/out-merged/report.html, {pytester.path}/out-merged/report.json",
    ]
    files = [
        {name: normal(text) for name, text in tree(pytester.path / f"out-{which}").items()}
        for which in ("whole", "merged")
    ]
    report = json.loads((pytester.path / "out-merged" / "report.json").read_text())
    assert report["merged"] == ["out-0", "out-1"]
    assert files[0].keys() == files[1].keys()
    merged = files[1]["report.json"].replace('\n "merged": [\n  "out-0",\n  "out-1"\n ],', "")
    assert merged == files[0]["report.json"]
    assert files[1]["report.html"].replace(" of 2 merged reports", "") == files[0]["report.html"]
    assert "1 failed, 1 error, 4 passed" in (pytester.path / "summary.md").read_text()


def test_merging_good_shards_is_a_success_and_runs_nothing(run, pytester):
    (pytester.path / "test_x.py").write_text("def test_x(): assert False")
    run("c.int8acc.yaml::fine", "--int8acc-report", "out-0")
    run("c.int8acc.yaml::well", "--int8acc-report", "out-1")
    result = run("--int8acc-report=out", "--int8acc-merge", "out-0", "out-1")
    assert result.ret == 0
    assert result.stdout.lines[0] == "int8acc: 2 cases of 2 reports: 2 passed"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--int8acc-merge", "x"], "*--int8acc-merge needs the folder to write: add --int8acc-report DIR"),
        (
            ["--int8acc-merge", "none", "--int8acc-report", "out"],
            "*--int8acc-merge: *none/report.json: No such file or directory; expected the folder of a run "
            "with --int8acc-report",
        ),
        (
            ["--int8acc-merge", "shard", "--int8acc-report", "file"],
            "*--int8acc-merge: *file: cannot be written: File exists",
        ),
    ],
)
def test_what_cannot_be_merged_is_one_line(run, pytester, args, said):
    shard(pytester.path / "shard", ran("a", EARLY, good=True))
    (pytester.path / "file").write_text("")
    result = run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"cases":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_a_report_of_nothing_but_brackets(tmp_path, text):
    write(tmp_path / "1" / "report.json", text)
    with pytest.raises(Int8accError, match=r"report\.json: not JSON .*; run those cases again"):
        merge(tmp_path / "out", tmp_path / "1")


def test_a_lone_surrogate_in_a_report_is_merged_and_printed(pytester: pytest.Pytester):
    """As JSON may spell it; no file can hold it as it is."""
    entry = ran("\\ud800", EARLY)
    report = shard(pytester.path / "1", entry) / "report.json"
    report.write_text(report.read_text().replace("\\\\ud800", "\\ud800"))
    assert "\ud800" in json.loads(report.read_text())["cases"][0]["nodeid"]
    done = pytester.runpytest_subprocess(*LOAD, "--int8acc-merge", "1", "--int8acc-report", "out")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    assert (pytester.path / "out" / "report.html").is_file()
