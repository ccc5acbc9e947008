"""Dead candidates: outputs that no working model gives, made of the baseline's own, to try criteria on.

A criterion that such outputs keep cannot fail, so that a pass by it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pytest_int8acc.results.scores import DeadKind
from pytest_int8acc.scores.criteria import kind_of
from pytest_int8acc.tensors import Array, Part

#: Samples of an output, [samples, ...], by its name.
Samples = Mapping[str, Array]
#: Fewer distinct samples say too little: of two samples one class may well be right for both.
FEWEST = 8
#: How many samples are kept at most, and how many elements of all outputs together: criteria are tried on
#: them several times, which must stay a small part of the case.
_MOST, _ELEMENTS = 64, 1 << 20


@dataclass(eq=False)
class Spread:
    """Samples of the baseline's outputs, evenly spread over the data, kept while batches come by.

    Every ``stride``-th sample is kept; where they become too many, every second one goes and the stride is
    doubled. So labels that are sorted by class do not leave one class alone.
    """

    indices: list[int] = field(default_factory=list)
    """Which samples are kept, by their place in the data."""
    splits: bool = True
    """Whether each output has the same number of rows for each sample; else nothing is kept."""
    _kept: dict[str, list[Array]] = field(default_factory=dict)
    _stride: int = 1
    _seen: int = 0

    def add(self, outputs: Mapping[str, Array], rows: int) -> None:
        """Keep some samples of a batch.

        Args:
            outputs: Arrays whose first axis is a multiple of ``rows``, or that are one sample each.
            rows: How many samples the batch holds.
        """
        if not self.splits or not rows:
            return
        if any(array.ndim == 0 or len(array) % rows for array in outputs.values()):
            self.splits = False
            self._kept.clear()
            return
        for row in range(rows):
            if (self._seen + row) % self._stride == 0:
                self._keep(outputs, rows, row)
        self._seen += rows

    def _keep(self, outputs: Mapping[str, Array], rows: int, row: int) -> None:
        self.indices.append(self._seen + row)
        for name, array in outputs.items():
            each = len(array) // rows
            self._kept.setdefault(name, []).append(array[row * each : (row + 1) * each].copy())
        elements = sum(arrays[0].size for arrays in self._kept.values())
        most = min(_MOST, max(_ELEMENTS // max(elements, 1), FEWEST))
        if len(self.indices) > most:
            self._stride *= 2
            self.indices = self.indices[::2]
            self._kept = {name: arrays[::2] for name, arrays in self._kept.items()}

    def samples(self) -> dict[str, list[Array]]:
        """Returns what was kept: by output, an array per sample in the order of ``indices``."""
        return self._kept


def distinct(samples: Mapping[str, list[Array]]) -> int:
    """Returns how many samples differ from all others in some output."""
    kept = zip(*samples.values(), strict=True)
    return len({tuple((array.shape, array.tobytes()) for array in arrays) for arrays in kept})


def dead_candidates(
    baseline: Mapping[str, list[Array]],
    judged: Mapping[str, Part | None],
    axes: Mapping[str, int],
    by_metrics: Mapping[str, Part | None] | None = None,
) -> Iterator[tuple[DeadKind, str, dict[str, list[Array]]]]:
    """Gives each dead candidate: its kind, the output that it is about, and all outputs sample by sample.

    Args:
        baseline: By output, an array per sample; at least two samples.
        judged: Outputs with limits of their own: an output's name, or that of a part of one, with the part.
        axes: The axis of classes of what has one, by the same names.
        by_metrics: Outputs and parts without such limits, which only metrics of the task may look at.
    """
    yield "zeros", "", {name: [_zeros(array) for array in arrays] for name, arrays in baseline.items()}
    order = derangement(len(next(iter(baseline.values()))))
    yield "shuffled", "", {name: [arrays[i] for i in order] for name, arrays in baseline.items()}
    averaged = {name: _mean(arrays) for name, arrays in baseline.items()}
    if all(arrays is not None for arrays in averaged.values()):
        yield "mean", "", {name: arrays for name, arrays in averaged.items() if arrays is not None}
    for name, part in judged.items():
        output = name if part is None else part.output
        arrays = baseline[output]
        if len(baseline) > 1 or part is not None:
            yield "replaced", name, {**baseline, output: [_changed(a, part, _zeros) for a in arrays]}
        if name in axes:
            rolled = [_changed(a, part, partial(np.roll, shift=1, axis=axes[name])) for a in arrays]
            yield "shifted", name, {**baseline, output: rolled}
    if by_metrics:
        yield "greatest", "", {name: list(map(_greatest, arrays)) for name, arrays in baseline.items()}
    for name, part in (by_metrics or {}).items():
        output = name if part is None else part.output
        arrays = baseline[output]
        if len(baseline) > 1 or part is not None:
            yield "replaced", name, {**baseline, output: [_changed(a, part, _zeros) for a in arrays]}
            yield "greatest", name, {**baseline, output: [_changed(a, part, _greatest) for a in arrays]}


def _changed(array: Array, part: Part | None, change: Callable[[Array], Array]) -> Array:
    """A copy of an array of which a part is changed; all of it where that is None."""
    if part is None:
        return change(array)
    copied = array.copy()
    copied[part.index] = change(part.of(array))
    return copied


def derangement(count: int, seed: int = 0) -> list[int]:
    """Returns an order of so many samples, drawn with a seed, in which none keeps its place."""
    order = np.random.default_rng(seed).permutation(count)
    # Each sample gets the one that follows it in a random cycle.
    places = np.empty(count, np.int64)
    places[order] = np.roll(order, -1)
    return [int(place) for place in places]


def differs(baseline: Mapping[str, list[Array]], candidate: Mapping[str, list[Array]]) -> bool:
    """Returns whether a candidate's values are others than the baseline's, in any output."""
    return any(
        not np.array_equal(ours, theirs, equal_nan=kind_of(ours) == "floats")
        for name, arrays in baseline.items()
        for ours, theirs in zip(arrays, candidate[name], strict=True)
    )


def _zeros(array: Array) -> Array:
    """Zeros, False or empty texts in place of every value."""
    return np.full_like(array, "") if array.dtype.kind == "O" else np.zeros_like(array)


def _greatest(array: Array) -> Array:
    """A sample's greatest value in place of every value; empty texts in place of texts."""
    if array.dtype.kind not in "fiub" or not array.size:
        return _zeros(array)
    return np.full_like(array, np.nan_to_num(array).max())


def _mean(arrays: list[Array]) -> list[Array] | None:
    """The mean over samples in place of each; None where they do not have one shape, or hold no numbers."""
    if len({array.shape for array in arrays}) > 1 or arrays[0].dtype.kind not in "fiu":
        return None
    with np.errstate(all="ignore"):
        mean = np.asarray(np.mean(np.stack(arrays), axis=0, dtype=np.float64), arrays[0].dtype)
    return [mean] * len(arrays)
