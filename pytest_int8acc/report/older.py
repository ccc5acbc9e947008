"""Reports of version 1, whose sentences were all that they held of a reason, read as today's."""

from __future__ import annotations

from typing import Any

#: Keys by which an object is known, and the one of its sentence.
_SENTENCES = (
    ({"slope", "note"}, "note"),
    ({"advice", "text"}, "text"),
    ({"scores", "passed", "text"}, "text"),
    ({"rescales", "text"}, "text"),
    ({"stages", "summary"}, "summary"),
)


def newest(value: Any) -> Any:
    """A report of version 1, or a part of it, with its sentences under ``told`` as well."""
    if isinstance(value, list):
        return [newest(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    raised = {key: newest(inner) for key, inner in value.items()}
    if {"alone", "price"} <= value.keys():
        raised |= {"worst_alone": None, "told": value["alone"]}
    if {"reason", "culprits"} <= value.keys():
        kind = "interrupted" if value.get("interrupted") else "told"
        raised["ending"] = {"kind": kind, "told": value["reason"]}
    for keys, key in _SENTENCES:
        if keys <= value.keys():
            raised["told"] = value[key]
    return raised | ({"first_stage": None} if value.get("first_stage") == "" else {})
