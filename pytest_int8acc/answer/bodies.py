"""Tries other scales for layers in bodies of Loop, If and Scan. No plan can change these scales."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.answer.stages import normalized_loss
from pytest_int8acc.graph.network import Edge, Network, Plan
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.results.causes import BodyScales
from pytest_int8acc.scores.judge import Verdict

logger = logging.getLogger("pytest_int8acc")
#: The factors by which the scales are multiplied. Steps of a factor of 8 are fine enough, because a range
#: that is 3 times too wide costs INT8 only 10 of its about 40 dB.
_FACTORS = (8.0, 1 / 8, 64.0, 1 / 64, 512.0, 1 / 512, 4096.0, 1 / 4096)
#: The factor between the finer steps, which are tried around the first factor that removes enough of the
#: loss.
_FINE = 2.0
#: No further factors are tried if one removes this share of the loss.
_ENOUGH = 0.9


def try_body_scales(
    lab: Lab, groups: Collection[str] | None = None, high: Plan | None = None
) -> BodyScales | None:
    """How much of the loss wider or narrower scales in bodies of Loop, If and Scan remove.

    All samples run in ONNX Runtime. The result is None if no activation is quantized in such groups, if the
    loss cannot be measured, or if the time is up before the first trial.

    Args:
        lab: The laboratory of the case.
        groups: The groups whose scales change; None for all groups in bodies.
        high: The plan that keeps other groups in high precision; None keeps none.

    Raises:
        EngineError: A model does not run.
    """
    bodies = [g for g in lab.network.groups if g.body_edges and (groups is None or g.name in groups)]
    edges = [edge for group in bodies for edge in group.body_edges]
    if not any(edge.quantization.values is None for edge in edges):
        return None
    logger.info("%s: trying other scales in bodies of Loop, If and Scan", lab.measured.case.name)
    trials = _Trials(lab, {group.name for group in bodies}, high or Plan())
    result = lab.measured.result
    if high is None and not lab.measured.backend.needs_simulation:
        unchanged = Verdict(result.outputs, result.metrics)
    else:
        unchanged = trials.verdict(1.0)
    before = normalized_loss(unchanged)
    tried = dict(trials.run(before))
    if not tried or not 0 < before < math.inf:
        return None
    best = min(tried, key=lambda factor: normalized_loss(tried[factor]))
    verdict = tried[best]
    return BodyScales(
        factor=best,
        given_back=max(1 - normalized_loss(verdict) / before, 0.0),
        least=min(tried),
        most=max(tried),
        passed=verdict.passed,
        scores=verdict.scores,
    )


@dataclass(frozen=True)
class _Trials:
    """Runs the candidate with other scales in the bodies of some groups."""

    lab: Lab
    groups: Collection[str]
    plan: Plan

    def run(self, before: float) -> Iterator[tuple[float, Verdict]]:
        """Yields factors of the scales and their verdicts, the factors nearest to 1 first.

        After the first factor that removes most of the loss ``before``, finer steps are tried around this
        factor in both directions, as long as the loss falls.
        """
        for factor in _FACTORS:
            if self.lab.clock.over:
                return
            verdict = self.verdict(factor)
            yield factor, verdict
            if normalized_loss(verdict) <= (1 - _ENOUGH) * before:
                yield from self._near(factor, normalized_loss(verdict))
                return

    def _near(self, factor: float, loss: float) -> Iterator[tuple[float, Verdict]]:
        """Yields factors near ``factor``, whose loss is given, and their verdicts."""
        for step in (_FINE, 1 / _FINE):
            near, least = factor * step, loss
            while not self.lab.clock.over:
                verdict = self.verdict(near)
                yield near, verdict
                if normalized_loss(verdict) >= least:
                    break
                near, least = near * step, normalized_loss(verdict)
            if least < loss:
                return

    def verdict(self, factor: float) -> Verdict:
        """The verdict with all scales of activations in the bodies multiplied by ``factor``."""
        int8 = self.lab.int8
        changed = _scaled(int8.every, self.groups, factor)
        form = replace(int8, network=changed) if int8.whole is None else replace(int8, whole=changed)
        return self.lab.judged_here(self.plan, form)


def _scaled(network: Network, names: Collection[str], factor: float) -> Network:
    groups = []
    for group in network.groups:
        if group.name in names:
            edges = tuple(_with_scale(edge, factor) for edge in group.body_edges)
            group = replace(group, body_edges=edges)
        groups.append(group)
    return replace(network, groups=tuple(groups))


def _with_scale(edge: Edge, factor: float) -> Edge:
    quantization = edge.quantization
    if quantization.values is not None:
        return edge
    scale = np.asarray(quantization.scale * np.asarray(factor, quantization.scale.dtype))
    return replace(edge, quantization=replace(quantization, scale=scale))
