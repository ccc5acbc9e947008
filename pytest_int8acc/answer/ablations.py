"""The cause of a culprit by intervention: what has to be taken back for the outputs to come right again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_int8acc.graph.instrument import Piece
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.results.causes import Ablation, Cause, TakenKind
from pytest_int8acc.tensors import Array

#: What gives back this share of the loss is the cause; nothing else is tried.
_MOST = 0.9
#: A scale is the cause where another gives back this part of what the tensor gives back when it is not
#: quantized at all.
_PART = 0.5
#: What makes less than this part of all error is nothing that anything could be seen to be a share of: what
#: else rounds changes as much by chance.
_NOTHING = 0.1
#: Where more than this comes back of what a culprit adds, what else rounds has a part in it.
_BEYOND = 1.25
#: Where no more than this comes back, the trials show nothing.
_LEAST = 0.05
#: Channels are outliers where the greatest is so many times the usual one, which is left three bits fewer: 16
#: codes of 127. Healthy networks stay below 6.
OUTLIER_RATIO = 8.0
#: Ablations by another scale.
_SCALE_TRIALS: tuple[TakenKind, ...] = ("range", "channels", "per-channel")


@dataclass(frozen=True, eq=False)
class Suspect:
    """A tensor that a culprit quantizes."""

    tensor: str
    """As the network calls it."""
    cause: Cause
    """What it shows."""
    held: TensorValues | None
    """What an activation holds; None for a constant."""
    trial: TakenKind | None
    """The ablation that would show its symptom; None where it has no fault, or no ablation of its own."""


#: What a cause is where the op is one that INT8 does not suit, for the tensors whose noise counts; else None.
Placed = Callable[[Cause, Sequence[str]], Cause | None]


def established(
    trials: Interventions, group: str, suspects: Sequence[Suspect], likely: Cause, placed: Placed
) -> Cause | None:
    """The cause of a culprit, shown by what the outputs gain when it is taken back; None where nothing shows.

    Where trials beside all that stays in INT8 contradict what a tensor holds, or show nothing, trials of the
    culprit alone decide.

    Args:
        trials: Of all culprits of the case.
        group: The culprit.
        suspects: Its tensors, the noisiest first.
        likely: What one of them shows: it is tried first.
        placed: Whether what surrounds the op is a reason.
    """
    ordered = sorted(suspects, key=lambda suspect: suspect.cause is not likely)
    found = _shown(trials, group, ordered, likely, placed)
    if found is not None and (_is_shown(found, likely) or likely.kind == "accumulated-noise"):
        return found
    alone = _shown(trials.alone(), group, ordered, likely, placed)
    return alone if found is None or (alone is not None and _is_shown(alone, likely)) else found


def _is_shown(cause: Cause, likely: Cause) -> bool:
    """Whether what was likely is the cause."""
    return (cause.symptom, cause.tensor) == (likely.symptom, likely.tensor)


def _shown(
    trials: Interventions, group: str, ordered: Sequence[Suspect], likely: Cause, placed: Placed
) -> Cause | None:
    """What trials show, the likely suspect first."""
    if not trials.may_go_on or not trials.loss(group) > _NOTHING * trials.as_it_is(group):
        return None
    tests = _Tests(trials, group)
    for suspect in ordered:
        if tests.remedied(suspect) >= _MOST or tests.freed(suspect) >= _MOST:
            break
    likely_lost = likely.kind == "zero-scale" and tests.most_by_scales < _PART
    if trials.halved and (likely_lost or tests.most < _PART):
        tests.widened()
    return tests.conclusion(ordered, likely, placed)


@dataclass(eq=False)
class _Tests:
    """What was taken back of one culprit."""

    trials: Interventions
    group: str
    tried: dict[tuple[str, TakenKind], Ablation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.trials.cost

    def freed(self, suspect: Suspect) -> float:
        """The share that comes back when a suspect's piece is not quantized."""
        piece = self._piece(suspect)
        kind: TakenKind = "constants" if suspect.held is None else "activation"
        return self._share(kind, suspect, lambda: self.trials.without(self.group, piece))

    def remedied(self, suspect: Suspect) -> float:
        """The share that comes back with what a suspect's symptom asks for; 0 where that is nothing."""
        return self.rescaled(suspect, suspect.trial) if suspect.trial in _SCALE_TRIALS else 0.0

    def rescaled(self, suspect: Suspect, kind: TakenKind) -> float:
        """The share that comes back with other scales of an activation; 0 where it has none."""
        piece, scale = self._piece(suspect), _scale(suspect, kind)
        if scale is None or scale.size not in (1, piece.channels):
            return 0.0
        return self._share(kind, suspect, lambda: self.trials.rescaled(self.group, piece, scale))

    def widened(self) -> None:
        """See what comes back with FP32 in place of FP16 around it."""
        self._share("fp32", None, lambda: self.trials.in_fp32(self.group))

    @property
    def most(self) -> float:
        """The greatest share that came back."""
        return max((taken.share for taken in self.tried.values()), default=0.0)

    @property
    def most_by_scales(self) -> float:
        """The same by other scales."""
        shares = (taken.share for taken in self.tried.values() if taken.kind in _SCALE_TRIALS)
        return max(shares, default=0.0)

    def conclusion(self, suspects: Sequence[Suspect], likely: Cause, placed: Placed) -> Cause | None:
        """What the trials show: the fault that its remedy mends most of, else the tensor that costs most."""
        most, wide = self.most, self.tried.get(("", "fp32"))
        if most < _LEAST:
            return None
        mended = [(self._remedy(s), s) for s in suspects]
        shown = [(t, s) for t, s in mended if t is not None and t.share >= _PART * most]
        if shown:
            taken, guilty = max(shown, key=lambda pair: pair[0].share)
            return self._with_trial(guilty.cause, taken)
        if wide is not None and wide.share >= max(_PART, _PART * most):
            vanishes = likely.kind == "zero-scale"
            return self._with_trial(
                likely if vanishes else likely.showing("fp16-around", "fp16-around"), wide
            )
        freed = [(t, s) for s in suspects if (t := self._known(s, "activation", "constants")) is not None]
        if not freed:
            return None
        taken, guilty = max(freed, key=lambda pair: pair[0].share)
        if taken.share < _LEAST:
            return None
        cause = guilty.cause if guilty.held is None else self._of_activation(guilty, placed)
        return self._with_trial(cause, taken)

    def _of_activation(self, guilty: Suspect, placed: Placed) -> Cause:
        """Of an activation that no other scale mends: what surrounds it, or what it holds."""
        cause = guilty.cause
        if guilty.trial is not None and self._remedy(guilty) is not None:
            cause = replace(cause, kind="accumulated-noise", symptom="noise-adds-up")
        self.rescaled(guilty, "range")
        return placed(cause, [guilty.tensor]) or cause

    def _remedy(self, suspect: Suspect) -> Ablation | None:
        """The ablation that would show a suspect's symptom, where it was run."""
        return None if suspect.trial is None else self._known(suspect, suspect.trial)

    def _known(self, suspect: Suspect, *kinds: TakenKind) -> Ablation | None:
        tensor = self._piece(suspect).tensors[0]
        return next((self.tried[tensor, kind] for kind in kinds if (tensor, kind) in self.tried), None)

    def _piece(self, suspect: Suspect) -> Piece:
        return next(p for p in self.trials.pieces[self.group] if suspect.tensor in p.tensors)

    def _share(self, kind: TakenKind, suspect: Suspect | None, trial: Callable[[], float]) -> float:
        key = "" if suspect is None else self._piece(suspect).tensors[0], kind
        if key not in self.tried:
            if not self.trials.may_go_on:
                return 0.0
            normalized_loss, before = trial(), self.trials.as_it_is(self.group)
            share = max((before - normalized_loss) / self.trials.loss(self.group), 0.0)
            tensor = "" if suspect is None else suspect.cause.tensor
            met, beyond = normalized_loss <= 1.0, share > _BEYOND
            samples, alone = self.trials.samples, self.trials.is_alone
            self.tried[key] = Ablation(kind, tensor, min(share, 1.0), met, samples, beyond, alone)
        return self.tried[key].share

    def _with_trial(self, cause: Cause, taken: Ablation | None) -> Cause:
        evidence = self.trials.evidence(self.trials.cost - self.began) if taken is not None else None
        return replace(cause, ablation=taken, tried=tuple(self.tried.values()), evidence=evidence)


def _scale(suspect: Suspect, kind: TakenKind) -> Array | None:
    """Other symmetric scales of an activation, float32 [] or [channels]; None where not known."""
    held = suspect.held
    if held is None or not held.is_counted:
        return None
    if kind == "range":
        return np.array(held.best_reach() / held.low.levels, np.float32)
    amax = held.channel_amax
    if amax is None or not amax.any():
        return None
    reach = np.maximum(amax, amax[amax > 0].min())
    if kind == "per-channel":
        reach = _by_part(reach)
    if kind == "channels":
        usual = np.ones(amax.shape, np.bool_)
        usual[list(suspect.cause.channels)] = False
        reach = np.where(usual, reach[usual].max(initial=0.0), reach) if usual.any() else reach
    return np.asarray(reach / held.low.levels, np.float32)


def _by_part(amax: Array) -> Array:
    """The range of each channel's part: channels less than ``OUTLIER_RATIO`` smaller than its greatest."""
    reach = amax.copy()
    left = np.ones(amax.shape, np.bool_)
    while left.any():
        most = amax[left].max()
        part = left & (amax * OUTLIER_RATIO > most)
        reach[part] = most
        left &= ~part
    return reach
