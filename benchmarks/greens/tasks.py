"""Metrics of tasks in plain numpy, apart from the plugin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.greens.graph import Array


def top1(scores: Array, labels: Array, axis: int = -1) -> float:
    """Share of labels that are the greatest class; a tie or a NaN is no answer."""
    scores = np.moveaxis(scores, axis, -1)
    best = scores.max(-1, keepdims=True)
    alone = (scores == best).sum(-1) == 1
    return float(((scores.argmax(-1) == labels) & alone).mean())


def miou(scores: Array, labels: Array) -> float:
    """Mean intersection over union of the classes in ``labels``; scores [N, classes, H, W]; ties are none."""
    best = scores.max(1, keepdims=True)
    found = np.where((scores == best).sum(1) == 1, scores.argmax(1), -1)
    values = []
    for label in np.unique(labels):
        together, either = (
            ((found == label) & (labels == label)).sum(),
            ((found == label) | (labels == label)).sum(),
        )
        values.append(together / either)
    return float(np.mean(values))


def sqnr(honest: Array, low: Array) -> float:
    """Signal to noise in dB."""
    honest, low = honest.astype(np.float64), low.astype(np.float64)
    noise = float(((honest - low) ** 2).sum())
    if noise == 0:
        return np.inf
    return float(10 * np.log10(max(float((honest**2).sum()), 1e-300) / noise))


def detections(boxes: Array, scores: Array, threshold: float = 0.25) -> list[Array]:
    """Boxes [N, A, 4] and scores [N, A, C] to arrays [n, 6] of a sample: x, y, w, h, score, class."""
    found = []
    for places, classes in zip(boxes, scores, strict=True):
        best = classes.max(-1)
        rows = np.nonzero(best > threshold)[0]
        parts = [places[rows], best[rows, None], classes[rows].argmax(-1)[:, None]]
        found.append(np.concatenate(parts, 1))
    return found


def f1(found: Sequence[Array], truth: Sequence[Array], overlap: float = 0.5) -> float:
    """F1 of detections: a truth [n, 5] of x, y, w, h, class is hit once, by class and overlap."""
    hits = made = wanted = 0
    for boxes, objects in zip(found, truth, strict=True):
        made, wanted = made + len(boxes), wanted + len(objects)
        free = list(range(len(objects)))
        for box in sorted(boxes, key=lambda row: -row[4]):
            for place in free:
                if objects[place][4] == box[5] and _iou(box[:4], objects[place][:4]) > overlap:
                    hits += 1
                    free.remove(place)
                    break
    return 2 * hits / max(made + wanted, 1)


def _iou(a: Array, b: Array) -> float:
    low = np.maximum(a[:2] - a[2:4] / 2, b[:2] - b[2:4] / 2)
    high = np.minimum(a[:2] + a[2:4] / 2, b[:2] + b[2:4] / 2)
    common = float(np.prod(np.clip(high - low, 0, None)))
    return common / max(float(a[2] * a[3] + b[2] * b[3]) - common, 1e-9)


def texts(scores: Array, words: Sequence[str], blank: int) -> list[str]:
    """Scores [N, T, classes] to texts: the best class of each step, repeats and blanks left out."""
    lines = []
    for row in scores.argmax(-1):
        kept = [int(c) for c, before in zip(row, [blank, *row[:-1]], strict=True) if c not in (blank, before)]
        lines.append(" ".join(words[c] for c in kept))
    return lines


def word_accuracy(found: Sequence[str], truth: Sequence[str]) -> float:
    """1 - word error rate."""
    errors = sum(_edits(a.split(), b.split()) for a, b in zip(found, truth, strict=True))
    return 1 - errors / max(sum(len(line.split()) for line in truth), 1)


def _edits(a: Sequence[str], b: Sequence[str]) -> int:
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]
