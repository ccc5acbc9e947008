"""Goldens: files in the repository with a case's baseline outputs and accepted scores.

At import, this module loads nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_int8acc.spec.models import Case

Update = Literal["off", "missing", "all"]


@dataclass(frozen=True)
class Goldens:
    """The folder of a case's golden, and which goldens a run may write."""

    folder: str | None = field(default=None, repr=False)
    """Path or fsspec URL of the folder with the goldens of the case's spec; None means ``__int8acc__/<spec>``
    beside the spec."""
    update: Update = "off"
    candidates: Path | None = None
    """The folder for candidate goldens: the files that an update would write, for users to fetch and commit.
    None if no candidates are written."""
    root: Path | None = None
    """The report folder above ``candidates``. No symbolic link may lead out of it."""


def keeps_golden(case: Case) -> bool:
    """Whether ``case`` reads or writes a golden, for its outputs or for its accepted scores."""
    from pytest_int8acc.spec.criteria import RegressionCriterion

    ratcheted = any(isinstance(criterion, RegressionCriterion) for criterion in case.criteria)
    return bool(case.golden) or case.baseline == "golden" or ratcheted
