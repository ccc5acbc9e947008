"""Judges the plans of one network by inference in ONNX Runtime, and remembers the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytest_int8acc.case.records import Records, digest_of, network_digest
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
from pytest_int8acc.tensors import Array, Feed, Outputs

#: Maximum and minimum number of samples in the screening subset. Plans with different scales are compared on
#: this subset. The plan that is best on this subset is then proved on all samples.
FEW, _LEAST = 32, 8
#: Maximum number of multiply-accumulates for one run of the samples on which plans are compared first. For
#: large networks fewer samples are used, but at least ``_LEAST``.
_WORK = 8e9
#: A limit on the number of runs is raised until the runs have this number of multiply-accumulates in total,
#: because even this number takes only a few seconds on one core.
_LITTLE = 100e9
#: Maximum total size, in bytes, of error vectors that are kept in memory.
_REMEMBERED = 64 << 20
#: Maximum size, in bytes, of the outputs on the screening subset that are kept until a trial ends.
_OUTPUT_BYTES = 1 << 20
#: Maximum number of ONNX Runtime sessions that are kept in addition to that of the unmodified network, and
#: maximum size, in bytes, of the models of their networks. One session is kept even if its network is
#: larger. Each session holds all weights twice: in high and in low precision.
_BOARDS, _BOARD_BYTES = 3, 64 << 20
#: The fields of a trial that its record holds.
_TRIAL_FIELDS = ("passed", "losses", "scores", "parts", "cost", "confirmed")
#: Replaces a squared error that is nan or infinite.
_FAR = 1e30


@dataclass(frozen=True, eq=False)
class Seen:
    """Some samples of a case, by index, and a judge that applies the case's criteria to them alone."""

    samples: tuple[int, ...]
    judge: SampleBaseline

    @cached_property
    def prober(self) -> Prober:
        """Measures error vectors of plans on these samples."""
        return Prober(self.judge)


