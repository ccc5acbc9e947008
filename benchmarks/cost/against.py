"""One drawn task by the plugin and by NNCF's accuracy control: what it takes them, and what they find."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cost.draw import BOUNDARY, Task
from benchmarks.cost.process import Ran, check, run
from benchmarks.regressions import judge
from benchmarks.search import commit

HEADER = ("entry", "network", "groups", "ours, CPU s", "NNCF, CPU s", "ours / NNCF", "our fix", "NNCF")


@dataclass(frozen=True)
class Round:
    """Both tools on one task, once: the plugin first, then NNCF."""

    ours: float
    """CPU seconds of the plugin's process."""
    cut: bool
    """Whether the plugin's process was ended at the limit, so that it would have taken more."""
    fix: str
    """The kind of the plugin's first remedy, and how many of the groups in INT8 leave INT8."""
    phases: Mapping[str, float]
    """CPU seconds of the phases of the case."""
    nncf: float
    """CPU seconds of NNCF's process."""
    found: str
    """How many Conv, Gemm and MatMul layers NNCF reverts, and whether its model keeps the limits; or why NNCF
    gives no model."""
    refused: bool
    """Whether NNCF gives no model, or one in which no layer is in INT8 at first."""
    reverted: int = 0
    """Number of layers that NNCF takes back from INT8."""
    tool: str = ""
    """The versions of NNCF and of what it runs on."""


@dataclass(frozen=True)
class Compared:
    """All rounds of one task."""

    task: Task
    rounds: list[Round] = field(default_factory=list)

    @property
    def few(self) -> bool:
        """Whether the network has fewer groups than ``BOUNDARY``."""
        return self.task.groups < BOUNDARY

    @property
    def ours(self) -> float:
        """The median of the plugin's CPU seconds."""
        return statistics.median(one.ours for one in self.rounds)

    @property
    def nncf(self) -> float:
        """The median of NNCF's CPU seconds."""
        return statistics.median(one.nncf for one in self.rounds)

    @property
    def cut(self) -> bool:
        """Whether a process of the plugin was ended at the limit."""
        return any(one.cut for one in self.rounds)

    @property
    def ratio(self) -> float | None:
        """The plugin's CPU seconds over NNCF's; None where NNCF refuses the task."""
        return None if self.rounds[0].refused else self.ours / self.nncf

    @property
    def cells(self) -> tuple[object, ...]:
        """A line of the table."""
        ours = f"{'> ' if self.cut else ''}{self.ours:.3g}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        last = self.rounds[-1]
        task = (self.task.entry, self.task.network, self.task.groups)
        return (*task, ours, f"{self.nncf:.3g}", ratio, last.fix, last.found)


@dataclass(frozen=True)
class Plan:
    """How tasks are measured."""

    python: Path
    """The interpreter of NNCF's environment."""
    limit: int
    """CPU seconds that the plugin's process may take."""
    rounds: int
    kept: Path | None
    """A file of rounds measured before, a JSON line each; every new round is added."""


def compare(task: Task, seed: int, plan: Plan) -> Compared:
    """Measure a task, but for the rounds that this commit has in the file already."""
    compared, before = Compared(task), _read(plan.kept)
    for number in range(plan.rounds):
        key = [commit(), seed, task.entry, number]
        one = before.get(json.dumps(key))
        if one is None:
            one = _measure(task, plan)
            if plan.kept:
                with plan.kept.open("a") as file:
                    file.write(json.dumps([key, asdict(one)]) + "\n")
        compared.rounds.append(one)
    return compared


def _read(path: Path | None) -> dict[str, Round]:
    if path is None or not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {json.dumps(key): Round(**values) for key, values in lines}


def _measure(task: Task, plan: Plan) -> Round:
    report = task.folder / "report"
    ours = check(task.spec, limit=plan.limit, fails=True, report=report)
    fix = _fix(ours.case, _keeps(task, next(report.glob("*/fixed.onnx"), None)))
    theirs = run([plan.python, "-m", "benchmarks.cost.control", task.folder], may_fail=True)
    found, refused, told = _found(task, theirs)
    return Round(
        ours.cpu,
        ours.cut,
        fix,
        ours.phases,
        theirs.cpu,
        found,
        refused,
        reverted=len(told.get("reverted", ())),
        tool=told.get("tool", ""),
    )


def _fix(case: Mapping[str, Any], keeps: bool) -> str:
    """The kind of a case's first remedy, and the layers in high precision."""
    repairs = (case.get("diagnosis") or {}).get("repairs", ())
    if not repairs:
        return "none"
    first = repairs[0]
    share = f"{first['kind']}, {len(first['layers'])} of {case['int8_groups']} high"
    if not keeps:
        return f"{share}, limits missed"
    return share if first["verified"] else f"{share}, not verified"


def _found(task: Task, ran: Ran) -> tuple[str, bool, Mapping[str, Any]]:
    """What NNCF found in words, whether it refuses the task, and the content of ``nncf.json``."""
    if ran.code:
        lines = ran.said.strip().splitlines() or [""]
        return f"refuses: {lines[-1][:120]}", True, {}
    told = json.loads((task.folder / "nncf.json").read_text())
    if not told["layers"]:
        return "quantizes no layer", True, told
    kept = "kept" if _keeps(task, task.folder / "nncf.onnx") else "missed"
    return f"{len(told['reverted'])} of {told['layers']} high, limits {kept}", False, told


def _keeps(task: Task, model: Path | None) -> bool:
    """Whether a model keeps the limits of a task on the task's own samples."""
    if model is None:
        return False
    with np.load(task.folder / "inputs.npz") as arrays:
        inputs = dict(arrays)
    limits = json.loads((task.folder / "task.json").read_text())["limits"]
    expected, found = (judge.run(path.read_bytes(), inputs) for path in (task.folder / "model.onnx", model))
    return judge.margin(judge.scores(expected, found, limits), limits) >= 0
