"""Finds why a layer at fault loses accuracy: its quantization is changed in one respect at a time (ablation).

The layers at fault are called culprits, and the tensors that may be the reason are called suspects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pytest_int8acc.graph.instrument import Piece
from pytest_int8acc.graph.network import TensorScale, symmetric
from pytest_int8acc.lab.interventions import Change, Interventions
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.results.causes import Ablation, Cause, TakenKind
from pytest_int8acc.tensors import Array

#: If an ablation removes at least this share of the loss that a layer causes, it shows the cause, and no
#: further ablation is tried.
_MOST = 0.9
#: An ablation confirms a symptom if it removes at least this share of the loss that the best ablation
#: removes.
_PART = 0.5
#: Ablations are run only for a layer that causes at least this share of the model's loss while the other
#: layers at fault are in high precision. With a smaller share, changes in the rounding of other layers would
#: hide the effect of an ablation.
_LEAST_LOSS = 0.5
#: If an ablation removes more than this many times the loss that a layer causes, it has changed the rounding
#: of other layers, too. Its result is then not reliable.
_BEYOND = 1.25
#: If an ablation removes less than this share of the loss that a layer causes, it shows nothing about the
#: cause.
_LEAST = 0.05
#: An ablation with other scales of an activation is repeated with scales that are this many times as wide.
#: Then the power of the rounding noise, and with it the remaining loss, should grow by about a fifth. If the
#: remaining loss grows far more, the first result was chance, and the second one counts.
_WIDER = 1.1
#: Minimum ratio of the largest channel to the median channel for channels to count as outliers. At this ratio
#: the median channel has 16 of 127 INT8 codes. In networks without faults the ratio stays below 6.
OUTLIER_RATIO = 8.0


@dataclass(frozen=True, eq=False)
class Suspect:
    """A quantized tensor of a layer at fault. It may be the reason why the layer loses accuracy."""

    tensor: str
    """The name of the tensor in the network."""
    cause: Cause
    """The cause that the tensor's symptom indicates."""
    held: TensorValues | None
    """Statistics of an activation's values; None for a constant, whose values are in the model."""
    trial: TakenKind | None
    """The ablation that proves the symptom; None if the symptom has no ablation of its own."""
    by_channel: Cause | None = None
    """The cause that single channels of the tensor show; None if they show none. This cause counts only if an
    ablation shows that the tensor is at fault."""
    scale: TensorScale | None = None
    """The scale that the ablations ``in-use``, ``unmasked`` and, for a constant, ``per-channel`` try."""
    guesses: tuple[Suspect, ...] = ()
    """Suspects of the same tensor, one for each symptom that only an ablation can confirm. Tried first."""


#: A function that returns the cause if the operators around a layer do not suit INT8, otherwise None. Its
#: arguments are the cause that is known so far, and the names of the tensors with most noise.
Placed = Callable[[Cause, Sequence[str]], Cause | None]


def established(
    trials: Interventions, group: str, suspects: Sequence[Suspect], likely: Cause, placed: Placed
) -> Cause | None:
    """The reason why a layer at fault loses accuracy, shown by an ablation; None if no ablation shows one.

    In the first ablations the other layers at fault are in high precision, and all remaining layers in INT8.
    If these ablations show nothing, for example because the remaining layers cause most of the loss, the
    ablations are repeated with only this layer in INT8. They are also repeated if the first ones contradict
    the symptoms. The second result then counts only if it confirms the symptoms.

    Args:
        trials: Runs the ablations.
        group: The name of the layer at fault.
        suspects: The quantized tensors of the layer, the noisiest first.
        likely: The cause that the symptoms suggest; its tensor is tried first.
        placed: Recognises operators around the layer that do not suit INT8.
    """
    ordered = sorted(suspects, key=lambda suspect: suspect.cause is not likely)
    found = _shown(trials, group, ordered, likely, placed)
    if found is not None and (_is_shown(found, likely) or likely.kind == "accumulated-noise"):
        return found
    alone = _shown(trials.alone(), group, ordered, likely, placed)
    return alone if found is None or (alone is not None and _is_shown(alone, likely)) else found


@dataclass(frozen=True, eq=False)
class Hint:
    """A cause that the symptoms of a layer suggest, and that no trial of this layer has shown."""

    group: str
    cause: Cause
    suspect: Suspect
    """The tensor that the cause names."""

    @property
    def trial(self) -> TakenKind | None:
        """The ablation that proves the cause; None if there is none, as for a cause that no scale removes."""
        return self.suspect.trial if self.suspect.cause.symptom == self.cause.symptom else None


