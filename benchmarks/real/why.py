"""What reports of real models say about why they fail, each sentence tried by hand in plain ONNX Runtime."""

from __future__ import annotations

import random

from benchmarks.real.models import MODELS, QUANTIZERS
from benchmarks.real.unseen import LIMITS, SIZES, Key

#: Chosen and committed before any case of this benchmark ran. It draws samples, their number, and the order.
SEED = 58214763


def tasks(seed: int = SEED) -> list[Key]:
    """Each model with each quantizer and limit once, in random order: a run cut short is a fair share."""
    rng = random.Random(seed)
    found = [
        (model.name, quantizer, limit, rng.choice(SIZES), 0)
        for model in MODELS
        for quantizer in QUANTIZERS
        for limit in LIMITS
    ]
    rng.shuffle(found)
    return found
