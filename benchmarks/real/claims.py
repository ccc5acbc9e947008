"""What a report says, each claim beside what a second opinion sees."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks.real.second import (
    MOVES,
    Places,
    drawn,
    energy,
    freed,
    in_fp16,
    moved,
    quantized_places,
    room,
    runner,
    taken,
)
from benchmarks.regressions.judge import Limits, scores
from pytest_int8acc.tensors import Feed

#: Optimized graphs round otherwise, and a report's may be in FP16: scores may differ by this much, in dB.
_NEAR_DB = 0.5
#: Shares of the error are measured on some of the samples.
_NEAR_SHARE = 0.1
#: Of repetitions of each kind that a verified fix must pass.
_HOLDS = 0.95


@dataclass(frozen=True)
class Claim:
    """One sentence of a report, and what was seen."""

    said: str
    seen: str
    right: bool


@dataclass(frozen=True, eq=False)
class Opinion:
    """A model, its INT8 form (None: FP16 by hand) and its fix, for plain ONNX Runtime."""

    plain: onnx.ModelProto
    int8: onnx.ModelProto | None
    inputs: Feed
    rows: int
    limits: Limits
    fixed: Path | None

    def run(self, proto: onnx.ModelProto, feed: Feed | None = None) -> Feed:
        """Outputs of all samples, or of others."""
        return runner(feed or self.inputs, self.rows)(proto)

    def repeated(self, proto: onnx.ModelProto) -> tuple[int, int]:
        """How often of ``MOVES`` a form keeps its limits on samples drawn again, and on inputs moved."""
        expected, found = self.run(self.plain), self.run(proto)
        draws = (drawn(self.inputs, seed) for seed in range(MOVES))
        rooms = [room(taken(expected, rows), taken(found, rows), self.limits) for rows in draws]
        feeds = (moved(self.inputs, seed) for seed in range(MOVES))
        others = [room(self.run(self.plain, feed), self.run(proto, feed), self.limits) for feed in feeds]
        return sum(each >= 0 for each in rooms), sum(each >= 0 for each in others)

    def room(self, proto: onnx.ModelProto) -> float:
        """How far its worst criterion lies inside the limit, in dB."""
        return room(self.run(self.plain), self.run(proto), self.limits)

    def without(self, high: Collection[str]) -> onnx.ModelProto:
        """The low form with these nodes kept out of it."""
        if self.int8 is None:
            return in_fp16(self.plain, high)
        places = quantized_places(self.int8)
        return freed(self.int8, self.plain, {node: places.get(node, ()) for node in high})


def claims(case: Mapping[str, Any], opinion: Opinion) -> Iterator[Claim]:
    """The verdict, the culprits, their causes, and the fix of one case of report.json."""
    if not case.get("scores"):
        yield Claim(case["message"][:120], "nothing was judged", right=False)
        return
    low = opinion.without(())
    left = opinion.room(low)
    found = scores(opinion.run(opinion.plain), opinion.run(low), opinion.limits)
    told = [(s["metric"], s["value"]) for s in case["scores"] if s["limit"] is not None]
    pairs = list(zip(told, found.values(), strict=True))
    near = all(abs(a - b) <= (_NEAR_DB if m.endswith("_db") else _NEAR_SHARE / 10) for (m, a), b in pairs)
    said = ", ".join(f"{metric} {value:.4g}" for metric, value in told)
    seen = ", ".join(f"{value:.4g}" for value in found.values())
    yield Claim(f"{case['verdict']}: {said}", seen, near and (left >= 0) == (case["verdict"] == "passed"))
    yield _stands(case, opinion.repeated(low))
    search = case["search"] or {}
    culprits = {tuple(c["nodes"]): c for c in search.get("culprits", ())}
    if opinion.int8 is not None and search and not culprits:
        yield _all_needed(list(quantized_places(opinion.int8)), opinion)
    if culprits:
        yield from _culprits(culprits, opinion)
        for nodes, culprit in culprits.items():
            cause = culprit["cause"] or {}
            if cause.get("ablation") and opinion.int8 is not None:
                others = [node for group in culprits if group != nodes for node in group]
                yield from _ablation(nodes, cause["ablation"], others, opinion, opinion.int8)
    if case["verdict"] == "failed":
        yield _fix(case, opinion)


def _stands(case: Mapping[str, Any], kept: tuple[int, int]) -> Claim:
    """A verdict that is called steady comes out the same every time."""
    limited = [score for score in case["scores"] if score["limit"] is not None]
    passed = case["verdict"] == "passed"
    same = [times if passed else MOVES - times for times in kept]
    steady = [_is_steady(score) for score in limited if _keeps(score, float(score["value"])) == passed]
    trusted = all(steady) if passed else any(steady)
    seen = f"the same in {same[0]} and {same[1]} of {MOVES}, samples drawn again and inputs moved"
    return Claim(f"{'' if trusted else 'un'}steady", seen, not trusted or same == [MOVES, MOVES])


def _is_steady(score: Mapping[str, Any]) -> bool:
    again = score["interval"] or {"low": score["value"], "high": score["value"]}
    return _keeps(score, float(again["low"])) == _keeps(score, float(again["high"]))


def _keeps(score: Mapping[str, Any], value: float) -> bool:
    kept: bool = value >= score["limit"] if score["bound"] == "min" else value <= score["limit"]
    return kept


def _all_needed(layers: Collection[str], opinion: Opinion) -> Claim:
    """Where no layer is named, the criteria are said to be met only with all of them out of INT8."""
    kept = [node for node in layers if opinion.room(opinion.without([n for n in layers if n != node])) >= 0]
    seen = f"of {len(layers)} layers, {len(kept)} may stay: {', '.join(kept)}"
    return Claim("only with every layer out of INT8 are the criteria met", seen, not kept)


def _culprits(culprits: Mapping[tuple[str, ...], Any], opinion: Opinion) -> Iterator[Claim]:
    every = [node for group in culprits for node in group]
    whole = opinion.room(opinion.without(every))
    back = {group: opinion.room(opinion.without([n for n in every if n not in group])) for group in culprits}
    names = ", ".join(every)
    seen = f"all out: {whole:+.1f} dB; one back: at most {max(back.values()):+.1f} dB"
    yield Claim(f"at fault: {names}", seen, whole >= -_NEAR_DB and max(back.values()) < _NEAR_DB)
    if opinion.int8 is not None:
        rest = [node for node in quantized_places(opinion.int8) if node not in every]
        alone = [node for node in rest if opinion.room(opinion.without([node])) >= 0]
        seen = f"each of {len(rest)} others out alone: {len(alone)} bring the criteria back"
        yield Claim("no other layer is", f"{seen}{': ' * bool(alone)}{', '.join(alone)}", not alone)


def _ablation(
    nodes: Collection[str],
    taken: Mapping[str, Any],
    others: Collection[str],
    opinion: Opinion,
    int8: onnx.ModelProto,
) -> Iterator[Claim]:
    """What one unquantized input is said to give back, all other culprits, or layers, being out of INT8."""
    if taken["kind"] not in ("activation", "constants"):
        return
    if taken["alone"]:
        others = [node for node in quantized_places(int8) if node not in nodes]
    reads = {node.name: list(node.input) for node in opinion.plain.graph.node}
    weights = {tensor.name for tensor in opinion.plain.graph.initializer}
    places: Places = {
        node: [
            index
            for index, name in enumerate(reads[node])
            if (name == taken["tensor"] if taken["kind"] == "activation" else name in weights)
        ]
        for node in nodes
    }
    context = opinion.without(others)
    models = context, freed(context, opinion.plain, places), opinion.without([*others, *nodes])

    def share(feed: Feed) -> float:
        expected = opinion.run(opinion.plain, feed)
        before, after, none = (energy(expected, opinion.run(proto, feed)) for proto in models)
        return (before - after) / (before - none)

    seen, met = share(opinion.inputs), "enough" if taken["met"] else "not enough"
    if taken["beyond"]:
        drawn = sorted([seen, *(share(moved(opinion.inputs, seed)) for seed in range(MOVES))])
        text = f"{drawn[0]:.0%} to {drawn[-1]:.0%}, inputs moved"
        spread = drawn[-1] - drawn[0]
        yield Claim(f"'{taken['tensor']}' gives back more than the loss: chance", text, spread > _NEAR_SHARE)
        return
    back = room(opinion.run(opinion.plain), opinion.run(models[1]), opinion.limits)
    text = f"'{taken['tensor']}' unquantized gives back {taken['share']:.0%} of the loss, {met}"
    near = abs(min(seen, 1.0) - taken["share"]) <= _NEAR_SHARE
    yield Claim(
        text, f"{seen:.0%}, {back:+.1f} dB", near and (taken["met"] == (back >= 0) or abs(back) < _NEAR_DB)
    )


def _fix(case: Mapping[str, Any], opinion: Opinion) -> Claim:
    repairs = (case["diagnosis"] or {}).get("repairs", ())
    if opinion.fixed is None or not repairs:
        return Claim("no fix", "-", right=True)
    fixed = onnx.load(opinion.fixed)
    left, kept = opinion.room(fixed), opinion.repeated(fixed)
    first = repairs[0]
    called = "verified" if first["verified"] else "unsteady"
    said = f"{called} fix: {first['kind']}, {len(first['layers'])} layers high"
    seen = f"{left:+.1f} dB; passes {kept[0]} and {kept[1]} of {MOVES}, samples drawn again and inputs moved"
    return Claim(said, seen, left >= 0 and (not first["verified"] or min(kept) >= _HOLDS * MOVES))
