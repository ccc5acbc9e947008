"""A result read back from the plain types that ``results.to_plain`` made of it."""

from __future__ import annotations

from typing import Any

from pytest_int8acc.results import CaseResult, LineFit, OutputResult, Score

_NUMBERS = ("value", "limit", "noise", "baseline")


def restore(plain: dict[str, Any]) -> CaseResult:
    """The CaseResult that ``plain`` was made of."""
    return CaseResult(
        **plain
        | {
            "outputs": tuple(_output(output) for output in plain["outputs"]),
            "metrics": tuple(_score(score) for score in plain["metrics"]),
            "notes": tuple(plain["notes"]),
        }
    )


def _output(plain: dict[str, Any]) -> OutputResult:
    fit = plain["fit"]
    scores = tuple(_score(score) for score in plain["scores"])
    return OutputResult(**plain | {"scores": scores, "fit": None if fit is None else _fit(fit)})


def _score(plain: dict[str, Any]) -> Score:
    return Score(**plain | {key: None if plain[key] is None else float(plain[key]) for key in _NUMBERS})


def _fit(plain: dict[str, Any]) -> LineFit:
    return LineFit(**plain | {key: float(plain[key]) for key in ("slope", "offset", "correlation")})
