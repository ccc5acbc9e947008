"""Types for tensors by name: descriptions of a model's inputs and outputs, and their arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.names import shown

#: An array of any dtype and shape.
Array = NDArray[Any]
#: The inputs, or the outputs, of one inference run: an array by tensor name.
Feed = dict[str, Array]
#: All outputs of a run over several batches: output name to a list of one array per batch. The arrays have no
#: rows that only pad a batch.
Outputs = dict[str, list[Array]]
#: Maximum number of indices that the name of a part of an output lists. Dots stand for further indices.
_SHOWN_PLACES = 4
#: A dimension in a shape: a size, a symbolic name, or None if the model does not define it.
Dim = int | str | None


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype and shape of a model input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None
    """The shape; None if even the number of axes is unknown."""

    def __str__(self) -> str:
        dims = (
            "?" if self.shape is None else ", ".join("?" if d is None else shown(str(d)) for d in self.shape)
        )
        return f"{shown(self.name)}: {self.dtype} [{dims}]"


@dataclass(frozen=True)
class Part:
    """A part of an output that is judged by itself: a range, or a list, of indices along one axis."""

    output: str
    axis: int
    """The axis along which the part is cut. It is at least 1, because axis 0 counts the samples."""
    start: int
    stop: int | None
    """The end of the range, exclusive. None means the end of the axis. If a candidate's axis is longer than
    the baseline's, the part then includes the additional indices."""
    kind: str = ""
    """What the part holds: ``scores`` for the result of a Sigmoid or Softmax, otherwise the name of the
    tensor, or ``4 of 84 channels`` for channels with small values. Empty if the part mixes several kinds."""
    places: tuple[int, ...] = ()
    """The indices of the part along the axis, if they are not contiguous. ``start`` and ``stop`` are then not
    used. Empty if the part is a range."""

    @property
    def index(self) -> tuple[slice | list[int], ...]:
        """The index that selects the part from a NumPy array of the whole output, [samples, ...]."""
        along = list(self.places) if self.places else slice(self.start, self.stop)
        return (*[slice(None)] * self.axis, along)

    @property
    def place(self) -> str:
        """The part in NumPy's notation, with the axis of samples first, like ``output0[:, 4:]``."""
        stop = "" if self.stop is None else self.stop
        along = f"{self.start or ''}:{stop}"
        if self.places:
            first = ", ".join(map(str, self.places[:_SHOWN_PLACES]))
            along = f"[{first}{', ...' if len(self.places) > _SHOWN_PLACES else ''}]"
        return f"{self.output}[{':, ' * self.axis}{along}]"

    @property
    def name(self) -> str:
        """The name of the part in scores and reports, like ``output0[:, 4:], scores``."""
        return f"{self.place}, {self.kind}" if self.kind else self.place

    def of(self, array: Array) -> Array:
        """Returns this part of an array [samples, ...]; the array itself if it lacks the axis."""
        return array if array.ndim <= self.axis else array[self.index]


def describe(tensors: Iterable[TensorInfo]) -> str:
    """Returns one line with the name, dtype and shape of each tensor."""
    return "; ".join(map(str, tensors)) or "none"


def did_you_mean(wrong: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """Returns `` (did you mean 'x'?)`` if a name in ``known`` is similar to ``wrong``; else an empty text."""
    import difflib

    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{shown(close[0])}'?)" if close else ""
