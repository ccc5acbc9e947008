"""A run that is killed: its report holds every case that had ended, and names the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import killed
import numpy as np
import pytest
from forked_python import PYTHON
from killed import CASES, JUDGED, MOMENTS
from plugin_support import LOAD


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the project in this process, and returns pytest's exit code."""
    killed.project(pytester.path)

    def started(how: str | Mapping[str, str], *args: str, cache: Path | None = None) -> int:
        for name, value in killed.environment(pytester.path, how).items():
            monkeypatch.setenv(name, value)
        own = pytester.path / "cache"
        if cache != own:
            shutil.rmtree(own, ignore_errors=True)
        if cache is not None and cache != own:
            shutil.copytree(cache, own)
        shutil.rmtree(pytester.path / "out", ignore_errors=True)
        return int(pytester.inline_run(*LOAD, *killed.ARGUMENTS, *args, no_reraise_ctrlc=True).ret)

    return started


def check_continued(folder: Path, name: str, whole: dict[str, Any], runs: Mapping[str, int]) -> None:
    """A run after one that was cut off at a moment has the whole answer, and repeats nothing.

    Args:
        folder: Of the project.
        name: The moment.
        whole: The entry of a run that was not cut off.
        runs: How often ONNX Runtime ran in each phase of that run.
    """
    entry, continued, made = killed.second(folder)
    assert entry == whole, name
    assert continued, name
    if name in ("search", "proof"):
        assert made["search"] < runs["search"]
        return
    assert made["search"] == 1, "only the shapes of tensors are read"
    assert "proof" not in made, name
    if name == "writing of a fix":
        assert made["repair"] < runs["repair"]


TWO = "case.int8acc.yaml::two"


def test_sigkill_leaves_what_had_ended_and_the_next_run_repeats_nothing(
    run: Callable[..., int], pytester: pytest.Pytester
) -> None:
    path = pytester.path
    assert run("copy") == 1
    whole, continued, runs = killed.second(path)
    assert not continued
    assert not list((path / "cache").rglob("records/*")), "the case has its answer"
    for name in MOMENTS:
        had = CASES if name == MOMENTS[-1] else CASES[:1]
        assert killed.ended(path / "copies" / name / "out") == had, name
    for name in JUDGED:
        run({}, TWO, cache=path / "copies" / name / "cache")
        check_continued(path, name, whole, runs)


def test_sigterm_ends_a_run_as_ctrl_c_does(run: Callable[..., int], pytester: pytest.Pytester) -> None:
    path = pytester.path
    out = path / "out"
    assert run({f"{MOMENTS[-1]} of all": "SIGTERM"}) == pytest.ExitCode.TESTS_FAILED
    assert killed.ended(out) == CASES
    assert (out / "report.html").exists()
    whole, _, runs = killed.second(path)
    for name in MOMENTS[:-1]:
        of = "one" if name == MOMENTS[0] else "two"
        assert run({f"{name} of {of}": "SIGTERM"}) == pytest.ExitCode.INTERRUPTED, name
        assert killed.ended(out) == (CASES[:2] if name in JUDGED else CASES[:1]), name
        stopped = [case["stopped"]["kind"] for case in killed.report(out)["cases"] if case["stopped"]]
        assert stopped == (["interrupted"] if name in JUDGED else [])
        assert (out / "report.html").exists()
        if name in JUDGED:
            run({}, TWO, cache=path / "cache")
            check_continued(path, name, whole, runs)


def test_a_record_that_is_damaged_or_of_another_case_is_not_used(
    run: Callable[..., int], pytester: pytest.Pytester, caplog: pytest.LogCaptureFixture
) -> None:
    path = pytester.path
    run("copy")
    whole, _, runs = killed.second(path)
    cache = path / "copies" / "repair" / "cache"
    data = dict(np.load(path / "data.npz"))
    data["x"] = data["x"].copy()
    data["x"][0, 0, 0, 0] += 0.5
    ranges = (path / "ranges.json").read_text()
    changes: dict[str, Callable[[], object]] = {
        "data": lambda: np.savez(path / "data.npz", **data),
        "ranges": lambda: (path / "ranges.json").write_text(ranges.replace('relu1": ', 'relu1": 1')),
        "spec": lambda: (path / "case.int8acc.yaml").write_text(killed.SPEC.replace("25", "24.9")),
    }
    for name, change in changes.items():
        change()
        run({}, TWO, cache=cache)
        assert not killed.second(path)[1], name
    killed.project(path)
    for record in cache.rglob("records/*/*"):
        record.write_bytes(record.read_bytes()[:-1])
    caplog.clear()
    run({}, TWO, cache=cache)
    entry, continued, made = killed.second(path)
    assert (entry, continued) == (whole, False)
    assert made["search"] == runs["search"]
    assert made["proof"] > 0  # the first proof of a process looks at the processor's kernels, too
    assert "the record of a trial is damaged and is not used" in caplog.text


@pytest.mark.usefixtures("quick_processes")
def test_with_workers_nothing_is_lost_or_repeated(
    run: Callable[..., int], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that are copied are what remains if all processes are killed at once."""
    done = killed.run(pytester.path, "copy", "-n1")
    assert done.returncode == 1, done.stdout + done.stderr
    for name in MOMENTS:
        had = CASES if name == MOMENTS[-1] else CASES[:1]
        assert killed.ended(pytester.path / "copies" / name / "out") == had, name
    shutil.rmtree(pytester.path / "out")
    monkeypatch.setattr("sys.executable", PYTHON)  # a forked worker is no child of its controller
    done = killed.run(pytester.path, {"search of two": "SIGKILL", "setup of three": "controller"}, "-n1")
    assert done.returncode == -9, done.stdout + done.stderr
    assert killed.ended(pytester.path / "out") == CASES[:2]
    assert "crashed" in killed.report(pytester.path / "out")["cases"][0]["message"]
    run({}, TWO, cache=pytester.path / "cache")
    assert killed.second(pytester.path)[1], "the search of the worker that was killed goes on"


def test_a_merge_names_the_cases_that_are_missing(run: Callable[..., int], pytester: pytest.Pytester) -> None:
    run({"search of two": "SIGTERM"})
    (pytester.path / "out").rename(pytester.path / "shard")
    merged = pytester.runpytest(*LOAD, "--int8acc-merge", "shard", "--int8acc-report", "out")
    merged.stdout.fnmatch_lines(
        [
            f"MISSING {CASES[2]} - the run ended before this case; run it again",
            "int8acc: 2 cases of 1 report: 1 failed, 1 passed, 1 missing",
        ]
    )
    assert merged.ret == pytest.ExitCode.TESTS_FAILED
    assert killed.ended(pytester.path / "out") == CASES[:2]
    assert CASES[2] in (pytester.path / "out" / "report.html").read_text()
