"""One drawn task by the plugin and by NNCF's accuracy control: the CPU seconds and the outcome of both."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.cost.draw import Task
from benchmarks.cost.process import check, run
from benchmarks.regressions import judge
from benchmarks.search import commit, processor

HEADER = (
    "entry",
    "network",
    "groups",
    "ours, CPU s",
    "NNCF, CPU s",
    "ours / NNCF",
    "our fix: groups of any operator",
    "NNCF: Conv, Gemm and MatMul",
)
#: The outcome of a tool whose model keeps the limits of the task.
KEPT = "limits kept"
_MISSED = "limits missed"
_CUT = "ended at --limit"
_VERSIONS = """
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("nncf", "onnxruntime", "onnx", "numpy")))
"""


@dataclass(frozen=True)
class Side:
    """What one tool makes of a task."""

    cpu: float
    """CPU seconds of the process."""
    outcome: str
    """``KEPT``, or why there is no model that keeps the limits."""
    summary: str = ""
    """How many layers leave INT8, and how; or the message of a refusal."""

    @property
    def cell(self) -> str:
        """Summary and outcome."""
        return ", ".join(text for text in (self.summary, self.outcome) if text)


@dataclass(frozen=True)
class Round:
    """Both tools on one task, once."""

    ours: Side
    nncf: Side
    phases: Mapping[str, float]
    """CPU seconds of the phases of the plugin's case."""
    reverted: int | None
    """Number of layers that NNCF reverts to floating point. None if NNCF gives no model in INT8."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Round:
        """The round that ``asdict`` gave ``values`` of."""
        sides = {name: Side(**values[name]) for name in ("ours", "nncf")}
        return cls(**{**values, **sides})


@dataclass(frozen=True)
class Compared:
    """All rounds of one task."""

    task: Task
    rounds: list[Round] = field(default_factory=list)

    @property
    def ours(self) -> Side:
        """The plugin's side; see ``_joined``."""
        return _joined([each.ours for each in self.rounds])

    @property
    def nncf(self) -> Side:
        """NNCF's side; see ``_joined``."""
        return _joined([each.nncf for each in self.rounds])

    @property
    def ratio(self) -> float | None:
        """The plugin's CPU seconds over NNCF's. None unless both keep the limits in all rounds."""
        if self.failures:
            return None
        return self.ours.cpu / self.nncf.cpu

    @property
    def failures(self) -> str:
        """Which tool fails, and how; empty if both keep the limits."""
        sides = {"ours": self.ours, "NNCF": self.nncf}
        return ", ".join(f"{name}: {side.outcome}" for name, side in sides.items() if side.outcome != KEPT)

    @property
    def cells(self) -> tuple[object, ...]:
        """A line of the table."""
        seconds = [f"{'> ' if side.outcome == _CUT else ''}{side.cpu:.3g}" for side in (self.ours, self.nncf)]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        entry = f"{self.task.entry} (faulty data)" if self.task.faulty_data else self.task.entry
        task = (entry, self.task.network, self.task.groups)
        return (*task, *seconds, ratio, self.ours.cell, self.nncf.cell)


def _joined(sides: list[Side]) -> Side:
    """The median of the CPU seconds, with the first round that fails, or the last if none does."""
    shown = next((side for side in sides if side.outcome != KEPT), sides[-1])
    return Side(statistics.median(side.cpu for side in sides), shown.outcome, shown.summary)


@dataclass(frozen=True)
class Plan:
    """How tasks are measured."""

    python: Path
    """The interpreter of NNCF's environment."""
    limit: int
    """CPU seconds that one process may take."""
    rounds: int
    kept: Path | None
    """A file of rounds measured before, a JSON line each; every new round is added."""
    conditions: Mapping[str, str]
    """What the figures depend on besides the task. A round from the file has to have the same."""


