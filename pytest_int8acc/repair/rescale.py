"""Other scales for activations, chosen by the error of the model's outputs.

Scales are inputs of the model that is tried (see ``Board``), so nothing is built anew for a trial. Candidates
are the ranges that every calibration method takes from one histogram; the first trials give all tensors the
same method, then tensors are changed one at a time for as long as the outputs get better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.case.data import calibration_data
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines.calibrators import collect_histograms, collect_maxima, entropy_amax
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.change import Change, changed, weight_axis
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.network import Network, Quantization
from pytest_int8acc.graph.quantize import INT8_MAX, dequantize_array, quantize_weight
from pytest_int8acc.lab.board import Board
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.scales.calibrate import mse_amax, percentile_amax
from pytest_int8acc.tensors import Array

#: Percentiles tried.
LADDER = (99.0, 99.9, 99.99, 99.999)
#: How many of the greatest maxima are averaged (NVIDIA's INT8 debugging guide).
TOP = 5
#: The methods, those first that are best most often.
METHODS = ("mse", "minmax", f"topk {TOP}", *(f"percentile {p:g}" for p in reversed(LADDER)), "entropy")
#: Bins over [-amax, amax], fine enough for the ladder.
_BINS = 1 << 15
#: Bins of the entropy search where a candidate is wanted; its time grows with their square.
_FEW_BINS = 1 << 9
#: Scales nearer to each other than this are one candidate.
_ALIKE = 0.03
#: A change of a scale must lower the error by this share to be kept.
_WORTH = 0.005
#: A weight's scales are taken anew where that gains this much, in dB.
_GAIN_DB = 1.0
#: Outputs that err no more than this, in units of what the criteria allow, need no better scales.
ENOUGH = 0.5
#: With more than ``_MANY`` tensors to choose for, this much badness is not worth changing them one by one.
HOPELESS, _MANY = 4.0, 8
#: Rounds of changing one tensor at a time.
_SWEEPS = 2


@dataclass(frozen=True, eq=False)
class Source:
    """Samples that ranges may come from."""

    data: Dataset
    words: str


def sources(measured: Measured) -> list[Source]:
    """Where ranges may come from: the case's calibration data where it has some, and the inputs."""
    found = [Source(measured.inputs, "the compared inputs themselves")]
    data = calibration_data(measured.case, measured.model)
    if data is not None:
        found.insert(0, Source(data, f"the calibration data, {data.description}"))
    return found


class Purse:
    """Trials and time that a repair may still spend."""

    def __init__(self, trials: int, seconds: float | None) -> None:
        self.trials = 0
        self._most = trials
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def empty(self) -> bool:
        """True where nothing more may be tried."""
        return self.trials >= self._most or (self._end is not None and time.monotonic() >= self._end)

    @property
    def seconds_left(self) -> float | None:
        """Until time is up; None where it is never."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def pay(self) -> None:
        """Count one trial."""
        self.trials += 1


class Ranges:
    """What each calibration method makes of one histogram per activation; methods run when asked for."""

    def __init__(
        self,
        network: Network,
        tensors: Iterable[str],
        dataset: Dataset,
        sessions: Sessions,
        entropy_bins: int = _FEW_BINS,
    ) -> None:
        """Collect the histograms, in two passes over the data.

        Args:
            network: Its float model is run.
            tensors: Activations of it; those of rank 0 or that hold inf or nan get no candidates.
            dataset: Samples.
            sessions: Where the model runs.
            entropy_bins: Of the entropy search; a multiple of 128 that divides 32768.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
        """
        values = network.model.values()
        wanted = [t for t in tensors if (info := values.get(t)) is None or info.shape != ()]
        self._maxima: dict[str, NDArray[np.float32]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}
        if wanted:
            maxima = collect_maxima(network.model, wanted, dataset, sessions)
            self._maxima.update(maxima.per_sample)
            self._counts |= collect_histograms(network.model, maxima, dataset, _BINS, sessions=sessions)
        self._known: dict[tuple[str, str], float] = {}
        self._entropy_bins = entropy_bins

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._counts

    def adopt(self, other: Ranges, tensors: Iterable[str]) -> None:
        """Take over what another network's ranges say of tensors that hold the same values here."""
        for tensor in tensors:
            if tensor in other:
                self._maxima[tensor], self._counts[tensor] = other._maxima[tensor], other._counts[tensor]

    def scale(self, tensor: str, method: str) -> float:
        """The scale of a tensor that has a histogram, by one of ``METHODS``; exact in float32."""
        if (tensor, method) not in self._known:
            self._known[tensor, method] = float(np.float32(self._amax(tensor, method) / INT8_MAX))
        return self._known[tensor, method]

    def loss_db(self, tensor: str, scale: float) -> float:
        """By how much the tensor's own INT8 error at ``scale`` exceeds the least possible, in dB."""
        counts = self._counts.get(tensor)
        if counts is None:
            return 0.0
        amax = float(self._maxima[tensor].max())
        best = _noise(counts, amax, mse_amax(counts, amax) / INT8_MAX)
        return 10 * float(np.log10((_noise(counts, amax, scale) + 1e-30) / (best + 1e-30)))

    def _amax(self, tensor: str, method: str) -> float:
        counts, amax = self._counts[tensor], float(self._maxima[tensor].max())
        name, _, number = method.partition(" ")
        if name == "mse":
            return mse_amax(counts, amax)
        if name == "entropy":
            return entropy_amax(_without_zeros(counts, self._entropy_bins), amax)
        if name == "percentile":
            return percentile_amax(counts, amax, float(number))
        if name == "topk":
            return float(np.sort(self._maxima[tensor])[-int(number) :].mean())
        return amax


