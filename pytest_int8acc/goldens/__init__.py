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
    """Where the golden of a case is, and which goldens a run may write.

    A golden is a file of the baseline's recorded outputs and the accepted scores.
    """

    folder: str | None = field(default=None, repr=False)
    """The folder with the goldens of the case's spec, as path or fsspec URL; None means the folder
    ``__int8acc__/<spec>`` beside the spec."""
    update: Update = "off"
    candidates: Path | None = None
    """The folder for candidates, the files that an update of the golden would write. Users can fetch and
    commit them. None if no candidates are written."""
    root: Path | None = None
    """The report folder above ``candidates``. No symbolic link may lead out of it."""


def keeps_golden(case: Case) -> bool:
    """Whether ``case`` has a golden, of outputs or of accepted scores, that runs read or write."""
    from pytest_int8acc.spec.criteria import RegressionCriterion

    ratcheted = any(isinstance(criterion, RegressionCriterion) for criterion in case.criteria)
    return bool(case.golden) or case.baseline == "golden" or ratcheted