def conditions(python: Path) -> dict[str, str]:
    """The commit, the machine, and the versions of both environments.

    Raises:
        SystemExit: NNCF's environment has another ONNX Runtime than this one.
    """
    versions = run([python, "-c", _VERSIONS]).said.strip()
    runtime = f"onnxruntime {onnxruntime.__version__}"
    if runtime not in versions.split(", "):
        raise SystemExit(f"{python} has {versions}; install {runtime} there, as it is here")
    return {
        "commit": commit(),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "NNCF's environment": versions,
        "the plugin's environment": f"Python {platform.python_version()}, {runtime}, numpy {np.__version__}",
    }


def compare(task: Task, seed: int, plan: Plan) -> Compared:
    """Measure a task, but for the rounds that the file has under the same conditions."""
    compared, measured = Compared(task), _read(plan.kept)
    for number in range(plan.rounds):
        key = key_of(task, seed, number, plan)
        if key not in measured:
            measured[key] = _measure(task, plan, number)
            _keep(plan.kept, key, measured[key])
        compared.rounds.append(measured[key])
    return compared


def key_of(task: Task, seed: int, number: int, plan: Plan) -> str:
    """What a round in the file is found by."""
    which = {"seed": seed, "entry": task.entry, "number": number, "limit": plan.limit}
    return json.dumps({**plan.conditions, **which})


def _read(path: Path | None) -> dict[str, Round]:
    if path is None or not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {json.dumps(key): Round.read(values) for key, values in lines}


def _keep(path: Path | None, key: str, measured: Round) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps([json.loads(key), asdict(measured)]) + "\n")


def _measure(task: Task, plan: Plan, number: int) -> Round:
    """Run both tools. The plugin is first in even rounds, NNCF in odd rounds."""
    if number % 2:
        nncf, reverted = _run_nncf(task, plan)
        ours, phases = _run_plugin(task, plan)
    else:
        ours, phases = _run_plugin(task, plan)
        nncf, reverted = _run_nncf(task, plan)
    return Round(ours, nncf, phases, reverted)


def _run_plugin(task: Task, plan: Plan) -> tuple[Side, Mapping[str, float]]:
    """The plugin's side, and the CPU seconds of the case's phases."""
    report = task.folder / "report"
    ran = check(task.spec, limit=plan.limit, fails=True, report=report)
    if ran.cut:
        return Side(ran.cpu, _CUT), ran.phases
    fixes = (ran.case.get("diagnosis") or {}).get("repairs", ())
    if not fixes:
        return Side(ran.cpu, "no fix"), ran.phases
    summary = f"{fixes[0]['kind']}, {len(fixes[0]['layers'])} of {ran.case['int8_groups']} high"
    if not fixes[0]["verified"]:
        summary += ", not verified"
    model = next(report.glob("*/fixed.onnx"), None)
    outcome = "no fixed.onnx" if model is None else _outcome(task, model)
    return Side(ran.cpu, outcome, summary), ran.phases


def _run_nncf(task: Task, plan: Plan) -> tuple[Side, int | None]:
    """NNCF's side, and how many layers NNCF reverts; None if it gives no model in INT8."""
    written, model = task.folder / "nncf.json", task.folder / "nncf.onnx"
    for path in (written, model):
        path.unlink(missing_ok=True)
    ran = run([plan.python, "-m", "benchmarks.cost.control", task.folder], plan.limit)
    if ran.cut:
        return Side(ran.cpu, _CUT), None
    content = json.loads(written.read_text())
    if "refusal" in content:
        return Side(ran.cpu, "refused", " ".join(content["refusal"].split())[:120]), None
    if not content["layers"]:
        return Side(ran.cpu, "no layer quantized"), None
    reverted = len(content["reverted"])
    summary = f"{reverted} of {content['layers']} reverted"
    return Side(ran.cpu, _outcome(task, model), summary), reverted


def _outcome(task: Task, model: Path) -> str:
    """Whether a model keeps the limits of a task on the task's own samples."""
    with np.load(task.folder / "inputs.npz") as arrays:
        inputs = dict(arrays)
    limits = json.loads((task.folder / "task.json").read_text())["limits"]
    expected, outputs = (judge.run(path.read_bytes(), inputs) for path in (task.folder / "model.onnx", model))
    kept = judge.margin(judge.scores(expected, outputs, limits), limits) >= 0
    return KEPT if kept else _MISSED
