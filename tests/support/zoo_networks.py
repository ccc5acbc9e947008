"""Models of the zoo as they are loaded, networks of them, samples for them, and what two models compute."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from zoo import ZOO, sample_feed

from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed


@cache
def zoo_model(name: str) -> Model:
    return normalize(make_model(ZOO[name](), name=name))


def network_of(model: Model, scale: float | None = None, seed: int = 0) -> Network:
    """Activations have one scale, or scales of their own, so that codes seldom lie halfway between steps."""
    layout = find_groups(model)
    steps = np.random.default_rng(seed).uniform(2, 6, len(layout.activations)) / 127
    scales = dict(zip(layout.activations, steps.tolist(), strict=True))
    return quantize(model, layout, dict.fromkeys(scales, scale) if scale else scales)


@cache
def zoo_network(name: str) -> Network:
    return network_of(zoo_model(name))


def all_high(network: Network) -> Plan:
    return Plan({group.name: "fp32" for group in network.groups})


def assert_same(first: Model, second: Model, feed: Feed) -> None:
    """Two models compute the same bits."""
    expected, found = OrtEngine(first)(feed), OrtEngine(second)(feed)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def read_back(network: Network) -> Network:
    """The network as ``read_qdq`` finds it in its own Q/DQ model."""
    return read_qdq(apply(network))


def dataset_for(name: str, folder: Path, batches: int = 3) -> Dataset:
    """Samples for a model of the zoo, the last batch cut short where rows are samples."""
    feeds = [sample_feed(ZOO[name](), seed) for seed in range(batches)]
    arrays = {
        key: np.concatenate([feed[key] for feed in feeds]) if feeds[0][key].ndim else feeds[0][key]
        for key in feeds[0]
    }
    if all(len(array) == 2 * batches for array in arrays.values() if array.ndim):
        arrays = {key: array[:-1] if array.ndim else array for key, array in arrays.items()}
    np.savez(folder / "data.npz", **arrays)
    return open_dataset(
        "data.npz", zoo_network(name).model.inputs, base=folder, batch=None if name != "dynamic" else 2
    )
