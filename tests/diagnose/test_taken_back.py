"""What trials show decides on the cause, whatever the tensors look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labs import lab_of
from planted_repairs import measured
from repair_support import KINDS, READER, WIDE

from pytest_int8acc.diagnose.case import diagnose
from pytest_int8acc.diagnose.taken_back import Suspect, established
from pytest_int8acc.graph.apart import Piece
from pytest_int8acc.lab.values import TensorValues
from pytest_int8acc.repair.precision import find_precision
from pytest_int8acc.report.search import remarks
from pytest_int8acc.results.causes import Cause, CauseKind, Symptom
from pytest_int8acc.tensors import Array


@dataclass
class Trials:
    """A culprit whose outputs are off by 11, by 1 without it, and by what is given otherwise."""

    free: Mapping[str, float]
    """Tensor to how far they are off with it unquantized."""
    scaled: Mapping[str, float] = field(default_factory=dict)
    """The same with other scales of it."""
    fp32: float = 11.0
    halved: bool = True
    samples: int | None = None
    left: int = 100
    channels: int = 3
    by_itself: Trials | None = None
    is_alone: bool = False
    adds: float = 10.0
    asked: list[str] = field(default_factory=list)

    def alone(self) -> Trials:
        return self.by_itself or self

    @property
    def may_go_on(self) -> bool:
        return self.left > 0

    @property
    def pieces(self) -> dict[str, tuple[Piece, ...]]:
        return {"g": tuple(Piece((t,), t, f"{t}/other", f"{t}/in", 1, self.channels) for t in self.free)}

    def as_it_is(self, group: str) -> float:
        return 11.0

    def loss(self, group: str) -> float:
        return self.adds

    def _off(self, what: str, value: float) -> float:
        self.left -= 1
        self.asked.append(what)
        return value

    def without(self, group: str, piece: Piece) -> float:
        return self._off(f"free {piece.given}", self.free[piece.given])

    def rescaled(self, group: str, piece: Piece, scale: Array) -> float:
        return self._off(f"scaled {piece.given}", self.scaled.get(piece.given, 11.0))

    def in_fp32(self, group: str) -> float:
        return self._off("fp32", self.fp32)


def suspect(tensor: str, kind: CauseKind, symptom: Symptom, constant: bool = False, **facts: Any) -> Suspect:
    held = TensorValues(tensor, maxima=np.ones(1, np.float32), channel_amax=np.array([1, 9, 2], np.float32))
    return Suspect(tensor, Cause(kind, symptom, tensor, **facts), None if constant else held)


QUIET: tuple[CauseKind, Symptom] = ("accumulated-noise", "noise-adds-up")
OUTLIERS: tuple[CauseKind, Symptom] = ("activation-outliers", "large-channels")
WIDE_RANGE: tuple[CauseKind, Symptom] = ("scale-too-wide", "range-too-wide")
WEIGHT = suspect("w", "weight-scale", "weight-scales-off", constant=True)


def found(trials: Trials, suspects: Sequence[Suspect], place: Symptom | None = None) -> Cause | None:
    def placed(cause: Cause, tensors: Sequence[str]) -> Cause | None:
        return None if place is None else cause.showing("sensitive-op", place, others=tuple(tensors))

    return established(trials, "g", suspects, suspects[0].cause, placed)  # type: ignore[arg-type]


def told(cause: Cause | None) -> tuple[Symptom | None, str, str, float]:
    assert cause is not None
    assert cause.taken_back is not None
    return cause.symptom, cause.tensor, cause.taken_back.kind, round(cause.taken_back.share, 2)


def test_what_is_likely_and_mends_all_is_the_cause_after_one_trial() -> None:
    trials = Trials({"x": 1.0, "w": 11.0}, {"x": 1.2})
    cause = found(trials, [suspect("x", *WIDE_RANGE), WEIGHT])
    assert told(cause) == ("range-too-wide", "x", "range", 0.98)
    assert trials.asked == ["scaled x"]


def test_a_fault_that_costs_nothing_is_not_the_cause() -> None:
    """The activation looks worse; taking the weight back is what helps."""
    cause = found(Trials({"x": 10.8, "w": 1.5}, {"x": 10.7}), [suspect("x", *WIDE_RANGE), WEIGHT])
    assert told(cause) == ("weight-scales-off", "w", "constants", 0.95)


@pytest.mark.parametrize(("left", "beyond"), [(0.1, False), (-3.0, True)])
def test_more_than_the_loss_is_told_apart(left: float, beyond: bool) -> None:
    """Where far more comes back than the culprit adds, what else rounds decides."""
    cause = found(Trials({"x": left}, halved=False), [suspect("x", *QUIET)])
    assert told(cause)[3] == 1.0
    assert cause is not None
    assert cause.taken_back is not None
    assert cause.taken_back.beyond is beyond


def test_a_scale_that_mends_nothing_is_not_to_blame() -> None:
    """Only the tensor itself gives back the loss: then the rounding is what costs."""
    cause = found(Trials({"x": 1.0, "w": 11.0}, {"x": 10.5}), [suspect("x", *WIDE_RANGE), WEIGHT])
    assert told(cause) == ("noise-adds-up", "x", "activation", 1.0)
    assert cause is not None
    assert [(t.kind, round(t.share, 2)) for t in cause.tried if t.tensor == "x"] == [
        ("range", 0.05),
        ("activation", 1.0),
    ]


def test_large_channels_are_the_cause_after_a_gelu_too() -> None:
    outliers = suspect("x", *OUTLIERS, channels={1: 9.0})
    cause = found(Trials({"x": 1.0, "w": 11.0}, {"x": 1.4}), [outliers, WEIGHT], "after-gelu")
    assert told(cause) == ("large-channels", "x", "channels", 0.96)


def test_channels_that_cannot_be_tried_stay_the_cause() -> None:
    """No number of channels is known: what the tensor holds stands, and what it costs."""
    outliers = suspect("x", *OUTLIERS, channels={1: 9.0})
    cause = found(Trials({"x": 1.5, "w": 11.0}, {"x": 1.4}, channels=5), [outliers, WEIGHT])
    assert told(cause) == ("large-channels", "x", "activation", 0.95)


def test_a_gelu_is_a_reason_where_channels_apart_mend_nothing() -> None:
    outliers = suspect("x", *OUTLIERS, channels={1: 9.0})
    trials = Trials({"x": 2.0, "w": 11.0}, {"x": 10.0})
    cause = found(trials, [outliers, WEIGHT], "after-gelu")
    assert told(cause) == ("after-gelu", "x", "activation", 0.9)
    assert trials.asked[-1] == "scaled x"  # another range, so that none is said to help or not to help unseen


def test_what_was_likely_is_tried_alone_before_it_is_let_go() -> None:
    """What is left in INT8 beside it may round otherwise after any change."""
    wide = [suspect("x", *WIDE_RANGE), WEIGHT]
    beside = Trials({"x": 1.0, "w": 11.0}, {"x": 10.9}, by_itself=Trials({"x": 1.0, "w": 11.0}, {"x": 1.5}))
    assert told(found(beside, wide)) == ("range-too-wide", "x", "range", 0.95)
    silent = Trials({"x": 11.0, "w": 11.0}, by_itself=Trials({"x": 1.0, "w": 11.0}, {"x": 1.5}))
    assert told(found(silent, wide)) == ("range-too-wide", "x", "range", 0.95)


def test_a_share_of_what_is_next_to_nothing_is_measured_alone() -> None:
    """A culprit adds 0.5 to 11: what else rounds may change by as much, whatever is taken back."""
    alone = Trials({"x": 5.0}, is_alone=True)
    cause = found(Trials({"x": 10.4}, by_itself=alone, adds=0.5), [suspect("x", *QUIET)])
    assert told(cause) == ("noise-adds-up", "x", "activation", 0.6)
    assert cause is not None
    assert cause.taken_back is not None
    assert cause.taken_back.alone


def test_the_noisier_of_two_without_fault() -> None:
    cause = found(Trials({"x": 8.0, "y": 4.0}), [suspect("x", *QUIET), suspect("y", *QUIET)])
    assert told(cause) == ("noise-adds-up", "y", "activation", 0.7)


def test_fp32_around_it() -> None:
    quiet = [suspect("x", *QUIET), suspect("y", *QUIET)]
    assert told(found(Trials({"x": 10.0, "y": 10.0}, fp32=2.0), quiet))[0::2] == ("fp16-around", "fp32")
    vanishing = suspect("x", "zero-scale", "vanishing-scale")
    assert told(found(Trials({"x": 1.0, "w": 11.0}, fp32=2.0), [vanishing, WEIGHT])) == (
        *("vanishing-scale", "x", "fp32", 0.9),
    )
    assert "fp32" not in _asked(Trials({"x": 10.0, "y": 10.0}, halved=False), quiet)


def _asked(trials: Trials, suspects: Sequence[Suspect]) -> list[str]:
    found(trials, suspects)
    return trials.asked


def test_nothing_is_told_where_trials_show_nothing() -> None:
    quiet = [suspect("x", *QUIET), suspect("y", *QUIET)]
    assert found(Trials({"x": 11.0, "y": 12.0}), quiet) is None
    assert found(Trials({"x": 1.0, "y": 1.0}, left=0), quiet) is None


@pytest.mark.parametrize(
    ("name", "group", "kind"), [("recalibrate", WIDE, "range"), ("migrate", READER, "channels")]
)
def test_planted_causes_are_shown(tmp_path: Path, name: str, group: str, kind: str) -> None:
    network, limits = KINDS[name]
    case = measured(tmp_path, network(), limits)
    lab = lab_of(case)
    outcome, _ = find_precision(lab)
    (culprit,) = diagnose(case, lab, outcome.culprits, outcome.cost)[1]
    assert culprit.layer == group
    assert culprit.cause is not None
    assert culprit.cause.taken_back is not None
    assert (culprit.cause.taken_back.kind, culprit.cause.taken_back.share > 0.9) == (kind, True)


def test_causes_cost_no_more_than_the_search(tmp_path: Path) -> None:
    """Without trials to spend, causes are what tensors hold."""
    network, limits = KINDS["recalibrate"]
    case = measured(tmp_path, network(), limits)
    lab = lab_of(case)
    outcome, _ = find_precision(lab)
    _, (culprit,) = diagnose(case, lab, outcome.culprits, 0.0)
    assert culprit.cause is not None
    assert (culprit.cause.kind, culprit.cause.taken_back) == ("scale-too-wide", None)
    (said,) = remarks(replace(outcome, culprits=(culprit,)))
    assert said.startswith("the causes are told by what tensors hold: no trial was left")
