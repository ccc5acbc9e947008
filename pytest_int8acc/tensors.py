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
#: Greatest number of places of a part that its name lists.
_SHOWN_PLACES = 4
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


@dataclass(frozen=True)
class Part:
    """A part of an output that is judged by itself: a range of places along one axis, or a list of places."""

    output: str
    axis: int
    """1 or more: axis 0 counts the samples."""
    start: int
    stop: int | None
    """None: to the end, so that the last part includes places that a candidate has in addition."""
    kind: str = ""
    """``scores`` for a tensor behind a Sigmoid or Softmax, otherwise the name of the tensor; for small
    channels, how many of how many there are."""
    places: tuple[int, ...] = ()
    """The places, where they are no range; then ``start`` and ``stop`` are not used."""

    @property
    def index(self) -> tuple[slice | list[int], ...]:
        """The index of the part in an array [samples, ...]."""
        along = list(self.places) if self.places else slice(self.start, self.stop)
        return (*[slice(None)] * self.axis, along)

    @property
    def place(self) -> str:
        """The part in NumPy's notation, without the axis of samples: ``output0[:, 4:]``."""
        stop = "" if self.stop is None else self.stop
        along = f"{self.start or ''}:{stop}"
        if self.places:
            first = ", ".join(map(str, self.places[:_SHOWN_PLACES]))
            along = f"[{first}{', ...' if len(self.places) > _SHOWN_PLACES else ''}]"
        return f"{self.output}[{':, ' * (self.axis - 1)}{along}]"

    @property
    def name(self) -> str:
        """The subject of its scores: ``output0[4:], scores``."""
        return f"{self.place}, {self.kind}" if self.kind else self.place

    def of(self, array: Array) -> Array:
        """This part of an array [samples, ...]; the array itself where it lacks the axis."""
        return array if array.ndim <= self.axis else array[self.index]


def describe(tensors: Iterable[TensorInfo]) -> str:
    """One line naming all of ``tensors`` with dtype and shape."""
    return "; ".join(map(str, tensors)) or "none"


def did_you_mean(wrong: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """`` (did you mean 'x'?)`` where a known name is close to the wrong one, otherwise nothing."""
    import difflib

    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{shown(close[0])}'?)" if close else ""
