"""What is measured, one function per topic; each line is a figure beside its goal."""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.architectures import csp_tiny, vit_tiny
from benchmarks.cost.against import HEADER, Compared, Plan, compare, conditions
from benchmarks.cost.draw import FEW, MANY, draw
from benchmarks.cost.process import Ran, check, run
from benchmarks.cost.specs import Written, write, write_case, write_large, write_rival
from benchmarks.engines import NETWORKS
from benchmarks.growth import graph_seconds, network
from benchmarks.memory import LIMITS, outputs_ratio
from benchmarks.nets import CASES, digits, trained
from benchmarks.tables import table

#: What starting pytest, its imports and reports may take, in CPU seconds.
START = 3.0
#: What one tensor calibrated by entropy may take, in CPU seconds.
ENTROPY = 0.2
_RIVALS = ("mobilenet", "vit", "cnn")
_NOISE = ("vit_accumulated", "resnet50_accumulated")
_OCR = ("rec", "det", "cls")
_IMPORT = (
    "import pytest, time; t = time.process_time_ns(); "
    "import pytest_int8acc.plugin.hooks, pytest_int8acc.plugin.fixtures; "
    "print((time.process_time_ns() - t) / 1e6)"
)


@dataclass(frozen=True)
class Line:
    """A figure and the most that it may be."""

    what: str
    figure: float
    goal: float | None
    unit: str = ""
    least: bool = False
    """Whether a process was ended at its limit, so that the figure is more than this."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What it was computed from."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        return None if self.goal is None else self.figure <= self.goal and not self.least


@dataclass(frozen=True)
class Setup:
    """Where to work, and how much."""

    folder: Path
    environments: Path
    limit: int
    """CPU seconds that one process may take."""
    rounds: int
    """Of which the median is taken."""
    seed: int
    """Seed of the draw of tasks."""
    tasks: int
    """Number of tasks that are drawn."""
    kept: Path | None
    """A file that keeps the rounds of these tasks, so that a run goes on where one ended."""

    def python(self, environment: str) -> Path:
        """The interpreter of an environment; SystemExit where it is not there."""
        python = self.environments / environment / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"there is no {python}: add --install, or name another folder by --environments")
        return python


def rivals(setup: Setup) -> Iterator[Line]:
    """Failing cases drawn by the seed against NNCF's accuracy control, process against process, in turn."""
    python = setup.python("nncf")
    plan = Plan(python, setup.limit, setup.rounds, setup.kept, conditions(python))
    compared: list[Compared] = []
    for task in draw(setup.seed, setup.tasks, setup.folder / "drawn"):
        compared.append(compare(task, setup.seed, plan))
        print(table(HEADER, [compared[-1].cells]).splitlines()[-1], flush=True)
    print(f"\n{table(HEADER, [each.cells for each in compared])}\n")
    versions = plan.conditions["NNCF's environment"]
    print(f"seed {setup.seed}, {setup.rounds} rounds, NNCF with {versions}\n", flush=True)
    for size, goal in ((FEW, 0.7), (MANY, 0.5)):
        yield from ratios([each for each in compared if each.task.size == size], size, goal)
    reverted = [each.rounds[-1].reverted for each in compared]
    models = len(reverted) - reverted.count(None)
    yield Line("tasks in which NNCF reverts no layer", reverted.count(0), None, f"of {models} with a model")
    shares = []
    for phases in (each.rounds[-1].phases for each in compared):
        if "repair" in phases and "search" in phases:
            search = phases["search"] + phases.get("proof", 0.0)
            shares.append((phases.get("causes", 0.0) + phases["repair"]) / search)
    if shares:
        ratio = statistics.median(shares)
        yield Line("diagnosis and repair / search with proof", ratio, 2, more={"all": shares})


def ratios(compared: Sequence[Compared], size: str, goal: float) -> Iterator[Line]:
    """The median ratio of the tasks in which both tools keep the limits; the number of all other tasks."""
    by_entry = {each.task.entry: each.ratio for each in compared if each.ratio is not None}
    if by_entry:
        what = f"failing case / NNCF, median of {len(by_entry)}, {size}"
        yield Line(what, statistics.median(by_entry.values()), goal, more=by_entry)
    failures = Counter(each.failures for each in compared if each.failures)
    missing = "" if by_entry else "no ratio: "
    what = f"{missing}tasks in which not both keep the limits, {size}"
    reasons = "".join(f"; {reason} ({number})" for reason, number in failures.items())
    yield Line(what, failures.total(), None, f"of {len(compared)}{reasons}")


def suite(setup: Setup) -> Iterator[Line]:
    """Failing cases of the search suite, and those of the rivals, in plain passes."""
    failing = []
    for name in (*CASES, *_RIVALS):
        folder = setup.folder / "suite" / name
        case = write_case(CASES[name](), folder) if name in CASES else write_rival(name, folder)
        ran = check(case.spec, limit=setup.limit, fails=True)
        failing.append(_in_passes(f"failing {name}", ran, case, 40))
        yield _in_passes(f"noise of all layers, {name}", ran, case, 100) if name in _NOISE else failing[-1]
    yield median(failing)


def median(failing: Sequence[Line]) -> Line:
    """The median of failing cases; more than that where one that was cut may lie beyond it."""
    figure = statistics.median(line.figure for line in failing)
    cut = any(line.least and line.figure <= figure for line in failing)
    return Line("median of all failing cases", figure, 1, "of 40 u + 3 s", cut)


