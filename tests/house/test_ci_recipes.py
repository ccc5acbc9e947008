"""The recipes of docs/ci.md: the shell lines of CPU jobs run, those of GPU jobs are at least shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked_python import PYTHON
from gpu_support import DRY, REACHED, gpus, needs_gpu, small_project
from plugin_support import LOAD

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BASH = shutil.which("bash")

pytestmark = [
    pytest.mark.skipif(BASH is None, reason="needs bash"),
    pytest.mark.usefixtures("quick_processes"),
]


def recipes() -> dict[str, dict[str, Any]]:
    """Each recipe by its file's name."""
    found = {}
    for text in re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        found[text.partition("\n")[0][2:]] = yaml.safe_load(text)
    return found


def jobs(recipe: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The jobs of a workflow of GitHub, or of a pipeline of GitLab."""
    if "jobs" in recipe:
        return recipe["jobs"]
    return {name: job for name, job in recipe.items() if isinstance(job, dict)}


def shell(job: dict[str, Any]) -> str:
    """What a job gives to the shell."""
    lines = job.get("script") or [step["run"] for step in job["steps"] if "run" in step]
    return "\n".join(lines)


def shards(job: dict[str, Any]) -> Iterator[dict[str, str]]:
    """The environment of each run of a job."""
    matrix = job.get("strategy", {}).get("matrix", {}).get("shard", range(1, job.get("parallel", 1) + 1))
    for shard in matrix:
        yield {"SHARD": str(shard), "CI_NODE_INDEX": str(shard), "CI_NODE_TOTAL": str(len(matrix))}


RECIPES = recipes()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with two specs, one of which keeps a golden that nobody has recorded."""
    repository = tmp_path / "repository"
    ignored = shutil.ignore_patterns(
        "test_*", "__pycache__", "*by_hand*", "train*", "detector", "transformer"
    )
    shutil.copytree(ROOT / "example_project", repository, ignore=ignored)
    for spec in repository.glob("*.yaml"):
        text = spec.read_text(encoding="utf-8").replace("entropy", "minmax")
        spec.write_text(text + "golden: true\n" * ("qdq" in spec.name), encoding="utf-8")
    return repository


def run(script: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """``script`` as a runner runs it, without what it would install."""
    (folder / "bin").mkdir(exist_ok=True)
    loaded = " ".join(option for option in LOAD if option != "-pno:pytest-split")  # a recipe splits
    stand_ins = {"pip": "", "gh": "", "pytest": f'exec "{sys.executable}" -m pytest {loaded} "$@"\n'}
    for name, script_of in stand_ins.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script_of}")
        (folder / "bin" / name).chmod(0o755)
    tools = [str(folder / "bin"), str(Path(PYTHON).parent), os.environ["PATH"]]
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    outer = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST_")}
    environment = {**outer, "PATH": os.pathsep.join(tools), "PYTHONPATH": python_path, **more}
    environment |= {"CI": "true", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    return subprocess.run(
        [str(BASH), "-e", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_recipes_are_found() -> None:
    assert {name: list(jobs(recipe)) for name, recipe in RECIPES.items()} == {
        ".github/workflows/int8.yml": ["cpu", "gpu"],
        ".github/workflows/int8-shards.yml": ["shard", "report"],
        ".gitlab-ci.yml": ["cpu", "gpu", "shard", "merged"],
    }


@pytest.mark.parametrize("name", RECIPES)
def test_every_line_is_shell(name: str) -> None:
    for job in jobs(RECIPES[name]).values():
        done = subprocess.run(
            [str(BASH), "-n", "-c", shell(job)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "--int8acc" in shell(job)
        kept = str(job.get("artifacts") or [s for s in job["steps"] if "upload-artifact" in str(s)])
        written = re.findall(r"--int8acc-report ([a-z]+)", shell(job))
        assert written
        assert written[0] in kept


def test_a_cpu_job_reports_and_its_goldens_can_be_taken_over(clone: Path) -> None:
    script = shell(jobs(RECIPES[".github/workflows/int8.yml"])["cpu"])
    assert script == shell(jobs(RECIPES[".gitlab-ci.yml"])["cpu"])
    summary = clone / "summary.md"
    done = run(script, clone, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1, done.stdout
    assert "1 passed, 1 error" in done.stdout
    assert "copy its files to __int8acc__/digits_qdq and commit them" in done.stdout
    assert "digits.int8acc.yaml" in summary.read_text(encoding="utf-8")
    assert 'name="int8acc.logits.sqnr_db"' in (clone / "report" / "junit.xml").read_text(encoding="utf-8")
    (fetch,) = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    taken = run("git init -q .\n" + fetch + "git status --short __int8acc__", clone)
    assert taken.stdout.count("A  __int8acc__/digits_qdq/") == 2, taken.stderr
    again = run(script, clone)
    assert again.returncode == 0, again.stdout


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if "shard" in jobs(recipe)])
def test_shards_become_one_report(name: str, clone: Path) -> None:
    pytest.importorskip("pytest_split")
    found = jobs(RECIPES[name])
    *_, last = found.values()
    for environment in shards(found["shard"]):
        run(shell(found["shard"]), clone, **environment)
    done = run(shell(last), clone)
    assert done.returncode == 1, done.stderr
    assert "2 cases of 2 reports: 1 error, 1 passed" in done.stdout
    (written,) = re.findall(r"--int8acc-report ([a-z]+)", shell(last))
    assert len(json.loads((clone / written / "report.json").read_text(encoding="utf-8"))["cases"]) == 2


@needs_gpu[0]
@needs_gpu[1]
def test_gpu_jobs_run_on_every_gpu(tmp_path: Path) -> None:
    """Each recipe's, one after the other: the cache that the first has left spares the second all builds."""
    project = small_project(tmp_path)
    if DRY in os.environ:
        pytest.skip(REACHED)
    counts = []
    for job in (jobs(recipe)["gpu"] for recipe in RECIPES.values() if "gpu" in jobs(recipe)):
        done = run(shell(job), project)
        print(done.stdout, done.stderr)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("\nGPU ") + done.stdout.startswith("GPU ") == gpus()
        assert "1 passed" in done.stdout
        engines = [e for case in report(project)["cases"] for e in case["engines"]]
        counts.append(sum(not engine["stored"] for engine in engines))
    assert counts == [2, 0]


def report(project: Path) -> dict[str, Any]:
    """What a job has written into its report folder."""
    return json.loads((project / "report" / "report.json").read_text(encoding="utf-8"))
