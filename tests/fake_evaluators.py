"""Evaluators without a model: error vectors that add, interact and saturate, and tiny networks in NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.search import Criterion, GroupInfo, Probe, Target, Trial


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
        self.targets = tuple(
            Target(i, power=1) if c.metric in ("top1", "max_abs") else Target(i) for i, c in enumerate(limits)
        )
        self.cost = 0.0
        self.seen = []  # (high, samples run) per trial
        self.probed = 0
        self.interrupt_at = None

    def _criterion(self, limit):
        if limit.metric not in ("max_abs", "top1"):
            return Criterion(str(limit))
        allowed = 0 if limit.metric == "max_abs" else int((1 - limit.value) * self.samples + 1e-9)
        return Criterion(str(limit), "rank", allowed)

    def error(self, high, samples):
        raise NotImplementedError

    def layer_errors(self):
        return None

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
        criterion = self._criterion(limit)
        return float(
            np.sort(parts)[-1 - criterion.allowed :][0] if criterion.pool == "rank" else parts.mean()
        )

    def losses(self, high, samples=None):
        samples = np.arange(self.samples) if samples is None else np.asarray(samples)
        error = self.error(frozenset(high), samples)
        return [self._loss(limit, error[limit.output], samples) for limit in self.limits]

    def passes(self, high):
        return max(self.losses(high)) <= 1

    def trial(self, high, order, enough):
        if self.interrupt_at is not None and len(self.seen) >= self.interrupt_at:
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
        self.seen.append((high, used))
        losses = tuple(self.losses(high, order[:used]))
        passed = used == self.samples and max(losses) <= 1
        return Trial(high, passed, losses, losses, parts, used / self.samples, used == self.samples)

    def probe(self, plans, samples):
        self.probed += len(plans)
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
    """Output error = sum of the INT8 groups' vectors, plus pairs, masking, saturation and noise per plan."""

    def __init__(
        self, vectors, prices, limits, baseline, *, pairs=None, masks=None, bend=0.0, noise=0.0, seed=0
    ):
        groups = [GroupInfo(f"g{i}", float(p), f"[{i}]") for i, p in enumerate(prices)]
        super().__init__(groups, baseline, limits)
        self.vectors = vectors  # one [groups, samples, elements] array per output
        self.pairs = pairs or {}  # (i, j) -> [samples, elements] on output 0 when both are INT8
        self.masks = masks or {}  # i -> share by which INT8 of i hides the errors of groups before it
        self.bend, self.noise, self.seed = bend, noise, seed

    def error(self, high, samples):
        quantized = [i for i in range(len(self.groups)) if i not in high]
        factor = np.ones(len(self.groups))
        for i, share in self.masks.items():
            if i not in high:
                factor[:i] *= 1 - share
        out = []
        for o, vectors in enumerate(self.vectors):
            e = np.tensordot(factor[quantized], vectors[quantized][:, samples], axes=1)
            if not quantized:
                e = np.zeros_like(self.baseline[o][samples])
            if o == 0:
                for (i, j), extra in self.pairs.items():
                    if i not in high and j not in high:
                        e = e + extra[samples]
            out.append(self._disturb(e, quantized, o, samples))
        return out

    def _disturb(self, e, quantized, output, samples):
        size = np.linalg.norm(e, axis=1, keepdims=True)
        if self.bend:  # grows slower than it should: saturates at 1 / bend
            e = e / (1 + self.bend * size)
        if self.noise:  # a plan's own luck, the same whenever it is asked
            seed = hash((self.seed, output, tuple(quantized))) % 2**32
            luck = np.random.default_rng(seed).standard_normal((self.samples, e.shape[1]))[samples]
            e = e + self.noise * size * luck / math.sqrt(e.shape[1])
        return e


class TinyNet(Fake):
    """A residual or plain network in NumPy, fake-quantized per tensor; one group per matrix."""

    def __init__(
        self, rng, depth, width, samples, limits, *, residual=True, faults=None, heads=1, classes=10
    ):
        self.x = rng.standard_normal((samples, width)) * np.exp(0.4 * rng.standard_normal((samples, 1)))
        self.weights = [rng.standard_normal((width, width)) * math.sqrt(2 / width) for _ in range(depth)]
        self.heads = [rng.standard_normal((width, classes)) / math.sqrt(width) for _ in range(heads)]
        self.residual = residual
        for i, fault in (faults or {}).items():
            if fault == "channel" and i < depth:
                self.weights[i][:, 0] *= 60
                if i + 1 < depth:
                    self.weights[i + 1][0] /= 60
        self.scales = None
        inputs = []
        baseline = self._forward(np.ones(depth + heads, bool), np.arange(samples), inputs)
        self.scales = np.array([np.abs(v).max() / 127 for v in inputs])
        for i, fault in (faults or {}).items():
            if fault != "channel":
                self.scales[i] *= fault
        prices = rng.lognormal(0, 1, depth + heads)
        super().__init__([GroupInfo(f"m{i}", float(p)) for i, p in enumerate(prices)], baseline, limits)

    def _forward(self, high, samples, record=None):
        h = self.x[samples]
        for i, w in enumerate(self.weights):
            scale = 1 / math.sqrt(len(self.weights)) if self.residual else 1.0
            step = np.maximum(self._matmul(self._norm(h) if self.residual else h, w, i, high, record), 0)
            h = h + scale * step if self.residual else step
        first = len(self.weights)
        return [self._matmul(self._norm(h), w, first + j, high, record) for j, w in enumerate(self.heads)]

    @staticmethod
    def _norm(h):
        return h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-6)

    def _matmul(self, x, w, i, high, record):
        if record is not None:
            record.append(x)
        if not high[i]:
            s, ws = self.scales[i], np.abs(w).max() / 127
            x = np.clip(np.round(x / s), -128, 127) * s
            w = np.round(w / ws) * ws
        return x @ w

    def error(self, high, samples):
        mask = np.zeros(len(self.groups), bool)
        mask[list(high)] = True
        return [z - y[samples] for z, y in zip(self._forward(mask, samples), self.baseline, strict=True)]

    def calibrate_limits(self, high, factor):
        """Set each limit so that this plan's loss is ``factor`` on it."""
        new = []
        for limit, loss in zip(self.limits, self.losses(high), strict=True):
            ratio = max(loss, 1e-12) / factor
            value = limit.value
            if limit.metric == "sqnr":
                value -= 10 * math.log10(ratio)
            elif limit.metric == "cosine":
                value = 1 - (1 - value) * ratio
            elif limit.metric == "max_abs":
                value *= ratio
            new.append(Limit(limit.output, limit.metric, value))
        self.limits = new
