"""Boxes of object detectors: layouts of detectors' outputs, and COCO's mean average precision.

A box is a row x1, y1, x2, y2, score, class. Coordinates are in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import numpy as np

from pytest_int8acc.errors import CriterionError, DataError
from pytest_int8acc.scores.rows import F64
from pytest_int8acc.tensors import Array

#: Minimum score of a box from YOLO. Boxes with a lower score are dropped, as in the validation of
#: Ultralytics.
_MIN_SCORE = 0.001
#: A box is suppressed if its IoU with a box of a higher score exceeds this number, as in the validation of
#: Ultralytics.
_MAX_IOU = 0.7
#: Maximum numbers of boxes of one sample before and after non-maximum suppression, as in Ultralytics.
_MAX_BEFORE, _MAX_AFTER = 30_000, 300


def decoded(layout: str, output: Array) -> list[F64]:
    """Returns the boxes of each sample, [boxes, 6], from a detector's output.

    Boxes of YOLO go through non-maximum suppression.

    Args:
        layout: ``xyxy`` is [samples, boxes, 6] and holds boxes already. ``yolov8`` is [samples, 4 + classes,
            places] and holds centre, size and a score for each class. ``yolov5`` is [samples, places, 5 +
            classes], with an objectness by which scores are multiplied. A place is one candidate box.
        output: The output of the detector.

    Raises:
        CriterionError: The output has another shape.
    """
    least = {"xyxy": 6, "yolov8": 5, "yolov5": 6}[layout]
    rows = np.asarray(output, np.float64)
    rows = np.moveaxis(rows, 1, -1) if layout == "yolov8" and rows.ndim == 3 else rows
    if rows.ndim != 3 or rows.shape[2] < least or (layout == "xyxy" and rows.shape[2] != 6):
        expected_text = {
            "xyxy": "[samples, boxes, 6]",
            "yolov8": "[samples, 4 + classes, places]",
            "yolov5": "[samples, places, 5 + classes]",
        }[layout]
        raise CriterionError(
            f"'decode: {layout}' needs an output {expected_text}, this one has {output.shape}"
        )
    if layout == "xyxy":
        return [finite(each) for each in rows]
    scores = rows[..., 4:] if layout == "yolov8" else rows[..., 5:] * rows[..., 4:5]
    half = rows[..., 2:4] / 2
    corners = np.concatenate([rows[..., :2] - half, rows[..., :2] + half], axis=-1)
    return [_candidates(*each) for each in zip(corners, scores, strict=True)]


def finite(boxes: F64) -> F64:
    """Returns the boxes that hold no NaN and no infinity, and whose score, in column 4, is above 0."""
    return boxes[np.isfinite(boxes).all(axis=1) & (boxes[:, 4] > 0)]


def check_labels(labels: Array) -> None:
    """Raises DataError unless labels are boxes, [samples, boxes, 5 to 7 columns].

    The columns are x1, y1, x2, y2, class, iscrowd and area. A box with a class below 0 is padding, and is not
    checked.
    """
    expected_text = "expected x1, y1, x2, y2, class, and iscrowd and area where known"
    if not 5 <= labels.shape[2] <= 7:
        raise DataError(f"labels: boxes of {labels.shape[2]} numbers (shape {labels.shape}); {expected_text}")
    kept = labels[..., 4] >= 0
    good = np.isfinite(labels).all(axis=-1) & (labels[..., 2:4] >= labels[..., :2]).all(axis=-1)
    if (kept & ~good).any() or np.isnan(labels[..., 4]).any():
        sample, place = np.argwhere((kept & ~good) | np.isnan(labels[..., 4]))[0]
        box = labels[sample, place].tolist()
        raise DataError(
            f"labels: box {place} of sample {sample} is {box}, which ends before it starts; {expected_text}"
        )


def _candidates(corners: F64, scores: F64) -> F64:
    place, kind = np.nonzero(scores > _MIN_SCORE)
    boxes = np.concatenate([corners[place], scores[place, kind][:, None], kind[:, None]], axis=1)
    boxes = finite(boxes)
    return suppressed(boxes[np.argsort(-boxes[:, 4], kind="stable")][:_MAX_BEFORE])


def suppressed(boxes: F64) -> F64:
    """Returns the boxes that greedy non-maximum suppression keeps, class by class, at most ``_MAX_AFTER``.

    Args:
        boxes: The boxes, [boxes, 6], sorted by falling score.
    """
    kept: list[F64] = []
    while len(boxes) and len(kept) < _MAX_AFTER:
        first, boxes = boxes[0], boxes[1:]
        kept.append(first)
        sides = np.minimum(boxes[:, 2:4], first[2:4]) - np.maximum(boxes[:, :2], first[:2])
        common = np.clip(sides, 0, None).prod(axis=1)
        union = np.prod(first[2:4] - first[:2]) + np.prod(boxes[:, 2:4] - boxes[:, :2], axis=1) - common
        boxes = boxes[(common <= _MAX_IOU * union) | (boxes[:, 5] != first[5])]
    return np.array(kept).reshape(-1, 6)


def coco_map(records: Sequence[tuple[F64, F64]]) -> float:
    """Returns COCO's AP, 0 to 1: the mean of the average precision over classes and over IoU 0.5 to 0.95.

    The result is nan without labels. faster-coco-eval computes it as pycocotools does, from at most 100 boxes
    a sample.

    Args:
        records: For each sample, the predicted boxes and the labels. A label is a row x1, y1, x2, y2, class.
            Two columns may follow: iscrowd (default 0) and area (default: the area of the box).
    """
    coco = import_module("faster_coco_eval")
    truth: list[dict[str, object]] = []
    found = [np.zeros((0, 7))]
    for image, (boxes, labels) in enumerate(records):
        found.append(np.column_stack([np.full(len(boxes), image), _sized(boxes), boxes[:, 4:6]]))
        for label, box in zip(labels, _sized(labels).tolist(), strict=True):
            crowd = int(label[5]) if len(label) > 5 else 0
            area = float(label[6]) if len(label) > 6 else box[2] * box[3]
            one = {"image_id": image, "category_id": int(label[4]), "bbox": box, "area": area}
            truth.append({"id": len(truth) + 1, "iscrowd": crowd, **one})
    detections = np.concatenate(found)
    if not truth or not len(detections):
        return 0.0 if truth else float("nan")
    known = np.unique(np.concatenate([detections[:, 6], *(labels[:, 4] for _, labels in records)])).astype(
        int
    )
    every = coco.COCO()
    every.dataset = {
        "images": [{"id": image} for image in range(len(records))],
        "annotations": truth,
        "categories": [{"id": kind, "name": str(kind)} for kind in known.tolist()],
    }
    every.createIndex()
    run = coco.COCOeval_faster(every, every.loadRes(detections), "bbox")
    run.evaluate()
    run.accumulate()
    precision = run.eval["precision"][:, :, :, 0, -1]
    return float(precision[precision > -1].mean())


def _sized(boxes: F64) -> F64:
    """Returns x1, y1, width and height of boxes whose first columns are x1, y1, x2, y2; [boxes, 4]."""
    return np.concatenate([boxes[:, :2], boxes[:, 2:4] - boxes[:, :2]], axis=1)
