"""Decides which outputs are judged by their parts, from the graph, the spec, and the baseline's values.

A part is a range of an output along one axis, for example the boxes or the scores of a detector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.graph.flow import SCORES, Segment
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB
from pytest_int8acc.scores.rows import greatest_magnitude
from pytest_int8acc.tensors import Array, Feed, Part

#: Maximum ratio between the greatest magnitudes of two parts of an output that are judged together. At a
#: greater ratio, with one INT8 scale for both, the values of the smaller part are about one quantization
#: step.
UNLIKE = 100.0
#: The SQNR of FP16, which has 11 significant bits, minus that of INT8, which has 7, in dB.
_FP16_AHEAD_DB = 24.0
#: Minimum number of values in a channel, so that the greatest magnitude is a good estimate of the channel's
#: size. An output with fewer values per channel has no small channels.
_MIN_VALUES = 8
#: Maximum number of parts that are found in the graph. An output with more parts is judged as a whole, to
#: keep reports readable.
_MAX_PARTS = 8


@dataclass(frozen=True)
class NamedParts:
    """The parts of an output that a spec gives under ``parts``, by their sizes along an axis."""

    sizes: tuple[int, ...]
    axis: int
    """The axis along which the output is split, as in the spec. A negative axis counts from the last one."""


@dataclass(eq=False)
class Splitter:
    """Decides, on the first batch of the baseline, by which parts each output is judged.

    All comparisons of one case use the same splitter, so that the outputs of all models are split alike.
    """

    joined: Mapping[str, tuple[int, tuple[Segment, ...]]] = field(default_factory=dict)
    """Name of an output that the graph concatenates, to the axis and the concatenated segments."""
    named: Mapping[str, NamedParts | None] = field(default_factory=dict)
    """Output name to the parts that the spec gives; None if the spec has ``parts: off``, so that the output
    is judged as a whole."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """Output name to the channel axis, for outputs whose channels may differ much in size."""
    _decided: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    _small: dict[str, Part | None] = field(default_factory=dict)
    _rounding: dict[str, Array] = field(default_factory=dict)
    """Output name to the energy of each channel, and the energy of FP16's rounding error in the channel,
    [2, channels]."""

    def parts(self, output: str, array: Array) -> tuple[Part, ...]:
        """Returns the parts of an output; an empty tuple if the output is judged as a whole.

        Args:
            output: The name of the output.
            array: The baseline's array, [samples, ...]. The first call for an output decides its parts.

        Raises:
            CriterionError: The sizes in the spec do not fit the output.
        """
        if output not in self._decided:
            self._decided[output] = tuple(self._decide(output, array))
        return self._decided[output]

    def add_rounding(self, exact: Feed, rounded: Feed) -> None:
        """Adds a batch to the energy of each channel, and to the energy of the error that FP16 makes in it.

        ``small_channels`` needs these energies.

        Args:
            exact: The outputs in FP32.
            rounded: The outputs of a baseline in FP16; empty if the baseline is not in FP16.
        """
        for output, axis in self.axes.items():
            one, other = exact.get(output), rounded.get(output)
            if one is None or other is None or one.shape != other.shape or one.ndim <= axis:
                continue
            if output not in self.named and one.dtype.kind == "f" and not self.parts(output, one):
                wide = np.promote_types(one.dtype, np.float32)
                one, other = one.astype(wide, copy=False), other.astype(wide, copy=False)
                with np.errstate(all="ignore"):
                    found = np.array([_energy(one, axis), _energy(one - other, axis)])
                self._rounding[output] = self._rounding.get(output, 0.0) + found

    def look(self, baseline: Feed) -> None:
        """Finds the small channels of each output in its first batch. Later batches are ignored.

        Args:
            baseline: The baseline's outputs, [samples, ...].
        """
        for output, array in baseline.items():
            axis = None if output in self.named else self.axes.get(output)
            if output not in self._small and axis is not None and array.ndim > axis:
                whole = not self.parts(output, array)
                self._small[output] = self._find_small(output, axis, array) if whole else None

    def is_pending(self, output: str) -> bool:
        """Whether this output may have small channels, but ``look`` has not seen a batch of it yet."""
        return output in self.axes and output not in self._small

    def small_channels(self, output: str) -> Part | None:
        """Returns the small channels of an output as one part; None if it has none.

        The size of a channel is its greatest magnitude. A channel is small if the largest channel has more
        than 100 times its size. One part holds all small channels. So a channel of a class that occurs in no
        sample has little effect on the part. There are two exceptions, in which channels do not count as
        small:

        - All of them are below the smallest normal number of FP16. No application reads such values.
        - Their values are small because larger values cancel out. FP16 represents such values badly, and no
          scale helps INT8, whose SQNR is 24 dB lower. The exception is checked only if the baseline is in
          FP16. If it is not, an output [samples, channels] has no small channels.
        """
        return self._small.get(output)

    def _find_small(self, output: str, axis: int, array: Array) -> Part | None:
        if array.dtype.kind != "f" or array.size < _MIN_VALUES * array.shape[axis] or not array.size:
            return None
        sizes = _channel_sizes(array, axis)
        small = sizes * UNLIKE < sizes.max()
        if not small.any() or sizes[small].max() < FP16.normal:
            return None
        rounding = self._rounding.get(output)
        if rounding is None and array.ndim < 3:
            return None
        if rounding is not None:
            signal, noise = rounding[:, small].sum(axis=1)
            if not signal >= noise * 10 ** ((DEFAULT_SQNR_DB + _FP16_AHEAD_DB) / 10):
                return None
        return _part_of(output, axis, small)

    def part(self, name: str) -> Part | None:
        """Returns the part of an output that has this name, such as ``boxes[:, 4:]``.

        The result is None if there is no such part, or if its output was not compared yet.
        """
        parts = [part for found in self._decided.values() for part in found]
        parts += [part for part in self._small.values() if part is not None]
        return next((part for part in parts if part.name == name), None)

    def whole_of(self, part: str) -> str:
        """Returns the name of the output to which the part with the name ``part`` belongs.

        A name that belongs to no part, such as the name of an output, is returned unchanged.
        """
        outputs = (name for name in {**self.joined, **self.named, **self.axes} if part.startswith(f"{name}["))
        return max(outputs, key=len, default=part)

    def _decide(self, output: str, array: Array) -> Sequence[Part]:
        if output in self.named:
            named = self.named[output]
            return [] if named is None else self._by_name(output, array, named)
        if output not in self.joined:
            return []
        axis, segments = self.joined[output]
        if array.ndim <= axis or array.shape[axis] != sum(segment.size for segment in segments):
            return []
        return _unlike(output, axis, segments, array)

    def _by_name(self, output: str, array: Array, named: NamedParts) -> list[Part]:
        axis = axis_of(output, named, array.shape)
        known_axis, segments = self.joined.get(output, (axis, ()))
        kinds = _kinds(segments) if known_axis == axis else []
        starts = accumulate(named.sizes, initial=0)
        labels = [set(kinds[start : start + size]) for start, size in zip(starts, named.sizes, strict=False)]
        return _in_order(output, axis, named.sizes, labels)


def _in_order(output: str, axis: int, sizes: Sequence[int], labels: Sequence[set[str]]) -> list[Part]:
    """Returns neighbouring parts that cover an output along an axis.

    ``labels`` has the kinds of content in each part. If there is one, it is the part's kind.
    """
    parts, start = list[Part](), 0
    for size, kinds in zip(sizes, labels, strict=True):
        kind = next(iter(kinds)) if len(kinds) == 1 else ""
        parts.append(Part(output, axis, start, start + size, kind))
        start += size
    return [*parts[:-1], replace(parts[-1], stop=None)]


def axis_of(output: str, named: NamedParts, shape: Sequence[object]) -> int:
    """Returns the axis along which a spec splits an output, as a number that is not negative.

    Args:
        output: The name of the output, for messages.
        named: The parts that the spec gives.
        shape: The shape of the output. A dimension that is not an integer is unknown, and is not checked.

    Raises:
        CriterionError: There is no such axis, the axis counts the samples, or the sizes of the parts do not
            add up to its size.
    """
    total, said = sum(named.sizes), " + ".join(map(str, named.sizes))
    fitting = [axis for axis in range(1, len(shape)) if shape[axis] == total]
    remedy = f"; axis {fitting[0]} has: write 'axis: {fitting[0]}'" if fitting else "; mend the sizes"
    if not -len(shape) <= named.axis < len(shape):
        raise CriterionError(
            f"parts of output '{output}': there is no axis {named.axis} in its shape {_shape(shape)}{remedy}"
        )
    axis = named.axis % len(shape)
    if axis == 0:
        raise CriterionError(
            f"parts of output '{output}': axis 0 of its shape {_shape(shape)} counts the samples{remedy}"
        )
    if isinstance(shape[axis], int) and shape[axis] != total:
        raise CriterionError(
            f"parts of output '{output}': {said} is {total}, but axis {named.axis} of its shape "
            f"{_shape(shape)} has {shape[axis]} places{remedy}"
        )
    return axis


def _shape(shape: Sequence[object]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _kinds(segments: Sequence[Segment]) -> list[str]:
    """Returns a list that has, for each index along the axis, the label of the segment with this index."""
    return [segment.label for segment in segments for _ in range(segment.size)]


def _unlike(output: str, axis: int, segments: Sequence[Segment], array: Array) -> list[Part]:
    """Returns the parts by which an output is judged, from the segments that the graph concatenates.

    Neighbouring segments of the same kind and of similar magnitude become one part. The result is empty if
    this gives one part, or more than ``_MAX_PARTS``. ``array`` is the baseline's output.
    """
    groups: list[list[Segment]] = []
    ends: list[tuple[float, float]] = []
    start = 0
    for segment in segments:
        here = Part(output, axis, start, start + segment.size)
        start += segment.size
        most = _size(here.of(array))
        if groups and _belongs(segment, most, groups[-1], ends[-1]):
            groups[-1].append(segment)
            ends[-1] = _widened(ends[-1], most)
        else:
            groups.append([segment])
            ends.append((most or np.inf, most))
    if not 1 < len(groups) <= _MAX_PARTS:
        return []
    sizes = [sum(segment.size for segment in group) for group in groups]
    return _in_order(output, axis, sizes, [{segment.label for segment in group} for group in groups])


def _part_of(output: str, axis: int, chosen: Array) -> Part:
    """Returns the part that holds the chosen channels. It is a range if the channels are contiguous.

    Args:
        output: The name of the output.
        axis: The channel axis.
        chosen: Whether each channel is chosen, bool [channels].
    """
    places = np.flatnonzero(chosen)
    start, stop = int(places[0]), int(places[-1]) + 1
    kind = f"{places.size} of {chosen.size} channels"
    if stop - start != places.size:
        return Part(output, axis, start, stop, kind, tuple(map(int, places)))
    return Part(output, axis, start, None if stop == chosen.size else stop, kind)


def _energy(array: Array, axis: int) -> Array:
    """Returns the sum of the squares in each channel, [channels]. ``axis`` is the channel axis."""
    axes = list(range(array.ndim))
    return np.asarray(np.einsum(array, axes, array, axes, [axis]), np.float64)


def _channel_sizes(array: Array, axis: int) -> Array:
    """Returns the greatest finite magnitude in each channel, [channels]. ``axis`` is the channel axis."""
    others = tuple(place for place in range(array.ndim) if place != axis)
    return np.asarray(np.max(np.abs(array), axis=others, where=np.isfinite(array), initial=0.0))


def _belongs(segment: Segment, most: float, group: Sequence[Segment], ends: tuple[float, float]) -> bool:
    """Whether a segment of an output joins a group of segments that become one part.

    It joins if it has the same kind as the group and a similar magnitude. Segments with scores of classes
    join whatever their magnitude is.

    Args:
        segment: The segment.
        most: The greatest magnitude of the segment.
        group: The segments of the group.
        ends: The least and the greatest magnitude of the segments of the group.
    """
    if segment.kind != group[0].kind:
        return False
    low, high = _widened(ends, most)
    return segment.kind == SCORES or high <= UNLIKE * low


def _widened(ends: tuple[float, float], most: float) -> tuple[float, float]:
    """Returns the least and the greatest magnitude of a group of segments after one more segment is added.

    Args:
        ends: The least and the greatest magnitude of the group before.
        most: The greatest magnitude of the added segment. 0 does not lower the least magnitude.
    """
    return (min(ends[0], most or np.inf), max(ends[1], most))


def _size(array: Array) -> float:
    """Returns the greatest finite magnitude of an array.

    The result is 0 if it is below the smallest normal number of FP16.
    """
    size = greatest_magnitude(array) if array.dtype.kind in "fiu" else 0.0
    return size if size >= FP16.normal else 0.0
