"""One thing about one culprit taken back at a time, on few samples, and what the outputs make of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from functools import cached_property
from types import MappingProxyType

import numpy as np

from pytest_int8acc.clock import Budget
from pytest_int8acc.graph.instrument import Piece, split_groups
from pytest_int8acc.graph.network import Plan, TensorScale
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.results import Cost, Evidence
from pytest_int8acc.tensors import Array


class Interventions:
    """Trials with all other culprits out of INT8, so that one decides.

    Whole culprits are tried on the case's own board, where it can tell. Else there is another, opened when it
    is wanted, on which each tensor that a culprit quantizes has a switch and scales of its own.
    """

    def __init__(self, lab: Lab, culprits: Collection[str], budget: Budget) -> None:
        """Take the culprits apart; nothing is run.

        Args:
            lab: Of the case.
            culprits: Groups that must leave INT8.
            budget: Pays for the trials, on ``Simulator.few`` samples each.
        """
        self.budget, self._case = budget, lab
        self.is_alone = False
        """Whether all else is out of INT8, not other culprits only."""
        self._high = frozenset(culprits)
        network, self.pieces = split_groups(lab.network, culprits, lab.shapes)
        self._simulator = lab.simulator.on(network)
        self._known: dict[str, float] = {}

    def alone(self) -> Interventions:
        """The same with all else out of INT8: what is left in it may round otherwise after any change."""
        other = copy(self)
        other.is_alone = True
        other._high = frozenset(group.name for group in self._case.network.groups)
        other._known = {}
        return other

    @cached_property
    def _every(self) -> frozenset[str]:
        """All that the culprits were taken apart into."""
        pieces = [piece for of_one in self.pieces.values() for piece in of_one]
        return frozenset(name for p in pieces for name in (p.given, p.other) if name)

    @property
    def cost(self) -> Cost:
        """All that the lab has spent so far."""
        return self._case.cost

    def evidence(self, cost: Cost) -> Evidence:
        """The evidence of a trial."""
        return Evidence("ablation", "exact", self._case.sample_set(self._simulator.few), cost=cost)

    @property
    def samples(self) -> int | None:
        """How many samples trials look at; None: all."""
        few = len(self._simulator.few)
        return few if few < len(self._simulator.inputs) else None

    @property
    def may_go_on(self) -> bool:
        """Whether there are trials and time left."""
        return not self.budget.empty

    @property
    def halved(self) -> bool:
        """Whether FP16 runs beside INT8."""
        return self._case.int8.rest == "fp16"

    def as_it_is(self, group: str) -> float:
        """How far the outputs are off with this culprit in INT8."""
        if group not in self._known:
            self._known[group] = self._tried(self._case.simulator, self._high - {group})
        return self._known[group]

    def loss(self, group: str) -> float:
        """What it adds to how far they are off: squared errors, 1 at the limit of a criterion."""
        if "" not in self._known:
            self._known[""] = self._tried(self._case.simulator, self._high)
        return self.as_it_is(group) - self._known[""]

    def without(self, group: str, piece: Piece) -> float:
        """How far the outputs are off with one piece not quantized."""
        return self._trial_of_edges(group, frozenset(p.given for p in self.pieces[group] if p != piece))

    def rescaled(self, group: str, piece: Piece, scale: Array) -> float:
        """The same with an activation in symmetric INT8 at another scale, float32 [] or [channels]."""
        if not scale.ndim and self._is_own(group, piece):
            scales = {piece.tensors[0]: TensorScale(scale)}
            return self._tried(self._case.simulator, self._high - {group}, scales)
        int8 = frozenset(p.other if p == piece else p.given for p in self.pieces[group])
        given = scale if piece.axis is None else np.broadcast_to(scale, (piece.channels,))
        taken = TensorScale(np.asarray(given, np.float32), piece.axis)
        return self._trial_of_edges(group, int8, {piece.scaled: taken})

    def in_fp32(self, group: str) -> float:
        """The same with the culprit as it is, and FP32 in place of FP16 around all that is INT8."""
        self.budget.pay()
        return self._wide.normalized_loss(Plan(high=dict.fromkeys(sorted(self._high - {group}), "fp32")))

    @cached_property
    def _wide(self) -> Simulator:
        return self._case.simulator.on(self._case.network, "fp32")

    def _is_own(self, group: str, piece: Piece) -> bool:
        """Whether no other group in INT8 reads an activation, and it has one symmetric scale."""
        groups = self._case.network.groups
        readers = [(g.name, e.quantization) for g in groups for e in g.edges if e.tensor in piece.tensors]
        alike = [other for other in self.pieces[group] if other.tensors == piece.tensors]
        return len(alike) == 1 and all(name in self._high and q.is_plain for name, q in readers)

    def _trial_of_edges(
        self, group: str, int8: frozenset[str], scales: Mapping[str, TensorScale] = MappingProxyType({})
    ) -> float:
        """A trial with some of what one culprit was taken apart into."""
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