def supported(trials: Interventions, hints: Sequence[Hint]) -> set[str]:
    """The names of the layers whose hints are supported by trials that change several layers at once.

    A trial changes all layers whose hints have the same symptom. So a symptom costs up to four trials,
    however many layers have it. The trials run even if the budget is spent. If the time is up, the remaining
    symptoms are left out.
    """
    found, by_symptom = set[str](), defaultdict[str, list[Hint]](list)
    for hint in hints:
        by_symptom[hint.cause.symptom].append(hint)
    for same in by_symptom.values():
        if trials.budget.clock.attempt("causes", partial(_is_supported, trials, same), False):
            found |= {hint.group for hint in same}
    return found


def _is_supported(trials: Interventions, hints: Sequence[Hint]) -> bool:
    """Whether trials that change several layers at once support ``hints``, which have the same symptom.

    If the tensors that the hints name are not quantized, at least half of the loss of the layers must vanish.
    If the ablation of the symptom is another scale, then other scales, and also slightly wider ones, must
    remove at least half of the vanished loss. If the symptom has no ablation, other scales must not do so.
    """
    pieces = {hint.group: _piece(trials, hint.group, hint.suspect) for hint in hints}
    before = trials.of_several(dict.fromkeys(pieces))
    at_fault = before - trials.of_several({group: Change(piece) for group, piece in pieces.items()})
    if not at_fault >= _PART * (before - trials.least) > 0:
        return False
    trial = hints[0].trial
    if trial is not None and trial not in SCALES:
        return True  # such a symptom is proved by not quantizing the tensor
    known = {}
    for hint in hints:
        scale = SCALES[trial or "range"](hint.suspect)
        is_constant = hint.suspect.held is None
        if scale is not None and (is_constant or scale.scale.size in (1, pieces[hint.group].channels)):
            known[hint.group] = scale
    if not known:
        return trial is None
    helped = []
    for factor in (1.0, _WIDER):
        changes = dict[str, Change | None](dict.fromkeys(pieces))
        for group, scale in known.items():
            wider = np.asarray(scale.scale * factor, np.float32)
            changes[group] = Change(pieces[group], replace(scale, scale=wider))
        helped.append(before - trials.of_several(changes) >= _PART * at_fault)
    return all(helped) if trial is not None else not any(helped)


def _is_shown(cause: Cause, likely: Cause) -> bool:
    """Whether the cause that ablations show is the one that the symptoms suggest."""
    return (cause.symptom, cause.tensor) == (likely.symptom, likely.tensor)


def _shown(
    trials: Interventions, group: str, ordered: Sequence[Suspect], likely: Cause, placed: Placed
) -> Cause | None:
    """The cause that ablations show; None if they show none. The tensors are tried in the given order."""
    if not trials.may_go_on:
        return None
    # A layer may cause no loss here, for example where an output is the index of the greatest value.
    loss = trials.loss(group)
    if not loss > 0 or loss < _LEAST_LOSS * trials.as_it_is(group):
        return None
    tests = _Tests(trials, group)
    for suspect in ordered:
        if any(tests.guessed(guess) >= _MOST for guess in suspect.guesses):
            break
        if tests.remedied(suspect) >= _MOST or tests.freed(suspect) >= _MOST:
            break
    likely_lost = likely.kind == "zero-scale" and tests.most_by_scales < _PART
    if trials.halved and (likely_lost or tests.most < _PART):
        tests.share("fp32")
    return tests.conclusion(ordered, likely, placed)


