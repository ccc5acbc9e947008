"""Compares what *Why* and *Fix* say of a case with the trials that its own entry of report.json has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Plain = Mapping[str, Any]
#: Trials that give a tensor another scale.
SCALES = ("range", "channels", "per-channel", "in-use", "unmasked")
#: Symptoms that say that no single scale is at fault.
NO_SCALE = ("noise-adds-up", "too-coarse")
#: Symptoms that a trial of their own proves.
OWN = {
    "range-too-wide": "range",
    "cut-off": "range",
    "one-sided": "range",
    "range-of-partner": "range",
    "stretched-range": "range",
    "uneven-parts": "per-channel",
    "uneven-channels": "per-channel",
    "large-channels": "channels",
    "ignored-channels": "in-use",
    "masked-values": "unmasked",
    "shifted-mean": "bias",
}


def contradictions(entry: Plain) -> list[str]:
    """What the entry of a failed case says against its own trials; each in a sentence."""
    diagnosis, search = entry.get("diagnosis") or {}, entry.get("search") or {}
    if entry["verdict"] != "failed" or not diagnosis:
        return []
    found = []
    for culprit in entry["culprits"]:
        if culprit["cause"] is not None:
            found += [f"{culprit['layer']}: {text}" for text in _of_cause(culprit["cause"])]
    return [*found, *_of_summary(entry, diagnosis, search)]


def _of_cause(cause: Plain) -> Iterator[str]:
    taken, tried = cause["ablation"], cause["tried"]
    if taken is None:
        return
    shares = {(trial["tensor"], trial["kind"]): trial["share"] for trial in tried}
    most = max(shares.values())
    if taken["share"] < most / 2:
        yield f"shown by {taken['share']:.0%}, while another trial gave back {most:.0%}"
    own = shares.get((cause["tensor"], OWN.get(cause["symptom"], "")))
    if own is not None and own < most / 2:
        yield f"{cause['symptom']}, while the trial that undoes it gave back {own:.0%} of {most:.0%}"
    for (tensor, kind), share in shares.items():
        if cause["symptom"] in NO_SCALE and kind in SCALES and share >= most / 2:
            yield f"{cause['symptom']}, while '{kind}' of {tensor} gave back {share:.0%}"


def _of_summary(entry: Plain, diagnosis: Plain, search: Plain) -> Iterator[str]:
    summary, culprits = diagnosis["summary"], entry["culprits"]
    met = [repair for repair in diagnosis["repairs"] if repair["verified"]]
    if "is not the cause" in summary and met:
        yield "INT8 is not the cause, and a plan meets the criteria"
    jumps = [jump["node"] for jump in diagnosis["jumps"] if f"'{jump['node']}'" in summary]
    if jumps and "is at fault" in summary:
        yield f"{jumps[0]} is the cause, and a layer is at fault"
    ranges = [c["cause"] for c in culprits if c["cause"] is not None and c["cause"]["ablation"] is not None]
    by_range = [t["share"] for cause in ranges for t in cause["tried"] if t["kind"] in SCALES]
    if diagnosis["ranges"] is not None and by_range and max(by_range) < 0.5:
        yield f"the ranges are wrong, and no other range gave back more than {max(by_range):.0%}"
    scales = diagnosis["scales"]
    other = scales is not None and scales["given_back"] < 0.5
    if other and any(not repair["layers"] and repair["rescales"] for repair in met):
        yield "layers that the format does not suit, and a fix by other scales alone"
    if search and search["ending"]["kind"] == "nothing-left" and any(not r["layers"] for r in met):
        yield "only with every layer out of the format, and a fix that keeps all in it"
