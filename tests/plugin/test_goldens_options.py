"""Goldens as a user of pytest meets them: recorded, refused, found stale, fetched from CI, pruned."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_support import BASE, MINMAX, WIDE, scale_golden, write_data, write_project
from plugin_support import LOAD

pytestmark = pytest.mark.usefixtures("quick_processes")

#: Three cases: a golden beside a live baseline, one in its place, and accepted scores alone.
SPEC = f"""
defaults:
{"".join("  " + line + chr(10) for line in BASE.strip().splitlines())}  {MINMAX}  criteria: [{{sqnr_db: 20}}]
cases:
  - name: beside
    golden: true
  - name: instead
    baseline: golden
    golden: {{dtype: float16}}
  - name: scores
    criteria:
      - {{sqnr_db: 5}}
      - {{metric: 'metrics.py:top1', min: 0.1}}
      - {{regression: {{sqnr_db: 0.5, top1: 0}}}}
  - name: none
"""
WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """The project of golden_support with the cases of SPEC in models/net.int8acc.yaml."""
    folder = pytester.mkdir("models")
    write_project(folder)
    (folder / "net.int8acc.yaml").write_text(SPEC)
    return pytester


@pytest.fixture
def run(project: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    return lambda *args: project.runpytest(*LOAD, "--int8acc", "-p", "no:cacheprovider", *args)


def goldens(project: pytest.Pytester) -> Path:
    return project.path / "models" / "__int8acc__"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edit(project: pytest.Pytester, old: str, new: str) -> None:
    spec = project.path / "models" / "net.int8acc.yaml"
    text = spec.read_text()
    assert old in text
    spec.write_text(text.replace(old, new))


def write_own_test(project: pytest.Pytester) -> None:
    """A user's own test that keeps two goldens."""
    (project.path / "test_own.py").write_text(
        "def test_arrays(int8acc_golden):\n"
        "    int8acc_golden('first', {'a': [1.0], 'b': [2.0]})\n"
        "    int8acc_golden('second', [3.0])\n"
    )


OWN_LINES = [
    "test_own.py::test_arrays: recorded 'a', 'b' in __int8acc__/arrays/first.npz",
    "    recorded 'array' in __int8acc__/arrays/second.npz",
]


@WORKERS
def test_goldens_are_recorded(project, run, workers):
    write_own_test(project)
    result = run(*workers, "--int8acc-update=missing", "--int8acc-report=out", "--junitxml=junit.xml")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(OWN_LINES)
    result.stdout.fnmatch_lines(
        [
            "*= int8acc goldens =*",
            "models/net.int8acc.yaml::beside: recorded 10 scores and FP16 outputs of 64 samples in "
            "models/__int8acc__/net/beside.json",
            "    accepted logits sqnr_db: none -> *",
            "models/net.int8acc.yaml::instead: recorded 10 scores and FP16 outputs*",
            "models/net.int8acc.yaml::scores: recorded 11 scores in models/__int8acc__/net/scores.json",
            "    accepted metrics.py:top1: none -> *",
        ]
    )
    recorded = files(goldens(project))
    assert [re.sub(r"[0-9a-f]{12}", "HASH", name) for name in recorded] == [
        "net/beside.HASH.npz",
        "net/beside.json",
        "net/instead.HASH.npz",
        "net/instead.json",
        "net/scores.json",
    ]
    report = json.loads((project.path / "out" / "report.json").read_text())
    said = {case["name"]: case.get("golden", "") for case in report["cases"]}
    assert said["beside"].startswith("recorded 10 scores")
    assert said["none"] == ""
    run().assert_outcomes(passed=5)
    assert files(goldens(project)) == recorded


