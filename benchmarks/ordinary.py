"""What ten ordinary runs execute of the package: python -m benchmarks.ordinary [--missed ROOM ...].

The runs use the example project of the tree. Two figures come out: how many modules one failing case enters,
and which share of the statements that a CPU can reach all ten runs execute. Left out as out of its reach are
``runtime/trt/`` and modules that only they use. Needs coverage.py, which ``pip install coverage`` brings.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "pytest_int8acc"
#: Paths below the package that only TensorRT or CUDA reach, in this layout and in older ones.
OUT_OF_REACH = ("runtime/trt/", "runtime/cuda", "engines/trt", "backends/tensorrt", "engines/")

SPEC = """
model: digits.onnx
inputs: data/validation.npz
labels: data/validation_labels.npy
criteria:
  - output: logits
    cosine: {cosine}
    sqnr_db: {limit}
    top1_agreement: 0.98
  - metric: metrics.py:top1
    max_drop: 0.02
{form}
"""
CALIBRATED = "int8: {calibrate: {data: data/calibration.npz}}"
BY_HAND = "int8: {scales: dynamic_ranges.json}"

#: The runs: a name, the spec of the run (None: those of the example project), and arguments of pytest.
RUNS: dict[str, tuple[str | None, list[str]]] = {
    "example project": (None, ["--int8acc", "--int8acc-report", "out"]),
    "failing, -vv": (SPEC.format(cosine=0.998, limit=20, form=BY_HAND), ["-vv", "--int8acc-report", "out"]),
    "fp8": (SPEC.format(cosine=0.9999, limit=60, form="fp8: {calibrate: {data: data/calibration.npz}}"), []),
    "bf16": (SPEC.format(cosine=0.999999, limit=90, form="candidate: bf16"), []),
    "golden": (
        SPEC.format(cosine=0.998, limit=20, form=CALIBRATED + "\ngolden: true"),
        ["--int8acc-update", "all"],
    ),
    "golden again": (SPEC.format(cosine=0.998, limit=20, form=CALIBRATED + "\ngolden: true"), []),
    "init": (None, ["--int8acc-init", "fresh.onnx"]),
    "reduce": (
        SPEC.format(cosine=0.998, limit=20, form=BY_HAND),
        ["--int8acc-reduce", "--int8acc-report", "red"],
    ),
    "merge": (None, ["--int8acc-merge", "out", "red", "--int8acc-report", "all"]),
    "certify": (SPEC.format(cosine=0.998, limit=20, form=BY_HAND), ["--int8acc-certify"]),
    "calibrations": (SPEC.format(cosine=0.998, limit=20, form=BY_HAND), ["--int8acc-calibrations"]),
}


def statements(path: Path) -> tuple[set[int], set[int]]:
    """Return the first lines of all statements in functions, and of those outside; docstrings left out."""
    inner: set[int] = set()
    outer: set[int] = set()

    def walk(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.stmt) and not docstring:
                (inner if inside else outer).add(child.lineno)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if not _for_types_alone(child):
                walk(child, inside or function)

    walk(ast.parse(path.read_text()), False)
    return inner, outer - inner


def _for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def run(tree: Path, project: Path, name: str, spec: str | None, arguments: list[str]) -> dict[str, set[int]]:
    """Return the lines that a run executed, by module below the package."""
    home = Path(tempfile.mkdtemp())
    target: list[str] = []
    if spec is not None:
        (project / "one.int8acc.yaml").write_text(spec)
        target = ["--int8acc", "one.int8acc.yaml"]
    rc = home / "coveragerc"
    rc.write_text(
        f"[run]\nparallel = true\nsource = {tree / PACKAGE}\ndata_file = {home / 'data'}\n"
        "concurrency = thread\npatch = subprocess\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tree), "COVERAGE_RCFILE": str(rc)}
    command = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        f"--rcfile={rc}",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *arguments, *target], cwd=project, env=environment, capture_output=True, text=True
    )
    print(
        f"{name:16} exit {done.returncode}: {(done.stdout.strip().splitlines() or [''])[-1]}", file=sys.stderr
    )
    subprocess.run(
        [sys.executable, "-m", "coverage", "combine", f"--rcfile={rc}", "-q"], env=environment, cwd=home
    )
    told = home / "told.json"
    subprocess.run(
        [sys.executable, "-m", "coverage", "json", f"--rcfile={rc}", "-q", "-o", str(told)],
        env=environment,
        cwd=home,
    )
    found: dict[str, Any] = json.loads(told.read_text())["files"]
    shutil.rmtree(home)
    lines = {}
    for file, facts in found.items():
        path = (home / file).resolve() if not os.path.isabs(file) else Path(file)
        lines[str(path).rpartition(f"{PACKAGE}/")[2]] = set(facts["executed_lines"])
    return lines


def main() -> None:
    """Run, and print both figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(), help="the project's root")
    parser.add_argument("--missed", nargs="*", help="rooms whose missed lines are printed")
    parser.add_argument("--only", nargs="+", help="names of runs; else all")
    options = parser.parse_args()
    tree = options.tree.resolve()
    project = Path(tempfile.mkdtemp()) / "project"
    shutil.copytree(tree / "example_project", project)
    shutil.copy(project / "digits.onnx", project / "fresh.onnx")
    executed: dict[str, set[int]] = collections.defaultdict(set)
    entered: dict[str, set[int]] = {}
    for name, (spec, arguments) in RUNS.items():
        if options.only and name not in options.only:
            continue
        lines = run(tree, project, name, spec, arguments)
        if name == "failing, -vv":
            entered = lines
        for file, numbers in lines.items():
            executed[file] |= numbers
    rooms: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    imported = inside = modules = 0
    for path in sorted((tree / PACKAGE).rglob("*.py")):
        file = path.relative_to(tree / PACKAGE).as_posix()
        inner, outer = statements(path)
        modules += 1
        imported += bool(entered.get(file, set()) & (inner | outer))
        inside += bool(entered.get(file, set()) & inner)
        if file.startswith(OUT_OF_REACH):
            continue
        both = inner | outer
        room = file.partition("/")[0]
        rooms[room][0] += len(both & executed[file])
        rooms[room][1] += len(both)
        if options.missed is not None and (room in options.missed or not options.missed):
            missed = sorted(inner - executed[file])
            if missed:
                print(f"{file}: {len(missed)} of {len(both)} missed: {missed}")
    print(f"modules: {modules}; loaded by a failing case: {imported}; functions of which it runs: {inside}")
    for room, (ran, of) in sorted(rooms.items()):
        print(f"{room:16} {ran:6} of {of:6}  {100 * ran / of:5.1f} %")
    ran, of = (sum(pair[i] for pair in rooms.values()) for i in (0, 1))
    print(f"{'all':16} {ran:6} of {of:6}  {100 * ran / of:5.1f} %")


if __name__ == "__main__":
    main()
