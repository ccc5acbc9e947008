"""Inputs in a file that is small enough to carry: integers and halves in place of floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.tensors import Array, Feed


@dataclass(frozen=True)
class Stored:
    """One input of a model. What the model gets is ``values * scale + offset``, broadcast, as ``dtype``."""

    values: Array
    """Samples first."""
    scale: Any = 1.0
    offset: Any = 0.0
    dtype: str = "float32"


def save(path: Path, inputs: Mapping[str, Stored]) -> None:
    """Write all inputs of a model to one compressed ``.npz``."""
    arrays = dict[str, Array]()
    for name, stored in inputs.items():
        arrays[f"{name}|values"] = stored.values
        arrays[f"{name}|scale"] = np.asarray(stored.scale, np.float32)
        arrays[f"{name}|offset"] = np.asarray(stored.offset, np.float32)
        arrays[f"{name}|dtype"] = np.asarray(stored.dtype)
    np.savez_compressed(path, **arrays)


def load(path: Path) -> Feed:
    """Read what the model gets: an array for each input, samples first."""
    feed = dict[str, Array]()
    with np.load(path) as arrays:
        for name in sorted({key.rpartition("|")[0] for key in arrays}):
            values = arrays[f"{name}|values"]
            dtype = np.dtype(str(arrays[f"{name}|dtype"]))
            if dtype.kind == "f":
                values = values.astype(np.float32) * arrays[f"{name}|scale"] + arrays[f"{name}|offset"]
            feed[name] = np.ascontiguousarray(values.astype(dtype))
    return feed
