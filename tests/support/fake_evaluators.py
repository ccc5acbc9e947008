"""Evaluators without a model: error vectors that add, interact and saturate, and tiny networks in NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.types import GroupInfo, Probe, Target, Trial


def criterion(subject, pool="mean", allowed=0):
    """One whose limit nobody asks for."""
    return Criterion(subject, "metric", 1.0, "max", pool, allowed)


def square_errors(error, allowed):
    """Error vectors and parts: a sample's part is the squared length of its vector."""
    vectors = error / math.sqrt(allowed)
    return vectors.astype(np.float32), (vectors**2).sum(axis=1)


def cosine_errors(error, baseline, energy, limit):
    """The same for a cosine over all samples: the error's part across the baseline, to second order."""
    along = (error * baseline).sum() / (baseline**2).sum()
    vectors = (error - along * baseline) / math.sqrt(2 * energy * (1 - limit))
    return vectors.astype(np.float32), (vectors**2).sum(axis=1) / max(1 + along, 1e-6) ** 2


@dataclass(frozen=True)
class Limit:
    """One criterion on one output: metric is sqnr, cosine, max_abs or top1."""

    output: int
    metric: str
    value: float


class Fake:
    """Judges whatever ``error(high, samples)`` of a subclass says; counts what it is asked."""

    def __init__(self, groups, baseline, limits):
        self.groups = tuple(groups)
        self.baseline = baseline  # one [samples, elements] array per output
        self.limits = limits
        self.samples = len(baseline[0])
        self.criteria = tuple(map(self._criterion, limits))
        powers = {"max_abs": 1, "top1": 1}
        self.targets = tuple(Target(i, powers.get(c.metric, 2)) for i, c in enumerate(limits))
        self.cost = 0.0
        self.trials = []  # (high, samples run)
        self.probes = 0
        self.interrupt_at = None  # raise KeyboardInterrupt instead of this trial

    def _criterion(self, limit):
        if limit.metric not in ("max_abs", "top1"):
            return criterion(str(limit))
        allowed = 0 if limit.metric == "max_abs" else int((1 - limit.value) * self.samples + 1e-9)
        return criterion(str(limit), "rank", allowed)

    def error(self, high, samples):
        raise NotImplementedError

    def _parts(self, limit, e, samples):
        """What each sample adds to the loss; for cosine (one vector over all samples) to second order."""
        whole = self.baseline[limit.output]
        y, energy = whole[samples], (whole**2).sum(1).mean()
        if limit.metric == "sqnr":
            return square_errors(e, energy / 10 ** (limit.value / 10))[1]
        if limit.metric == "cosine":
            return cosine_errors(e, y, energy, limit.value)[1]
        if limit.metric == "max_abs":
            return np.abs(e).max(1) / limit.value
        return np.maximum(self._to_flip(e, y).max(1), 0)

    @staticmethod
    def _to_flip(e, y):
        """[samples, other classes]: how far each is on the way to beating the baseline's top class."""
        rows = np.arange(len(y))[:, None]
        order = np.argsort(-y, axis=1)
        top, others = order[:, :1], order[:, 1:]
        return (e[rows, others] - e[rows, top]) / np.maximum(y[rows, top] - y[rows, others], 1e-9)

    def _loss(self, limit, e, samples):
        """The loss of a criterion over these samples, as the metric itself has it."""
        parts = self._parts(limit, e, samples)
        if limit.metric == "cosine":
            y = self.baseline[limit.output][samples]
            z = y + e
            cos = (y * z).sum() / max(np.linalg.norm(y) * np.linalg.norm(z), 1e-30)
            return float((1 - cos) / (1 - limit.value))
        judged = self._criterion(limit)
        return float(np.sort(parts)[-1 - judged.allowed :][0] if judged.pool == "rank" else parts.mean())

    def losses(self, high, samples=None):
        samples = np.arange(self.samples) if samples is None else np.asarray(samples)
        error = self.error(frozenset(high), samples)
        return [self._loss(limit, error[limit.output], samples) for limit in self.limits]

    def passes(self, high):
        return max(self.losses(high)) <= 1

    def trial(self, high, order, enough):
        if self.interrupt_at is not None and len(self.trials) >= self.interrupt_at:
            raise KeyboardInterrupt
        assert sorted(order) == list(range(self.samples))
        parts = np.full((len(self.limits), self.samples), np.nan)
        step = max(1, self.samples // 16)
        used = 0
        while used < self.samples:
            chunk = np.asarray(order[used : used + step])
            error = self.error(high, chunk)
            for c, limit in enumerate(self.limits):
                parts[c, chunk] = self._parts(limit, error[limit.output], chunk)
            used += len(chunk)
            if enough is not None and used < self.samples and enough(parts):
                break
        self.cost += used / self.samples
        self.trials.append((high, used))
        losses = tuple(self.losses(high, order[:used]))
        passed = used == self.samples and max(losses) <= 1
        return Trial(high, passed, losses, losses, parts, used / self.samples, used == self.samples)

    def probe(self, plans, samples):
        self.probes += len(plans)
        self.cost += len(plans) * len(samples) / self.samples
        return [self._probe(plan, np.asarray(samples)) for plan in plans]

    def _probe(self, plan, samples):
        error = self.error(plan, samples)
        return Probe(
            [self._target(limit, error[limit.output], samples) for limit in self.limits],
            np.array([self._parts(limit, error[limit.output], samples) for limit in self.limits]),
        )

    def _target(self, limit, e, samples):
        whole = self.baseline[limit.output]
        energy = float((whole**2).sum(1).mean())
        if limit.metric == "sqnr":
            return square_errors(e, energy / 10 ** (limit.value / 10))[0]
        if limit.metric == "cosine":
            return cosine_errors(e, whole[samples], energy, limit.value)[0]
        if limit.metric == "top1":
            return self._to_flip(e, whole[samples]).astype(np.float32)
        return square_errors(e, energy)[0]


class Additive(Fake):
    """Output error = sum of the INT8 groups' vectors; masked, saturating and with luck if asked."""

    def __init__(self, vectors, prices, limits, baseline, *, masks=None, bend=0.0, luck=0.0):
        groups = [GroupInfo(f"g{i}", float(price), f"[{i}]") for i, price in enumerate(prices)]
        super().__init__(groups, baseline, limits)
        self.vectors = vectors  # one [groups, samples, elements] array per output
        self.masks = masks or {}  # group -> share of the errors before it that it hides while in INT8
        self.bend = bend  # errors grow slower than they should, up to 1 / bend
        self.luck = luck  # random share of the error, the same whenever a plan is asked

    def error(self, high, samples):
        int8 = [i for i in range(len(self.groups)) if i not in high]
        factor = np.ones(len(self.groups))
        for i in int8:
            factor[:i] *= 1 - self.masks.get(i, 0.0)
        return [
            self._disturbed(np.tensordot(factor[int8], vectors[int8][:, samples], axes=1), int8, samples)
            for vectors in self.vectors
        ]

    def _disturbed(self, error, int8, samples):
        length = np.linalg.norm(error, axis=1, keepdims=True)
        error = error / (1 + self.bend * length)
        if self.luck:
            rng = np.random.default_rng([len(int8), *int8])
            noise = rng.standard_normal((self.samples, error.shape[1]))[samples]
            error = error + self.luck * length * noise / math.sqrt(error.shape[1])
        return error


class TinyNet(Fake):
    """A residual or plain network of matrices in NumPy, fake-quantized per tensor; one group per matrix.

    ``faults``: matrix -> factor on its input's scale, or "channel" for an outlier channel in its weights.
    """

    def __init__(self, rng, depth, width, samples, limits, *, residual=True, faults=(), heads=1):
        self.x = rng.standard_normal((samples, width)) * np.exp(0.4 * rng.standard_normal((samples, 1)))
        self.trunk = [rng.standard_normal((width, width)) * math.sqrt(2 / width) for _ in range(depth)]
        self.heads = [rng.standard_normal((width, 10)) / math.sqrt(width) for _ in range(heads)]
        self.residual = residual
        faults = dict(faults)
        for i in [i for i, fault in faults.items() if fault == "channel"]:
            self.trunk[i][:, 0] *= 60
            self.trunk[i + 1][0] /= 60
            del faults[i]
        inputs = []
        everything = np.ones(depth + heads, bool)
        baseline = self._run(everything, np.arange(samples), inputs)
        self.scales = np.array([np.abs(x).max() / 127 * faults.get(i, 1.0) for i, x in enumerate(inputs)])
        prices = rng.lognormal(0, 1, depth + heads)
        super().__init__([GroupInfo(f"m{i}", float(p)) for i, p in enumerate(prices)], baseline, limits)

    def error(self, high, samples):
        mask = np.zeros(len(self.groups), bool)
        mask[list(high)] = True
        return [z - y[samples] for z, y in zip(self._run(mask, samples), self.baseline, strict=True)]

    def limited(self, high, loss):
        """Itself, with each limit such that this plan has the given loss."""
        for i, (limit, now) in enumerate(zip(self.limits, self.losses(high), strict=True)):
            ratio = max(now, 1e-12) / loss
            if limit.metric == "sqnr":
                value = limit.value - 10 * math.log10(ratio)
            else:
                value = 1 - (1 - limit.value) * ratio
            self.limits[i] = Limit(limit.output, limit.metric, value)
        return self

    def _run(self, high, samples, inputs=None):
        h = self.x[samples]
        for i, matrix in enumerate(self.trunk):
            x = self._normal(h) if self.residual else h
            step = np.maximum(self._product(x, matrix, i, high, inputs), 0)
            h = h + step / math.sqrt(len(self.trunk)) if self.residual else step
        first, h = len(self.trunk), self._normal(h)
        return [self._product(h, matrix, first + j, high, inputs) for j, matrix in enumerate(self.heads)]

    def _product(self, x, matrix, i, high, inputs):
        if inputs is not None:
            inputs.append(x)
        if not high[i]:
            scale, step = self.scales[i], np.abs(matrix).max() / 127
            x = np.clip(np.round(x / scale), -128, 127) * scale
            matrix = np.round(matrix / step) * step
        return x @ matrix

    @staticmethod
    def _normal(h):
        return h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-6)


def indices(evaluator, names):
    where = {group.name: i for i, group in enumerate(evaluator.groups)}
    return frozenset(where[name] for name in names)