class Simulator:
    """Runs plans of one network in ONNX Runtime with unfused Q/DQ, and judges them by the case's criteria.

    Results of trials on all samples are kept.
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
        candidate: Outputs | None = None,
        macs: float = 0.0,
        errors: Array | None = None,
        records: Records | None = None,
    ) -> None:
        """Read the inputs.

        Args:
            network: The network whose plans are tried.
            dataset: All samples. Each pass must give the same samples in the same order.
            baseline: The baseline's outputs of all samples: for each output one array per batch, or one per
                sample.
            judge: Judges by the case's criteria, on all samples.
            groups: The groups of the network, with their prices.
            rest: The precision of nodes that are not quantized.
            sessions: Opens the models in ONNX Runtime.
            scores: The scores of the network with all groups in INT8; empty if they are not known.
            candidate: The outputs of the network with all groups in INT8, in the form of ``baseline``; empty
                or None if they are not known.
            macs: The multiply-accumulates of one sample.
            errors: The error of each sample with all groups in INT8, by any measure, [samples]; None if it is
                not known.
            records: The results of an earlier run that was interrupted; new results are added. If None, no
                results are recorded.

        Raises:
            DataError: The dataset cannot be read.
        """
        self.network, self.groups = network, tuple(groups)
        self.inputs = Inputs(dataset, network.model.inputs, baseline)
        self._baseline = self.inputs.cut(baseline)
        self._case_judge, self._scores = judge, scores
        self._most = int(np.clip(_WORK / max(macs, 1.0), _LEAST, FEW))
        self._macs, self.meter = macs, Meter()
        self._errors = errors
        self._rest, self._sessions = rest, sessions
        self._boards: dict[tuple[object, object], Board] = {}
        """The open sessions. A key has the moves of range and all changes of the session's network."""
        self._seen: dict[tuple[int, ...], Seen] = {}
        self._known: dict[object, Trial] = {}
        self._normalized_losses: dict[object, float] = {}
        self._probes: dict[object, Probe] = {}
        self._held = 0
        """The total size, in bytes, of the error vectors that are kept."""
        self._units: dict[int, float] = {}
        self._like: Simulator | None = None
        """The simulator of the unmodified network, which has stored the scores with all groups in INT8.

        None if this simulator is itself the simulator of the unmodified network.
        """
        self._kinds: dict[object, _Activations] = {}
        self._batches: list[tuple[list[int], Batch]] = []
        self._probed: tuple[int, ...] = ()
        self._outputs: dict[object, Mapping[int, Feed]] = {}
        """For some plans, the outputs of samples, by index, that need not be computed again."""
        if candidate and _have_like_rows(candidate, baseline):
            cut = self.inputs.cut(candidate)
            self._outputs[_key(Plan())] = {sample: _feed(cut, sample) for sample in range(len(self.inputs))}
        self._records = records or Records()

    @cached_property
    def _place(self) -> str:
        """The digest of the network, a part of the key of each record; empty if nothing is recorded."""
        return digest_of(network_digest(self.network), self._rest) if self._records.kept else ""

    def on(self, network: Network, rest: Precision | None = None) -> Simulator:
        """A simulator of another network with the same inputs and outputs, on the same samples.

        Args:
            network: The other network. If its groups have other names, only ``normalized_loss`` may be
                called.
            rest: The precision of nodes that are not quantized; None keeps the precision of this simulator.
        """
        other, own = copy(self), {group.name for group in network.groups}
        other.groups = tuple(group for group in self.groups if group.name in own)
        other._like = self._like or self
        other.network, other._rest = network, rest or self._rest
        other._boards, other._kinds = {}, {}
        other._known, other._normalized_losses, other._probes, other._outputs = {}, {}, {}, {}
        vars(other).pop("_place", None)
        return other

    def allowance(self, runs: float) -> float:
        """Return ``runs``, a limit on runs over all samples, or a higher limit if these runs have few MACs.

        With few multiply-accumulates per sample, the limit is raised until ``_LITTLE`` MACs are allowed.
        """
        return max(runs, _LITTLE / max(self._macs * len(self.inputs), 1.0))

    def seen(self, samples: Iterable[int] | None = None) -> Seen:
        """Return the samples with these indices, by default all, with a judge for these samples alone.

        Raises:
            CriterionError: A criterion does not fit the outputs.
        """
        chosen = tuple(range(len(self.inputs)) if samples is None else samples)
        if chosen not in self._seen:
            cut = {name: [arrays[i] for i in chosen] for name, arrays in self._baseline.items()}
            judge = self._case_judge.of_rows(self.inputs.rows(chosen))
            rows = [len(self.inputs.rows([sample])) for sample in chosen]
            self._seen[chosen] = Seen(chosen, SampleBaseline(cut, judge, rows))
        return self._seen[chosen]

    @cached_property
    def few(self) -> tuple[int, ...]:
        """The screening subset: the indices of a few samples on which plans are compared, always the same.

        The worst samples, which together have half of the error, belong to the subset if they fill at most
        half of the subset. All other samples of the subset are random.
        """
        order = np.random.default_rng(0).permutation(len(self.inputs)).tolist()
        errors = np.zeros(0) if self._errors is None else np.nan_to_num(self._errors, nan=_FAR, posinf=_FAR)
        if errors.size == len(order) and errors.any():
            worst = np.argsort(-errors, kind="stable")
            carriers = worst[: 1 + int(np.searchsorted(np.cumsum(errors[worst]), errors.sum() / 2))].tolist()
            if len(carriers) <= self._most // 2:
                order = list(dict.fromkeys([*carriers, *order]))
        return tuple(sorted(order[: self._most]))

    @cached_property
    def _most_boards(self) -> int:
        """The maximum number of sessions that are kept in addition to that of the unmodified network."""
        return max(1, min(_BOARDS, _BOARD_BYTES // self.network.model.nbytes))

    def board(self, plan: Plan) -> Board:
        """The session that runs a plan. The most recent sessions are kept.

        Raises:
            ModelError: The plan names a group or tensor that the network does not have.
            EngineError: ONNX Runtime refuses the model.
        """
        made = self._made(plan)
        key = _moves_key(made.moves), _tried_key(made)
        if key not in self._boards:
            self.make_room()
            network = self.moved(made.moves)
            if key[1] not in self._kinds:  # Only moves change the model, so that its weights are held once.
                network = replace(moved(self.network, made), model=network.model)
            self._boards[key] = Board(network, self._rest, self._sessions)
        elif key != next(iter(self._boards)):
            self._boards[key] = self._boards.pop(key)  # the most recent is the last
        return self._boards[key]

    def make_room(self) -> None:
        """Close the session that the next new session replaces, if there is no room for both."""
        if len(self._boards) > self._most_boards:
            del self._boards[list(self._boards)[1]]  # the first is the session of the unmodified network

    def forget(self, moves: Mapping[str, Array]) -> None:
        """Free the networks and sessions after the moves of range ``moves``, which no later plan has."""
        gone = _moves_key(moves)
        self._kinds.pop(gone, None)
        self._boards = {key: board for key, board in self._boards.items() if key[0] != gone}

    def close(self) -> None:
        """Free all networks that plans have made, and all sessions. A later trial makes them again."""
        self._boards.clear()
        self._kinds.clear()

    def trial(
        self,
        plan: Plan,
        seen: Seen | None = None,
        order: Sequence[int] | None = None,
        enough: Enough | None = None,
    ) -> Trial:
        """Judge a plan on some samples, by default on all samples; see ``Evaluator.trial``.

        Raises:
            EngineError: The model fails.
            CriterionError: A user's function fails.
        """
        seen = seen or self.seen()
        key = (*_key(plan), seen.samples)
        if key in self._known:
            return replace(self._known[key], cost=0.0)
        chosen = range(len(seen.samples)) if order is None else order
        high = frozenset(i for i, group in enumerate(self.groups) if group.name in plan.high)
        name = ("trial", self._place, key, tuple(chosen), enough is None)
        trial = self._recorded_trial(name, high, enough)
        if trial is None:
            before = self.meter.runs
            trial, few = self._run_trial(plan, high, seen, chosen, enough)
            kept = {field: getattr(trial, field) for field in _TRIAL_FIELDS}
            self._records.keep(*name, runs=self.meter.runs - before, **kept)
        else:
            few = {}
        if trial.confirmed:
            self._known[key] = trial
        if trial.passed and len(few) == len(self.few) and _key(plan) not in self._outputs:
            self._outputs[_key(plan)] = few
            self.normalized_loss(plan)  # no run is needed while the outputs are kept
            del self._outputs[_key(plan)]
        return trial

    def _recorded_trial(
        self, name: tuple[object, ...], high: frozenset[int], enough: Enough | None
    ) -> Trial | None:
        """The recorded trial; None if there is none, or if it ended earlier than ``enough`` would end it."""
        found = self._records.find(*name)
        if found is None:
            return None
        trial = Trial(
            high=high,
            passed=bool(found["passed"]),
            losses=tuple(found["losses"]),
            scores=tuple(found["scores"]),
            parts=found["parts"],
            cost=found["cost"],
            confirmed=bool(found["confirmed"]),
        )
        if not trial.confirmed and (enough is None or not enough(trial.parts)):
            return None
        self.meter.runs += found["runs"]
        return trial

    def _run_trial(
        self,
        plan: Plan,
        high: frozenset[int],
        seen: Seen,
        chosen: Sequence[int],
        enough: Enough | None,
    ) -> tuple[Trial, Mapping[int, Feed]]:
        """Run a plan on the samples in ``seen``, in the order ``chosen``, until ``enough`` ends the trial.

        Returns the trial, and the outputs of the samples ``few``; no outputs if they are large.
        """
        run, comparison = self._running(plan), SampleComparison(seen.judge)
        kept = dict[int, Feed]()
        place = {sample: i for i, sample in enumerate(seen.samples)}
        runs = self.inputs.runs([seen.samples[i] for i in chosen], len(seen.samples))
        for samples, batch in current().bounded(runs):
            outputs = run(samples, batch)
            comparison.add_samples([place[i] for i in samples], outputs)
            if enough is not None and not comparison.seen.all() and enough(comparison.parts()):
                break
            for n, sample in enumerate(samples):
                if sample in self._kept_samples:
                    kept[sample] = {name: array.copy() for name, array in _feed(outputs, n).items()}
        return comparison.trial(high), kept

    @cached_property
    def _kept_samples(self) -> frozenset[int]:
        """The samples ``few``, whose outputs a trial keeps until it ends; empty if the outputs are large."""
        arrays = (self._baseline[name][i] for name in self._baseline for i in self.few)
        return frozenset(self.few if sum(array.nbytes for array in arrays) <= _OUTPUT_BYTES else ())

    def probe(self, plan: Plan, seen: Seen, samples: Sequence[int]) -> Probe:
        """The error vectors of a plan on a few of the samples in ``seen``; see ``Evaluator.probe``.

        The vectors are kept, because a search with a smaller error budget asks for the same plans again.

        Raises:
            EngineError: The model fails.
        """
        key = *_key(plan), seen.samples, tuple(samples)
        if key in self._probes:
            return replace(self._probes[key], known=True)
        name = ("probe", self._place, key)
        found = self._records.find(*name)
        if found is not None:
            vectors = [found[f"vectors{i}"] for i in range(len(seen.prober.targets))]
            probe = Probe(vectors, found["parts"])
            self.meter.runs += found["runs"]
        else:
            before = self.meter.runs
            probe = seen.prober.probe(samples, self._runs(plan, seen, samples))
            kept = {f"vectors{i}": vectors for i, vectors in enumerate(probe.vectors)}
            self._records.keep(*name, runs=self.meter.runs - before, parts=probe.parts, **kept)
        self._held += sum(vectors.nbytes for vectors in probe.vectors)
        if self._held < _REMEMBERED:
            self._probes[key] = probe
        return probe

    def normalized_loss(self, plan: Plan) -> float:
        """The normalized loss of a plan on the samples ``few``; about 1 at the limit of the criteria.

        For each criterion, the squared error is divided by the squared error that its limit allows. The
        result is the greatest of these ratios plus 1 % of their mean, so that an improvement by other
        criteria counts, too. Errors are averaged over the samples. For a limit on the worst samples, they are
        averaged over the worst quarter of the samples that must meet the limit. The result is kept.
        """
        key = _key(plan)
        if key in self._normalized_losses:
            return self._normalized_losses[key]
        name = ("loss", self._place, key)
        found = self._records.find(*name)
        if found is not None:
            loss = float(found["loss"])
            self.meter.runs += found["runs"]
        else:
            before = self.meter.runs
            loss = self._measured_normalized_loss(plan)
            self._records.keep(*name, runs=self.meter.runs - before, loss=loss)
        self._normalized_losses[key] = loss
        return loss

    def moved(self, moves: Mapping[str, Array]) -> Network:
        """The network after the moves of range ``moves``; see ``Plan.moves``. It is made only once.

        Raises:
            ModelError: The range of a tensor cannot be moved.
        """
        return self._activations(moves).network

    def scales_of(self, plan: Plan) -> Mapping[str, TensorScale]:
        """The scales of a plan, including scales of tensors that its moves of range create.

        When range is moved, some readers of a tensor may read a new tensor instead. The new tensor inherits
        the scale.
        """
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
        """The squared error at which the criterion of ``target`` reaches its limit.

        It is needed for criteria that have no value for a single sample. It is estimated from the loss and
        the error vectors with all groups in INT8.
        """
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
        """The error vectors of a plan on the samples ``few``, one array for each criterion."""
        return seen.prober.vectors(self.few, self._runs(plan, seen, self.few))

    def _runs(
        self, plan: Plan, seen: Seen, samples: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], SampleOutputs]]:
        """Yield the outputs of a plan on a few of the samples in ``seen``.

        The input batches are kept in memory for the next plan.
        """
        chosen = tuple(seen.samples[i] for i in samples)
        if self._probed != chosen:
            self._probed, self._batches = chosen, list(self.inputs.runs(chosen, whole=True))
        run, place = self._running(plan), {sample: i for i, sample in enumerate(seen.samples)}
        return (([place[i] for i in some], run(some, batch)) for some, batch in self._batches)

    def _running(self, plan: Plan) -> Callable[[Sequence[int], Batch], SampleOutputs]:
        """A function that runs a plan on a batch with given samples, and cuts its outputs into samples."""
        board, known = self.board(plan), self._outputs.get(_key(plan), {})
        setting = board.setting(plan.high, self.scales_of(plan))

        def run(samples: Sequence[int], batch: Batch) -> SampleOutputs:
            if known.keys() >= set(samples):
                return {name: [known[sample][name] for sample in samples] for name in known[samples[0]]}
            self.meter.runs += len(samples) / len(self.inputs)
            return self.inputs.outputs_of(samples, batch, board.run(batch.feed, setting))

        return run

    def _made(self, plan: Plan) -> Plan:
        """The part of a plan that changes the model's graph.

        Precisions and most scales are left out, because they are values of the model's inputs. Fused norms
        are left out, because ``network`` has them already, and extra outputs because they are not simulated.
        """
        kinds, made = self._activations(plan.moves), {}
        for tensor, scale in plan.scales.items():
            if tensor in kinds.odd and scale.is_plain:
                made[tensor] = _SOME  # the symmetric scale is then a model input
            elif tensor not in kinds.known or not _is_like(scale, kinds.known[tensor]):
                made[tensor] = scale
        return replace(plan, scales=made, high={}, outputs=(), fused=())

    def _activations(self, moves: Mapping[str, Array]) -> _Activations:
        """The activations of the network after the moves of range ``moves``; see ``Plan.moves``."""
        key = _moves_key(moves)
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
    """The quantized activations of a network after range was moved between tensors."""

    network: Network
    """The network after the moves of range."""
    known: Mapping[str, Quantization]
    """The quantization of each activation whose readers quantize it symmetrically along the same axis."""
    odd: frozenset[str]
    """The activations that some reader quantizes asymmetrically, per channel, or not in INT8 or FP8."""
    inherited_scales: Mapping[str, str]
    """For each activation that moves of range created, the activation whose scale it inherits."""


