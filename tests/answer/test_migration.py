"""Factors are found where channels stick out, and even them out against the weights that read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from array_samples import Samples
from onnx import TensorProto, helper
from zoo import ZOO, sample_feed
from zoo_networks import network_of, zoo_model, zoo_network

from benchmarks.faults import outlier_channel
from benchmarks.nets import digits, trained
from pytest_int8acc.answer.migration import Uneven, best_first, factors, uneven_sites
from pytest_int8acc.clock import Clock
from pytest_int8acc.graph.migrate import sites, weight_maxima
from pytest_int8acc.graph.network import Network
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.runtime.onnxruntime import CPU, OrtEngine


def values_of(network: Network, data: Samples) -> Observer:
    """What tensors hold, as a lab measures it."""
    measured, int8 = (
        SimpleNamespace(sessions=CPU, inputs=data, clock=Clock()),
        SimpleNamespace(network=network, observed=None),
    )
    lab = Lab(measured, int8)  # type: ignore[arg-type]
    return lab.values(data)  # type: ignore[arg-type]


def network_site() -> Any:
    """Any: what is foretold goes by maxima alone."""
    return next(iter(sites(network_of(trained("vit"))).values()))


def test_factors_balance_activation_and_weight() -> None:
    rng = np.random.default_rng(0)
    x, w = (np.exp(rng.normal(size=50)).astype("f") for _ in range(2))
    half = factors(x, w, 0.5)
    np.testing.assert_allclose(x / half / (w * half), np.mean(x / half / (w * half)), rtol=1e-5)
    everything = factors(x, w, 1.0)
    np.testing.assert_allclose(x / everything, (x / everything)[0], rtol=1e-5)
    assert float(np.exp(np.log(half).mean())) == pytest.approx(1, rel=1e-5)


def test_dead_channels_keep_a_factor_of_one() -> None:
    found = factors(np.array([0, 2, 8], np.float32), np.array([1, 1, 0], np.float32), 0.5)
    assert found[0] == 1
    assert found[2] == 1
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["plain", "mlp", "conv1d", "vit_gelu", "mobilenet"])
def test_maxima_per_channel_are_those_of_numpy(name: str) -> None:
    model, network, feed = zoo_model(name), zoo_network(name), sample_feed(ZOO[name]())
    wanted = sites(network)
    seen = {tensor: site for site in wanted.values() for tensor in site.seen}
    found = values_of(network, Samples(feed)).of(seen)
    editor = model.edit()
    made = [t for t in seen if t not in feed]
    editor.graph.output.extend(helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in made)
    arrays = {**feed, **OrtEngine(editor.done())(feed)}
    for tensor, site in seen.items():
        channels = np.moveaxis(np.abs(arrays[tensor]), site.axis, 0).reshape(site.channels, -1)
        np.testing.assert_array_equal(found[tensor].channel_amax, channels.max(axis=1))


def test_a_planted_outlier_channel_is_found_and_taken_back() -> None:
    norm, reader = "/blocks/blocks.1/norm2/LayerNormalization", "/blocks/blocks.1/fc1/MatMul"
    healthy = trained("vit")
    network = network_of(outlier_channel(healthy, norm, [reader], 7, 80))
    tensors = [e.tensor for g in network.groups if g.name == reader for e in g.edges][:1]
    data = Samples(digits("calibration", 16))
    uneven = uneven_sites(network, tensors, values_of(network, data))
    assert list(uneven) == tensors
    found = uneven[tensors[0]].factors(0.5)
    own = network_of(healthy)
    (site,) = [s for t, s in sites(own).items() if t == tensors[0]]
    maxima = values_of(own, data).of([site.tensor])[site.tensor].channel_amax
    assert maxima is not None
    honest = factors(maxima, weight_maxima(own, site), 0.5)
    ratio = found / honest
    assert ratio[7] / np.delete(ratio, 7).mean() == pytest.approx(80, rel=0.01)


def test_an_even_activation_is_left_alone() -> None:
    network = network_of(trained("vit"))
    wanted = [tensor for site in sites(network).values() for tensor in (site.tensor, site.partner) if tensor]
    data = Samples(digits("calibration", 16))
    assert uneven_sites(network, wanted, values_of(network, data)) == {}


def test_weights_that_stick_out_where_the_activation_is_small_are_evened_out() -> None:
    norm, reader = "/blocks/blocks.1/norm2/LayerNormalization", "/blocks/blocks.1/fc1/MatMul"
    network = network_of(outlier_channel(trained("vit"), norm, [reader], 7, 1 / 80))
    (tensor,) = [e.tensor for g in network.groups if g.name == reader for e in g.edges if e.index == 0]
    uneven = uneven_sites(network, [tensor], values_of(network, Samples(digits("calibration", 16))))
    found = uneven[tensor].factors(best_first(uneven)[0])
    assert found.argmin() == 7


def test_a_query_is_weighed_against_its_key() -> None:
    network = network_of(trained("vit"))
    site = next(site for site in sites(network).values() if site.partner)
    values = values_of(network, Samples(digits("calibration", 16)))
    query = values.of(site.seen)[site.seen[0]].channel_amax
    assert query is not None
    assert query.size == site.channels == site.heads * 12
    query[3] *= 100
    uneven = uneven_sites(network, [site.tensor, site.partner], values)
    assert list(uneven) == [site.tensor]
    assert uneven[site.tensor].factors(0.5).argmax() == 3
    assert uneven_sites(network, [site.tensor], values) == {}, "the key may not be moved"


def test_the_gain_foretold_is_that_of_the_noise_of_int8() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4096, 32)), rng.normal(size=(32, 64))
    x[:, 5] *= 60
    uneven = Uneven(network_site(), np.abs(x).max(axis=0).astype("f"), np.abs(w).max(axis=1).astype("f"))

    def noise(by: np.ndarray) -> float:  # type: ignore[type-arg]
        a, b = x / by, w * by[:, None]
        steps = np.abs(a).max() / 127, np.abs(b).max() / 127
        product = (np.rint(a / steps[0]) * steps[0]) @ (np.rint(b / steps[1]) * steps[1])
        return float(((product - x @ w) ** 2).mean())

    for alpha in (0.25, 0.5, 0.75):
        by = uneven.factors(alpha)
        measured = 10 * np.log10(noise(np.ones(32)) / noise(by))
        assert uneven.gain_db(alpha) == pytest.approx(measured, abs=3)
