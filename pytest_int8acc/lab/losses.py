"""Measures the loss of each group of layers if only this group runs in FP16 or BF16, and all else in FP32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.formats import Format
from pytest_int8acc.graph.instrument import with_rounded_twins
from pytest_int8acc.graph.network import Network
from pytest_int8acc.runtime.onnxruntime import Sessions

#: Maximum number of samples on which losses are measured.
SAMPLES = 64


@dataclass(frozen=True)
class TensorLoss:
    """The loss of one tensor that is rounded to FP16 or BF16, as sums over all its values."""

    tensor: str
    node: str
    noise: float = 0.0
    """The sum of the squared errors; inf or nan if values became infinite."""
    signal: float = 0.0
    """The sum of the squared FP32 values."""
    peak: float = 0.0
    """The greatest magnitude of the FP32 values."""
    lost: float = 0.0
    """The number of nonzero values that became 0."""

    @property
    def share(self) -> float:
        """The ratio of the root mean squares of error and signal; inf if the error is not finite."""
        ratio = self.noise / self.signal if self.signal else (math.inf if self.noise else 0.0)
        return math.sqrt(ratio) if math.isfinite(ratio) else math.inf


def group_losses(
    network: Network, low: Format, inputs: Dataset, sessions: Sessions
) -> Mapping[str, tuple[TensorLoss, ...]]:
    """For each group, the losses of its output tensors if only this group runs in the low format.

    The groups with the greatest loss come first. The tensors of each group are sorted in the same way.

    Raises:
        EngineError: The float model does not run.
        DataError: The inputs cannot be read.
    """
    groups = {node: group.name for group in network.groups for node in group.nodes}
    model, measurements = with_rounded_twins(network.model, groups.keys(), low)
    makers = network.model.everywhere.producer
    found = {tensor: TensorLoss(tensor, makers[tensor].name) for tensor in measurements}
    engine = sessions.exact(model, optimized=False)
    for batch in inputs.first(SAMPLES).batches():
        outputs = engine(batch.feed)
        for tensor, names in measurements.items():
            noise, signal, peaks, lost = (outputs[name] for name in names)  # one number per step in a Loop
            old = found[tensor]
            found[tensor] = replace(
                old,
                noise=old.noise + float(noise.sum()),
                signal=old.signal + float(signal.sum()),
                peak=max(old.peak, float(peaks.max())),
                lost=old.lost + float(lost.sum()),
            )
    losses: dict[str, list[TensorLoss]] = {group.name: [] for group in network.groups}
    for loss in sorted(found.values(), key=lambda loss: -loss.share):
        losses[groups[loss.node]].append(loss)
    shares = {name: max((loss.share for loss in tensors), default=0.0) for name, tensors in losses.items()}
    return {name: tuple(losses[name]) for name in sorted(shares, key=lambda name: -shares[name])}