def test_goldens_are_kept_to_and_updated(project, run):
    run("--int8acc-update=missing")
    recorded = files(goldens(project))
    result = run("-v")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        ["*golden: FP16 keeps to models/__int8acc__/net/beside.json (FP16 of 64 samples*"]
    )
    assert "int8acc goldens" not in result.stdout.str()
    assert files(goldens(project)) == recorded
    # Worse INT8 fails the ratchet alone; an update takes it over and names old and new.
    edit(project, MINMAX.strip(), WIDE.strip())
    result = run("--int8acc-search=off", "-v")
    result.assert_outcomes(passed=3, failed=1)
    said = "INT8 accuracy: 'logits' sqnr_db * < 35.35 (accepted *, may lose 0.5; +1 more missed: *)"
    result.stdout.fnmatch_lines([said, "*note: 'metrics.py:top1': accepted 0.984375"])
    result = run("--int8acc-update=all")
    result.assert_outcomes(passed=4)
    result.stdout.re_match_lines([r"    accepted logits sqnr_db: [1-9.]+\d* -> [1-9.]+\d*$"])
    assert len(files(goldens(project))) == 5


def test_missing_goldens_are_errors_whose_command_works(project, run):
    edit(project, "cases:", "  xfail: accuracy alone may fail\ncases:")
    result = run()
    result.assert_outcomes(errors=3, xpassed=1)
    text = result.stdout.str()
    command = re.search(r"instead\.json: no golden yet; record it with `(pytest [^`]*)`", text)
    assert command is not None
    assert "Traceback" not in text
    assert not goldens(project).exists()
    (program, *arguments) = shlex.split(command[1])
    assert program == "pytest"
    project.runpytest(*LOAD, *arguments).assert_outcomes(xpassed=1)
    assert "net/instead.json" in files(goldens(project))
    run("-k", "instead").assert_outcomes(xpassed=1, deselected=3)


def test_a_stale_golden_is_an_error_whose_command_works(project, run):
    run("--int8acc-update=missing")
    write_data(project.path / "models", seed=8)
    result = run("--int8acc-update=missing")
    result.assert_outcomes(errors=3, passed=1)
    text = result.stdout.str()
    command = re.search(
        r"beside\.json: the golden is stale: the data .*?record it again with `pytest ([^`]*)`", text
    )
    assert command is not None
    project.runpytest(*LOAD, *shlex.split(command[1])).assert_outcomes(passed=1)
    run().assert_outcomes(errors=2, passed=2)


def test_nothing_is_recorded_in_ci_unless_that_is_said(project, run, monkeypatch):
    monkeypatch.setenv("CI", "true")
    result = run("--int8acc-update=all")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--int8acc-update records nothing where the variable CI is set*update-in-ci"]
    )
    assert not goldens(project).exists()
    run("--int8acc-update=missing", "--int8acc-update-in-ci", "-k", "beside").assert_outcomes(
        passed=1, deselected=3
    )
    assert goldens(project).exists()
    monkeypatch.setenv("CI", "false")
    run("--int8acc-update=all", "-k", "beside").assert_outcomes(passed=1, deselected=3)


@WORKERS
def test_candidates_are_fetched_from_the_report_folder_and_committed(project, run, monkeypatch, workers):
    monkeypatch.setenv("CI", "true")
    result = run(*workers, "--int8acc-report=out")
    result.assert_outcomes(errors=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "models/net.int8acc.yaml:*: models/__int8acc__/net/beside.json: no golden yet; * The candidate "
            "is in out/models/net/beside/golden: copy its files to models/__int8acc__/net and commit them"
        ]
    )
    assert not goldens(project).exists()
    (goldens(project) / "net").mkdir(parents=True)
    for name in ("beside", "instead", "scores"):
        candidate = project.path / "out" / "models" / "net" / name / "golden"
        shutil.copytree(candidate, goldens(project) / "net", dirs_exist_ok=True)
    fetched = files(goldens(project))
    run().assert_outcomes(passed=4)
    if workers:
        return
    monkeypatch.delenv("CI")
    run("--int8acc-update=all")
    assert files(goldens(project)) == fetched  # the same files as an update would have written


