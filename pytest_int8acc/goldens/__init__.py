"""Goldens: baseline outputs and accepted scores of a case, kept in the repository; light to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_int8acc.spec.models import Case

Update = Literal["off", "missing", "all"]


@dataclass(frozen=True)
class Goldens:
    """Where a case's golden lies, and what may be written."""

    folder: str | None = field(default=None, repr=False)
    """Path or fsspec URL of the folder of the case's spec; None: ``__int8acc__/<spec>`` beside it."""
    update: Update = "off"
    candidates: Path | None = None
    """Where a golden goes that was not asked for, so that it can be fetched and committed; None: nowhere."""
    root: Path | None = None
    """The report folder above ``candidates``, which no link may lead out of."""


def keeps_golden(case: Case) -> bool:
    """Whether ``case`` has to do with a golden: its outputs, or the scores accepted."""
    from pytest_int8acc.spec.criteria import RegressionCriterion

    ratcheted = any(isinstance(criterion, RegressionCriterion) for criterion in case.criteria)
    return bool(case.golden) or case.baseline == "golden" or ratcheted
