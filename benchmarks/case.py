"""A case of the suite: a network with trouble planted, data and limits."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.faults import misscale, per_tensor_weights
from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.observers.methods import calibrate
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits
from pytest_int8acc.scores.tasks import Labels
from pytest_int8acc.scores.user_metric import UserMetric
from pytest_int8acc.spec.int8 import CalibrationMethod
from pytest_int8acc.tensors import Feed

#: As the plugin runs stored arrays for which the spec says nothing.
BATCH = 32
#: Metric to limit on every output, or limits of their own.
Limits = Mapping[str, float] | Sequence[OutputLimits]


@dataclass(frozen=True, eq=False)
class Case:
    """What a search is given, and what was planted."""

    network: Network
    data: Feed
    """All samples, along the first axis of each array."""
    limits: tuple[OutputLimits, ...]
    culprits: frozenset[str] | None
    """Groups that trouble was planted in; None where no set of groups is at fault."""
    metrics: tuple[tuple[MetricLimit, UserMetric], ...] = ()
    """Users' functions of the outputs, with their limits."""
    labels: Labels = None
    """For the functions."""
    name: str = ""
    trouble: str = ""
    """In words."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(next(iter(self.data.values())))


def dataset(model: Model, data: Feed, folder: Path, batch: int = BATCH) -> Dataset:
    """``data`` opened as the plugin opens a user's npz file."""
    np.savez(folder / "data.npz", **data)
    return open_dataset("data.npz", model.inputs, base=folder, batch=batch)


def assemble(
    model: Model,
    data: Feed,
    limits: Limits,
    *,
    calibration: Feed | None = None,
    method: CalibrationMethod = "minmax",
    factors: Mapping[str, float] | None = None,
    per_tensor: Sequence[str] = (),
    outliers: Sequence[str] = (),
    blame: bool = True,
) -> Case:
    """Calibrate honestly, plant what is asked for, and make the case.

    Args:
        model: In float; outlier channels are planted in it already.
        data: Samples that the search judges on.
        limits: What the outputs must keep.
        calibration: Samples that scales are taken from; ``data`` where there are no others.
        method: How scales are chosen.
        factors: Group to factor on the scale of its activation.
        per_tensor: Groups whose weights get one scale.
        outliers: Groups that read a channel that sticks out.
        blame: False where what is planted is not what has to leave.
    """
    layout = find_groups(model)
    with tempfile.TemporaryDirectory() as folder:
        opened = dataset(model, calibration or data, Path(folder))
        scales = calibrate(model, layout.activations, opened, method=method).values
    scales, misread = misscale(layout, scales, factors or {})
    network = per_tensor_weights(quantize(model, layout, scales), per_tensor)
    culprits = misread | {*per_tensor, *outliers}
    judged = (OutputLimits("*", limits=limits),) if isinstance(limits, Mapping) else tuple(limits)
    return Case(network, data, judged, culprits if culprits and blame else None)
