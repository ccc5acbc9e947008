"""One thing about one culprit taken back at a time, on few samples, and what the outputs make of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
        self.left, self.clock = most, lab.clock
        self._culprits, self._case = frozenset(culprits), lab
        network, self.pieces = apart(lab.network, culprits, lab.shapes)
        self._simulator = lab.simulator.on(network)
        self._as_it_is: dict[str, float] = {}

    @cached_property
    def _every(self) -> frozenset[str]:
        """All that the culprits were taken apart into."""
        pieces = [piece for of_one in self.pieces.values() for piece in of_one]
        return frozenset(name for p in pieces for name in (p.given, p.other) if name)

    @property
    def may_go_on(self) -> bool:
        """Whether there are trials and time left."""
        return self.left > 0 and not self.clock.over

    @property
    def halved(self) -> bool:
        """Whether FP16 runs beside INT8."""
        return self._case.int8.rest == "fp16"

    @cached_property
    def _least(self) -> float:
        """How far the outputs are off with no culprit in INT8."""
        return self._tried(frozenset())

    def as_it_is(self, group: str) -> float:
        """How far the outputs are off with this culprit in INT8."""
        if group not in self._as_it_is:
            self._as_it_is[group] = self._tried(frozenset(piece.given for piece in self.pieces[group]))
        return self._as_it_is[group]

    def loss(self, group: str) -> float:
        """What it adds to how far they are off: squared errors, 1 at the limit of a criterion."""
        return self.as_it_is(group) - self._least

    def without(self, group: str, piece: Piece) -> float:
        """How far the outputs are off with one piece not quantized."""
        return self._tried(frozenset(p.given for p in self.pieces[group] if p != piece))

    def rescaled(self, group: str, piece: Piece, scale: Array) -> float:
        """The same with an activation in symmetric INT8 at another scale, float32 [] or [channels]."""
        int8 = frozenset(p.other if p == piece else p.given for p in self.pieces[group])
        given = scale if piece.axis is None else np.broadcast_to(scale, (piece.channels,))
        return self._tried(int8, {piece.scaled: TensorScale(np.asarray(given, np.float32), piece.axis)})

    def in_fp32(self, group: str) -> float:
        """The same with the culprit as it is, and FP32 in place of FP16 around all that is INT8."""
        self.left -= 1
        return self._wide.badness(Plan(high=dict.fromkeys(self._culprits - {group}, "fp32")))

    @cached_property
    def _wide(self) -> Simulator:
        return self._case.simulator.on(self._case.network, "fp32")

    def _tried(self, int8: frozenset[str], scales: Mapping[str, TensorScale] | None = None) -> float:
        self.left -= 1
        self.clock.tick("trial")
        high = dict.fromkeys(sorted(self._every - int8), self._case.measured.keep)
        return self._simulator.badness(Plan(high=high, scales=scales or {}))
