"""A network with other scales, as a plan says them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.network import Network, Plan, symmetric
from pytest_int8acc.graph.plan import fresh_weights, moved, quantized_tensors, weight_axis

__all__ = ["Change", "changed", "plan_of", "weight_axis"]


@dataclass(frozen=True)
class Change:
    """Other scales for a network."""

    scales: Mapping[str, float] = field(default_factory=dict)
    """Activation tensor to its new scale: symmetric INT8, per tensor, for all its readers."""
    weights: tuple[str, ...] = ()
    """Constants whose scales are taken from their values anew, per channel where TensorRT takes that."""


def plan_of(network: Network, change: Change) -> Plan:
    """The change as a plan; ModelError where a tensor is quantized nowhere."""
    known = quantized_tensors(network)
    for name in (*change.scales, *change.weights):
        if name not in known:
            raise ModelError(f"{network.model.name}: '{name}' is no quantized tensor")
    activations = {tensor: symmetric(scale) for tensor, scale in change.scales.items()}
    return Plan(scales={**activations, **fresh_weights(network, change.weights)})


def changed(network: Network, change: Change) -> Network:
    """The network with other scales; groups, edges and the model stay."""
    return moved(network, plan_of(network, change))
