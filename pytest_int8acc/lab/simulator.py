"""Plans of one network judged by inference: each network that plans lead to is made once and kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytest_int8acc.case.trials import SampleBaseline, SampleComparison, SampleOutputs
from pytest_int8acc.clock import Meter, current
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.graph.network import Edge, Network, Plan, Precision, Quantization, TensorScale
from pytest_int8acc.graph.plan import moved, plan_key
from pytest_int8acc.lab.board import Board
from pytest_int8acc.lab.inputs import Inputs
from pytest_int8acc.lab.vectors import Prober, Vectors
from pytest_int8acc.results import Score
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.search.types import Enough, GroupInfo, Probe, Target, Trial
from pytest_int8acc.tensors import Array, Outputs

#: Maximum and minimum size of the screening subset, on which plans that differ in scales are compared, and
#: the multiply-accumulates that it may take in large networks. A choice is confirmed on all samples.
FEW, _LEAST, _WORK = 32, 8, 8e9
#: Bounds in runs do not count below this many multiply-accumulates, which take some seconds of one core.
_LITTLE = 100e9
#: Maximum size, in bytes, of error vectors that are remembered.
_REMEMBERED = 64 << 20
#: Maximum number of instruments that are kept beside the first: each session holds its weights.
_BOARDS = 3
#: Replaces an error that is nan or infinite.
_FAR = 1e30


@dataclass(frozen=True, eq=False)
class Seen:
    """Some of the samples, and the case's judge on them alone."""

    samples: tuple[int, ...]
    judge: SampleBaseline

    @cached_property
    def prober(self) -> Prober:
        """Measures error vectors on them."""
        return Prober(self.judge)


