"""Labels for a user's metric: stored, or from a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.data.files import find, read_arrays
from pytest_int8acc.data.scripts import load_function, run_user
from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Array


def load_labels(source: str, samples: int, base: Path, *, limited: bool = False) -> Array | dict[str, Array]:
    """Labels with one entry per sample on axis 0; one array, or several by name.

    Args:
        source: Relative to ``base``: .npy, .npz (with one array or several), or ``file.py:function`` that
            takes nothing and returns an array or a dict of arrays.
        samples: How many samples the inputs have.
        base: A folder.
        limited: The inputs were cut to ``samples``, so more labels are cut too.

    Raises:
        DataError: The labels cannot be read, or are too few or too many.
    """
    where = f"labels: {source}"
    if ".py:" in source or source.endswith(".py"):
        arrays = _from_script(run_user(source, load_function(source, base)), where)
    else:
        path = find(source, base, where)
        if path.suffix not in (".npy", ".npz"):
            raise DataError(f"{where}: expected .npy, .npz, or file.py:function")
        arrays = read_arrays(path, where)
        if len(arrays) == 1:
            return _fit(next(iter(arrays.values())), samples, limited, where)
    if isinstance(arrays, dict):
        return {name: _fit(a, samples, limited, f"{where}: '{name}'") for name, a in arrays.items()}
    return _fit(arrays, samples, limited, where)


def _from_script(value: Any, where: str) -> Array | dict[str, Array]:
    if isinstance(value, dict):
        return {str(name): _to_array(item, f"{where}: '{name}'") for name, item in value.items()}
    return _to_array(value, where)


def _to_array(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever an object's own __array__ raises
        raise DataError(f"{where}: {type(value).__name__} cannot become a NumPy array ({error})") from error
    if array.dtype == object:
        found = "nothing" if value is None else f"Python objects ({type(value).__name__})"
        raise DataError(f"{where}: returned {found}, expected an array of numbers or text, or a dict of them")
    return array


def _fit(array: Array, samples: int, limited: bool, where: str) -> Array:
    found = len(array) if array.ndim else 0
    if found < samples or (found > samples and not limited):
        raise DataError(
            f"{where}: {found} labels (shape {array.shape}) for {samples} samples; "
            f"axis 0 must hold one label per sample, in the order of the inputs"
        )
    return array[:samples]