def test_fp16_that_moved_fails_the_case(project, run):
    run("--int8acc-update=missing")
    scale_golden(goldens(project) / "net", "beside", 1.5)
    result = run("-k", "beside")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "INT8 accuracy: 'FP16 against its golden: logits' sqnr_db 9.542 < 20",
            "Why: FP16 itself moved: logits sqnr_db 9.54243 against models/__int8acc__/net/beside.json *",
        ]
    )
    told = result.stdout.str().replace("\n  ", " ")
    assert "where that is meant, record it again with `pytest models/net.int8acc.yaml::beside" in told
    assert "Fix: " not in told
    assert "Culprits" not in result.stdout.str()  # INT8 is not the problem: nothing is searched


def test_orphans_are_listed_and_deleted_on_demand_alone(project, run):
    run("--int8acc-update=missing")
    assert "int8acc: no orphans among the goldens" in run("--int8acc-prune").stdout.str()
    before = files(goldens(project))
    # A part of the cases makes no orphans of the others.
    part = run("--int8acc-prune=delete", "-k", "scores")
    part.stdout.fnmatch_lines(["int8acc: no orphans among the goldens"])
    assert files(goldens(project)) == before
    edit(project, "name: beside", "name: next-to")
    result = run("--int8acc-prune", "-k", "nothing")
    result.stdout.fnmatch_lines(
        [
            "int8acc: 2 orphans among the goldens (--int8acc-prune=delete deletes them)",
            "    models/__int8acc__/net/beside.json: no case 'beside' of models/net.int8acc.yaml keeps a *",
            "    models/__int8acc__/net/beside.*.npz: no golden names it",
        ]
    )
    assert result.stdout.str().count("orphans among") == 1
    assert files(goldens(project)) == before
    run("--int8acc-update=all")
    assert set(before) < set(files(goldens(project)))  # an update deletes no orphans
    # a worker must not delete what the controller is to tell
    result = run("-n1", "-k", "nothing", "--int8acc-prune=delete")
    result.stdout.fnmatch_lines(["    deleted models/__int8acc__/net/beside.json: *"])
    assert {name for name in files(goldens(project)) if "/beside." in name} == set()
    assert len(files(goldens(project))) == 5


@pytest.mark.parametrize("url", [False, True], ids=["folder", "url"])
def test_goldens_may_lie_elsewhere(project, run, url):
    if url:
        pytest.importorskip("fsspec")
    place = project.path / "kept"
    ini = ("-o", f"int8acc_goldens={place.as_uri() if url else 'kept'}")
    run(*ini, "--int8acc-update=missing").assert_outcomes(passed=4)
    assert not goldens(project).exists()
    assert "models/net/scores.json" in files(place)
    run(*ini).assert_outcomes(passed=4)
    assert "no orphans" in run(*ini, "--int8acc-prune").stdout.str()
    if not url:
        return
    edit(project, "name: scores", "name: renamed")
    run(*ini, "--int8acc-prune=delete", "-k", "nothing").stdout.fnmatch_lines(["    deleted *scores.json: *"])
    assert "models/net/scores.json" not in files(place)


def test_goldens_that_a_users_own_test_records_are_told(project, run):
    write_own_test(project)
    command = ("--int8acc-update=missing", "test_own.py")
    result = run(*command)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= int8acc goldens =*", *OWN_LINES])
    assert "no golden was recorded" not in result.stdout.str()
    result = run(*command)
    text = "int8acc: no golden was recorded: no test that ran keeps one"
    result.stdout.fnmatch_lines([f"{text} that is missing; --int8acc-update=all records all anew"])
    run("--int8acc-update=all", "-k", "none").stdout.fnmatch_lines([text])


def test_a_golden_is_told_where_its_test_does_not_end(project, run):
    project.makeconftest("import pytest\ndef pytest_runtest_call(item):\n    pytest.exit('stop')\n")
    result = run("--int8acc-update=missing", "-k", "scores")
    assert (goldens(project) / "net" / "scores.json").exists()
    result.stdout.fnmatch_lines(["models/net.int8acc.yaml::scores: recorded 11 scores in *"])
