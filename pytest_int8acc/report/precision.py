"""Sentences on the formats that were asked for and those that ran: a statement, a failure, cautions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_int8acc.report.words import NAME, middle, percent
from pytest_int8acc.results import CaseResult, LayerShare, PrecisionContract
from pytest_int8acc.results.precision import MAX_REFUTED

_NAMED = 2
#: If the format of more than this share of the MACs is unknown, the report has a caution.
_MUCH_UNTOLD = 0.5
#: Shares below this one would be printed as 0 %.
_VISIBLE = 0.0005


def precision_text(contract: PrecisionContract) -> str:
    """Returns text like ``asked: 86 % of the MACs in INT8, 14 % in FP16; ran: 84 % in INT8, 16 % untold``."""
    asked = _shares(contract.asked)
    if contract.realized is None:
        return asked
    untold = 1.0 - sum(contract.realized.values())
    ran = _shares(contract.realized, "" if asked else " of the MACs")
    parts = [ran] if ran else []
    parts += [f"{percent(untold)} untold"] if untold >= _VISIBLE else []
    return "; ".join([*([f"asked: {asked}"] if asked else []), f"ran: {', '.join(parts)}"])


def precision_problems(result: CaseResult) -> list[str]:
    """Returns the problem if the engine ran in another format than the one asked for; else nothing."""
    contract = result.precision
    if contract is None or not contract.is_broken:
        return []
    return [_refuted(contract)]


def precision_why(contract: PrecisionContract) -> str:
    """Returns what a wrong format means for the scores, and which layers ran in it."""
    low = contract.low.upper()
    if contract.identical:
        return f"the outputs are the baseline's bit for bit, so nothing was rounded to {low}"
    layers = _layers(contract.misplaced, contract.misplaced_count)
    if contract.source == "candidate" and contract.can_obey:
        layers = f"TensorRT takes what it times as fastest: {layers}"
    return f"the scores say little about {low}: {layers}"


def precision_fix(contract: PrecisionContract) -> str:
    """Returns what to do if the engine ran in another format than the one asked for."""
    accept = "or accept the engine as it is: 'realized: warn'"
    if contract.source == "candidate" and contract.can_obey:
        return (
            "judge FP16 itself with 'tensorrt: {obey: true}', or let TensorRT time FP16 with a higher "
            f"'optimization_level'; {accept}"
        )
    if contract.source == "candidate":
        return f"report these layers to NVIDIA, or judge them with 'backend: onnxruntime'; {accept}"
    return (
        "look at the Q/DQ around these layers (both inputs, one scale per activation), raise "
        f"'optimization_level', allow more 'tactic_sources'; {accept}"
    )


def share_fix(contract: PrecisionContract) -> str:
    """Returns what to do if too few multiply-accumulates are in INT8."""
    if contract.misplaced:
        layers = _layers(contract.misplaced, contract.misplaced_count)
        return f"look at the Q/DQ around what the engine runs otherwise, {layers}; or lower int8_share"
    layers = _layers(contract.left_out, contract.left_out_count)
    return f"quantize both inputs of the layers left out, {layers}; or lower int8_share"


def precision_cautions(contract: PrecisionContract | None) -> list[str]:
    """Returns cautions on MACs that ran in another format, in an unknown one, or were not asked for."""
    if contract is None:
        return []
    low, cautions = contract.low.upper(), list[str]()
    if contract.policy != "off" and contract.refuted > MAX_REFUTED and not contract.is_broken:
        layers = _layers(contract.misplaced, contract.misplaced_count)
        cautions.append(f"{_refuted(contract)}: {layers}")
    if contract.policy != "off" and contract.untold > _MUCH_UNTOLD and not contract.obeyed:
        untold = f"{percent(contract.untold)} of the MACs asked for in {low}"
        text = f"the engine does not tell the format of {untold}"
        holds = contract.can_obey and contract.source == "candidate"
        cautions.append(text + ("; 'tensorrt: {obey: true}' holds it" if holds else ""))
    if contract.realized is None and contract.identical:
        same = "the outputs are the baseline's bit for bit"
        cautions.append(f"{same}: nothing of the rounding to {low} reaches them")
    share = contract.asked.get(contract.low, 1.0)
    if share < contract.least_share:
        layers = _layers(contract.left_out, contract.left_out_count)
        few = f"only {percent(share)}" if share else "none"
        text = f"{few} of the MACs are asked for in {low}; left out: {layers}"
        if low == "INT8" and share:
            meant = f"{{int8_share: {math.floor(100 * share) / 100:g}}}"
            text += f"; quantize them, or accept it with the criterion {meant}"
        elif low == "INT8":
            text += "; quantize their inputs and their weights"
        cautions.append(text)
    return cautions


def _refuted(contract: PrecisionContract) -> str:
    asked = f"of the MACs asked for in {contract.low.upper()}"
    formats = dict.fromkeys(layer.ran.upper() for layer in contract.misplaced if layer.ran is not None)
    if not formats:
        return f"{percent(contract.refuted)} {asked} did not run in it"
    return f"{percent(contract.refuted)} {asked} ran in {' and '.join(formats)}"


def _shares(shares: Mapping[str, float], of: str = " of the MACs") -> str:
    """Returns shares by format; zeros are left out, except for the first format."""
    kept = [(name, share) for place, (name, share) in enumerate(shares.items()) if share or not place]
    first = [f"{percent(share)}{of} in {name.upper()}" for name, share in kept[:1]]
    return ", ".join([*first, *(f"{percent(share)} in {name.upper()}" for name, share in kept[1:])])


def _layers(layers: Sequence[LayerShare], count: int) -> str:
    """Returns the largest layers with their share and format, and how many more there are."""
    named = []
    for layer in layers[:_NAMED]:
        ran = "" if layer.ran is None else f" in {layer.ran.upper()}"
        named.append(f"'{middle(layer.name, NAME)}'{ran} ({percent(layer.share)})")
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return ", ".join(named) + more