def _without_zeros(counts: NDArray[np.int64], bins: int) -> NDArray[np.int64]:
    """Joined to ``bins``; the bin of the zeros, right of the middle, holds what lies beside it."""
    middle = counts.size // 2
    rest = counts.copy()
    rest[middle] = min(counts[middle], max(counts[middle + 1], counts[middle - 1]))
    return np.asarray(rest.reshape(bins, -1).sum(axis=1))


def _noise(counts: NDArray[np.int64], amax: float, scale: float) -> float:
    """Sum of squared INT8 errors over a histogram, each bin counted at its centre."""
    centres = (np.arange(counts.size) + 0.5) * (2 * amax / counts.size) - amax
    rounded = np.clip(np.rint(centres / scale), -INT8_MAX, INT8_MAX) * scale
    return float((counts * (rounded - centres) ** 2).sum())


@dataclass(frozen=True)
class Choice:
    """Scales chosen for some activations."""

    scales: Mapping[str, float] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    badness: float = np.inf
    """Of the outputs, on the samples looked at."""

    def plus(self, other: Choice) -> Choice:
        """Both; the other counts where they differ."""
        return Choice({**self.scales, **other.scales}, {**self.methods, **other.methods}, other.badness)

    def only(self, tensors: Collection[str]) -> Choice:
        """What was chosen for some of the tensors; not measured yet."""
        scales = {tensor: scale for tensor, scale in self.scales.items() if tensor in tensors}
        return Choice(scales, {tensor: self.methods[tensor] for tensor in scales})


@dataclass(frozen=True, eq=False)
class Unit:
    """Activations that have one scale: one, or those that meet in a Concat."""

    tensors: tuple[str, ...]
    ranges: Ranges

    def scale(self, method: str) -> float:
        """Its scale by one of ``METHODS``: the greatest of its tensors'."""
        return max(self.ranges.scale(tensor, method) for tensor in self.tensors if tensor in self.ranges)

    def choice(self, method: str) -> Choice:
        """Its scales by one method."""
        return Choice(dict.fromkeys(self.tensors, self.scale(method)), dict.fromkeys(self.tensors, method))


def rescaled(int8: Int8Form, change: Change) -> Int8Form:
    """The form with other scales, those groups included that the case's own plan keeps high."""
    whole = None if int8.whole is None else changed(int8.whole, change)
    return replace(int8, network=changed(int8.network, change), whole=whole)


def units(network: Network, tensors: Iterable[str], ranges: Ranges) -> list[Unit]:
    """``tensors`` with those that must share a scale with them; those without a histogram are left out."""
    shared = _shared(network)
    found: dict[frozenset[str], Unit] = {}
    for tensor in tensors:
        together = next((s for s in shared if tensor in s), frozenset({tensor}))
        if together not in found and any(t in ranges for t in together):
            found[together] = Unit(tuple(sorted(together)), ranges)
    return list(found.values())


def activations(network: Network, groups: Iterable[str] | None = None) -> list[str]:
    """Activations that groups quantize, each once, in topological order; None: of all groups."""
    wanted = None if groups is None else set(groups)
    edges = (e for g in network.groups if wanted is None or g.name in wanted for e in g.edges)
    return list(dict.fromkeys(e.tensor for e in edges if e.quantization.values is None))


def with_tied(network: Network, tensors: Iterable[str]) -> list[str]:
    """``tensors`` and those that must share a scale with one of them, each once."""
    shared = _shared(network)
    sets = ((t, *sorted(s for tied in shared if t in tied for s in tied)) for t in tensors)
    return list(dict.fromkeys(t for together in sets for t in together))


def _shared(network: Network) -> list[frozenset[str]]:
    """Sets of quantized activations that TensorRT wants at one scale."""
    quantized = set(activations(network))
    try:
        return [tied for s in find_groups(network.model).shared if len(tied := s & quantized) > 1]
    except ModelError:  # a Q/DQ model of operators that are quantized by its author alone
        return []


