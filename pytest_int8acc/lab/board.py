"""A network whose groups and scales are both chosen at run time, so that a trial is one inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.case.trial_judge import Criteria, Gathered, Judge, SampleOutputs
from pytest_int8acc.data import Batch
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.fp16_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.macs import macs
from pytest_int8acc.graph.model import Model, subgraphs
from pytest_int8acc.graph.network import Edge, Network
from pytest_int8acc.graph.switchboard import build_switchboard
from pytest_int8acc.lab.inputs import Inputs
from pytest_int8acc.lab.vectors import Prober
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.evaluator import Enough
from pytest_int8acc.search.types import GroupInfo, Probe, Target, Trial
from pytest_int8acc.tensors import Array, Feed

#: Activation to scale.
Scales = Mapping[str, float]
#: Samples on which scales are compared; a choice is confirmed on all.
FEW = 32
#: The smallest FP16 number above 0; smaller scales are raised to it where the network runs in FP16.
_LEAST_HALF = 2.0**-24
#: Stands for an error that is no number.
_FAR = 1e30


@dataclass(frozen=True)
class _Slot:
    """One scale of the switchboard."""

    name: str
    """The input that takes it."""
    tensor: str
    """The network's activation."""
    own: float
    half: bool
    """It is an FP16 number in the model that is built."""

    def value(self, scales: Scales) -> Array:
        scale = scales.get(self.tensor, self.own)
        if self.half:
            scale = float(max(np.float16(scale), np.float16(_LEAST_HALF)))
        return np.array(scale, np.float32)


