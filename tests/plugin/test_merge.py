"""Reports of shards, merged into one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugin_support import LOAD, spec
from report_cases import case, entry, report
from rich_project import RICH, normal

pytestmark = pytest.mark.usefixtures("quick_processes")

EARLY, LATE = "2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00"


def shard(folder: Path, *entries: dict[str, Any], finished: str = EARLY, **more: Any) -> Path:
    """A report folder; each file that an entry names is written, and tells the folder's name."""
    write(folder / "report.json", json.dumps({**report(*entries, **more), "finished": finished}))
    for name in [name for one in entries for name in one.get("written", ())]:
        write(folder / name, folder.name)
    (folder / "report.html").write_text("of the shard")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def ran(name: str, finished: str, *, good: bool = False, **changes: Any) -> dict[str, Any]:
    return entry(case(name, 0.9999 if good else 0.8741, **changes), name, finished=finished)


@pytest.fixture
def merge(pytester: pytest.Pytester) -> Callable[..., dict[str, Any]]:
    """Merges folders into the first one named; the report that lies there."""

    def merged(out: Path, *folders: Path) -> dict[str, Any]:
        pytester.runpytest(*LOAD, "--int8acc-merge", *folders, f"--int8acc-report={out}")
        return dict(json.loads((out / "report.json").read_text()))

    return merged