class Simulator:
    """Trials of plans on one network by ONNX Runtime, exact.

    Verdicts are drawn by the case's judge on the samples used. Trials that saw all of them are remembered.
    """

    def __init__(
        self,
        network: Network,
        dataset: Dataset,
        baseline: Outputs,
        judge: Judge,
        *,
        groups: Sequence[GroupInfo],
        rest: Precision = "fp16",
        sessions: Sessions = CPU,
        scores: Sequence[Score] = (),
        macs: float = 0.0,
    ) -> None:
        """Read the inputs.

        Args:
            network: What plans are plans of.
            dataset: All samples; must give the same ones each time.
            baseline: High-precision outputs of all samples, as ``run_together`` gives them.
            judge: The case's criteria; labels of all samples.
            groups: Those of the network, with their prices.
            rest: What runs beside INT8.
            sessions: Where ONNX Runtime runs.
            scores: Of the network with all in INT8, as far as they are known.
            macs: Multiply-accumulates of one sample.

        Raises:
            DataError: The dataset cannot be read.
        """
        self.network, self.groups = network, tuple(groups)
        self.inputs = Inputs(dataset, network.model.inputs, baseline)
        self._baseline = self.inputs.cut(baseline)
        self._case_judge, self._scores = judge, scores
        self._most = int(np.clip(_WORK / max(macs, 1.0), _LEAST, FEW))
        self._macs, self.meter = macs, Meter()
        self._rest, self._sessions = rest, sessions
        self._boards: dict[object, Board] = {}
        self._seen: dict[tuple[int, ...], Seen] = {}
        self._known: dict[object, Trial] = {}
        self._normalized_losses: dict[object, float] = {}
        self._probes: dict[object, Probe] = {}
        self._held = 0
        """Bytes of their error vectors."""
        self._units: dict[int, float] = {}
        self._like: Simulator | None = None
        """Of the case's own network, where this is another: all of INT8 is known there."""
        self._kinds: dict[object, _Activations] = {}
        self._batches: list[tuple[list[int], Batch]] = []
        self._probed: tuple[int, ...] = ()

    def on(self, network: Network, rest: Precision | None = None) -> Simulator:
        """The same samples and judge on a network with the same inputs and outputs.

        Args:
            network: Trials want its groups to bear names of groups here; for ``normalized_loss`` they may be
                others.
            rest: What runs beside INT8; None: as here.
        """
        other, own = copy(self), {group.name for group in network.groups}
        other.groups = tuple(group for group in self.groups if group.name in own)
        other._like = self._like or self
        other.network, other._rest = network, rest or self._rest
        other._boards, other._known, other._normalized_losses, other._probes, other._kinds = (
            {},
            {},
            {},
            {},
            {},
        )
        return other

    def allowance(self, runs: float) -> float:
        """``runs``, or as many runs over all samples as take next to no time where that is more."""
        return max(runs, _LITTLE / max(self._macs * len(self.inputs), 1.0))

    def takes_time(self, runs: float) -> bool:
        """Whether this many runs over all samples take more than next to no time."""
        return self.allowance(runs) == runs

    def seen(self, samples: Iterable[int] | None = None) -> Seen:
        """Some of the samples, by index, in order; None: all.

        Raises:
            CriterionError: A criterion does not fit the outputs.
        """
        requested = tuple(range(len(self.inputs)) if samples is None else samples)
        if requested not in self._seen:
            cut = {name: [arrays[i] for i in requested] for name, arrays in self._baseline.items()}
            judge = self._case_judge.of_rows(self.inputs.rows(requested))
            rows = [len(self.inputs.rows([sample])) for sample in requested]
            self._seen[requested] = Seen(requested, SampleBaseline(cut, judge, rows))
        return self._seen[requested]

    @cached_property
    def few(self) -> tuple[int, ...]:
        """The screening subset: samples drawn once, on which plans are compared."""
        order = np.random.default_rng(0).permutation(len(self.inputs))
        return tuple(sorted(order[: self._most].tolist()))

    def board(self, plan: Plan) -> Board:
        """The network that ``plan`` leads to, with its groups and the scales of its activations open.

        Raises:
            ModelError: The plan names what the network does not have.
            EngineError: ONNX Runtime refuses the model.
        """
        made = self._made(plan)
        key = _tried_key(made)
        if key not in self._boards:
            if len(self._boards) > _BOARDS:
                del self._boards[list(self._boards)[1]]  # the first is the case's own network
            network = moved(self.network, made) if made.scales else self.moved(made.moves)
            self._boards[key] = Board(network, self._rest, self._sessions)
        return self._boards[key]

    def trial(
        self,
        plan: Plan,
        seen: Seen | None = None,
        order: Sequence[int] | None = None,
        enough: Enough | None = None,
    ) -> Trial:
        """Judge a plan on ``seen``, all samples by default; see ``Evaluator.trial``.

        Raises:
            EngineError: The model fails.
            CriterionError: A user's function fails.
        """
        seen = seen or self.seen()
        key = (_tried_key(plan), frozenset(plan.high), seen.samples)
        if key in self._known:
            return replace(self._known[key], cost=0.0)
        run, comparison = self._running(plan), SampleComparison(seen.judge)
        place = {sample: i for i, sample in enumerate(seen.samples)}
        requested = range(len(seen.samples)) if order is None else order
        runs = self.inputs.runs([seen.samples[i] for i in requested], len(seen.samples))
        for samples, batch in current().bounded(runs):
            comparison.add_samples([place[i] for i in samples], run(samples, batch))
            if enough is not None and not comparison.seen.all() and enough(comparison.parts()):
                break
        high = frozenset(i for i, group in enumerate(self.groups) if group.name in plan.high)
        trial = comparison.trial(high)
        if trial.confirmed:
            self._known[key] = trial
        return trial

    def probe(self, plan: Plan, seen: Seen, samples: Sequence[int]) -> Probe:
        """Error vectors of a plan on a few samples of ``seen``, by index there; see ``Evaluator.probe``.

        Remembered, for a search of the same samples within less room.

        Raises:
            EngineError: The model fails.
        """
        key = _tried_key(plan), frozenset(plan.high), seen.samples, tuple(samples)
        if key in self._probes:
            return replace(self._probes[key], known=True)
        probe = seen.prober.probe(samples, self._runs(plan, seen, samples))
        self._held += sum(vectors.nbytes for vectors in probe.vectors)
        if self._held < _REMEMBERED:
            self._probes[key] = probe
        return probe

    def normalized_loss(self, plan: Plan) -> float:
        """The normalized loss of a plan on the screening subset: about 1 where a criterion is at its limit.

        For each criterion the squared error is divided by the squared error that its limit allows. The
        greatest of these counts, with 1 % of their mean, so that a change which helps another criterion
        counts, too. Errors are averaged over the samples. Where the limit is for the worst samples, they are
        averaged over the worst quarter of the samples that must keep it. The loss of a plan is remembered.
        """
        key = _tried_key(plan), frozenset(plan.high)
        if key not in self._normalized_losses:
            self._normalized_losses[key] = self._measured_normalized_loss(plan)
        return self._normalized_losses[key]

    def moved(self, moves: Mapping[str, Array]) -> Network:
        """The network after these moves; made once.

        Raises:
            ModelError: A tensor cannot be moved so.
        """
        return self._activations(moves).network

    def scales_of(self, plan: Plan) -> Mapping[str, TensorScale]:
        """A plan's scales, and those that readers take with them which it moves to another tensor."""
        if not plan.moves:
            return plan.scales
        inherited_scales = self._activations(plan.moves).inherited_scales
        inherited = {
            reader_tensor: plan.scales[tensor]
            for reader_tensor, tensor in inherited_scales.items()
            if tensor in plan.scales
        }
        return {**inherited, **plan.scales}

    def _measured_normalized_loss(self, plan: Plan) -> float:
        seen = self.seen()
        measured, errors = self._vectors(plan, seen), []
        for target, vectors in zip(seen.prober.targets, measured, strict=True):
            squares = np.sort(np.square(vectors.astype(np.float64)).sum(axis=1))
            criterion = seen.judge.criteria[target.criterion]
            if criterion.pool == "rank":
                counted = max(len(squares) - round(criterion.allowed * len(squares) / len(self.inputs)), 1)
                squares = squares[counted * 3 // 4 : counted]
            unit = self._unit(target) if criterion.pool == "whole" else 1.0
            errors.append(float(np.nan_to_num(squares.mean() / unit, nan=_FAR, posinf=_FAR)))
        return max(errors) + 0.01 * float(np.mean(errors))

    def _unit(self, target: Target) -> float:
        """The squared error at a limit that only all samples tell, estimated from all of INT8."""
        if self._like is not None:
            return self._like._unit(target)
        if target.criterion not in self._units:
            seen = self.seen()
            requested = _limit(seen.judge.criteria[target.criterion])
            known = [score.normalized_loss for score in self._scores if _limit(score) == requested]
            loss = known[0] if known else self.trial(Plan()).losses[target.criterion]
            vectors = self._vectors(Plan(), seen)[seen.prober.targets.index(target)]
            reached = float(np.square(vectors.astype(np.float64)).sum(axis=1).mean())
            unit = reached / loss ** (2 / target.power) if 0 < loss < math.inf else 1.0
            self._units[target.criterion] = unit if 0 < unit < math.inf else 1.0
        return self._units[target.criterion]

    def _vectors(self, plan: Plan, seen: Seen) -> list[Vectors]:
        """Error vectors of a plan on ``few``, for each target."""
        return seen.prober.vectors(self.few, self._runs(plan, seen, self.few))

    def _runs(
        self, plan: Plan, seen: Seen, samples: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], SampleOutputs]]:
        """What a plan gives on some samples of ``seen``, by index there, which are read once."""
        requested = tuple(seen.samples[i] for i in samples)
        if self._probed != requested:
            self._probed, self._batches = requested, list(self.inputs.runs(requested, whole=True))
        run, place = self._running(plan), {sample: i for i, sample in enumerate(seen.samples)}
        return (([place[i] for i in some], run(some, batch)) for some, batch in self._batches)

    def _running(self, plan: Plan) -> Callable[[Sequence[int], Batch], SampleOutputs]:
        """Runs a plan on some samples, which are one batch."""
        board = self.board(plan)
        setting = board.setting(plan.high, self.scales_of(plan))

        def run(samples: Sequence[int], batch: Batch) -> SampleOutputs:
            self.meter.runs += len(samples) / len(self.inputs)
            return self.inputs.outputs_of(samples, batch, board.run(batch.feed, setting))

        return run

    def _made(self, plan: Plan) -> Plan:
        """The part of a plan that a board of its own is made for; the rest are the board's inputs."""
        kinds, made = self._activations(plan.moves), {}
        for tensor, scale in plan.scales.items():
            if tensor in kinds.odd and scale.is_plain:
                made[tensor] = _SOME  # an input, too, once it is symmetric
            elif tensor not in kinds.known or not _is_like(scale, kinds.known[tensor]):
                made[tensor] = scale
        return Plan(scales=made, moves=plan.moves)

    def _activations(self, moves: Mapping[str, Array]) -> _Activations:
        """The activations after these moves."""
        key = _tried_key(Plan(moves=moves))
        if key not in self._kinds:
            before = {
                place: tensor for tensor, edges in _readers(self.network).items() for place in _places(edges)
            }
            network = moved(self.network, Plan(moves=moves))
            after = _readers(network)
            odd = {t for t, edges in after.items() if not all(e.quantization.is_plain for e in edges)}
            alike = {t: edges[0].quantization for t, edges in after.items() if _are_alike(edges)}
            inherited_scales = {
                t: before[place]
                for t, edges in after.items()
                for place in _places(edges)
                if before.get(place, t) != t
            }
            self._kinds[key] = _Activations(network, alike, frozenset(odd), inherited_scales)
        return self._kinds[key]


