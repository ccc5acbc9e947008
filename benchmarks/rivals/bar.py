"""The bar that every tool must meet, and the account of what it spends; NumPy only, so it runs anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

#: Of the float model's top-1 accuracy, absolute.
TOP1_DROP = 0.005
#: The bar of tasks that say no other: mean over images of the cosine similarity of the logits.
COSINE = 0.999
#: Images that a search may see; those after them are kept for judging what it found.
SEARCH = 400
BATCH = 50


@dataclass
class Task:
    """A model with planted culprits, images, and what is spent on it."""

    folder: Path
    images: Floats
    labels: NDArray[np.integer]
    reference: Floats
    """The float model's logits."""
    calibration: Floats
    bar: float = COSINE
    """Mean over images of the cosine similarity of the logits."""
    evaluations: float = 0.0
    """In equivalents of all images that the search may see."""
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def load(cls, folder: Path) -> Task:
        """Read what ``tasks.write`` wrote."""
        with np.load(folder / "data.npz") as data:
            arrays = (data[name] for name in ("images", "labels", "reference", "calibration"))
            return cls(folder, *arrays, float(data["bar"]))

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.folder / "model.onnx"

    def batches(self, indices: Iterable[int]) -> list[list[int]]:
        """Image indices in runs of ``BATCH``."""
        chosen = list(indices)
        return [chosen[i : i + BATCH] for i in range(0, len(chosen), BATCH)]

    def evaluate(self, run: Callable[[Floats], Floats], indices: Iterable[int] | None = None) -> Floats:
        """Logits of images that the search may see, counted as an evaluation."""
        chosen = list(range(SEARCH) if indices is None else indices)
        self.evaluations += len(chosen) / SEARCH
        return np.concatenate([run(self.images[batch]) for batch in self.batches(chosen)])

    def score(self, logits: Floats, indices: Iterable[int] | None = None) -> float:
        """One number for tools that take one: the mean cosine, less 1 where top-1 fell too far."""
        chosen = list(range(SEARCH) if indices is None else indices)
        return float(cosines(self.reference[chosen], logits).mean()) - (not self.top1_holds(logits, chosen))

    def top1_holds(self, logits: Floats, chosen: list[int]) -> bool:
        """Whether top-1 accuracy on these images fell by at most ``TOP1_DROP``."""
        truth = self.labels[chosen]
        before = (self.reference[chosen].argmax(1) == truth).mean()
        return bool((logits.argmax(1) == truth).mean() >= before - TOP1_DROP - 1e-9)

    def passes(self, logits: Floats, chosen: list[int]) -> bool:
        """Whether the bar is met on these images."""
        return bool(self.score(logits, chosen) >= self.bar)

    def report(
        self, run: Callable[[Floats], Floats], tool: str, kept: Iterable[str], seconds: float, **more: object
    ) -> None:
        """Write the tool's result: layers kept, what was spent, and the bar on images seen and unseen.

        ``seconds`` are those of the search, from its first evaluation on: what quantizes, calibrates and
        builds before that is in the total.
        """
        total = time.perf_counter() - self.began
        chosen = list(range(len(self.images)))
        logits = np.concatenate([run(self.images[batch]) for batch in self.batches(chosen)])
        result = {
            "tool": tool,
            "kept": sorted(kept),
            "evaluations": self.evaluations,
            "search_seconds": seconds,
            "total_seconds": total,
            "passes": self.passes(logits[:SEARCH], chosen[:SEARCH]),
            "passes_unseen": self.passes(logits[SEARCH:], chosen[SEARCH:]),
            "cosine": float(cosines(self.reference[:SEARCH], logits[:SEARCH]).mean()),
            **more,
        }
        (self.folder / "result.json").write_text(json.dumps(result, indent=1))


def cosines(a: Floats, b: Floats) -> Floats:
    """Cosine similarity of each row."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(1) / np.maximum(norms, 1e-30)
