"""Tensors by name: what a model takes and gives, and the arrays that go in and come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.names import shown

#: An array of any dtype and shape.
Array = NDArray[Any]
#: One inference's inputs, or outputs, by tensor name.
Feed = dict[str, Array]
#: All outputs of a run by name: one array per batch, in order, padding already cut.
Outputs = dict[str, list[Array]]
#: A dimension: a size, a symbolic name, or None where the model says nothing.
Dim = int | str | None


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype and shape of a model input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None
    """None where not even the rank is known."""

    def __str__(self) -> str:
        dims = (
            "?" if self.shape is None else ", ".join("?" if d is None else shown(str(d)) for d in self.shape)
        )
        return f"{shown(self.name)}: {self.dtype} [{dims}]"


def describe(tensors: Iterable[TensorInfo]) -> str:
    """One line naming all of ``tensors`` with dtype and shape."""
    return "; ".join(map(str, tensors)) or "none"


def did_you_mean(wrong: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """`` (did you mean 'x'?)`` where a known name is close to the wrong one, otherwise nothing."""
    import difflib

    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{shown(close[0])}'?)" if close else ""
