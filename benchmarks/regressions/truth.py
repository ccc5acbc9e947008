"""The least that must leave INT8, found by trying: the measure of an answer's precision and recall.

An answer is judged by an instrument run here, on all samples, by the formulas of judge.py; no search code and
no criteria of the plugin take part.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.best import FEASIBLE, weight
from benchmarks.regressions import judge
from benchmarks.regressions.entry import Planted
from pytest_int8acc.case.shapes import tensor_shapes
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.instrument import build_instrument
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.macs import macs, sized_tensors
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.onnxruntime import OrtEngine

#: Sets tried for one entry.
TRIALS = 600
_NEAR = 1e-9


@dataclass(frozen=True)
class Verdict:
    """An answer beside the least set known."""

    sufficient: bool
    """The criteria hold with the answer's groups in FP16."""
    minimal: bool
    """And fail with any one of them sent back to INT8."""
    lightest: bool
    """Sufficient, and no lighter set is known."""
    least: tuple[str, ...]
    """The measure: the answer where that is right, else the lightest sufficient set known."""
    proven: bool
    """All sets lighter than the lightest known were tried."""
    certain: tuple[str, ...]
    """Planted groups that break the criteria alone in INT8: every sufficient set must hold them."""
    precision: float
    recall: float


class Prover:
    """Tries sets of groups of one entry."""

    def __init__(self, planted: Planted, folder: Path) -> None:
        """Build the instrument and run the baseline."""
        assert planted.candidate is not None
        file = folder / "candidate.onnx"
        if isinstance(planted.candidate, Model):
            save_model(planted.candidate, file)
        else:
            file.write_bytes(planted.candidate)
        low = FORMATS[planted.low]
        network = read_qdq(load_model(file), original=planted.model, low=low)
        self._instrument = build_instrument(network, "fp16")
        self.names = tuple(group.name for group in network.groups)
        self._planted = planted
        self._engine = OrtEngine(self._instrument.model, threads=1)
        self._baseline = OrtEngine(to_fp16(planted.model).model, threads=1)(planted.inputs)
        self._known: dict[frozenset[str], bool] = {}
        feed = {name: array[:1] for name, array in planted.inputs.items()}
        cost = macs(network, tensor_shapes(network.model, feed, sized_tensors(network.model)))
        total = sum(cost.values()) or 1.0
        self.price = {name: cost[name] / total for name in self.names}

    @property
    def trials(self) -> int:
        """Sets tried so far."""
        return len(self._known)

    def passes(self, high: Iterable[str]) -> bool:
        """Whether the criteria hold with these groups in FP16."""
        plan = frozenset(high)
        if plan not in self._known:
            outputs = self._engine({**self._planted.inputs, **self._instrument.controls.setting(plan).inputs})
            limits = self._planted.limits
            self._known[plan] = judge.margin(judge.scores(self._baseline, outputs, limits), limits) >= 0
        return self._known[plan]

    def minimal(self, high: Iterable[str]) -> bool:
        """Whether each of a set that passes must be in it."""
        plan = frozenset(high)
        return self.passes(plan) and not any(self.passes(plan - {name}) for name in plan)

    def shrunk(self, high: Iterable[str]) -> frozenset[str]:
        """A sufficient set without members that can go, dearest first."""
        plan = frozenset(high)
        for name in sorted(plan, key=lambda n: (-self.price[n], n)):
            if self.passes(plan - {name}):
                plan -= {name}
        return plan

    def weigh(self, high: Iterable[str]) -> float:
        """The price that searches make small: MACs, and a little per group."""
        return weight(high, self.price)


def prove(prover: Prover, answer: Iterable[str], planted: Mapping[str, object]) -> Verdict:
    """Judge an answer.

    The planted groups are not always the measure: one of an interacting pair may suffice, and a fault may be
    harmless by itself. An answer is right where it is a minimal set of planted groups, or sufficient and as
    light as any. Else the measure is the lightest sufficient set (by MACs, as is the search's own aim, and a
    little per group): of all sets where the network has up to 12 groups, elsewhere of those of the groups
    planted and answered. Where no set suffices, the planted groups are the measure.

    Args:
        prover: Of the entry.
        answer: The groups that the plugin names.
        planted: The groups that were touched.
    """
    found, touched = frozenset(answer), frozenset(planted) & frozenset(prover.names)
    everything = frozenset(prover.names)
    certain = tuple(n for n in sorted(touched) if not prover.passes(everything - {n}))
    known = [prover.shrunk(s) for s in (found, touched, everything) if prover.passes(s)]
    best = min(known, key=prover.weigh, default=touched)
    universe = prover.names if len(prover.names) <= FEASIBLE else tuple(touched | found)
    best, proven = _lightest(prover, best, universe) if known else (best, False)
    sufficient = prover.passes(found)
    minimal = prover.minimal(found)
    light = sufficient and prover.weigh(found) <= prover.weigh(best) + _NEAR
    measure = found if light or (minimal and found <= touched) else best
    common = len(found & measure)
    return Verdict(
        sufficient=sufficient,
        minimal=minimal,
        lightest=light,
        least=tuple(sorted(measure)),
        proven=proven and len(universe) == len(prover.names),
        certain=certain,
        precision=common / len(found) if found else 0.0,
        recall=common / len(measure) if measure else 0.0,
    )


def _lightest(prover: Prover, best: frozenset[str], universe: Iterable[str]) -> tuple[frozenset[str], bool]:
    """The lightest sufficient set, ``best`` or one of ``universe``; False where trials ran out before."""
    for candidate in by_weight(universe, prover):
        if prover.weigh(candidate) >= prover.weigh(best) - _NEAR:
            return best, True
        if prover.trials >= TRIALS:
            return best, False
        if prover.passes(candidate):
            return candidate, True
    return best, True


def by_weight(names: Iterable[str], prover: Prover) -> Iterator[frozenset[str]]:
    """All sets of ``names`` but the empty one, lightest first, made as they are asked for."""
    order = sorted(names, key=lambda name: (prover.weigh([name]), name))
    if not order:
        return
    weights = [prover.weigh([name]) for name in order]
    heap: list[tuple[float, tuple[int, ...]]] = [(weights[0], (0,))]
    while heap:
        total, chosen = heapq.heappop(heap)
        yield frozenset(order[i] for i in chosen)
        last = chosen[-1]
        if last + 1 < len(order):
            grown = total + weights[last + 1]
            heapq.heappush(heap, (grown, (*chosen, last + 1)))
            heapq.heappush(heap, (grown - weights[last], (*chosen[:-1], last + 1)))
