"""Which inputs of a model are cut into samples, and how many samples one run takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_int8acc.tensors import Dim, Feed, TensorInfo

#: How torch.onnx.export, tf2onnx and Paddle2ONNX name open dimensions that have no name.
_NUMBERED = re.compile(r"_dynamic_axes_|^unk__\d+$|DynamicDimension\.\d+$")


@dataclass(frozen=True)
class Layout:
    """A model's inputs by role; the rule is in the docstring of :mod:`pytest_int8acc.data`."""

    inputs: tuple[TensorInfo, ...]
    batched: frozenset[str]
    """Inputs that share axis 0, a sample a row; empty where a feed cannot be cut."""
    size: int | None
    """Rows per run where the model fixes them."""

    def rows(self, feed: Feed) -> int:
        """Samples in ``feed``; 1 where a feed cannot be cut."""
        return next((feed[name].shape[0] for name in feed if name in self.batched), 1)

    def cut(self, feed: Feed, start: int, stop: int) -> Feed:
        """Rows ``start`` to ``stop`` of ``feed`` as views; inputs that are not batched stay whole."""
        return {name: a[start:stop] if name in self.batched else a for name, a in feed.items()}


def read_layout(inputs: Sequence[TensorInfo]) -> Layout:
    """Find the batch axis of a model with ``inputs``."""
    firsts = {t.name: t.shape[0] if t.shape else None for t in inputs if t.shape != ()}
    symbolic = {name for name, first in firsts.items() if not isinstance(first, int)}
    if symbolic:
        axes = {_axis_name(firsts[name]) for name in symbolic} - {None}
        return Layout(tuple(inputs), frozenset(symbolic if len(axes) < 2 else ()), None)
    sizes = {first for first in firsts.values() if isinstance(first, int)}
    if len(sizes) != 1:
        return Layout(tuple(inputs), frozenset(), None)
    return Layout(tuple(inputs), frozenset(firsts), sizes.pop())


def _axis_name(dim: Dim) -> str | None:
    """The name its author gave a dimension; None where an exporter has numbered it."""
    return dim if isinstance(dim, str) and not _NUMBERED.search(dim) else None
