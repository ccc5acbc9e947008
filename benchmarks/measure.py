"""One case through all strategies: what each found, what it cost, and how far from the best set known."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.best import optimum, prices, weight
from benchmarks.case import BATCH, Case
from benchmarks.cost.process import plain
from benchmarks.judge import Judge
from benchmarks.simulate import instrument, simulator
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.report.search import ending_text
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.search.strategies import search
from pytest_int8acc.search.types import Evaluator, SearchResult
from pytest_int8acc.settings import Strategy
from pytest_int8acc.tensors import Feed

#: Random plans that the price of a trial is taken from.
_PLANS = 9
#: Samples of a run while memory is measured.
_ROWS = 8


@dataclass(frozen=True)
class Row:
    """One strategy on one case."""

    case: str
    strategy: str
    groups: int
    high: tuple[str, ...]
    passes: bool
    """By the judge, not by the search."""
    minimal: bool
    """By the judge, not by the search."""
    agrees: bool
    """Whether the search said of its answer what the judge says."""
    trials: int
    probes: int
    cost: float
    """Trials and probes, in equivalents of a trial on all samples."""
    seconds: float
    macs: float
    """Share of all MACs that leaves INT8."""
    excess_groups: int
    """Against the best set known; negative where a set of fewer groups costs more MACs."""
    excess_macs: float
    reason: str


@dataclass(frozen=True)
class CaseReport:
    """A case, and what all strategies made of it."""

    name: str
    trouble: str
    groups: int
    samples: int
    planted: tuple[str, ...] | None
    best: tuple[str, ...]
    proven: bool
    """True where the best set is the optimum, by brute force."""
    trial_ratio: float
    """Seconds of a trial over those of the optimized float model on the same samples."""
    size_ratio: float
    """Bytes of the instrument over those of the float model."""
    memory_ratio: float
    """The same for the resident memory of a session after one batch."""
    rows: tuple[Row, ...]


def measure(case: Case, strategies: Sequence[Strategy]) -> CaseReport:
    """Run ``strategies`` on ``case``, each with a simulator of its own, and have the answers judged."""
    judge, evaluator = Judge(case), simulator(case)
    price = prices(evaluator.groups)
    results: dict[Strategy, SearchResult] = {}
    seconds: dict[Strategy, float] = {}
    for name in strategies:
        own, began = simulator(case), time.monotonic()
        results[name] = search(own, name)
        seconds[name] = time.monotonic() - began
    proven = optimum(simulator(case), price)
    best = proven if proven is not None else best_of(results.values(), judge, price)
    network = case.network
    return CaseReport(
        name=case.name,
        trouble=case.trouble,
        groups=len(network.groups),
        samples=case.samples,
        planted=None if case.culprits is None else tuple(sorted(case.culprits)),
        best=tuple(sorted(best)),
        proven=proven is not None,
        trial_ratio=trial_ratio(case, evaluator),
        size_ratio=instrument(network).model.nbytes / network.model.nbytes,
        memory_ratio=memory_ratio(case),
        rows=tuple(
            _row(case, name, result, seconds[name], judge, best, price) for name, result in results.items()
        ),
    )


def best_of(results: Iterable[SearchResult], judge: Judge, price: Mapping[str, float]) -> frozenset[str]:
    """The lightest answer that passes; all groups where none does."""
    sets = [frozenset(result.high) for result in results]
    passing = [high for high in sets if judge.passes(high)]
    return min(passing, key=lambda high: weight(high, price), default=frozenset(price))


def trial_ratio(case: Case, evaluator: Evaluator) -> float:
    """Median seconds of random plans over median seconds of the optimized float model, run in turn."""
    engine = OrtEngine(case.network.model)
    rng = np.random.default_rng(0)
    count = len(evaluator.groups)

    def plain() -> None:
        for start in range(0, case.samples, BATCH):
            engine({name: array[start : start + BATCH] for name, array in case.data.items()})

    def trial() -> None:
        high = np.flatnonzero(rng.random(count) < rng.random()).tolist()
        evaluator.trial(frozenset(high), range(case.samples), None)

    plain(), trial()  # the first runs allocate
    seconds = [(_seconds(plain), _seconds(trial)) for _ in range(_PLANS)]
    float_seconds, trial_seconds = map(statistics.median, zip(*seconds, strict=True))
    return trial_seconds / float_seconds


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def memory_ratio(case: Case) -> float:
    """Resident memory of the instrument's session over that of the float model's, on a run of a search."""
    board = instrument(case.network)
    feed = {name: array[:_ROWS] for name, array in case.data.items()}
    switched = session_bytes(board.model, {**feed, **board.controls.setting([]).inputs})
    return switched / session_bytes(case.network.model, feed)


def session_bytes(model: Model, feed: Feed) -> int:
    """What a session and its first run add to the resident memory of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder) / "model.onnx", Path(folder) / "feed.npz"
        save_model(model, path, external_weights=True)  # as OrtEngine hands over what is not small
        np.savez(data, **feed)
        return int(plain("memory", path, data))


def _row(
    case: Case,
    strategy: str,
    result: SearchResult,
    seconds: float,
    judge: Judge,
    best: frozenset[str],
    price: Mapping[str, float],
) -> Row:
    passes, minimal = judge.passes(result.high), judge.is_minimal(result.high)
    macs = math.fsum(price[name] for name in result.high)
    return Row(
        case=case.name,
        strategy=strategy,
        groups=len(case.network.groups),
        high=result.high,
        passes=passes,
        minimal=minimal,
        agrees=result.passed == passes and (minimal or not result.minimal),
        trials=len(result.trials),
        probes=result.probes,
        cost=result.cost,
        seconds=seconds,
        macs=macs,
        excess_groups=len(result.high) - len(best),
        excess_macs=macs - math.fsum(price[name] for name in best),
        reason=ending_text(result.ending, "INT8"),
    )
