"""Named search problems of the kinds that quantized networks show, up to 300 groups."""

from __future__ import annotations

import math

import numpy as np
from fake_evaluators import Additive, Limit, TinyNet

LIMITS = {
    "sqnr": Limit(0, "sqnr", 20.0),
    "cosine": Limit(0, "cosine", 0.995),
    "max_abs": Limit(0, "max_abs", 0.8),
    "top1": Limit(0, "top1", 0.95),
}
ELEMENTS = 24


def additive(rng, groups, samples, *, culprits=(), metric="sqnr", noise=0.05, **more):
    """Small errors everywhere, and culprits as (group, size); size 1 is what the limit allows in all."""
    baseline = 3 * rng.standard_normal((samples, ELEMENTS))
    allowed = math.sqrt((baseline**2).sum(1).mean() / 100)
    hardness = np.exp(0.5 * rng.standard_normal((samples, 1)))
    sizes = 4 * noise / math.sqrt(groups) * np.exp(0.5 * rng.standard_normal(groups))
    for group, size in culprits:
        sizes[group] = size
    vectors = rng.standard_normal((groups, samples, ELEMENTS)) * hardness * allowed / math.sqrt(ELEMENTS)
    prices = rng.lognormal(0, 1, groups)
    return Additive([vectors * sizes[:, None, None]], prices, [LIMITS[metric]], [baseline], **more)


def planted(rng, groups, samples, metric):
    return additive(rng, groups, samples, culprits=_some(rng, groups, 3, 3.0), metric=metric)


def mismatched(rng, groups, samples, metric):
    """Six culprits; the true errors saturate, and each plan has noise of its own."""
    culprits = _some(rng, groups, min(6, groups // 2), 1.5)
    return additive(rng, groups, samples, culprits=culprits, metric=metric, bend=0.02)


def accumulated(rng, groups, samples, metric="sqnr"):
    return additive(rng, groups, samples, metric=metric, noise=0.35, luck=0.05)


def interacting(rng, groups, samples):
    """Two groups whose errors point the same way: each passes alone."""
    fake = additive(rng, groups, samples)
    a, b = rng.choice(groups, 2, replace=False)
    fake.vectors[0][a] = fake.vectors[0][b] = 0.8 * _unit(rng, fake)
    return fake


def cancelling(rng, groups, samples):
    """Two large errors of opposite signs, and a culprit: freeing one of the two makes it worse."""
    a, b, c = rng.choice(groups, 3, replace=False)
    fake = additive(rng, groups, samples, culprits=[(c, 2.0)])
    error = _unit(rng, fake)
    fake.vectors[0][a], fake.vectors[0][b] = 3 * error, -2.9 * error
    return fake


def masked(rng, groups, samples):
    """Behind the last of three culprits nothing shows of the others."""
    culprits = _some(rng, groups, 3, 4.0)
    return additive(rng, groups, samples, culprits=culprits, masks={max(i for i, _ in culprits): 0.95})


def heads(rng, groups, samples):
    """Four outputs, trouble in two of them and in the trunk."""
    limits = [Limit(i, "cosine", 0.99) for i in range(4)]
    faults = {0: 50, groups - 4: 40, groups - 2: 30}
    net = TinyNet(rng, groups - 4, 24, samples, limits, heads=4, faults=faults)
    return net.limited(faults, 0.7)


def misscaled(rng, groups, samples, metric):
    """A residual network, three of its inputs in steps of the wrong size."""
    faults = dict(zip(rng.choice(groups - 1, 3, replace=False).tolist(), (50, 20, 0.12), strict=True))
    limits = [Limit(0, metric, 0.99 if metric == "cosine" else 20.0)]
    return TinyNet(rng, groups - 1, 24, samples, limits, faults=faults).limited(faults, 0.9)


def outlier_channel(rng, groups, samples):
    """A plain chain of layers, one with a channel that dwarfs the others."""
    faults = {1: "channel", 2: 60}
    net = TinyNet(rng, groups - 1, 24, samples, [Limit(0, "sqnr", 20.0)], residual=False, faults=faults)
    return net.limited(faults, 0.9)


def suite(seed=0, sizes=((12, 64), (26, 128), (54, 32), (100, 128))):
    """(name, evaluator) of every kind at every (groups, samples)."""
    rng = np.random.default_rng(seed)
    for groups, samples in sizes:
        size = f"{groups}x{samples}"
        for metric in ("sqnr", "cosine", "max_abs", "top1"):
            yield f"planted {metric} {size}", planted(rng, groups, samples, metric)
            if metric != "top1":
                yield f"mismatched {metric} {size}", mismatched(rng, groups, samples, metric)
        for kind in (interacting, cancelling, masked, heads):
            yield f"{kind.__name__} {size}", kind(rng, groups, samples)
        for metric in ("sqnr", "cosine"):
            yield f"misscaled {metric} {size}", misscaled(rng, groups, samples, metric)
        if groups <= 26:
            yield f"accumulated {size}", accumulated(rng, groups, samples)
        if groups <= 12:
            yield f"outlier channel {size}", outlier_channel(rng, groups, samples)


def _some(rng, groups, count, size):
    return [(int(i), size) for i in rng.choice(groups, count, replace=False)]


def _unit(rng, fake):
    """An error that is exactly what the limit of 20 dB allows, on average."""
    allowed = math.sqrt((fake.baseline[0] ** 2).sum(1).mean() / 100)
    return rng.standard_normal(fake.baseline[0].shape) * allowed / math.sqrt(ELEMENTS)
