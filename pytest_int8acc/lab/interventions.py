"""Ablations of a culprit, a layer at fault: one property is changed at a time, and the loss is measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from pytest_int8acc.clock import Budget
from pytest_int8acc.graph.instrument import Piece, split_groups
from pytest_int8acc.graph.network import Plan, TensorScale
from pytest_int8acc.lab.biases import corrections
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.results import Cost, Evidence
from pytest_int8acc.tensors import Array


@dataclass(frozen=True, eq=False)
class Change:
    """A change of one quantized tensor of a layer at fault."""

    piece: Piece
    """The tensor that is changed."""
    scale: TensorScale | None = None
    """The scale that replaces the tensor's own; None if the tensor is left unquantized."""


class Interventions:
    """Runs ablations of one culprit, a layer at fault, at a time. The other culprits are in high precision.

    All trials run on the samples ``Simulator.few``. Trials of a whole culprit run in the simulator of the
    case. Trials of one tensor run in a second simulator, which can switch and rescale each tensor of a
    culprit by itself.
    """

    def __init__(self, lab: Lab, culprits: Collection[str], budget: Budget) -> None:
        """Split the culprits into their tensors. Nothing is run.

        Args:
            lab: Runs the plans of the case.
            culprits: The names of the layers that must leave the low format.
            budget: The budget of the trials.
        """
        self.budget, self._case = budget, lab
        self.is_alone = False
        """Whether trials keep all other layers in high precision, not only the other layers at fault."""
        self._high = frozenset(culprits)
        network, self.pieces = split_groups(lab.network, culprits, lab.shapes)
        self._simulator = lab.simulator.on(network)
        self._known: dict[str, float] = {}
        self.mended = lab.mended
        """Maps a tensor to the scale with which a trial confirmed the cause of a layer at fault. The lab
        keeps these scales for the remedies."""

    def alone(self) -> Interventions:
        """A copy of this object whose trials keep all other layers in high precision.

        With other layers in INT8, a change of one layer would also change the rounding in later layers.
        """
        other = copy(self)
        other.is_alone = True
        other._high = frozenset(group.name for group in self._case.network.groups)
        other._known = {}
        return other

    @cached_property
    def _every(self) -> frozenset[str]:
        """The names of the groups that ``split_groups`` made of the layers at fault."""
        pieces = [piece for of_one in self.pieces.values() for piece in of_one]
        return frozenset(name for p in pieces for name in (p.given, p.other) if name)

    @property
    def cost(self) -> Cost:
        """The cost of all runs, trials and builds of the case so far."""
        return self._case.cost

    def evidence(self, cost: Cost) -> Evidence:
        """The evidence of one ablation, with the cost of its trials."""
        return Evidence("ablation", "exact", self._case.sample_set(self._simulator.few), cost=cost)

    @property
    def samples(self) -> int | None:
        """The number of samples on which trials run; None if trials run on all samples."""
        few = len(self._simulator.few)
        return few if few < len(self._simulator.inputs) else None

    @property
    def may_go_on(self) -> bool:
        """Whether the budget and the clock allow another trial."""
        return not self.budget.empty

    @property
    def halved(self) -> bool:
        """Whether nodes that are not quantized run in FP16."""
        return self._case.int8.rest == "fp16"

    @cached_property
    def whole(self) -> float:
        """The model's loss with all layers in the low format; 1 is at the limit of the criteria."""
        return self._tried(self._case.simulator, frozenset())

    def as_it_is(self, group: str) -> float:
        """The model's loss with ``group`` in INT8 and no ablation; 1 is at the limit of the criteria.

        The other layers at fault are in high precision.
        """
        if group not in self._known:
            self._known[group] = self._tried(self._case.simulator, self._high - {group})
        return self._known[group]

    def loss(self, group: str) -> float:
        """The increase of the model's loss if ``group`` is in INT8 instead of high precision."""
        return self.as_it_is(group) - self.least

    @property
    def least(self) -> float:
        """The model's loss with all layers at fault in high precision; 1 is at the limit of the criteria."""
        if "" not in self._known:
            self._known[""] = self._tried(self._case.simulator, self._high)
        return self._known[""]

    def without(self, group: str, piece: Piece) -> float:
        """The model's loss if the tensor ``piece`` of the layer ``group`` is not quantized."""
        left = frozenset(p.given for p in self.pieces[group] if p != piece)
        return self._trial_of_edges(left) if left else self.least

    def of_several(self, changes: Mapping[str, Change | None]) -> float:
        """The model's loss with several layers at fault in INT8, and with a change of one tensor of each.

        ``changes`` maps each of these layers to its change; None leaves the layer as it is.
        """
        int8, scales = set[str](), dict[str, TensorScale]()
        for group, change in changes.items():
            for piece in self.pieces[group]:
                if change is None or piece != change.piece:
                    int8.add(piece.given)
                elif change.scale is not None:
                    int8.add(piece.other or piece.given)
                    scales[piece.scaled or piece.tensor] = _for_piece(piece, change.scale)
        return self._trial_of_edges(frozenset(int8), scales)

    def rescaled(self, group: str, piece: Piece, scale: Array) -> float:
        """The model's loss if the activation ``piece`` of the layer ``group`` has another symmetric scale.

        ``scale`` is float32, of shape [] or [channels].
        """
        if not scale.ndim and self._is_own(group, piece):
            scales = {piece.tensor: TensorScale(scale)}
            return self._tried(self._case.simulator, self._high - {group}, scales)
        int8 = frozenset(p.other if p == piece else p.given for p in self.pieces[group])
        return self._trial_of_edges(int8, {piece.scaled: _for_piece(piece, TensorScale(scale))})

    def requantized(self, group: str, constant: str, scale: TensorScale) -> float:
        """The model's loss if a constant of ``group`` is quantized from its float values with ``scale``."""
        return self._tried(self._case.simulator, self._high - {group}, {constant: scale})

    def corrected(self, group: str) -> float:
        """The model's loss if the bias of ``group`` is corrected by the mean error of each output channel.

        If ``group`` has no bias, nothing is corrected.
        """
        lab = self._case
        floats = corrections(lab.network, [group], lab.sources[0].data, lab.sessions)
        self.budget.pay()
        high = dict.fromkeys(sorted(self._high - {group}), lab.measured.keep)
        return lab.simulator.normalized_loss(Plan(high, floats=floats))

    def in_fp32(self, group: str) -> float:
        """The model's loss with ``group`` in INT8, if nodes that are not quantized run in FP32, not FP16."""
        self.budget.pay()
        return self._wide.normalized_loss(Plan(high=dict.fromkeys(sorted(self._high - {group}), "fp32")))

    @cached_property
    def _wide(self) -> Simulator:
        return self._case.simulator.on(self._case.network, "fp32")

    def _is_own(self, group: str, piece: Piece) -> bool:
        """Whether an activation has one symmetric scale, and all its other readers run in high precision.

        If so, no other layer is affected when the scale of the activation is changed in the network.
        """
        groups = self._case.network.groups
        readers = [(g.name, e.quantization) for g in groups for e in g.edges if e.tensor == piece.tensor]
        alike = [other for other in self.pieces[group] if other.tensor == piece.tensor]
        return len(alike) == 1 and all(name in self._high and q.is_plain for name, q in readers)

    def _trial_of_edges(
        self, int8: frozenset[str], scales: Mapping[str, TensorScale] = MappingProxyType({})
    ) -> float:
        """The model's loss with some tensors of the layers at fault in INT8.

        ``int8`` has the names of the groups into which these tensors were split.
        """
        whole = self._high - self.pieces.keys()
        return self._tried(self._simulator, (self._every | whole) - int8, scales)

    def _tried(
        self,
        simulator: Simulator,
        high: frozenset[str],
        scales: Mapping[str, TensorScale] = MappingProxyType({}),
    ) -> float:
        self.budget.pay()
        return simulator.normalized_loss(Plan(dict.fromkeys(sorted(high), self._case.measured.keep), scales))


def _for_piece(piece: Piece, scale: TensorScale) -> TensorScale:
    """The scale in the shape that a plan needs for a tensor: [] or [channels] for an activation."""
    if not piece.scaled:
        return scale
    given = scale.scale if piece.axis is None else np.broadcast_to(scale.scale, (piece.channels,))
    return TensorScale(np.asarray(given, np.float32), piece.axis)
