"""Where feeds come from, as the rest of the room sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Feed, did_you_mean

#: A feed, and where it was found, for messages.
Located = tuple[str, Feed]


@dataclass(frozen=True)
class RandomSource:
    """Seeded random inputs: ``samples`` rows (at least 1) from ``seed`` (at least 0)."""

    samples: int
    seed: int = 0


@dataclass(frozen=True)
class Source:
    """Raw feeds that can be read again and again."""

    read: Callable[[], Iterator[Located]]
    """One pass, lazily."""
    samples: int | None = None
    """How many samples a pass gives, where that is known without reading."""
    joins: bool = False
    """True where rows are stored samples that may share a run; False where each feed is its own run."""
    is_random: bool = False
    notes: tuple[str, ...] = ()


def find(written: str, base: Path, where: str) -> Path:
    """The existing file or folder that ``written`` names relative to ``base``, or DataError."""
    path = base / written
    if path.exists():
        return path
    if not path.parent.is_dir():
        raise DataError(f"{where}: no such file; there is no folder {path.parent}")
    near = did_you_mean(path.name, sorted(p.name for p in path.parent.iterdir()))
    raise DataError(f"{where}: no such file or folder in {path.parent}{near}")
