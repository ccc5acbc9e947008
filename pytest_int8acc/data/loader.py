"""Feeds from a user's loader script, by Polygraphy's convention: a function that yields feed dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.data.scripts import iterate_user, load_function
from pytest_int8acc.data.source import Located, Source
from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Feed


def loader_source(ref: str, base: Path, what: str) -> Source:
    """The feeds of ``file.py:function``; the script is run afresh for each pass, the first time here.

    Raises:
        DataError: The script or its function cannot be loaded.
    """
    load_function(ref, base)
    return Source(lambda: _feeds(ref, base, what))


def _feeds(ref: str, base: Path, what: str) -> Iterator[Located]:
    for index, item in enumerate(iterate_user(ref, load_function(ref, base))):
        here = f"{what}: {ref}: feed {index}"
        yield here, _to_feed(item, here)


def _to_feed(item: Any, here: str) -> Feed:
    """Copies: a loader may fill the same buffer again for its next feed."""
    if not isinstance(item, Mapping):
        raise DataError(f"{here} is of type {type(item).__name__}, expected a dict of input name to array")
    feed: Feed = {}
    for name, value in item.items():
        if not isinstance(name, str):
            raise DataError(f"{here} has the key {name!r}, expected the name of an input")
        try:
            feed[name] = np.array(value)
        except Exception as error:  # whatever an object's own __array__ raises
            raise DataError(
                f"{here}: '{name}' of type {type(value).__name__} cannot become a NumPy array ({error}); "
                f"yield NumPy arrays"
            ) from error
    return feed
