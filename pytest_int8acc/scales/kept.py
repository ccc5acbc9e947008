"""Ranges kept in the engine store by the histograms that they were chosen from.

ONNX Runtime's entropy search takes up to a second per tensor, and its answer depends on the histogram alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.engines.calibrators import runtime_version
from pytest_int8acc.engines.remote import RemoteStore
from pytest_int8acc.engines.store import Store
from pytest_int8acc.errors import EngineError

logger = logging.getLogger("pytest_int8acc")

_FILE = "ranges.json"
#: Raised where the same histogram gives another range.
_FORMAT = 1


def keep_ranges(
    store: Store | RemoteStore,
    histograms: Mapping[str, NDArray[np.int64]],
    amax: Mapping[str, float],
    choose: Callable[[], dict[str, float]],
) -> dict[str, float]:
    """The ranges that ``choose`` gives, or gave before for the same histograms.

    Where the store cannot be used, that is logged, and the ranges are chosen anew.

    Args:
        store: Where they are kept; processes that want the same ones wait for the first.
        histograms: Per tensor, over [-amax, amax].
        amax: Greatest magnitude of each tensor.
        choose: Gives a magnitude per tensor.
    """
    found: dict[str, float] = {}

    def fill(folder: Path) -> None:
        found.update(choose())
        (folder / _FILE).write_text(json.dumps(list(found.values())), encoding="utf-8")

    try:
        with store.fetch(_key(histograms, amax), fill) as entry:
            if not found:
                ranges = json.loads(entry.path(_FILE).read_text(encoding="utf-8"))
                found.update(zip(histograms, ranges, strict=True))
                logger.info("calibration: %d ranges taken from the store, %s", len(found), entry.folder)
    except EngineError as error:
        logger.info("calibration: ranges are not kept: %s", error)
    return found or choose()


def _key(histograms: Mapping[str, NDArray[np.int64]], amax: Mapping[str, float]) -> str:
    """BLAKE2b of the histograms in their order; the tensors' names have no part in it."""
    digest = hashlib.blake2b(f"{_FORMAT} {runtime_version()}".encode(), digest_size=20)
    for tensor, counts in histograms.items():
        digest.update(f"{float(amax[tensor]).hex()} {counts.size} ".encode())
        digest.update(np.ascontiguousarray(counts).data)
    return digest.hexdigest()
