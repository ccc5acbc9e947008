"""The loss of each group of a network that runs alone in FP16 or BF16, on the values of the FP32 model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.formats import Format
from pytest_int8acc.graph.instrument import with_rounded_twins
from pytest_int8acc.graph.network import Network
from pytest_int8acc.runtime.onnxruntime import Sessions

#: Maximum number of samples that are looked at.
SAMPLES = 64


@dataclass(frozen=True)
class TensorLoss:
    """Sums over all values of one tensor."""

    tensor: str
    node: str
    noise: float = 0.0
    """Sum of the squared errors; inf or nan where values became infinite."""
    signal: float = 0.0
    """Sum of the squared FP32 values."""
    peak: float = 0.0
    """Greatest magnitude in FP32."""
    lost: float = 0.0
    """How many values other than 0 became 0."""

    @property
    def share(self) -> float:
        """Ratio of the root mean square of error and signal; inf where it is not finite."""
        ratio = self.noise / self.signal if self.signal else (math.inf if self.noise else 0.0)
        return math.sqrt(ratio) if math.isfinite(ratio) else math.inf


@dataclass(frozen=True)
class Loss:
    """The losses of a group's tensors, and the worst of them."""

    worst: TensorLoss
    tensors: tuple[TensorLoss, ...]


def group_losses(network: Network, low: Format, inputs: Dataset, sessions: Sessions) -> Mapping[str, Loss]:
    """Each group's loss on some samples, the greatest first, equal ones in topological order.

    Raises:
        EngineError: The float model does not run.
        DataError: The inputs cannot be read.
    """
    groups = {node: group.name for group in network.groups for node in group.nodes}
    model, measurements = with_rounded_twins(network.model, groups.keys(), low)
    makers = network.model.index.producer
    found = {tensor: TensorLoss(tensor, makers[tensor].name) for tensor in measurements}
    engine = sessions.exact(model, optimized=False)
    for batch in inputs.first(SAMPLES).batches():
        outputs = engine(batch.feed)
        for tensor, names in measurements.items():
            noise, signal, peak, lost = (float(outputs[name].item()) for name in names)
            old = found[tensor]
            found[tensor] = replace(
                old,
                noise=old.noise + noise,
                signal=old.signal + signal,
                peak=max(old.peak, peak),
                lost=old.lost + lost,
            )
    by_group: dict[str, list[TensorLoss]] = {group.name: [] for group in network.groups}
    for loss in found.values():
        by_group[groups[loss.node]].append(loss)
    nothing = TensorLoss("", "")
    losses = {
        name: Loss(max(tensors, key=lambda loss: loss.share, default=nothing), tuple(tensors))
        for name, tensors in by_group.items()
    }
    return dict(sorted(losses.items(), key=lambda item: -item[1].worst.share))