class Board:
    """Trials of scales and of groups kept high, on one network.

    The network must quantize the activations in question per tensor (see ``changed``).
    """

    def __init__(self, measured: Measured, network: Network, seed: int = 0) -> None:
        """Build the switchboard and read the inputs.

        Raises:
            EngineError: ONNX Runtime refuses the switchboard.
            DataError: The inputs cannot be read.
        """
        self.network = network
        in_half = measured.int8 is not None and measured.int8.rest == "fp16"
        halved = network_to_fp16(network) if in_half else network
        run = emulate_network(halved) if in_half else network
        board = build_switchboard(run)
        model, self._slots = _open_scales(board.model, list(_places(network, halved, run)))
        self._engine = OrtEngine(model, "exact", measured.settings.provider)
        self._switch = board.switch
        taken = {board.switch, *(slot.name for slot in self._slots)}
        inputs = [info for info in self._engine.inputs if info.name not in taken]
        self.inputs = Inputs(measured.inputs, inputs, measured.baseline)
        judge = measured.judge
        criteria = Criteria(judge.limits, judge.metrics, judge.labels)
        self.judge = Judge(self.inputs.cut(measured.baseline), criteria)
        self.prober = Prober(self.judge)
        self.groups = _infos(measured, network)
        order = np.random.default_rng(seed).permutation(self.judge.samples)
        self._few = sorted(order[:FEW].tolist())
        self._batches = list(self.inputs.runs(self._few))

    @property
    def own(self) -> dict[str, float]:
        """The network's own scale of each activation that can be changed."""
        return {slot.tensor: slot.own for slot in self._slots}

    def indices(self, names: Sequence[str]) -> frozenset[int]:
        """Groups by name as positions in ``groups``."""
        wanted = set(names)
        return frozenset(i for i, group in enumerate(self.groups) if group.name in wanted)

    def badness(self, scales: Scales, high: frozenset[int] = frozenset()) -> float:
        """How far the outputs of a few samples are off, about 1 where a criterion is at its limit.

        The greatest over the criteria of the squared error, in units of what the limit allows, and a little
        of the others, so that a change that helps one of them counts. The mean over the samples; of the
        worst quarter where the limit is for the worst.
        """
        probe, errors = self.probe(scales, high, self._few), []
        for target, vectors in zip(self.prober.targets, probe.vectors, strict=True):
            squares = np.sort(np.square(vectors.astype(np.float64)).sum(axis=1))
            if self.judge.criteria[target.criterion].pool == "rank":
                squares = squares[len(squares) * 3 // 4 :]
            errors.append(float(np.nan_to_num(squares.mean(), nan=_FAR, posinf=_FAR)))
        return max(errors) + 0.01 * float(np.mean(errors))

    def trial(
        self,
        scales: Scales,
        high: frozenset[int] = frozenset(),
        order: Sequence[int] | None = None,
        enough: Enough | None = None,
    ) -> Trial:
        """The verdict on all samples; see ``Evaluator.trial``."""
        gathered = Gathered(self.judge)
        for samples, batch in self.inputs.runs(range(self.judge.samples) if order is None else order):
            gathered.add(samples, self._run(scales, high, samples, batch))
            if enough is not None and not gathered.seen.all() and enough(gathered.parts()):
                break
        return self.judge.trial(high, gathered)

    def probe(self, scales: Scales, high: frozenset[int], samples: Sequence[int]) -> Probe:
        """Error vectors of a few samples; see ``Evaluator.probe``."""
        found: dict[str, dict[int, Array]] = {name: {} for name in self.judge.baseline}
        runs = self._batches if list(samples) == self._few else self.inputs.runs(samples)
        for run, batch in runs:
            for name, arrays in self._run(scales, high, run, batch).items():
                found[name].update(zip(run, arrays, strict=True))
        outputs = {name: [arrays[i] for i in samples] for name, arrays in found.items()}
        return self.prober.probe(samples, outputs)

    def _run(
        self, scales: Scales, high: frozenset[int], samples: Sequence[int], batch: Batch
    ) -> SampleOutputs:
        int8 = np.ones(len(self.groups), np.bool_)
        int8[list(high)] = False
        given: Feed = {slot.name: slot.value(scales) for slot in self._slots}
        return self.inputs.outputs_of(
            samples, batch, self._engine({**batch.feed, **given, self._switch: int8})
        )


@dataclass(frozen=True, eq=False)
class Rescaled:
    """An Evaluator: plans of a board's network under other scales."""

    board: Board
    scales: Scales

    @property
    def groups(self) -> Sequence[GroupInfo]:
        """What can be switched."""
        return self.board.groups

    @property
    def criteria(self) -> Sequence[Criterion]:
        """What is judged."""
        return self.board.judge.criteria

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.board.judge.samples

    @property
    def targets(self) -> Sequence[Target]:
        """What ``probe`` measures."""
        return self.board.prober.targets

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge a plan; see ``Evaluator``."""
        return self.board.trial(self.scales, high, order, enough)

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of plans on a few samples; see ``Evaluator``."""
        return [self.board.probe(self.scales, high, samples) for high in plans]


def _infos(measured: Measured, network: Network) -> list[GroupInfo]:
    batch = next(iter(measured.inputs.batches()))
    prices = macs(network, {name: array.shape for name, array in batch.feed.items()})
    return [GroupInfo(group.name, prices[group.name]) for group in network.groups]


def _places(network: Network, halved: Network, run: Network) -> Iterator[tuple[Edge, Edge, Edge]]:
    """Each activation that is quantized per tensor: as given, in FP16, and as it runs."""
    for groups in zip(network.groups, halved.groups, run.groups, strict=True):
        for edges in zip(*(group.edges for group in groups), strict=True):
            if edges[0].quantization.values is None and edges[0].quantization.axis is None:
                yield edges


def _open_scales(model: Model, places: Sequence[tuple[Edge, Edge, Edge]]) -> tuple[Model, list[_Slot]]:
    """The switchboard with an input for each activation's scale, and those inputs."""
    editor = model.edit()
    slots: dict[tuple[str, float], _Slot] = {}
    for edge, half, run in places:
        own = float(run.quantization.scale)
        if (run.tensor, own) not in slots:
            name = editor.unique(f"{run.tensor}_scale_input")
            in_half = half.quantization.scale.dtype == np.float16
            slots[run.tensor, own] = _Slot(name, edge.tensor, float(edge.quantization.scale), in_half)
    used: dict[str, _Slot] = {}
    constants = model.constants()
    for node in editor.graph.node:
        for slot in _replace(node, slots, constants):
            used[slot.name] = slot
    for name in used:
        editor.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, []))
    return editor.done(), list(used.values())


def _replace(
    node: onnx.NodeProto, slots: Mapping[tuple[str, float], _Slot], around: Mapping[str, Array]
) -> Iterator[_Slot]:
    """Let the Q/DQ pairs inside a node's branches read their scales from inputs."""
    for graph in subgraphs(node):
        small = {t.name: numpy_helper.to_array(t) for t in graph.initializer if not t.external_data}
        local = {**around, **small}
        chosen: dict[str, _Slot] = {}
        for inner in graph.node:
            if inner.op_type == "QuantizeLinear" and local[inner.input[1]].ndim == 0:
                slot = slots.get((inner.input[0], float(local[inner.input[1]])))
                if slot is not None:
                    chosen[inner.output[0]] = slot
                    inner.input[1] = slot.name
                    yield slot
            elif inner.op_type == "DequantizeLinear" and inner.input[0] in chosen:
                inner.input[1] = chosen[inner.input[0]].name
