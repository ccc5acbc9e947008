"""Labels: arrays of a file, lines of text, boxes of COCO's JSON, or what a function returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.data.files import MOST_BYTES, find, in_gib, read_arrays, too_much
from pytest_int8acc.data.scripts import load_function, looking_at, run_user
from pytest_int8acc.errors import DataError, error_text
from pytest_int8acc.files import readable
from pytest_int8acc.tensors import Array

_KINDS = ".npy, .npz, .txt (a line per sample), .json (COCO's instances), or file.py:function"


def load_labels(
    source: str, samples: int, base: Path, *, limited: bool = False, most: int = MOST_BYTES
) -> Array | dict[str, Array]:
    """Labels with one entry per sample on axis 0; one array, or several by name.

    Args:
        source: Relative to ``base``: .npy, .npz (with one array or several), .txt (UTF-8, a line per sample),
            .json (see ``read_coco``), or ``file.py:function`` that takes nothing and returns an array or a
            dict of arrays.
        samples: How many samples the inputs have.
        base: A folder.
        limited: The inputs were cut to ``samples``, so more labels are cut too.
        most: Bytes that an .npz may unpack to, and that a text may have.

    Raises:
        DataError: The labels cannot be read, or are too few or too many.
    """
    where = f"labels: {source}"
    if ".py:" in source or source.endswith(".py"):
        arrays = run_user(source, load_function(source, base))
    else:
        path = find(source, base, where)
        if path.suffix == ".txt":
            lines = _read_text(path, where, most).removesuffix("\n").split("\n")
            arrays = np.array(lines, dtype=np.str_)
        elif path.suffix == ".json":
            arrays = read_coco(_read_text(path, where, most), where)
        elif path.suffix in (".npy", ".npz"):
            arrays = read_arrays(path, where, most)
            arrays = next(iter(arrays.values())) if len(arrays) == 1 else arrays
        else:
            raise DataError(f"{where}: expected {_KINDS}")
    with looking_at(source):
        if isinstance(arrays, dict):
            named = [(str(name), item) for name, item in arrays.items()]
            found = {name: _to_array(item, f"{where}: '{name}'", source) for name, item in named}
            return {name: _fit(a, samples, limited, f"{where}: '{name}'") for name, a in found.items()}
        return _fit(_to_array(arrays, where, source), samples, limited, where)


def read_coco(text: str, where: str) -> NDArray[np.float64]:
    """The boxes of COCO's instances, [images, boxes, 7], images in the file's order.

    A box is x1, y1, x2, y2 in pixels, class, iscrowd, area. The class counts the categories by their id, from
    0; it is -1 where an image has fewer boxes than others. Format: https://cocodataset.org/#format-data.

    Raises:
        DataError: ``text`` is no such JSON.
    """
    try:
        held = json.loads(text)
        images = {image["id"]: place for place, image in enumerate(held["images"])}
        classes = {id_: n for n, id_ in enumerate(sorted(each["id"] for each in held["categories"]))}
        boxes: list[list[list[float]]] = [[] for _ in images]
        annotations = list(held["annotations"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{where}: no instances of COCO ({type(error).__name__}: {error_text(error)}); expected a "
            f"mapping with lists images, annotations and categories, each item with its id"
        ) from error
    for number, each in enumerate(annotations):
        try:
            x, y, width, height = map(float, each["bbox"])
            image, kind = images[each["image_id"]], classes[each["category_id"]]
            rest = [float(each.get("iscrowd", 0)), float(each.get("area", width * height))]
            if not all(map(np.isfinite, (x, y, *rest))) or not (0 <= width < np.inf and 0 <= height < np.inf):
                raise ValueError(f"bbox {each['bbox']} is no box")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{where}: annotation {number}: {type(error).__name__}: {error_text(error)}; expected "
                f"image_id and category_id of this file and bbox: [x, y, width, height] in pixels"
            ) from error
        boxes[image].append([x, y, x + width, y + height, kind, *rest])
    found = np.full((len(boxes), max(map(len, boxes), default=0), 7), -1.0)
    for place, some in enumerate(boxes):
        found[place, : len(some)] = np.reshape(some, (-1, 7))
    return found


def _read_text(path: Path, where: str, most: int) -> str:
    try:
        if (size := path.stat().st_size) > most:
            raise DataError(f"{where}: has {in_gib(size)}, {too_much(most)}")
        return readable(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: cannot be read as text in UTF-8: {error_text(error)}") from error


def _to_array(value: Any, where: str, ref: str) -> Array:
    try:
        array: Array = run_user(ref, np.asarray, value)
    except DataError as error:
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
