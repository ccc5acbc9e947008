"""Plans drawn at random, and plans as plain types, to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_int8acc.graph.migrate import migrate, sites
from pytest_int8acc.graph.network import Network, Plan, TensorScale
from pytest_int8acc.graph.plan import computed_floats, fresh_weights, quantized_tensors
from pytest_int8acc.tensors import Array


def plain(plan: Plan) -> dict[str, Any]:
    """All that a plan says; equal where two plans say the same."""
    return {part.name: _plain(getattr(plan, part.name)) for part in fields(plan)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, TensorScale):
        return _scale(value)
    return _array(value) if isinstance(value, np.ndarray) else value


def _scale(scale: TensorScale) -> tuple[object, ...]:
    zero_point = scale.zero_point
    if zero_point is not None and zero_point.dtype == np.int8 and not zero_point.any():
        zero_point = None
    return _array(scale.scale), scale.axis, None if zero_point is None else _array(zero_point)


def _array(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, array.tobytes()


@st.composite
def plans(draw: st.DrawFn, network: Network, *, zero_points: bool = True) -> Plan:
    """Any plan of a network: groups high, activations and weights scaled, channels moved, tensors shown."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = [group.name for group in network.groups]
    high = {name: draw(st.sampled_from(["fp16", "fp32"])) for name in draw(_some(names))}
    moves: dict[str, Array] = {}
    after = network
    for tensor in draw(_some(list(sites(network)))):
        site = sites(after).get(tensor)
        if site is not None:
            moves[tensor] = np.exp(rng.normal(size=site.channels)).astype(np.float32)
            after = migrate(after, {tensor: moves[tensor]}).network
    scales: dict[str, TensorScale] = {}
    for where in (network, after):
        for tensor in draw(_some(list(quantized_tensors(where)))):
            scales[tensor] = _any_scale(where, tensor, rng, zero_points)
    outputs = tuple(draw(_some(list(computed_floats(network.model)))))
    return Plan(high, scales, moves, outputs)  # type: ignore[arg-type]


def _some(names: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=6) if names else st.just([])


def _any_scale(network: Network, tensor: str, rng: np.random.Generator, zero_points: bool) -> TensorScale:
    own = quantized_tensors(network)[tensor]
    if own.values is not None:
        fresh = fresh_weights(network, [tensor])[tensor]
        scale = (fresh.scale * np.exp(rng.normal(size=fresh.scale.shape))).astype(np.float32)
        return TensorScale(scale, fresh.axis)
    scale = np.asarray(np.exp(rng.normal()), np.float32)
    odd = zero_points and rng.random() < 0.3
    return TensorScale(scale, zero_point=np.array(rng.integers(256), np.uint8) if odd else None)


def takes_in(network: Network, site: Any) -> bool:
    """Whether nodes of the network take the site's factors; otherwise a Mul is inserted."""
    return not migrate(network, {site.tensor: np.full(site.channels, 2.0)}).inserted
