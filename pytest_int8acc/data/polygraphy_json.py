"""Inputs saved by ``polygraphy run --save-inputs``: a file of feed dicts, or a folder of such files.

The format is that of polygraphy.json 0.53: a list of ``{input: array}``, or one of them; an array is
``{"array": base64 of a .npy file, "polygraphy_class": "ndarray"}``. It is decoded here, not by
``polygraphy.json.load_json``, which decodes whatever class a file names, also torch tensors.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.data.source import Located
from pytest_int8acc.errors import DataError
from pytest_int8acc.tensors import Array, Feed

_ADVICE = "save inputs with: polygraphy run model.onnx --onnxrt --save-inputs inputs.json"
_OUTPUTS = ("RunResults", "IterationResult", "LazyArray", "LazyNumpyArray")


def read_feeds(path: Path, where: str) -> Iterator[Located]:
    """The feeds of one file, which is read whole.

    Raises:
        DataError: The file is not JSON, or not of feed dicts of NumPy arrays.
    """
    data = _parse(path, where)
    for index, feed in enumerate(data if isinstance(data, list) else [data]):
        here = f"{where}: feed {index}"
        yield here, _check_feed(feed, here)


def _parse(path: Path, where: str) -> Any:
    def decode(pairs: list[tuple[str, Any]]) -> Any:
        return _decode(dict(pairs), where)

    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=decode)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{error.lineno}:{error.colno}: not JSON: {error.msg}; {_ADVICE}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{where}: not JSON that Polygraphy writes ({error}); {_ADVICE}") from error
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror}") from error


def _decode(value: dict[str, Any], where: str) -> Any:
    """An array where the dict encodes one, the dict itself where it names no class."""
    kind = value.get("polygraphy_class")
    if not isinstance(kind, str):
        return value
    if kind in _OUTPUTS:
        raise DataError(f"{where}: holds the outputs of a run (--save-outputs), not inputs; {_ADVICE}")
    if kind == "Tensor":
        raise DataError(f"{where}: holds torch tensors; save NumPy arrays instead: tensor.numpy()")
    if kind != "ndarray":
        raise DataError(f"{where}: holds a '{kind}', expected NumPy arrays; {_ADVICE}")
    try:
        packed = io.BytesIO(base64.b64decode(value["array"], validate=True))
        array = np.load(packed, allow_pickle=False)
    except (KeyError, TypeError, binascii.Error, ValueError, EOFError, OSError, MemoryError) as error:
        raise DataError(f"{where}: an array is damaged or pickled; {_ADVICE}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{where}: an array is in a form of old Polygraphy releases; {_ADVICE}")
    return array


def _check_feed(feed: Any, here: str) -> Feed:
    if not isinstance(feed, dict):
        raise DataError(
            f"{here} is of type {type(feed).__name__}, expected a dict of input name to array; {_ADVICE}"
        )
    for name, array in feed.items():
        if not isinstance(array, np.ndarray):
            raise DataError(
                f"{here}: '{name}' is of type {type(array).__name__}, expected an encoded array; {_ADVICE}"
            )
    arrays: dict[str, Array] = feed
    return arrays