@dataclass(eq=False)
class _Tests:
    """Runs the ablations of one layer at fault and keeps their results."""

    trials: Interventions
    group: str
    tried: dict[tuple[str, TakenKind], Ablation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.trials.cost

    def freed(self, suspect: Suspect) -> float:
        """The share of the layer's loss that vanishes if the tensor of ``suspect`` is not quantized."""
        return self.share("constants" if suspect.held is None else "activation", suspect)

    def remedied(self, suspect: Suspect) -> float:
        """The share of the layer's loss that the ablation of the tensor's symptom removes.

        The share is 0 if the symptom has no ablation.
        """
        return 0.0 if suspect.trial is None else self.share(suspect.trial, suspect)

    def guessed(self, guess: Suspect) -> float:
        """The share of the layer's loss that the ablation of a guessed symptom removes.

        The share counts as 0 if the model still misses the criteria.
        """
        share = self.remedied(guess)
        return share if self._is_met(guess) else 0.0

    def _is_met(self, guess: Suspect) -> bool:
        """Whether the guess is right, because the model met the criteria in the ablation of the symptom."""
        taken = self._remedy(guess)
        return taken is not None and taken.met

    @property
    def most(self) -> float:
        """The greatest share of the layer's loss that vanished in an ablation."""
        return max((taken.share for taken in self.tried.values()), default=0.0)

    @property
    def most_by_scales(self) -> float:
        """The greatest share of the layer's loss that vanished in an ablation with another scale."""
        shares = (taken.share for taken in self.tried.values() if taken.kind in SCALES)
        return max(shares, default=0.0)

    def conclusion(self, suspects: Sequence[Suspect], likely: Cause, placed: Placed) -> Cause | None:
        """The cause that the ablations show: that of the symptom whose ablation removes most loss.

        The arguments are those of ``established``.

        If no symptom is confirmed, the cause is the one that the tensor with the greatest effect suggests.
        The result is None if no ablation removes a noticeable part of the loss.
        """
        most, wide = self.most, self.tried.get(("", "fp32"))
        if most < _LEAST:
            return None
        guesses = [guess for suspect in suspects for guess in suspect.guesses if self._is_met(guess)]
        mended = [(self._remedy(s), s) for s in (*guesses, *suspects)]
        shown = [
            (t, s)
            for t, s in mended
            if t is not None and t.share >= _PART * most and not self._is_chance(t, s)
        ]
        if shown:
            taken, guilty = max(shown, key=lambda pair: pair[0].share)
            self._keep(guilty, taken)
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
        if guilty.held is None:
            cause, tried = guilty.by_channel or guilty.cause, self._remedy(guilty)
            if guilty.trial == "bias" and tried is not None:
                cause = replace(cause, kind="accumulated-noise", symptom="noise-adds-up")
            return self._with_trial(self._alone(cause, taken), taken)
        if guilty.by_channel is not None and self.share("per-channel", guilty) >= _PART * taken.share:
            return self._with_trial(guilty.by_channel, self._known(guilty, "per-channel"))
        return self._with_trial(self._alone(self._of_activation(guilty, placed), taken), taken)

    def _is_chance(self, taken: Ablation, suspect: Suspect) -> bool:
        """Whether ``taken`` is chance: another scale helped far more than leaving the tensor unquantized."""
        freed = self._known(suspect, "activation", "constants")
        return taken.kind in SCALES and freed is not None and freed.share < _PART * taken.share

    def _of_activation(self, guilty: Suspect, placed: Placed) -> Cause:
        """The cause of an activation at fault if no ablation confirmed its symptom.

        The cause is outliers if a range that fits the data helps. Otherwise the operators around the
        activation are the cause, or the activation's own values.
        """
        cause = guilty.cause
        if guilty.trial is not None and self._remedy(guilty) is not None:
            cause = replace(cause, kind="accumulated-noise", symptom="noise-adds-up")
        if self.share("range", guilty) >= _PART * self.most:
            return cause.showing("activation-outliers", "stretched-range")
        return placed(cause, [guilty.tensor]) or cause

    def _alone(self, cause: Cause, taken: Ablation) -> Cause:
        """``cause``, or ``rounding`` if the noise of one tensor is at least half of the model's loss."""
        if cause.kind != "accumulated-noise" or not self.trials.may_go_on:
            return cause
        if taken.share * self.trials.loss(self.group) < _PART * self.trials.whole:
            return cause
        return cause.showing("rounding", "too-coarse")

    def _remedy(self, suspect: Suspect) -> Ablation | None:
        """The result of the ablation that proves the symptom of a tensor; None if it was not run."""
        return None if suspect.trial is None else self._known(suspect, suspect.trial)

    def _known(self, suspect: Suspect, *kinds: TakenKind) -> Ablation | None:
        tensor = suspect.tensor
        return next((self.tried[tensor, kind] for kind in kinds if (tensor, kind) in self.tried), None)

    def share(self, kind: TakenKind, suspect: Suspect | None = None) -> float:
        """The share of the layer's loss that an ablation of ``TRIALS`` removes; 0 if it cannot be run.

        ``suspect`` is the tensor that the ablation changes; None if the ablation changes no single tensor.
        """
        key = "" if suspect is None else suspect.tensor, kind
        if key not in self.tried:
            normalized_loss = None
            if self.trials.may_go_on:
                normalized_loss = TRIALS[kind](self.trials, self.group, suspect)
            if normalized_loss is None:
                return 0.0
            share = self._removed(normalized_loss)
            if suspect is not None and suspect.held is not None and kind in SCALES and share >= _LEAST:
                wider = _rescaled(kind, self.trials, self.group, suspect, _WIDER)
                if wider is not None and 1 - self._removed(wider) > _WIDER**2 * (1 - share) + _LEAST:
                    normalized_loss, share = wider, self._removed(wider)
            tensor = "" if suspect is None else suspect.cause.tensor
            met, beyond = normalized_loss <= 1.0, share > _BEYOND
            samples, alone = self.trials.samples, self.trials.is_alone
            self.tried[key] = Ablation(kind, tensor, min(share, 1.0), met, samples, beyond, alone)
        return self.tried[key].share

    def _removed(self, normalized_loss: float) -> float:
        """The share of the layer's loss that is removed if the model's loss is now ``normalized_loss``."""
        before = self.trials.as_it_is(self.group)
        return max((before - normalized_loss) / self.trials.loss(self.group), 0.0)

    def _keep(self, guilty: Suspect, taken: Ablation) -> None:
        """Keep the scale that the ablation ``taken`` gave the tensor ``guilty``, for the search for fixes.

        Scales of single channels are kept for constants only, because an activation has one scale.
        """
        scale = SCALES[taken.kind](guilty) if taken.kind in SCALES else None
        if scale is not None and (guilty.held is None or scale.scale.ndim == 0):
            self.trials.mended[guilty.tensor] = scale

    def _with_trial(self, cause: Cause, taken: Ablation | None) -> Cause:
        evidence = self.trials.evidence(self.trials.cost - self.began) if taken is not None else None
        return replace(cause, ablation=taken, tried=tuple(self.tried.values()), evidence=evidence)


def _fitting(suspect: Suspect) -> TensorScale | None:
    """The one scale for the whole tensor that fits its values best; None if the values are not known."""
    held = suspect.held
    return symmetric(held.best_reach() / held.low.levels) if held is not None and held.is_counted else None


def _of_large_channels(suspect: Suspect) -> TensorScale | None:
    """A scale for each channel: each large channel has its own scale, and all other channels share one."""
    scales = _of_each_channel(suspect)
    if scales is None:
        return None
    usual = np.ones(scales.shape, np.bool_)
    usual[list(suspect.cause.channels)] = False
    return TensorScale(np.where(usual, scales[usual].max(initial=0.0), scales) if usual.any() else scales)


def _of_each_part(suspect: Suspect) -> TensorScale | None:
    """For an activation, a scale for each channel, see ``_by_part``; for a constant, ``suspect.scale``."""
    scales = _of_each_channel(suspect)
    return suspect.scale if scales is None else TensorScale(_by_part(scales))


def _of_each_channel(suspect: Suspect) -> Array | None:
    """The scale that fits each channel, [channels]. A channel of zeros gets the least scale of the others."""
    held = suspect.held
    if held is None or not held.is_counted or held.channel_amax is None or not held.channel_amax.any():
        return None
    amax = held.channel_amax
    return np.asarray(np.maximum(amax, amax[amax > 0].min()) / held.low.levels, np.float32)


def _by_part(scales: Array) -> Array:
    """A scale for each channel, [channels].

    Channels are divided into sets, so that in each set no scale is ``OUTLIER_RATIO`` times smaller than the
    greatest. Each channel gets the greatest scale of its set.
    """
    reach = scales.copy()
    left = np.ones(scales.shape, np.bool_)
    while left.any():
        most = scales[left].max()
        part = left & (scales * OUTLIER_RATIO > most)
        reach[part] = most
        left &= ~part
    return reach


def _unquantized(trials: Interventions, group: str, suspect: Suspect | None) -> float | None:
    return None if suspect is None else trials.without(group, _piece(trials, group, suspect))


def _rescaled(
    kind: TakenKind, trials: Interventions, group: str, suspect: Suspect | None, factor: float = 1.0
) -> float | None:
    """The model's loss with other scales of a tensor: those of ``SCALES``, times ``factor``."""
    if suspect is None:
        return None
    piece, found = _piece(trials, group, suspect), SCALES[kind](suspect)
    if found is None:
        return None
    if suspect.held is None:
        return trials.requantized(group, suspect.tensor, found)
    scale = np.asarray(found.scale * factor, np.float32)
    return trials.rescaled(group, piece, scale) if scale.size in (1, piece.channels) else None


def _piece(trials: Interventions, group: str, suspect: Suspect) -> Piece:
    return next(piece for piece in trials.pieces[group] if piece.tensor == suspect.tensor)


#: The ablations that give a tensor other symmetric scales. Each function returns one scale for the whole
#: tensor or one for each channel; None if the scales are not known.
SCALES: Mapping[TakenKind, Callable[[Suspect], TensorScale | None]] = {
    "range": _fitting,
    "channels": _of_large_channels,
    "per-channel": _of_each_part,
    "in-use": lambda suspect: suspect.scale,
    "unmasked": lambda suspect: suspect.scale,
}
#: The table of ablations. Each function changes one thing about a layer at fault and returns the model's
#: loss, or None if the change is not possible. To add an ablation, add its name to ``TakenKind``, a row here
#: or in ``SCALES``, its words to ``ABLATIONS`` of ``report/catalogue.py``, and its name to a row of a symptom
#: in ``answer/causes.py``.
TRIALS: Mapping[TakenKind, Callable[[Interventions, str, Suspect | None], float | None]] = {
    "activation": _unquantized,
    "constants": _unquantized,
    "bias": lambda trials, group, suspect: trials.corrected(group),
    "fp32": lambda trials, group, suspect: trials.in_fp32(group),
    **{kind: partial(_rescaled, kind) for kind in SCALES},
}
