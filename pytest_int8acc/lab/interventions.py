"""One thing about one culprit taken back at a time, on few samples, and what the outputs make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from copy import copy
from functools import cached_property

import numpy as np

from pytest_int8acc.graph.apart import Piece, apart
from pytest_int8acc.graph.network import Plan, TensorScale
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.tensors import Array


class Interventions:
    """Trials on one board, on which each tensor that a culprit quantizes has a switch and scales of its own.

    All other culprits are out of INT8 meanwhile, so that this one decides.
    """

    def __init__(self, lab: Lab, culprits: Collection[str], most: int) -> None:
        """Take the culprits apart; nothing is run.

        Args:
            lab: Of the case.
            culprits: Groups that must leave INT8.
            most: Trials, on ``Simulator.few`` samples each.
        """
        self.clock, self._case, self._most = lab.clock, lab, most
        self.spent = Counter[str]()
        """Trials by culprit."""
        self._high = frozenset(culprits)
        network, self.pieces = apart(lab.network, culprits, lab.shapes)
        self._simulator = lab.simulator.on(network)
        self._known: dict[str, float] = {}

    def alone(self) -> Interventions:
        """The same with all else out of INT8: what is left in it may round otherwise after any change."""
        other = copy(self)
        other._high = frozenset(group.name for group in self._case.network.groups)
        other._known = {}
        return other

    @cached_property
    def _every(self) -> frozenset[str]:
        """All that the culprits were taken apart into."""
        pieces = [piece for of_one in self.pieces.values() for piece in of_one]
        return frozenset(name for p in pieces for name in (p.given, p.other) if name)

    @property
    def samples(self) -> int | None:
        """How many samples trials look at; None: all."""
        few = len(self._simulator.few)
        return few if few < len(self._simulator.inputs) else None

    @property
    def may_go_on(self) -> bool:
        """Whether there are trials and time left."""
        return self.spent.total() < self._most and not self.clock.over

    @property
    def halved(self) -> bool:
        """Whether FP16 runs beside INT8."""
        return self._case.int8.rest == "fp16"

    def as_it_is(self, group: str) -> float:
        """How far the outputs are off with this culprit in INT8."""
        if group not in self._known:
            given = frozenset(piece.given for piece in self.pieces[group])
            self._known[group] = self._tried(group, given)
        return self._known[group]

    def loss(self, group: str) -> float:
        """What it adds to how far they are off: squared errors, 1 at the limit of a criterion."""
        if "" not in self._known:
            self._known[""] = self._tried(group, frozenset())
        return self.as_it_is(group) - self._known[""]

    def without(self, group: str, piece: Piece) -> float:
        """How far the outputs are off with one piece not quantized."""
        return self._tried(group, frozenset(p.given for p in self.pieces[group] if p != piece))

    def rescaled(self, group: str, piece: Piece, scale: Array) -> float:
        """The same with an activation in symmetric INT8 at another scale, float32 [] or [channels]."""
        int8 = frozenset(p.other if p == piece else p.given for p in self.pieces[group])
        given = scale if piece.axis is None else np.broadcast_to(scale, (piece.channels,))
        return self._tried(
            group, int8, {piece.scaled: TensorScale(np.asarray(given, np.float32), piece.axis)}
        )

    def in_fp32(self, group: str) -> float:
        """The same with the culprit as it is, and FP32 in place of FP16 around all that is INT8."""
        self.spent[group] += 1
        return self._wide.badness(Plan(high=dict.fromkeys(sorted(self._high - {group}), "fp32")))

    @cached_property
    def _wide(self) -> Simulator:
        return self._case.simulator.on(self._case.network, "fp32")

    def _tried(
        self, group: str, int8: frozenset[str], scales: Mapping[str, TensorScale] | None = None
    ) -> float:
        self.spent[group] += 1
        self.clock.tick("trial")
        whole = self._high - self.pieces.keys()
        high = dict.fromkeys(sorted((self._every | whole) - int8), self._case.measured.keep)
        return self._simulator.badness(Plan(high=high, scales=scales or {}))
