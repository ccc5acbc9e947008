"""Each sentence of a report on why a case fails, tried by hand: does what it implies happen?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from benchmarks.real.byhand import (
    QUANTIZING,
    Pair,
    Place,
    Quantized,
    best_reach,
    per_channel,
    run,
    tensors,
)
from benchmarks.real.second import in_fp16, moved, taken
from benchmarks.regressions.judge import Limits, margin, scores
from pytest_int8acc.tensors import Array, Feed

#: Optimized graphs round otherwise, and INT8 may be among FP16: scores may differ by so many dB, and shares
#: of the loss by so much.
NEAR_DB, NEAR_SHARE = 0.5, 0.1
#: The change that a symptom implies gives back at least this part of what the tensor costs.
PART = 0.5
#: A tensor that costs less than this share of its layer's loss explains nothing.
LEAST = 0.05
#: As many subsets of the samples are drawn where a trial saw some of them; as often inputs are moved.
DRAWS, MOVES = 40, 5
#: Ranges that lose about as little of a tensor as the best one, as multiples of it.
NEAR_BY = (0.8, 0.9, 1.15)
#: Channels are of one size if none is so many times as small as the largest.
SIZE = 8.0
#: How far a range that is told may be off, as a logarithm.
NEAR_RANGE = 0.15
#: The package measures large tensors on as few samples.
FEWEST = 8


@dataclass(frozen=True)
class Sentence:
    """One sentence, and what was seen."""

    kind: str
    said: str
    seen: str
    right: bool | None
    """None: nothing here can tell."""


#: Symptoms of an activation whose sentence says that another range for the whole tensor mends it.
_BY_RANGE = frozenset(
    {"range-too-wide", "cut-off", "one-sided", "vanishing-scale", "range-of-partner", "stretched-range"}
)
#: Those that say that the range holds what no reader needs.
_BY_USE = {
    "needless-values": "amax_in_use",
    "ignored-channels": "amax_in_use",
    "masked-values": "unmasked_amax",
}
#: Those that say that channels share a scale which does not suit them all.
_BY_CHANNEL = frozenset({"large-channels", "uneven-parts", "uneven-channels"})
#: Those that say that no other range helps.
_BY_NONE = frozenset(
    {"large-values", "noise-adds-up", "too-coarse", "quantized-inputs", "after-softmax", "after-gelu"}
    | {"product-of-activations", "decoding"}
)
#: Those of a weight that say that other scales mend it.
_WEIGHT_BY_SCALES = frozenset(
    {"few-codes", "weight-scales-off", "coarse-channels", "vanishing-weight-scale", "other-order"}
)
_BY_AXIS = frozenset({"one-scale-for-channels", "scales-of-other-axis"})


@dataclass(frozen=True, eq=False)
class Trials:
    """One case, for plain ONNX Runtime."""

    plain: onnx.ModelProto
    int8: onnx.ModelProto
    inputs: Feed
    rows: int
    limits: Limits
    half: bool = False
    """Whether all that is not quantized is in FP16, by Casts, and the float model too."""
    known: dict[str, Array | None] = field(default_factory=dict)
    """Values of tensors that were asked for."""

    @cached_property
    def quantized(self) -> Quantized:
        """The user's file with its float model."""
        return Quantized(self.int8, self.plain)

    @cached_property
    def expected(self) -> Feed:
        """The float model's outputs."""
        return self.run(self.plain)

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(next(iter(self.inputs.values())))

    def run(self, model: onnx.ModelProto, feed: Feed | None = None) -> Feed:
        """The outputs of all samples."""
        if self.half:
            quantizing = [node.name for node in model.graph.node if node.op_type in QUANTIZING]
            model = in_fp16(model, quantizing)
        return run(model, feed or self.inputs, self.rows)

    def room(self, found: Feed) -> float:
        """How far the worst criterion lies inside its limit, in dB."""
        return margin(scores(self.expected, found, self.limits), self.limits)

    def missed(self, found: Feed) -> int:
        """On how many draws of two thirds of the samples, as a search sees them, the limits are missed."""
        rng = np.random.default_rng(0)
        rooms = []
        for _ in range(DRAWS):
            rows = rng.choice(self.count, self.count * 2 // 3, replace=False)
            expected, seen = taken(self.expected, rows), taken(found, rows)
            rooms.append(margin(scores(expected, seen, self.limits), self.limits))
        return sum(room < 0 for room in rooms)

    def layers(self) -> list[str]:
        """The nodes with quantized inputs."""
        return list(dict.fromkeys(node for node, _ in self.quantized.pairs))

    def out(self, nodes: Collection[str]) -> onnx.ModelProto:
        """The file with these nodes out of INT8."""
        return self.quantized.freed(self.quantized.places(nodes))

    def values(self, tensor: str) -> Array | None:
        """The float values of an activation on all samples; None where neither model has it."""
        if tensor not in self.known:
            found = tensors(self.plain, [tensor], self.inputs, self.rows)
            if tensor not in found:
                found = tensors(self.out(self.layers()), [tensor], self.inputs, self.rows)
            self.known[tensor] = found.get(tensor)
        return self.known[tensor]


def loss(expected: Feed, found: Feed, rows: Sequence[int] | slice = slice(None)) -> float:
    """The greatest squared error of all outputs, each over its own power."""
    return max(
        float(((array[rows].astype(np.float64) - found[name][rows]) ** 2).sum())
        / max(float((array[rows].astype(np.float64) ** 2).sum()), 1e-300)
        for name, array in expected.items()
        if array.dtype.kind == "f"
    )


@dataclass(frozen=True, eq=False)
class Shares:
    """How much of a culprit's loss changes remove, with all else as in the product's trials."""

    trials: Trials
    nodes: Collection[str]
    others: Collection[str]
    """The layers that are out of INT8 throughout."""

    def _places(self, changes: Mapping[Place, Any] | None, nodes: Collection[str]) -> onnx.ModelProto:
        given = dict.fromkeys(self.trials.quantized.places(nodes))
        return self.trials.quantized.changed({**given, **(changes or {})})

    @cached_property
    def _before(self) -> Feed:
        return self.trials.run(self._places(None, self.others))

    @cached_property
    def _none(self) -> Feed:
        return self.trials.run(self._places(None, [*self.others, *self.nodes]))

    def all(self, changes: Mapping[Place, Any]) -> float:
        """The share on all samples."""
        return self.of(self.trials.run(self._places(changes, self.others)))

    def of(self, after: Feed, rows: Sequence[int] | slice = slice(None)) -> float:
        """The share on some samples."""
        before, found, none = (
            loss(self.trials.expected, outputs, rows) for outputs in (self._before, after, self._none)
        )
        return (before - found) / (before - none) if before != none else 0.0

    def span(self, changes: Mapping[Place, Any], size: int | None) -> tuple[float, float, float]:
        """The share on all samples; the least and the greatest on subsets of this size, drawn at random."""
        after = self.trials.run(self._places(changes, self.others))
        every = self.of(after)
        if size is None:
            return every, every, every
        rng = np.random.default_rng(0)
        drawn = [
            self.of(
                after, rng.choice(self.trials.count, min(size, self.trials.count), replace=False).tolist()
            )
            for _ in range(DRAWS)
        ]
        return every, min(*drawn, every), max(*drawn, every)

    def moved(self, changes: Mapping[Place, Any]) -> tuple[float, float]:
        """The least and the greatest share on inputs moved by less than a step."""
        models = [
            self._places(None, self.others),
            self._places(changes, self.others),
            self._places(None, [*self.others, *self.nodes]),
        ]
        found = []
        for seed in range(MOVES):
            feed = moved(self.trials.inputs, seed)
            expected = self.trials.run(self.trials.plain, feed)
            before, after, none = (loss(expected, self.trials.run(model, feed)) for model in models)
            found.append((before - after) / (before - none) if before != none else 0.0)
        return min(found), max(found)


def sentences(case: Mapping[str, Any], trials: Trials) -> Iterator[Sentence]:
    """All that the report says about why the case fails, each tried by hand."""
    diagnosis, search = case["diagnosis"] or {}, case["search"] or {}
    if case["verdict"] != "failed" or not diagnosis:
        return
    yield from _verdict(case, trials)
    culprits = search.get("culprits", [])
    ending = search.get("ending", {}).get("kind")
    found = list(_of_culprits(culprits, trials, is_proven=ending == "proven")) if culprits else []
    yield from found
    if ending == "nothing-left":
        yield _nothing_left(search, trials)
    if ending == "high-fails":
        yield _high_fails(search, trials)
    yield from _headline(case, diagnosis, culprits, found, trials)
    yield from _fits(case, trials)


def _verdict(case: Mapping[str, Any], trials: Trials) -> Iterator[Sentence]:
    seen = scores(trials.expected, trials.run(trials.int8), trials.limits)
    ends = {key: [value] for key, value in seen.items()}
    for seed in range(MOVES):
        feed = moved(trials.inputs, seed)
        found = scores(trials.run(trials.plain, feed), trials.run(trials.int8, feed), trials.limits)
        for key, value in found.items():
            ends[key].append(value)
    for score in case["scores"]:
        value = seen.get((score["subject"], score["metric"]))
        if score["limit"] is None or value is None:
            continue
        metric, told = score["metric"], float(score["value"])
        near = NEAR_DB if metric.endswith("_db") else NEAR_SHARE / 2
        low, high = min(ends[score["subject"], metric]), max(ends[score["subject"], metric])
        right = told == value or low - near <= told <= high + near
        said = f"'{score['subject']}' {metric} {told:.4g}, limit {score['limit']:g}"
        limit = score["limit"]
        same = (value < limit) == (told < limit) or low - near <= limit <= high + near
        yield Sentence("score", said, f"{value:.4g}, inputs moved {low:.4g} to {high:.4g}", right and same)


def _of_culprits(
    culprits: Sequence[Mapping[str, Any]], trials: Trials, *, is_proven: bool
) -> Iterator[Sentence]:
    """Of a search that ended early the report says that some layers may be innocent."""
    every = [node for culprit in culprits for node in culprit["nodes"]]
    whole = trials.room(trials.run(trials.out(every)))
    for culprit in culprits:
        found = trials.run(trials.out([n for n in every if n not in culprit["nodes"]]))
        back, missed = trials.room(found), trials.missed(found)
        said = f"{culprit['op_type']} '{culprit['layer']}' is at fault"
        seen = f"all {len(culprits)} out: {whole:+.1f} dB; this one back: {back:+.1f} dB, "
        seen += f"missed on {missed} of {DRAWS} draws of two thirds of the samples"
        needed = not is_proven or back < NEAR_DB or missed >= DRAWS / 4
        kind = "at fault" if is_proven else "at fault, or innocent"
        yield Sentence(kind, said, seen, whole >= -NEAR_DB and needed)
    for culprit in culprits:
        cause = culprit["cause"]
        if cause:
            others = [node for node in every if node not in culprit["nodes"]]
            yield from _of_cause(culprit, cause, others, trials)


def _of_cause(
    culprit: Mapping[str, Any], cause: Mapping[str, Any], others: Collection[str], trials: Trials
) -> Iterator[Sentence]:
    nodes, taken = culprit["nodes"], cause["ablation"]
    said = f"{culprit['layer']}: {cause['text']}"
    pairs = trials.quantized.pairs
    places = [
        place
        for place in trials.quantized.places(nodes)
        if _names(pairs[place], place, cause["tensor"], trials)
    ]
    if not places:
        yield Sentence(f"cause {cause['symptom']}", said, "its tensor is not found in the file", None)
        return
    if taken is not None and taken["alone"]:
        others = [node for node in trials.layers() if node not in nodes]
    shares = Shares(trials, nodes, others)
    if taken is not None:
        yield _of_ablation(said, cause, taken, places, shares)
    yield _implied(said, cause, places, shares)
    yield from _numbers(said, cause, places, trials)


def _names(pair: Pair, place: Place, tensor: str, trials: Trials) -> bool:
    if pair.source == tensor:
        return True
    node = next((node for node in trials.plain.graph.node if node.name == place[0]), None)
    return node is not None and place[1] < len(node.input) and node.input[place[1]] == tensor


def _of_ablation(
    said: str, cause: Mapping[str, Any], trial: Mapping[str, Any], places: Sequence[Place], shares: Shares
) -> Sentence:
    """What a trial is said to give back."""
    kind = f"gives back, {trial['kind']}"
    changes = _changes(trial["kind"], cause, places, shares)
    if changes is None:
        return Sentence(kind, said, "no such change by hand", None)
    if trial["beyond"]:
        every, (low, high) = shares.all(changes), shares.moved(changes)
        chance = high - low > NEAR_SHARE or every > 1 + NEAR_SHARE
        return Sentence(kind, said, f"{every:.0%}, inputs moved {low:.0%} to {high:.0%}", chance)
    told, spans = float(trial["share"]), []
    for change in [changes, *_near_by(changes, shares)] if trial["kind"] == "range" else [changes]:
        spans.append(shares.span(change, trial["samples"]))
        _, low, high = spans[-1]
        if min(low, 1.0) - NEAR_SHARE <= told <= min(max(high, 0.0), 1.0) + NEAR_SHARE:
            break
    every, low, high = spans[-1]
    right = min(low, 1.0) - NEAR_SHARE <= told <= min(max(high, 0.0), 1.0) + NEAR_SHARE
    seen = f"{every:.0%}" + (
        f", {trial['samples']} samples {low:.0%} to {high:.0%}" if trial["samples"] else ""
    )
    return Sentence(kind, said, seen, right)


def _near_by(changes: Mapping[Place, Any], shares: Shares) -> Iterator[dict[Place, Any]]:
    """The same change with ranges that lose about as little: one that helps is enough."""
    pairs = shares.trials.quantized.pairs
    if all(pairs[place].weight is None for place in changes):
        for factor in NEAR_BY:
            yield {place: (np.float32(scale * factor), axis) for place, (scale, axis) in changes.items()}


def _changes(
    kind: str, cause: Mapping[str, Any], places: Sequence[Place], shares: Shares
) -> dict[Place, Any] | None:
    """What a trial does, as changes of the file; None if it cannot be made by hand."""
    trials = shares.trials
    pairs = trials.quantized.pairs
    if kind in ("activation", "constants"):
        return dict.fromkeys(places)
    if kind == "range":
        return _of_range(places, trials, None)
    if kind in ("channels", "per-channel"):
        changes = {}
        for place in places:
            change = _by_channel(pairs[place], place, cause, trials, kind)
            if change is None:
                return None
            changes[place] = change
        return changes
    if kind in ("in-use", "unmasked"):
        end = cause["numbers"].get(_BY_USE.get(cause["symptom"], "amax_in_use"))
        if end is None:
            return None
        if pairs[places[0]].weight is not None:
            return {place: _clipped(pairs[place], float(end)) for place in places}
        return _of_range(places, trials, float(end) + (8.0 if kind == "unmasked" else 0.0))
    return None


def _of_range(places: Sequence[Place], trials: Trials, end: float | None) -> dict[Place, Any] | None:
    """Another symmetric range for the whole activation: up to ``end``, or what loses least."""
    changes = {}
    for place in places:
        pair = trials.quantized.pairs[place]
        values = trials.values(pair.source) if pair.weight is None else None
        if values is None:
            return None
        reach = best_reach(pair, values) if end is None else end
        changes[place] = np.float32(reach / pair.levels), None
    return changes


def _by_channel(pair: Pair, place: Place, cause: Mapping[str, Any], trials: Trials, kind: str) -> Any:
    """A scale for each channel; for activations one for channels of each size, or for the large ones."""
    if pair.weight is not None:
        axis = cause["numbers"].get("axis", _weight_axis(place, trials))
        if axis is None:
            return None
        return pair.codes(pair.weight, per_channel(pair.weight, int(axis), pair.levels), int(axis))
    values = trials.values(pair.source)
    if values is None:
        return None
    axis = 1 if _op_type(place, trials) in ("Conv", "ConvTranspose") or values.ndim > 3 else values.ndim - 1
    scales, large = per_channel(values, axis, pair.levels), [int(channel) for channel in cause["channels"]]
    if kind == "channels":
        others = np.delete(np.arange(scales.size), large)
        scales[others] = scales[others].max(initial=0.0) or scales.min()
        return scales, axis
    own = scales.copy()
    left = np.ones(scales.size, np.bool_)
    while left.any():
        most = own[left].max()
        part = left & (own > most / SIZE)
        scales[part], left = most, left & ~part
    return scales, axis


def _clipped(pair: Pair, end: float) -> Array:
    assert pair.weight is not None
    scale = np.minimum(pair.scale, end / pair.levels)
    return pair.codes(pair.weight, scale, pair.axis if scale.ndim else None)


def _op_type(place: Place, trials: Trials) -> str:
    return next(node.op_type for node in trials.int8.graph.node if node.name == place[0])


def _weight_axis(place: Place, trials: Trials) -> int | None:
    """The axis of the output channels of a weight."""
    node = next(node for node in trials.int8.graph.node if node.name == place[0])
    turned = any(a.name == "transB" and a.i for a in node.attribute)
    axes = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": 0 if turned else 1, "LSTM": 1, "GRU": 1}
    return axes.get(node.op_type)


def _implied(said: str, cause: Mapping[str, Any], places: Sequence[Place], shares: Shares) -> Sentence:
    """The change that a symptom implies brings back most of what the tensor costs, or no other range does."""
    symptom = cause["symptom"]
    kind = f"{'cause' if cause['ablation'] is not None else 'hint'} {symptom}"
    pairs = shares.trials.quantized.pairs
    pair = pairs[places[0]]
    costs = shares.all(dict.fromkeys(places))
    if symptom in _BY_NONE and pair.weight is None:
        changes = _of_range(places, shares.trials, None)
        if changes is None:
            return Sentence(kind, said, "its values are not known", None)
        helps = shares.all(changes)
        seen = f"unquantized gives back {costs:.0%}, the best range {helps:.0%}"
        return Sentence(kind, said, seen, costs >= LEAST and helps < PART * costs + NEAR_SHARE)
    if symptom in _BY_NONE:
        helps = shares.all(_new_scales(places, shares.trials))
        seen = f"unquantized gives back {costs:.0%}, scales from its channels {helps:.0%}"
        return Sentence(kind, said, seen, costs >= LEAST and helps < PART * costs + NEAR_SHARE)
    changes = _implied_changes(symptom, cause, places, shares)
    if changes is None:
        return Sentence(kind, said, "no such change by hand", None)
    helps = shares.all(changes)
    for change in _near_by(changes, shares) if symptom in _BY_RANGE else ():
        if helps < PART * min(costs, 1.0):
            helps = max(helps, shares.all(change))
    seen = f"unquantized gives back {costs:.0%}, the change that it implies {helps:.0%}"
    if symptom == "large-weights":
        return Sentence(kind, said, seen, costs >= LEAST and helps < PART * costs + NEAR_SHARE)
    return Sentence(kind, said, seen, helps >= LEAST and helps >= PART * min(costs, 1.0) - NEAR_SHARE)


def _implied_changes(
    symptom: str, cause: Mapping[str, Any], places: Sequence[Place], shares: Shares
) -> dict[Place, Any] | None:
    if symptom in _BY_RANGE:
        return _changes("range", cause, places, shares)
    if symptom in _BY_USE:
        return _changes("unmasked" if symptom == "masked-values" else "in-use", cause, places, shares)
    if symptom in _BY_CHANNEL or symptom in _BY_AXIS:
        kind = "channels" if symptom == "large-channels" else "per-channel"
        return _changes(kind, cause, places, shares)
    if symptom in _WEIGHT_BY_SCALES or symptom == "large-weights":
        return _new_scales(places, shares.trials)
    if symptom == "large-idle-weights":
        return _changes("in-use", cause, places, shares)
    if symptom in ("coarse-bias", "corrected-bias"):
        return dict.fromkeys(places)
    if symptom in ("shifted-bias", "shifted-mean", "other-codes"):
        pairs = shares.trials.quantized.pairs
        return {place: pairs[place].own(pairs[place].weight) for place in places}  # type: ignore[arg-type]
    return None


def _new_scales(places: Sequence[Place], trials: Trials) -> dict[Place, Any]:
    """Constants with a scale for each output channel from its own greatest weight."""
    changes = dict[Place, Any]()
    for place in places:
        pair, axis = trials.quantized.pairs[place], _weight_axis(place, trials)
        assert pair.weight is not None
        if axis is None or pair.weight.ndim < 2:
            scale, axis = np.float32(np.abs(pair.weight).max() / pair.levels), None
        else:
            scale = per_channel(pair.weight, axis, pair.levels)
        changes[place] = pair.codes(pair.weight, scale, axis)
    return changes


def _numbers(
    said: str, cause: Mapping[str, Any], places: Sequence[Place], trials: Trials
) -> Iterator[Sentence]:
    """The numbers of an activation that the sentence has, on all samples and on some."""
    pair, text = trials.quantized.pairs[places[0]], cause["text"]
    values = trials.values(pair.source) if pair.weight is None else None
    if values is None:
        return
    # heads or windows may lie on the first axis, besides the samples
    rows = trials.count if len(values) % trials.count == 0 else 1
    exact, kept = (array.reshape(rows, -1).astype(np.float64) for array in (values, pair.own(values)))
    signal, noise, tops = (exact**2).sum(1), ((exact - kept) ** 2).sum(1), np.abs(exact).max(1)
    rng, ends = np.random.default_rng(0), dict[str, list[float]]()
    for size in (trials.count, *[trials.count * 2 // 3] * DRAWS, *[FEWEST] * DRAWS):
        drawn = rng.choice(rows, min(size, rows), replace=False)
        ratio = float(signal[drawn].sum() / max(noise[drawn].sum(), 1e-300))
        ends.setdefault("sqnr_db", []).append(10 * float(np.log10(max(ratio, 1e-30))))
        ends.setdefault("amax", []).append(float(tops[drawn].max()))
    best = pair.codes(values, np.float64(best_reach(pair, values) / pair.levels))
    told, wrong = {**cause["numbers"], "amax": cause["amax"]}, []
    for name, found in ends.items():
        near = 0.02 * max(found) if name == "amax" else NEAR_DB
        inside = min(found) - near <= told[name] <= max(found) + near
        if f"{told[name]:.3g}" in text and not inside:
            wrong.append(f"{name} {told[name]:.3g}")
    # there may be a better scale still, and some samples may allow more than all
    noise = ((exact - best.reshape(rows, -1)) ** 2).sum(1)
    possible = 10 * float(np.log10(max(float((signal / np.maximum(noise, 1e-300)).max()), 1e-30)))
    if f"{told['best_sqnr_db']:.3g}" in text and told["best_sqnr_db"] > possible + 2 * NEAR_DB:
        wrong.append(f"best_sqnr_db {told['best_sqnr_db']:.3g}")
    seen = ", ".join(f"{name} {min(found):.3g} to {max(found):.3g}" for name, found in ends.items())
    seen += f", best {possible:.3g}"
    yield Sentence("numbers", said, "; ".join([seen, *(f"WRONG {each}" for each in wrong)]), not wrong)


def _nothing_left(search: Mapping[str, Any], trials: Trials) -> Sentence:
    layers = trials.layers()
    all_out = trials.room(trials.run(trials.out(layers)))
    kept = []
    for layer in layers:
        room = trials.room(trials.run(trials.out([other for other in layers if other != layer])))
        if room >= NEAR_DB:
            kept.append(f"{layer} {room:+.1f} dB")
    seen = f"all out {all_out:+.1f} dB; of {len(layers)} may stay: {', '.join(kept) or 'none'}"
    high, groups = search["ending"]["high"], search["ending"]["groups"]
    told = groups - high if high else 0  # so many may stay
    return Sentence("nothing left", search["reason"], seen, all_out >= -NEAR_DB and len(kept) <= told)


def _high_fails(search: Mapping[str, Any], trials: Trials) -> Sentence:
    room = trials.room(trials.run(trials.out(trials.layers())))
    return Sentence("high fails", search["reason"], f"all out {room:+.1f} dB", room < NEAR_DB)


def _headline(
    case: Mapping[str, Any],
    diagnosis: Mapping[str, Any],
    culprits: Sequence[Mapping[str, Any]],
    found: Sequence[Sentence],
    trials: Trials,
) -> Iterator[Sentence]:
    """The summary, if it says something else than the only culprit's sentence."""
    said, kind = diagnosis["summary"], "headline"
    if diagnosis["ranges"] is not None:
        yield _of_ranges(said, diagnosis["ranges"], trials)
    elif diagnosis["first_stage"] == "FP16":
        room = trials.room(trials.run(in_fp16(trials.plain, ())))
        yield Sentence(f"{kind}, FP16", said, f"the float model in FP16 {room:+.1f} dB", room < NEAR_DB)
    elif len(culprits) > 1 and any(culprit["cause"] for culprit in culprits):
        wrong = [one for one in found if one.right is False]
        told = Counter(c["cause"]["kind"] for c in culprits if c["cause"])
        seen = f"{dict(told)}; of {len(found)} sentences of its layers wrong: {len(wrong)}"
        whole = trials.room(trials.run(trials.out([node for c in culprits for node in c["nodes"]])))
        causes = [one for one in wrong if one.kind.startswith("cause")]
        yield Sentence(
            f"{kind}, several", said, f"{seen}; all out {whole:+.1f} dB", not causes and whole >= -NEAR_DB
        )
    elif not culprits:
        yield from _quantization(said, diagnosis, trials)


def _quantization(said: str, diagnosis: Mapping[str, Any], trials: Trials) -> Iterator[Sentence]:
    whole, none = (
        loss(trials.expected, trials.run(model)) for model in (trials.int8, trials.out(trials.layers()))
    )
    scales = diagnosis["scales"]
    if scales is None:
        room = trials.room(trials.run(trials.out(trials.layers())))
        yield Sentence("headline, quantization", said, f"all out {room:+.1f} dB", room >= -NEAR_DB)
        return
    given = []
    for share in (None, 1.0, 0.75, 0.5):
        places = [place for place, pair in trials.quantized.pairs.items() if pair.weight is None]
        changes = dict[Place, Any]()
        for place in places:
            pair = trials.quantized.pairs[place]
            values = trials.values(pair.source)
            if values is not None and values.dtype.kind == "f":
                reach = best_reach(pair, values) if share is None else share * float(np.abs(values).max())
                changes[place] = np.float32(max(reach, 1e-30) / pair.levels), None
        after = loss(trials.expected, trials.run(trials.quantized.changed(changes)))
        given.append((whole - after) / (whole - none))
    seen = f"other ranges of all activations by hand give back up to {max(given):.0%}"
    by_scales = scales["given_back"] >= PART
    right = max(given) >= PART - NEAR_SHARE if by_scales else max(given) < PART + NEAR_SHARE
    yield Sentence("headline, scales", said, seen, None if by_scales and not right else right)


def _of_ranges(said: str, ranges: Mapping[str, Any], trials: Trials) -> Sentence:
    """All ranges as the data reaches: the loss comes back."""
    changes, factors = dict[Place, Any](), dict[str, float]()
    for place, pair in trials.quantized.pairs.items():
        values = trials.values(pair.source) if pair.weight is None else None
        if values is None:
            continue
        levels = pair.levels
        changes[place] = np.float32(best_reach(pair, values) / levels), None
        factors[pair.source] = float(np.max(pair.scale)) * levels / float(np.abs(values).max())
    whole, after, none = (
        loss(trials.expected, trials.run(model))
        for model in (trials.int8, trials.quantized.changed(changes), trials.out(trials.layers()))
    )
    back = (whole - after) / (whole - none) if whole != none else 0.0
    told = [*ranges["wide"], *(1 / factor for factor in ranges["narrow"])]
    near = [min(abs(np.log(factor / other)) for other in factors.values()) for factor in told]
    right = len(told) <= len(factors) and max(near) < NEAR_RANGE
    seen = f"ranges over values: {', '.join(f'{each:.2g}' for each in sorted(factors.values())[:12])}"
    seen += f"; ranges as the data have give back {back:.0%}"
    return Sentence("headline, ranges", said, seen, right and back >= PART - NEAR_SHARE)


def _fits(case: Mapping[str, Any], trials: Trials) -> Iterator[Sentence]:
    """How an output differs, as a line fitted to it says."""
    found = trials.run(trials.int8)
    for output in case["outputs"]:
        fit, name = output["fit"], output["name"]
        if fit is None or name not in found or not fit["meanings"]:
            continue
        before, after = (
            np.asarray(array, np.float64).ravel() for array in (trials.expected[name], found[name])
        )
        slope, offset = np.polyfit(before, after, 1) if before.std() else (0.0, 0.0)
        right = abs(slope - fit["slope"]) <= NEAR_SHARE * max(abs(slope), 0.1)
        seen = f"slope {slope:.3g}, offset {offset:.3g}"
        yield Sentence("output", f"'{name}': {fit['note']}", seen, right)