def of_cases(folder: Path) -> dict[str, str]:
    """The files of a folder, but for the report itself."""
    return {name: text for name, text in tree(folder).items() if not name.startswith("report.")}


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_cases_stand_in_the_order_of_files_and_lines_and_files_are_copied(tmp_path, merge):
    first = shard(tmp_path / "1", ran("b", EARLY, written=("b/fixed.onnx",)), {**ran("c", EARLY), "line": 9})
    write(first / "golden" / "x.npz", "of no case")
    second = shard(tmp_path / "2", {**ran("a", LATE), "line": 30}, finished=LATE)
    merged = merge(tmp_path / "out", second, first)
    assert [one["name"] for one in merged["cases"]] == ["a", "b", "c"]
    assert merged["merged"] == ["2", "1"]
    assert merged["finished"] == LATE
    assert of_cases(tmp_path / "out") == {"b/fixed.onnx": "1", "golden/x.npz": "of no case"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_run_that_finished_last_counts_with_its_files_alone(tmp_path, merge, order):
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
    assert of_cases(tmp_path / "out") == {name: "2", "b/x": "1"}


def test_a_rerun_that_passes_leaves_no_fix_behind(tmp_path, merge):
    failed = shard(tmp_path / "1", ran("a", EARLY, written=("a/fixed.onnx",)))
    passed = shard(tmp_path / "2", ran("a", LATE, good=True), finished=LATE)
    (one,) = merge(tmp_path / "out", failed, passed)["cases"]
    assert one["verdict"] == "passed"
    assert of_cases(tmp_path / "out") == {}


def test_a_spec_that_could_not_be_read_counts_until_a_later_run_reads_it(tmp_path, merge):
    error = {"nodeid": "models/a.int8acc.yaml", "message": "models/a.int8acc.yaml:1:1: 'modle'"}
    other = {"nodeid": "models/z.int8acc.yaml", "message": "models/z.int8acc.yaml:1:1: 'modle'"}
    first = shard(tmp_path / "1", errors=[error, other])
    second = shard(tmp_path / "2", ran("b", EARLY), errors=[error])
    assert merge(tmp_path / "out", first, second)["errors"] == [error, other]
    third = shard(tmp_path / "3", ran("a", LATE), finished=LATE)
    assert merge(tmp_path / "out", third, first, second)["errors"] == [other]


def test_the_merged_folder_may_be_one_of_the_shards_and_may_hold_them(tmp_path, merge):
    first = shard(tmp_path / "1", ran("a", EARLY, written=("a/x",)))
    second = shard(tmp_path / "1" / "2", ran("b", LATE, written=("b/x",)), finished=LATE)
    merged = merge(first, first, second)
    assert [one["name"] for one in merged["cases"]] == ["a", "b"]
    assert (first / "a" / "x").read_text() == "1"
    assert (first / "b" / "x").read_text() == "2"
    assert [one["name"] for one in merge(first, first)["cases"]] == ["a", "b"]


def test_links_are_not_followed(tmp_path, merge):
    folder = shard(tmp_path / "1", ran("a", EARLY, written=("../secret.txt",)))
    write(tmp_path / "secret.txt", "secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "links").symlink_to(tmp_path)
    merge(tmp_path / "out", folder)
    assert of_cases(tmp_path / "out") == {}


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


def test_shards_merged_are_the_report_of_the_whole(run, pytester, monkeypatch):
    pytest.importorskip("pytest_split")
    whole = run("--int8acc", "--int8acc-report", "out-whole")
    counts = []
    for i in range(2):
        split = ("-ppytest_split.plugin", "--splits=2", f"--group={i + 1}")
        run("--int8acc", "--int8acc-report", f"out-{i}", *split)
        counts.append(len(json.loads((pytester.path / f"out-{i}" / "report.json").read_text())["cases"]))
    assert sum(counts) == 6
    assert all(counts)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    result = run("--int8acc-merge", "out-0", "out-1", "--int8acc-report", "out-merged")
    assert result.ret == whole.ret == pytest.ExitCode.TESTS_FAILED
    assert result.stdout.lines == [
        "FAILED a.int8acc.yaml::rich-bad - 'logits' cosine 0.8741 < 0.999 (+1 more missed: top1), "
        "TensorRT 10.4, NVIDIA L4; 2 warnings (-v tells all), the worst: TensorRT refuses this model: "
        "nonzero-zero-point (1 node)",
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


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    """A report whose one case failed, changed at one place."""
    content = json.loads(json.dumps(report(ran("net", EARLY))))
    change(content)
    return json.dumps(content)


def case_of(content: dict[str, Any]) -> dict[str, Any]:
    return content["cases"][0]


GOOD = changed(lambda content: None)
#: What may lie in place of a report, and what is said of it.
DAMAGED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "not JSON (Expecting value: line 1 column 1 (char 0)); run those cases again"),
    "truncated": (GOOD[: len(GOOD) // 2], "not JSON (*); run those cases again"),
    "brackets": ("[" * 100_000, "not JSON (*"),
    "latin": (GOOD.replace("net", "n\xe9t").encode("latin-1"), "not JSON (*can't decode byte 0xe9*"),
    "digits": (GOOD.replace('"line": 1', f'"line": {"9" * 400}'), "not JSON (an integer of 400 digits)*"),
    "other tool": (
        json.dumps(
            {"created": 1.0, "exitcode": 0, "summary": {"passed": 3}, "tests": []}
        ),  # pytest-json-report
        "not a report of pytest-int8acc; run those cases again",
    ),
    "old": (
        changed(lambda content: content.update(version=1)),
        "version 1 of a report, expected 2; run all shards with the same pytest-int8acc",
    ),
    "new": (changed(lambda content: content.update(version="9")), "version '9' of a report, expected 2; *"),
    "cases": (
        changed(lambda content: content.update(cases={})),
        "damaged (cases: Input should be a valid list*",
    ),
    "no verdict": (
        changed(lambda content: case_of(content).pop("verdict")),
        "damaged (cases.0.verdict: Field*",
    ),
    "written": (
        changed(lambda content: case_of(content).update(written=True)),
        "damaged (cases.0.written: *",
    ),
    "score": (
        changed(lambda content: case_of(content)["outputs"][0]["scores"][0].update(value="much")),
        "damaged (cases.0.outputs.0.scores.0.value: Input should be a valid number*); run those cases again",
    ),
    "layer": (
        changed(lambda content: case_of(content)["engines"][0]["layers"][0].update(precision="int4")),
        "damaged (cases.0.engines.0.layers.0.precision: Input should be 'int8', *",
    ),
    "cause": (
        changed(lambda content: case_of(content)["search"]["culprits"][0]["cause"].update(numbers={})),
        "damaged (cases.0: no sentence can be made of it: KeyError: *",
    ),
    "not a number": (
        changed(lambda content: case_of(content)["scores"][0].update(value=float("nan"))),
        "damaged (cases.0.scores.*: Input should be a finite number); *",
    ),
    "nested": (
        changed(lambda content: case_of(content).update(more=json.loads("[" * 400 + "]" * 400))),
        "damaged (cases.0.more.*: *",
    ),
}
BESIDE = {
    "missing": "No such file or directory; expected the folder of a run with --int8acc-report",
    "folder": "Is a directory; expected the folder of a run with --int8acc-report",
    "pipe": "it is a *, which has no end to read to; expected the folder of a run with --int8acc-report",
    "huge": "has 2048 MiB, more than the 1024 MiB that are read of a report; split its cases over more runs",
}


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, str]:
    """Folders below ``bad`` with what is no report, and what is said of each."""
    bad = tmp_path / "bad"
    for name in (*DAMAGED, *BESIDE):
        (bad / name).mkdir(parents=True)
    for name, (content, _) in DAMAGED.items():
        path = bad / name / "report.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (bad / "folder" / "report.json").mkdir()
    os.mkfifo(bad / "pipe" / "report.json")
    with open(bad / "huge" / "report.json", "wb") as file:
        file.truncate(2 << 30)
    return {**{name: said for name, (_, said) in DAMAGED.items()}, **BESIDE}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_damaged_reports_are_left_out_by_name_and_the_others_are_merged(
    pytester: pytest.Pytester, tmp_path: Path, damaged: dict[str, str]
) -> None:
    good = shard(tmp_path / "good", ran("net", EARLY, good=True, written=("net/plan.yaml",)))
    folders = [str(tmp_path / "bad" / name) for name in damaged]
    result = pytester.runpytest(*LOAD, "--int8acc-merge", *folders, str(good), "--int8acc-report=out")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = [
        f"ERROR {tmp_path}/bad/{name}/report.json - left out of the merge: {said}"
        for name, said in damaged.items()
    ]
    assert len(result.stdout.lines) == len(lines) + 2
    result.stdout.fnmatch_lines([line.replace("[", "[[]") for line in lines], consecutive=True)
    result.stdout.fnmatch_lines([f"int8acc: 1 case of 1 report: {len(lines)} error, 1 passed"])
    merged = json.loads((pytester.path / "out" / "report.json").read_text())
    assert [one["name"] for one in merged["cases"]] == ["net"]
    assert len(merged["errors"]) == len(lines)
    assert (pytester.path / "out" / "net" / "plan.yaml").read_text() == "good"
    page = (pytester.path / "out" / "report.html").read_text()
    assert "Files that could not be read" in page
    assert "bad/huge/report.json" in page


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_where_no_report_can_be_read_nothing_is_written(
    pytester: pytest.Pytester, tmp_path: Path, damaged: dict[str, str]
) -> None:
    folders = [str(tmp_path / "bad" / name) for name in damaged]
    result = pytester.runpytest(*LOAD, "--int8acc-merge", *folders, "--int8acc-report=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line.partition("/report.json: ")[0].rpartition("/")[2] for line in result.errlines if line] == [
        *damaged
    ]
    assert not (pytester.path / "out").exists()


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