def rescale(
    board: Board,
    wanted: Sequence[Unit],
    ranges: Ranges,
    purse: Purse,
    *,
    start: Choice | None = None,
    high: frozenset[int] = frozenset(),
    enough: float = ENOUGH,
) -> Choice:
    """Choose scales for ``wanted`` such that the outputs err least, on a few samples.

    Args:
        board: The network, ready to be tried.
        wanted: What may change.
        ranges: Tells which tensors are worst, so tried first.
        purse: Pays for the trials.
        start: Scales of other tensors, kept as they are, and of these, improved on.
        high: Groups that do not run in INT8 meanwhile.
        enough: The badness at which no better scales are looked for.
    """

    def weighed(choice: Choice) -> Choice:
        purse.pay()
        return replace(choice, badness=board.badness(choice.scales, high))

    best = uniform(board, wanted, purse, start or Choice(), high, enough)
    if best.badness > HOPELESS and len(wanted) > _MANY:
        return best
    own = board.own
    worst_first = sorted(wanted, key=lambda unit: -_loss_db(unit, best, own, ranges))
    for _ in range(_SWEEPS):
        before = best
        for unit in worst_first:
            for choice in _others(unit, best, own):
                if purse.empty or best.badness <= enough:
                    return best
                best = _better(best, weighed(best.plus(choice)))
        if best is before:
            break
    return best


def uniform(
    board: Board,
    wanted: Sequence[Unit],
    purse: Purse,
    start: Choice,
    high: frozenset[int] = frozenset(),
    enough: float = ENOUGH,
) -> Choice:
    """The best of the scales as they are, and of one method for all of ``wanted``; see ``rescale``."""
    best = replace(start, badness=np.inf)  # what it was measured with may have been other groups high
    methods = [m for m in METHODS if m != "entropy" or len(wanted) <= _MANY]  # its search takes most time
    for method in (None, *methods):
        if best.badness <= enough or purse.empty:
            break
        tried = start
        for unit in wanted if method else ():
            tried = tried.plus(unit.choice(str(method)))
        purse.pay()
        tried = replace(tried, badness=board.badness(tried.scales, high))
        best = _better(best, tried) if method else tried
    return best


def prune(
    board: Board, wanted: Sequence[Unit], purse: Purse, choice: Choice, high: frozenset[int] = frozenset()
) -> Choice:
    """The choice without those scales that do no more good than the network's own."""
    least = choice
    for unit in wanted if len(wanted) > 1 else ():
        if purse.empty:
            break
        tried = least.only(set(least.scales).difference(unit.tensors))
        purse.pay()
        tried = replace(tried, badness=board.badness(tried.scales, high))
        if tried.badness <= choice.badness * (1 + _WORTH):
            least = tried
    return least


def _better(best: Choice, tried: Choice) -> Choice:
    return tried if tried.badness < best.badness * (1 - _WORTH) else best


def _others(unit: Unit, best: Choice, own: Mapping[str, float]) -> Iterator[Choice]:
    """A unit's candidates that differ from each other and from what it has."""
    seen = [best.scales.get(unit.tensors[0], own.get(unit.tensors[0], math.inf))]
    for method in METHODS:
        scale = unit.scale(method)
        if all(abs(scale - other) > _ALIKE * other for other in seen):
            seen.append(scale)
            yield unit.choice(method)


def _loss_db(unit: Unit, best: Choice, own: Mapping[str, float], ranges: Ranges) -> float:
    """What the worst of a unit's scales loses; everything where none has a scale per tensor."""
    scales = {t: best.scales.get(t, own.get(t)) for t in unit.tensors}
    return max(
        (ranges.loss_db(t, scale) for t, scale in scales.items() if scale is not None), default=math.inf
    )


def worse_weights(network: Network, groups: Iterable[str] | None = None) -> tuple[str, ...]:
    """Constants of groups (None: of all) that scales taken from their values would round better, by 1 dB."""
    wanted = None if groups is None else set(groups)
    constants = network.model.constants()
    nodes = {node.name: node for node in network.model.graph.node}
    found: dict[str, None] = {}
    for group in network.groups:
        for edge in group.edges if wanted is None or group.name in wanted else ():
            old = edge.quantization
            if old.values is None or old.values.dtype == np.int32 or edge.tensor not in constants:
                continue
            weight = constants[edge.tensor]
            fresh = quantize_weight(weight, weight_axis(nodes[edge.node], edge, weight.ndim))
            if _error(old, weight) > 10 ** (_GAIN_DB / 10) * _error(fresh, weight):
                found[edge.tensor] = None
    return tuple(found)


def _error(quantization: Quantization, weight: Array) -> float:
    """Squared error of a constant's integers, relative to its own square."""
    values = weight.astype(np.float64)
    return float(((dequantize_array(quantization) - values) ** 2).sum() / max((values**2).sum(), 1e-30))
