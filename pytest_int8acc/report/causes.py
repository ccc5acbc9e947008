"""Why a layer loses accuracy, as sentences: the facts of a cause, filled into the words of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_int8acc.report.catalogue import ABLATIONS, CAUSES, HINT, SYMPTOMS
from pytest_int8acc.report.words import NAME, count, few, middle, percent
from pytest_int8acc.results.causes import Ablation, Cause, CauseKind


class _Number(float):
    """A number whose format ``%`` is a share in words."""

    def __format__(self, spec: str) -> str:
        return percent(self) if spec == "%" else super().__format__(spec)


class Facts(dict[str, str | _Number]):
    """The facts of a cause by name. Numbers come from the cause; ``FACTS`` makes phrases on demand."""

    def __init__(self, cause: Cause, low_format: str) -> None:
        numbers = {**cause.numbers, "amax": cause.amax, "reach": cause.reach}
        super().__init__({name: _Number(value) for name, value in numbers.items() if value is not None})
        self["format"] = low_format
        self.cause = cause

    def __missing__(self, name: str) -> str | _Number:
        return FACTS[name](self.cause)


def cause_text(cause: Cause, low_format: str) -> str:
    """Returns what was measured, in a sentence with its numbers, and what a trial gave back."""
    sentence = SYMPTOMS[cause.symptom].sentence.format_map(Facts(cause, low_format))
    shown = HINT if cause.evidence is None else ablation_text(cause)
    return "; ".join(filter(None, [sentence, shown]))


def cause_clause(cause: Cause, low_format: str) -> str:
    """Returns what was measured in a few words, without the names of tensors."""
    return SYMPTOMS[cause.symptom].clause.format_map(Facts(cause, low_format))


def cause_brief(cause: Cause, low_format: str) -> str:
    """Returns the clause of a cause, and what a trial gave back."""
    return "; ".join(filter(None, [cause_clause(cause, low_format), ablation_text(cause, named=True)]))


def advice(cause: Cause, low_format: str) -> str:
    """Returns what to do about a cause."""
    own = SYMPTOMS[cause.symptom].advice
    return (own or CAUSES[cause.kind].advice).format(format=low_format)


def plural(kind: CauseKind, low_format: str) -> str:
    """Returns the name of a kind of cause in the plural."""
    return CAUSES[kind].plural.format(format=low_format)


def ablation_text(cause: Cause, *, named: bool = False) -> str:
    """Returns text like ``channel 7 explains 97 % of the loss on 32 samples``; empty without a trial.

    Args:
        cause: Any.
        named: Whether the tensor is called by its name.
    """
    ablation = cause.ablation
    if ablation is None:
        return ""
    name = f"'{middle(ablation.tensor, NAME)}'" if named else ""
    facts = {
        "it": name or "it",
        "of_it": f" of {name}" if name else "",
        "channels": _channels(cause),
        "explain": "explains" if len(cause.channels) == 1 else "explain",
        "scales": "a scale for each part" if cause.symptom == "uneven-parts" else "one scale per channel",
    }
    chance = ", so chance has a part in it" if ablation.beyond else ""
    text = f"{ABLATIONS[ablation.kind].clause.format_map(facts)} {share_text(ablation)}{chance}"
    if ablation.kind == "range":
        return text
    ranges = [other for other in cause.tried if other.kind == "range" and other.tensor == ablation.tensor]
    return text + "".join(f", another range {percent(other.share)}" for other in ranges)


def share_text(ablation: Ablation, whose: str = "the") -> str:
    """Returns text like ``97 % of the loss on 32 samples``; ``loss alone`` where all else was high."""
    samples = f" on {ablation.samples} samples" if ablation.samples is not None else ""
    loss = f"{whose} loss{' alone' * ablation.alone}{samples}"
    return f"more than {loss}" if ablation.beyond else f"{percent(ablation.share)} of {loss}"


def _channels(cause: Cause) -> str:
    large = [str(channel) for channel in cause.channels]
    return f"channel{'s' * (len(large) > 1)} {few(large, 5)}"


def _named_channels(cause: Cause) -> str:
    return f"{_channels(cause)} of '{cause.tensor}' reach{'es' * (len(cause.channels) == 1)}"


def _ratio_to_usual(cause: Cause, to_what: str) -> str:
    usual = cause.numbers["p99.9"]
    return f", {(cause.amax or 0.0) / usual:.3g}x {to_what}" if usual else ""


def _left(cause: Cause) -> str:
    """Returns how well the format keeps an edge's values; beside a mask they are hardly kept."""
    if cause.masked:
        return (
            f"'{cause.tensor}' reaches {cause.amax:.3g}, as a mask does, and what is small beside that "
            "shares a few codes"
        )
    return f"'{cause.tensor}' keeps {cause.numbers['sqnr_db']:.3g} dB"


def _short_left(cause: Cause) -> str:
    if cause.masked:
        return f"values of {cause.amax:.3g}, as of a mask, take the codes"
    whose = "weight" if "factor_least" in cause.numbers else "input"
    return f"its {whose} keeps {cause.numbers['sqnr_db']:.3g} dB"


def _many_scales(cause: Cause) -> str:
    scales = round(cause.numbers["scales"])
    if scales == 1:
        return f"the scale of weight '{cause.tensor}' is"
    return f"{cause.numbers['scales_off']:g} of {scales} scales of weight '{cause.tensor}' are"


def _how_far(cause: Cause) -> str:
    factor = cause.numbers["factor"]
    return f"up to {factor:.3g}x too wide" if factor > 1 else f"down to {factor:.3g} of what they must reach"


def _below_best(cause: Cause) -> _Number:
    return _Number(max(cause.numbers["best_sqnr_db"] - cause.numbers["sqnr_db"], 0.0))


#: The facts of a cause that are texts, or made of several numbers, by the name that templates use.
FACTS: Mapping[str, Callable[[Cause], str | _Number]] = {
    "tensor": lambda cause: cause.tensor,
    "node": lambda cause: cause.node,
    "op_type": lambda cause: cause.op_type,
    "short_op": lambda cause: middle(cause.op_type, 20),
    "precision": lambda cause: cause.format.upper(),
    "zero_point_type": lambda cause: cause.format,
    "named_others": lambda cause: ", ".join(f"'{name}'" for name in cause.others),
    "named_channels": _named_channels,
    "many_channels": lambda cause: count(max(len(cause.channels), 1), "channel"),
    "times": lambda cause: _ratio_to_usual(cause, "the 99.9th percentile"),
    "times_usual": lambda cause: _ratio_to_usual(cause, "most others"),
    "codes_unused": lambda cause: _Number(1 - cause.numbers["codes_used"]),
    "below_best": _below_best,
    "left": _left,
    "short_left": _short_left,
    "many_scales": _many_scales,
    "how_far": _how_far,
}
