"""The JSON of a golden: what the golden was made from, and the scores that were accepted then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.results import Acceptance, Bound
from pytest_int8acc.spec.models import GoldenType


class GoldenError(Int8accError):
    """A golden is missing, stale or damaged, or cannot be written."""


def _plain(name: str) -> str:
    """``name``; raises ValueError unless it is a file name without a folder."""
    if name in ("", ".", "..") or any(separator in name for separator in "/\\:"):
        raise ValueError(f"{name!r} lies in another folder")
    return name


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Accepted(_Frozen):
    """One accepted score of the INT8 form."""

    subject: str
    """The output's name, or the user's metric function as the spec names it."""
    metric: str
    value: float
    bound: Bound
    """``min`` where a smaller value is worse, ``max`` where a larger one is."""

    @property
    def key(self) -> tuple[str, str]:
        """The pair that is unique among the scores of a case."""
        return self.subject, self.metric


class KeptOutput(_Frozen):
    """How one output lies in the .npz."""

    dtype: str
    """The dtype that the baseline gave; ``object`` for strings."""
    parts: int | None = Field(default=None, ge=1)
    """Count of arrays, one per batch, where batches do not join along the samples; None for one array."""


class Kept(_Frozen):
    """The baseline's outputs in the .npz."""

    file: Annotated[str, AfterValidator(_plain)]
    sha256: str
    dtype: GoldenType
    samples: int = Field(ge=1)
    data: str
    """The digest of the input samples that these outputs are of."""
    outputs: dict[str, KeptOutput]


class Record(_Frozen):
    """One golden."""

    format: Literal[1] = 1
    case: str
    files: dict[str, str]
    """Role to SHA-256: of the model with its external data, and of a baseline that is a file."""
    baseline: str
    """fp16, fp32, model or engine."""
    samples: int = Field(ge=1)
    """Count of samples that the scores are of."""
    data: str
    """The digest of these samples."""
    settings: dict[str, str]
    """The settings that change outputs."""
    scripts: dict[str, str]
    """SHA-256 of loader, metrics and labels, by their names in the spec."""
    made_with: dict[str, str]
    """Versions of the libraries, and a description of the engine that the baseline ran on."""
    scores: tuple[Accepted, ...]
    kept: Kept | None = None
    """None where the case keeps only its scores."""

    def text(self) -> str:
        """Return the JSON."""
        return self.model_dump_json(indent=2) + "\n"


def read_record(text: bytes, where: str, again: str) -> Record:
    """Return the record in a JSON; ``where`` names the file in messages, ``again`` is the advice to mend it.

    Raises:
        GoldenError: The JSON is no golden of this version.
    """
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        if text.startswith(b"version https://git-lfs"):
            raise GoldenError(f"{where}: a Git LFS pointer, not the golden; run `git lfs pull`") from None
        details = error.errors(include_url=False)
        if any(detail["loc"] == ("format",) for detail in details):
            raise GoldenError(
                f"{where}: written by another version of pytest-int8acc; install that, or {again}"
            ) from None
        said = ": ".join(filter(None, (".".join(map(str, details[0]["loc"])), details[0]["msg"])))
        raise GoldenError(
            f"{where}: the golden is damaged ({said}); restore it from version control, or {again}"
        ) from None


def compared(old: Record | None, new: Record) -> Iterator[Acceptance]:
    """Yield the old and the new value of each score that either record has."""
    before = {} if old is None else {score.key: score.value for score in old.scores}
    for score in new.scores:
        yield Acceptance(*score.key, before.pop(score.key, None), score.value)
    for (subject, metric), value in before.items():
        yield Acceptance(subject, metric, value, None)