def _in_passes(what: str, ran: Ran, case: Written, passes: int, tensors: int = 0) -> Line:
    """CPU seconds over those of so many plain passes, of starting, and of ``tensors`` calibrated."""
    u = statistics.median(case.plain_pass() for _ in range(3))
    allowed = passes * u + START + ENTROPY * tensors
    unit = f"of {passes} u + {START:g} s" + f" + {ENTROPY * tensors:.3g} s" * (tensors > 0)
    more = {"cpu": ran.cpu, "u": u, "tensors": tensors, "phases": ran.phases}
    return Line(what, ran.cpu / allowed, 1, unit, ran.cut, more)


def ocr(setup: Setup) -> Iterator[Line]:
    """Networks of rapidocr on rendered text, entropy calibration."""
    python, data = setup.python("ocr"), setup.folder / "text"
    data.mkdir()
    run([python, "-m", "benchmarks.cost.render", data])
    models = next((setup.environments / "ocr").rglob("rapidocr_onnxruntime/models"))
    for name in _OCR:
        with np.load(data / f"{name}.npz") as arrays:
            feed = dict(arrays)
        (model,) = models.glob(f"*_{name}_infer.onnx")
        case = write(setup.folder / "ocr" / name, model, feed, {"calibrate": {}}, [], batch=8)
        tensors = len(case.activations())
        verdict = check(case.spec, "--int8acc-search=off", limit=setup.limit)
        yield _in_passes(f"{name}: verdict", verdict, case, 15, tensors)
        answer = check(case.spec, limit=setup.limit)
        yield _in_passes(f"{name}: answer", answer, case, 100, tensors)


def passing(setup: Setup) -> Iterator[Line]:
    """Passing cases, and calibration."""
    start = small(setup)
    yield start
    for name, build in NETWORKS.items():
        case = write_large(build(), setup.folder / name)
        ours, hand = [], []
        for _ in range(setup.rounds):
            ours.append(check(case.spec, limit=setup.limit, fails=False).cpu - start.figure)
            hand.append(case.by_hand())
        pairs = [o / h for o, h in zip(ours, hand, strict=True)]
        more = {"ours": ours, "by hand": hand}
        yield Line(f"passing {name} / two forms by hand", statistics.median(pairs), 1.35, more=more)
        u, count = statistics.median(case.plain_pass() for _ in range(setup.rounds)), len(case.activations())
        minmax = statistics.median(case.calibrate("minmax")[1] for _ in range(setup.rounds))
        yield Line(f"{name}: minmax", minmax / u, 1.2, "u", more={"u": u})
        entropy = case.calibrate("entropy")[1]
        yield Line(
            f"{name}: entropy", entropy / count, ENTROPY, "s per tensor", more={"tensors": count, "u": u}
        )


def small(setup: Setup) -> Line:
    """A small case that passes."""
    calibration = digits("calibration", 128)
    folder = setup.folder / "small"
    int8 = {"calibrate": {"data": "calibration.npz", "method": "minmax"}}
    case = write(folder, trained("cnn"), digits("validation", 400), int8, [{"cosine": 0.99}])
    np.savez(folder / "calibration.npz", **calibration)
    cpu = [check(case.spec, fails=False).cpu for _ in range(setup.rounds + 1)]
    return Line("passing small case", statistics.median(cpu[1:]), 1.4, "s", more={"all": cpu})


def memory(setup: Setup) -> Iterator[Line]:
    """What dense outputs take: 64 samples of 21x256x256, of a case that passes and of one that fails."""
    for name, limit in LIMITS.items():
        yield Line(f"memory of a case that {name} / one form's outputs", outputs_ratio(limit), 1.3)


def growth(setup: Setup) -> Iterator[Line]:
    """A failing case of 98 groups and one of 1002, three scales wrong in each."""
    start, each = small(setup), {}
    for blocks in (12, 125):
        made = network(blocks)
        case = write_case(made, setup.folder / f"growth{blocks}")
        ran = check(case.spec, limit=setup.limit, fails=True)
        each[len(made.network.groups)] = ran
    (few, first), (many, last) = each.items()
    ratio = (last.cpu - start.figure) / many / ((first.cpu - start.figure) / few)
    more = {str(n): {"cpu": ran.cpu, "phases": ran.phases} for n, ran in each.items()}
    yield Line(
        f"failing case, CPU per group at {many} / at {few}",
        ratio,
        1.5,
        least=first.cut or last.cut,
        more=more,
    )
    for build in (vit_tiny, csp_tiny):
        sizes = [graph_seconds(build(blocks)) for blocks in (12, 125)]
        (few, first), (many, last) = ((n, {k: 1e3 * s / n for k, s in each.items()}) for n, each in sizes)
        what = f"work on graphs, {build.__name__}, per group at {many} / at {few}"
        ratio = sum(last.values()) / sum(first.values())
        yield Line(what, ratio, 1.5, more={f"ms per group at {few}": first, f"at {many}": last})


def startup(setup: Setup) -> Iterator[Line]:
    """What the plugin costs a suite that has no specs: 1000 tests with it and without it, in turn."""
    for i in range(50):
        tests = [f"def test_{j}():\n    assert {j} + 1 == {j + 1}\n" for j in range(20)]
        (setup.folder / f"test_{i}.py").write_text("\n".join(tests))
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, setup.folder]
    pairs = [(run(suite).cpu, run([*suite, "-p", "no:int8acc"]).cpu) for _ in range(20)]
    ours, bare = map(min, zip(*pairs, strict=True))
    more = {"with": ours, "without": bare}
    yield Line("1000 tests without specs, with the plugin / without", ours / bare, 1.05, more=more)
    imported = min(float(run([sys.executable, "-c", _IMPORT]).said) for _ in range(20))
    yield Line("import of the plugin module", imported, 2, "ms")


TOPICS: Mapping[str, Callable[[Setup], Iterator[Line]]] = {
    "a": rivals,
    "b": suite,
    "c": ocr,
    "d": passing,
    "e": memory,
    "f": growth,
    "g": startup,
}
