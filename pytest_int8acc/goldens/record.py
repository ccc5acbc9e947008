"""The readable half of a golden: what it is of, what it was made with, and the scores accepted then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.results import Acceptance, Bound
from pytest_int8acc.runtime.store import inside
from pytest_int8acc.spec.models import GoldenType


class GoldenError(Int8accError):
    """A golden is missing, stale or damaged, or cannot be written."""


def _plain(name: str) -> str:
    """``name`` where it is the name of a file in the golden's own folder."""
    if "/" in inside(name):
        raise ValueError(f"{name!r} lies in another folder")
    return name


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Accepted(_Frozen):
    """One score of INT8 as it was accepted."""

    subject: str
    """The output's name, or the user's metric function as written in the spec."""
    metric: str
    value: float
    bound: Bound
    """Whether a fall (min) or a rise (max) is a loss."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the other scores of a case."""
        return self.subject, self.metric


class KeptOutput(_Frozen):
    """How one output lies in the .npz."""

    dtype: str
    """As the baseline gave it; ``object`` for strings."""
    parts: int | None = Field(default=None, ge=1)
    """Number of arrays, one per batch, where batches do not join along the samples; None for one array."""


class Kept(_Frozen):
    """The baseline's outputs in the .npz."""

    file: Annotated[str, AfterValidator(_plain)]
    sha256: str
    dtype: GoldenType
    samples: int = Field(ge=1)
    data: str
    """Digest of these samples."""
    outputs: dict[str, KeptOutput]


class Record(_Frozen):
    """One golden."""

    format: Literal[1] = 1
    case: str
    files: dict[str, str]
    """SHA-256 of the model, with its external data, and of a baseline that is a file, by role."""
    baseline: str
    """fp16, fp32, model or engine."""
    samples: int = Field(ge=1)
    """How many the scores are of."""
    data: str
    """Digest of these samples."""
    settings: dict[str, str]
    """Those that change outputs."""
    scripts: dict[str, str]
    """SHA-256 of loader, metrics and labels, as named in the spec."""
    made_with: dict[str, str]
    """Versions, and where the engines ran."""
    scores: tuple[Accepted, ...]
    kept: Kept | None = None
    """None where the case keeps its scores alone."""

    def text(self) -> str:
        """As it is written."""
        return self.model_dump_json(indent=2) + "\n"


def read_record(text: bytes, where: str, again: str) -> Record:
    """The record that ``text`` holds; messages name the file, and what to type to record it anew.

    Raises:
        GoldenError: It is none.
    """
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        if text.startswith(b"version https://git-lfs"):
            raise GoldenError(f"{where}: a Git LFS pointer, not the golden; run `git lfs pull`") from None
        if any(detail["loc"] == ("format",) for detail in error.errors(include_url=False)):
            raise GoldenError(
                f"{where}: written by another version of pytest-int8acc; install that, or {again}"
            ) from None
        detail = error.errors(include_url=False)[0]
        place = ".".join(map(str, detail["loc"]))
        raise GoldenError(
            f"{where}: the golden is damaged ({place + ': ' if place else ''}{detail['msg']}); "
            f"restore it from version control, or {again}"
        ) from None


def compared(old: Record | None, new: Record) -> Iterator[Acceptance]:
    """Old and new value of every score of either, those that stay the same too."""
    before = {} if old is None else {score.key: score.value for score in old.scores}
    for score in new.scores:
        yield Acceptance(*score.key, before.pop(score.key, None), score.value)
    for (subject, metric), value in before.items():
        yield Acceptance(subject, metric, value, None)
