"""Reads labels: stored arrays, lines of text, boxes of COCO's JSON, or the result of a user's function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from pytest_int8acc.data.files import MOST_BYTES, find, in_gib, read_arrays, too_much
from pytest_int8acc.data.scripts import load_function, looking_at, run_user, user_array
from pytest_int8acc.errors import DataError, error_text
from pytest_int8acc.files import readable
from pytest_int8acc.tensors import Array


def load_labels(
    source: str,
    samples: int,
    base: Path,
    *,
    limited: bool = False,
    most: int = MOST_BYTES,
    key: str = "labels",
) -> Array | dict[str, Array]:
    """Return labels with one entry per sample on axis 0: one array, or several by name.

    Args:
        source: A path relative to ``base``: a .npy file, a .npz file (with one array or several), a .txt file
            (UTF-8, a line per sample), a .json file (COCO's instances), or a script with its function, as
            ``file.py:function``. The function takes no arguments and returns an array or a dict of arrays.
        samples: The number of samples that the inputs have.
        base: The folder that ``source`` is relative to.
        limited: Whether only the first ``samples`` of the inputs are used. If so, further labels are ignored.
        most: Maximum number of bytes of an unpacked .npz, and of a text file.
        key: The key of the spec that names the source, like ``labels``. Errors begin with it.

    Raises:
        DataError: The labels cannot be read, or are too few or too many.
    """
    where = f"{key}: {source}"
    found = _read(source, base, where, most)
    with looking_at(source):
        if not isinstance(found, dict):
            return _to_array(found, source, samples, limited, where, key)
        return {
            str(name): _to_array(item, source, samples, limited, f"{where}: '{name}'", key)
            for name, item in found.items()
        }


def _read(source: str, base: Path, where: str, most: int) -> Any:
    if ".py:" in source or source.endswith(".py"):
        return run_user(source, load_function(source, base))
    path = find(source, base, where)
    match path.suffix:
        case ".txt":
            lines = _read_text(path, where, most).removesuffix("\n").split("\n")
            return np.array(lines, dtype=np.str_)
        case ".json":
            return _read_coco(_read_text(path, where, most), where)
        case ".npy" | ".npz":
            arrays = read_arrays(path, where, most)
            return next(iter(arrays.values())) if len(arrays) == 1 else arrays
    kinds = ".npy, .npz, .txt (a line per sample), .json (COCO's instances), or file.py:function"
    raise DataError(f"{where}: expected {kinds}")


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Length = Annotated[float, Field(allow_inf_nan=False, ge=0)]


class _Image(BaseModel):
    id: int | str


class _Category(BaseModel):
    id: int


class _Annotation(BaseModel):
    """A box in an image."""

    image_id: int | str
    category_id: int
    bbox: tuple[_Finite, _Finite, _Length, _Length]
    """x, y, width and height in pixels."""
    iscrowd: _Finite = 0
    area: _Finite | None = None


class _Instances(BaseModel):
    """COCO's file format for object detection; see https://cocodataset.org/#format-data."""

    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Annotation]


def _read_coco(text: str, where: str) -> NDArray[np.float64]:
    """Return the boxes of COCO's instances, shape [images, boxes, 7], with images in the order of ``text``.

    A box is x1, y1, x2, y2 in pixels, class, iscrowd, area. The class is the index of the category after the
    categories are sorted by id. An image that has fewer boxes than others gets rows of -1 at its end.

    Raises:
        DataError: ``text`` is not COCO's JSON, or a box names an unknown image or category.
    """
    try:
        instances = _Instances.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{where}: no instances of COCO: {f'{place}: ' if place else ''}{first['msg']}; expected a "
            f"mapping with lists images, annotations and categories, each item with its id, and each "
            f"annotation with image_id, category_id and bbox: [x, y, width, height] in pixels"
        ) from error
    places = {image.id: place for place, image in enumerate(instances.images)}
    classes = {id_: n for n, id_ in enumerate(sorted(category.id for category in instances.categories))}
    boxes: list[list[list[float]]] = [[] for _ in instances.images]
    for number, annotation in enumerate(instances.annotations):
        if annotation.image_id not in places or annotation.category_id not in classes:
            raise DataError(
                f"{where}: annotation {number}: image_id {annotation.image_id} or category_id "
                f"{annotation.category_id} is not in this file's images or categories"
            )
        x, y, width, height = annotation.bbox
        area = width * height if annotation.area is None else annotation.area
        box = [x, y, x + width, y + height, classes[annotation.category_id], annotation.iscrowd, area]
        boxes[places[annotation.image_id]].append(box)
    found = np.full((len(boxes), max(map(len, boxes), default=0), 7), -1.0)
    for row, boxes_of_image in zip(found, boxes, strict=True):
        if boxes_of_image:
            row[: len(boxes_of_image)] = boxes_of_image
    return found


def _read_text(path: Path, where: str, most: int) -> str:
    try:
        if (size := path.stat().st_size) > most:
            raise DataError(f"{where}: has {in_gib(size)}, {too_much(most)}")
        return readable(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: cannot be read as text in UTF-8: {error_text(error)}") from error


def _to_array(value: Any, source: str, samples: int, limited: bool, where: str, key: str) -> Array:
    """Return the labels ``value`` as an array with ``samples`` entries, one per sample, on axis 0.

    With ``limited``, further entries are dropped. ``source``, ``where`` and ``key`` are used in messages.

    Raises:
        DataError: ``value`` cannot become an array, or has too few or too many entries.
    """
    array = user_array(source, value, where)
    if array.dtype == object:
        found = "nothing" if value is None else f"Python objects ({type(value).__name__})"
        raise DataError(f"{where}: returned {found}, expected an array of numbers or text, or a dict of them")
    count = len(array) if array.ndim else 0
    if count < samples or (count > samples and not limited):
        raise DataError(
            f"{where}: {count} {key} (shape {array.shape}) for {samples} samples; "
            f"axis 0 must hold one {key.removesuffix('s')} per sample, in the order of the inputs"
        )
    return array[:samples]
