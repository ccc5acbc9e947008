"""A run that is killed: its report holds every case that had ended, and names the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

import killed
import pytest
from killed import CASES, JUDGED, MOMENTS
from plugin_support import LOAD


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the project in this process, and returns pytest's exit code."""
    killed.project(pytester.path)

    def started(how: str | Mapping[str, str]) -> int:
        for name, value in killed.environment(pytester.path, how).items():
            monkeypatch.setenv(name, value)
        shutil.rmtree(pytester.path / "out", ignore_errors=True)
        return int(pytester.inline_run(*LOAD, *killed.ARGUMENTS, no_reraise_ctrlc=True).ret)

    return started


def test_sigkill_leaves_the_cases_that_had_ended(run: Callable[..., int], pytester: pytest.Pytester) -> None:
    assert run("copy") == 1
    for name in MOMENTS:
        had = CASES if name == MOMENTS[-1] else CASES[:1]
        assert killed.ended(pytester.path / "copies" / name / "out") == had, name


def test_sigterm_ends_a_run_as_ctrl_c_does(run: Callable[..., int], pytester: pytest.Pytester) -> None:
    out = pytester.path / "out"
    for name in MOMENTS[:-1]:
        of = "one" if name == MOMENTS[0] else "two"
        assert run({f"{name} of {of}": "SIGTERM"}) == pytest.ExitCode.INTERRUPTED, name
        assert killed.ended(out) == (CASES[:2] if name in JUDGED else CASES[:1]), name
        stopped = [case["stopped"]["kind"] for case in killed.report(out)["cases"] if case["stopped"]]
        assert stopped == (["interrupted"] if name in JUDGED else [])
        assert (out / "report.html").exists()
    assert run({f"{MOMENTS[-1]} of all": "SIGTERM"}) == pytest.ExitCode.TESTS_FAILED
    assert killed.ended(out) == CASES
    assert (out / "report.html").exists()


def test_with_workers_nothing_that_had_ended_is_lost(pytester: pytest.Pytester) -> None:
    """The files that are copied are what remains if all processes are killed at once."""
    killed.project(pytester.path)
    done = killed.run(pytester.path, "copy", "-n1")
    assert done.returncode == 1, done.stdout + done.stderr
    for name in MOMENTS:
        had = CASES if name == MOMENTS[-1] else CASES[:1]
        assert killed.ended(pytester.path / "copies" / name / "out") == had, name
    shutil.rmtree(pytester.path / "out")
    done = killed.run(pytester.path, {"search of two": "SIGKILL", "setup of three": "controller"}, "-n1")
    assert done.returncode == -9, done.stdout + done.stderr
    assert killed.ended(pytester.path / "out") == CASES[:2]
    assert "crashed" in killed.report(pytester.path / "out")["cases"][0]["message"]


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