@dataclass(frozen=True, eq=False)
class _Activations:
    """The activations of a network after some moves."""

    network: Network
    """After them."""
    known: Mapping[str, Quantization]
    """Those in symmetric INT8."""
    odd: frozenset[str]
    """Those that are not so with one scale."""
    inherited_scales: Mapping[str, str]
    """Those that some readers were moved to, and the activation whose scale they take with them."""


def _readers(network: Network) -> dict[str, list[Edge]]:
    """Activation to the edges that quantize it."""
    found: dict[str, list[Edge]] = {}
    for edge in (e for group in network.groups for e in group.edges if e.quantization.values is None):
        found.setdefault(edge.tensor, []).append(edge)
    return found


def _limit(judged: Score | Criterion) -> tuple[object, ...]:
    return judged.subject, judged.metric, judged.limit, judged.bound


def _places(edges: Sequence[Edge]) -> list[tuple[str, int]]:
    return [(edge.node, edge.index) for edge in edges]


def _are_alike(edges: Sequence[Edge]) -> bool:
    """Whether edges of one tensor are symmetric, with scales of one shape."""
    kinds = {(e.quantization.axis, e.quantization.scale.shape) for e in edges}
    return len(kinds) == 1 and all(e.quantization.is_symmetric for e in edges)


def _is_like(scale: TensorScale, known: Quantization) -> bool:
    """Whether a scale can stand in the place of another."""
    alike = scale.axis == known.axis and scale.scale.shape == known.scale.shape
    return alike and (scale.is_plain or scale.zero_point is None)


#: Stands for a scale that is an input of the board.
_SOME = TensorScale(np.array(1.0, np.float32))


def _tried_key(plan: Plan) -> object:
    """A key of the network that a plan is tried on, whichever of its groups are in high precision."""
    return plan_key(plan, ignored={"high", "outputs", "fused"})