def _readers(network: Network) -> dict[str, list[Edge]]:
    """The edges of each quantized activation. An edge is one input of a node that reads the tensor."""
    found: dict[str, list[Edge]] = {}
    for edge in (e for group in network.groups for e in group.edges if e.quantization.values is None):
        found.setdefault(edge.tensor, []).append(edge)
    return found


def _limit(judged: Score | Criterion) -> tuple[object, ...]:
    return judged.subject, judged.metric, judged.limit, judged.bound


def _places(edges: Sequence[Edge]) -> list[tuple[str, int]]:
    return [(edge.node, edge.index) for edge in edges]


def _are_alike(edges: Sequence[Edge]) -> bool:
    """Whether the edges of a tensor are all symmetric, with scales of the same shape and axis."""
    kinds = {(e.quantization.axis, e.quantization.scale.shape) for e in edges}
    return len(kinds) == 1 and all(e.quantization.is_symmetric for e in edges)


def _is_like(scale: TensorScale, known: Quantization) -> bool:
    """Whether a scale is symmetric and has the axis and shape of the scale of ``known``, a model input."""
    alike = scale.axis == known.axis and scale.scale.shape == known.scale.shape
    return alike and (scale.is_plain or scale.zero_point is None)


#: A placeholder scale, with which a model is built that quantizes symmetrically. The actual scale is an input
#: of that model.
_SOME = TensorScale(np.array(1.0, np.float32))


def _have_like_rows(outputs: Outputs, others: Outputs) -> bool:
    """Whether each array has as many rows as its counterpart; outputs of a detector may differ in rows."""

    def rows(some: Outputs) -> dict[str, list[int]]:
        return {name: [len(array) if array.ndim else 0 for array in arrays] for name, arrays in some.items()}

    return rows(outputs) == rows(others)


def _feed(outputs: SampleOutputs, place: int) -> Feed:
    """The outputs of one sample."""
    return {name: arrays[place] for name, arrays in outputs.items()}


def _key(plan: Plan) -> tuple[object, frozenset[str]]:
    """A key that is equal for plans with the same outputs, except for added outputs."""
    return _tried_key(plan), frozenset(plan.high)


def _moves_key(moves: Mapping[str, Array]) -> object:
    """A key that is equal for equal moves of range; see ``Plan.moves``."""
    return _tried_key(Plan(moves=moves))


def _tried_key(plan: Plan) -> object:
    """A key that is equal for plans that differ only in high-precision groups, outputs or fused norms."""
    return plan_key(plan, ignored={"high", "outputs", "fused"})
