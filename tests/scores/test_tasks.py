"""Metrics of labels: each equal to its library's number, from records of samples however they are batched."""

from __future__ import annotations

import contextlib
import io
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import evaluate_metric, judged

from pytest_int8acc import CriterionError, DataError, Score
from pytest_int8acc.data import load_labels
from pytest_int8acc.data.scripts import load_function
from pytest_int8acc.scores import boxes
from pytest_int8acc.scores.criteria import MetricLimit
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.tasks import Task, TaskRun
from pytest_int8acc.scores.user_metric import MetricRun
from pytest_int8acc.tensors import TensorInfo


def library(name, wanted=None):
    """A library that a metric is compared with, or by which it is computed."""
    return pytest.importorskip(name, reason=f"needs {name}: pip install {wanted or name}")


def fed(task, outputs, labels, cuts=()):
    """A run over outputs [samples, ...], in batches."""
    run = TaskRun(task, labels)
    for start, end in pairwise([0, *cuts, len(outputs)]):
        run.add({}, {"y": outputs[start:end]}, range(start, end))
    return run


def value(task, outputs, labels, cuts=()):
    return fed(task, outputs, labels, cuts).value()


@st.composite
def classified(draw):
    """Scores with a class axis, labels without it, that axis, and where to cut; some labels are 255."""
    classes, tail = draw(st.integers(6, 9)), draw(st.sampled_from([(), (), (3,), (4, 5)]))
    count = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    axis = 1 + draw(st.integers(0, len(tail)))
    scores = rng.normal(size=(count, *tail, classes)).astype(np.float32)
    labels = rng.integers(0, draw(st.integers(2, classes)), (count, *tail))
    at = np.take_along_axis(scores, labels[..., None], -1) + draw(st.sampled_from([0, 1, 4]))
    np.put_along_axis(scores, labels[..., None], at, -1)
    ignored = draw(st.booleans())
    if ignored and labels.size > 1:
        labels.flat[rng.integers(1, labels.size)] = 255
    cuts = sorted(draw(st.sets(st.integers(1, count), max_size=3)) - {count})
    options = {"axis": axis, "ignore": 255 if ignored else None}
    return np.moveaxis(scores, -1, axis), labels, options, cuts


@settings(max_examples=40, deadline=None)
@given(data=classified())
def test_classes_are_counted_as_scikit_learn_counts_them(data):
    sklearn = library("sklearn.metrics", "scikit-learn")
    scores, labels, options, cuts = data
    rows = np.moveaxis(scores, options["axis"], -1).reshape(-1, scores.shape[options["axis"]])
    counted = labels.ravel() != 255
    truth, rows, guess = labels.ravel()[counted], rows[counted], rows[counted].argmax(axis=1)
    classes = range(rows.shape[1])
    wanted = {
        Task("top1", **options): sklearn.accuracy_score(truth, guess),
        Task("top5", **options): sklearn.top_k_accuracy_score(truth, rows, k=5, labels=classes),
        Task("miou", **options): sklearn.jaccard_score(truth, guess, average="macro"),
        **{
            Task("f1", average=average, **options): sklearn.f1_score(truth, guess, average=average)
            for average in ("macro", "micro", "weighted")
        },
        Task("f1", average="binary", **options): sklearn.f1_score(truth == 1, guess == 1, zero_division=0),
    }
    for task, expected in wanted.items():
        assert value(task, scores, labels, cuts) == pytest.approx(expected, abs=1e-12), task
    ids = np.moveaxis(scores, options["axis"], -1).argmax(axis=-1)
    for task, expected in wanted.items():
        if task.name != "top5":  # of a model that gives classes, not scores
            assert value(task, ids, labels, cuts) == pytest.approx(expected, abs=1e-12), task


def test_images_are_compared_as_scikit_image_compares_them():
    metrics = library("skimage.metrics", "scikit-image")
    rng = np.random.default_rng(1)
    truth = rng.random((5, 3, 16, 20)).astype(np.float32)
    image = (truth + rng.normal(0, 0.1, truth.shape)).astype(np.float32)
    ssim = metrics.structural_similarity
    pairs = [(t.astype(np.float64), i.astype(np.float64)) for t, i in zip(truth, image, strict=True)]
    psnr = [metrics.peak_signal_noise_ratio(t, i, data_range=1.0) for t, i in pairs]
    assert value(Task("psnr"), image, truth, [2]) == pytest.approx(np.mean(psnr), rel=1e-12)
    channels = [ssim(t, i, data_range=1.0, channel_axis=0) for t, i in pairs]
    assert value(Task("ssim"), image, truth, [2]) == pytest.approx(np.mean(channels), rel=1e-12)
    grey = [ssim(t[0], i[0], data_range=1.0) for t, i in pairs]
    assert value(Task("ssim"), image[:, 0], truth[:, 0], [2]) == pytest.approx(np.mean(grey), rel=1e-12)
    last = (np.moveaxis(a, 1, -1) for a in (image, truth))
    assert value(Task("ssim", axis=-1), *last) == pytest.approx(np.mean(channels), rel=1e-12)
    last = (np.moveaxis(a, 1, -1) for a in (image, truth))
    assert value(Task("ssim", axis=3), *last) == pytest.approx(np.mean(channels), rel=1e-12)
    stored = (truth * 255).astype(np.uint8)
    wide = [
        metrics.peak_signal_noise_ratio(t.astype(np.float64), i.astype(np.float64) * 255, data_range=255)
        for t, i in zip(stored, image, strict=True)
    ]
    assert value(Task("psnr"), image * 255, stored) == pytest.approx(np.mean(wide), rel=1e-6)
    assert value(Task("psnr", data_range=2.0), image, truth) == pytest.approx(
        np.mean(psnr) + 20 * np.log10(2)
    )


WORDS = st.lists(st.sampled_from(["a", "b", "see", "the", "sea"]), max_size=6).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(WORDS.filter(bool), WORDS), min_size=1, max_size=8))
def test_word_error_rate_is_jiwers(pairs):
    jiwer = library("jiwer")
    truth, texts = (list(side) for side in zip(*pairs, strict=True))
    found = value(Task("wer"), np.array(texts, object), np.array(truth), [len(texts) // 2])
    assert found == pytest.approx(jiwer.wer(truth, texts), abs=1e-12)


def test_words_where_nothing_was_said_are_errors():
    library("jiwer")
    truth, texts = np.array(["", "a b"]), np.array(["um", "a b"], object)
    assert value(Task("wer"), texts, truth) == 0.5
    assert math.isnan(value(Task("wer"), texts[:1], truth[:1]))


def scene(seed, images=30, classes=4):
    """COCO's JSON of boxes, some of them crowds, and detections near most of them."""
    rng = np.random.default_rng(seed)
    ids = [int(i) for i in rng.permutation(1000)[:images]]
    annotations, detections = [], []
    for place, image in enumerate(ids):
        for _ in range(rng.integers(0, 7)):
            x, y, w, h = (float(v) for v in (*rng.uniform(0, 300, 2), *rng.uniform(5, 150, 2)))
            kind = int(rng.integers(classes))
            one = {"id": len(annotations) + 1, "image_id": image, "category_id": 10 * kind + 3}
            crowd = int(rng.random() < 0.1)
            annotations.append({**one, "bbox": [x, y, w, h], "area": 0.7 * w * h, "iscrowd": crowd})
            for _ in range(rng.integers(0, 3)):
                box = np.array([x, y, x + w, y + h]) + rng.normal(0, 6, 4)
                detections.append((place, *box, rng.random(), kind if rng.random() < 0.9 else 0))
    categories = [{"id": 10 * kind + 3, "name": str(kind)} for kind in reversed(range(classes))]
    coco = {"images": [{"id": i} for i in ids], "annotations": annotations, "categories": categories}
    return coco, np.array(detections).reshape(-1, 7)


def padded(detections, images):
    """Detections as an output [images, boxes, 6]; rows of score 0 fill up."""
    most = max(int((detections[:, 0] == i).sum()) for i in range(images))
    found = np.zeros((images, most, 6))
    for image in range(images):
        rows = detections[detections[:, 0] == image, 1:]
        found[image, : len(rows)] = rows
    return found


@pytest.mark.parametrize("seed", range(4))
def test_coco_map_is_pycocotools(tmp_path: Path, seed: int):
    library("faster_coco_eval", "faster-coco-eval")
    coco = library("pycocotools.coco", "pycocotools")
    evaluation = library("pycocotools.cocoeval", "pycocotools")
    truth, detections = scene(seed)
    (tmp_path / "instances.json").write_text(json.dumps(truth))
    rows = [
        {
            "image_id": truth["images"][int(image)]["id"],
            "category_id": 10 * int(kind) + 3,
            "bbox": [x, y, x2 - x, y2 - y],
            "score": score,
        }
        for image, x, y, x2, y2, score, kind in detections.tolist()
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        gold = coco.COCO(str(tmp_path / "instances.json"))
        run = evaluation.COCOeval(gold, gold.loadRes(rows), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    labels = load_labels("instances.json", 30, tmp_path)
    found = value(Task("coco_map", decode="xyxy"), padded(detections, 30), labels, [11, 12])
    assert 0.1 < found < 0.95
    assert found == pytest.approx(run.stats[0], abs=1e-12)


def test_coco_map_of_nothing():
    library("faster_coco_eval", "faster-coco-eval")
    labels = np.float64([[[0, 0, 9, 9, 1]], [[-1, -1, -1, -1, -1]]])
    task = Task("coco_map", decode="xyxy")
    right = np.float64([[[0, 0, 9, 9, 0.5, 1]], [[0, 0, 0, 0, 0, 0]]])
    assert value(task, right, labels) == 1
    assert value(task, right * 0, labels) == 0
    assert value(task, np.where(right == 0.5, np.nan, right), labels) == 0
    assert math.isnan(fed(task, right, labels).value([1]))


def naive_nms(rows, iou=0.7):
    """Boxes by falling score that overlap no better one of their class, pair by pair."""
    kept = []
    for row in sorted(rows.tolist(), key=lambda r: -r[4]):
        for other in kept:
            w, h = (min(row[i + 2], other[i + 2]) - max(row[i], other[i]) for i in (0, 1))
            common = max(w, 0) * max(h, 0)
            areas = [(r[2] - r[0]) * (r[3] - r[1]) for r in (row, other)]
            if row[5] == other[5] and common / (sum(areas) - common) > iou:
                break
        else:
            kept.append(row)
    return kept


@pytest.mark.parametrize("layout", ["yolov8", "yolov5"])
def test_layouts_before_nms(layout):
    rng = np.random.default_rng(3)
    centres, sizes = rng.uniform(20, 40, (2, 60, 2)), rng.uniform(10, 30, (2, 60, 2))
    scores, there = rng.random((2, 60, 3)), rng.random((2, 60, 1))
    scores[scores < 0.3] = 0
    if layout == "yolov8":
        output, final = np.moveaxis(np.concatenate([centres, sizes, scores], axis=2), 2, 1), scores
    else:
        output, final = np.concatenate([centres, sizes, there, scores], axis=2), scores * there
    found = boxes.decoded(layout, output)
    for image in range(2):
        corners = np.hstack([centres[image] - sizes[image] / 2, centres[image] + sizes[image] / 2])
        rows = [
            (*corners[place], final[image, place, kind], kind)
            for place in range(60)
            for kind in range(3)
            if final[image, place, kind] > 0.001
        ]
        expected = naive_nms(np.array(rows))
        assert 20 < len(expected) < len(rows)
        np.testing.assert_allclose(found[image], expected)


def test_some_of_the_samples_are_as_if_they_were_all():
    scores = np.random.default_rng(0).normal(size=(9, 7)).astype(np.float32)
    labels = np.arange(9) % 4
    some = [8, 1, 1, 5]
    for name in ("top1", "top5", "f1", "miou"):
        run = MetricRun(MetricLimit(name), Task(name), labels)
        run.add({}, {"y": scores[4:]}, range(4, 9))  # in any order
        run.add({}, {"y": scores[:4]}, range(4))
        assert run.drawable.value(some) == value(Task(name), scores[some], labels[some])
        assert run.value("it") == value(Task(name), scores, labels)


def test_a_users_metric_tells_only_of_all_samples():
    assert MetricRun(MetricLimit("m.py:one"), lambda outputs: 1.0, None).drawable is None
    assert MetricRun(MetricLimit("coco_map"), Task("coco_map"), np.zeros((1, 1, 5))).drawable is None


def drawn(limit: MetricLimit, *, wrong: int, of: int, wrong_before: int = 0) -> Score:
    """Of a classifier that errs so often in INT8, of which the baseline errs on some, too."""
    labels = np.arange(of) % 3
    forms = []
    for count in (wrong_before, wrong):
        scores = np.eye(3, dtype=np.float32)[labels]
        scores[:count] = np.roll(scores[:count], 1, axis=1)
        forms.append({"y": [scores]})
    judge = Judge((), [(limit, Task(limit.ref))], labels)
    (score,) = judged(judge, *forms, intervals=True).metrics
    return score


@pytest.mark.parametrize("of", [200, 5000])
def test_an_accuracy_is_drawn_again(of):
    few = of // 100
    near = drawn(MetricLimit("top1", min=0.99), wrong=few, of=of)
    assert near.interval.low < 0.99 <= near.interval.high
    assert not near.steady
    assert drawn(MetricLimit("top1", min=0.9), wrong=few, of=of).steady
    assert drawn(MetricLimit("top1", min=0.99), wrong=of // 2, of=of).steady
    assert drawn(MetricLimit("top1"), wrong=few, of=of).interval is None


def test_both_forms_get_the_same_samples_where_a_limit_is_a_drop():
    """The baseline's own errors move its accuracy, and not the drop."""
    lost = drawn(MetricLimit("top1", max_drop=0.05), wrong_before=80, wrong=82, of=200)
    assert (lost.passed, lost.steady) == (True, True)
    apart = drawn(MetricLimit("top1", min=0.6 - 0.05), wrong_before=80, wrong=82, of=200)
    assert (apart.passed, apart.steady) == (True, False)


def test_scores_against_the_baseline():
    labels = np.array([0, 1, 2, 1])
    good = np.eye(3, dtype=np.float32)[labels]
    worse = good.copy()
    worse[3] = [0, 0, 1]
    limit = MetricLimit("top1", max_drop=0.2)
    (score,) = evaluate_metric(limit, Task("top1"), {"y": [good]}, {"y": [worse]}, labels)
    assert (score.name, score.value, score.baseline, score.bound, score.passed) == (
        "top1",
        0.75,
        1,
        "min",
        False,
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_wrong(bad):
    labels = np.array([0, 1])
    scores = np.float32([[9, 1, 0, 0, 0, 0], [0, 9, 0, 0, 0, 0]])
    scores[0, 0] = bad
    for name in ("top1", "top5", "f1", "miou"):
        assert value(Task(name), scores, labels) == 0.5
    images = np.ones((1, 8, 8), np.float32)
    images[0, 0, 0] = bad
    (score,) = evaluate_metric(
        MetricLimit("psnr", min=0.0),
        Task("psnr"),
        {"y": [np.zeros_like(images)]},
        {"y": [images]},
        np.ones((1, 8, 8)),
    )
    assert math.isnan(score.value)
    assert not score.passed


def test_scores_of_zeros_are_right_about_nothing():
    flat = np.zeros((2, 7), np.float32)
    for name in ("top1", "top5", "f1", "miou"):
        assert value(Task(name), flat, np.array([0, 1])) == 0


def test_an_output_and_an_array_of_labels_by_name():
    task = Task("top1", output="b", label="kind")
    run = TaskRun(task, {"kind": np.array([1, 0]), "other": np.array([0, 0])})
    run.add({}, {"a": np.float32([[1, 0], [1, 0]]), "b": np.float32([[0, 1], [1, 0]])}, range(2))
    assert run.value() == 1


def decoder(tmp_path: Path, body: str):
    (tmp_path / "decode.py").write_text(f"import numpy as np\ndef texts(outputs):\n    {body}\n")
    return load_function("decode.py:texts", tmp_path)


@pytest.mark.parametrize(
    ("name", "body", "labels", "expected"),
    [
        (
            "wer",
            "return [''.join('ab '[i] for i in row) for row in outputs['y'].astype(int)]",
            ["a b", "b"],
            1 / 3,
        ),
        ("top1", "return (outputs['y'][:, 0] > 0).astype(int)", [0, 1], 1.0),
        ("f1", "return outputs['y'][:, :2]", [0, 0], 1 / 3),
        (
            "coco_map",
            "return [np.ones((0, 6)), [[0, 0, 2, 2, .9, 3]]]",
            [[[0, 0, 2, 2, -1]], [[0, 0, 2, 2, 3]]],
            1.0,
        ),
    ],
)
def test_predictions_by_a_function(tmp_path: Path, name, body, labels, expected):
    if name in ("wer", "coco_map"):
        library(*{"wer": ("jiwer", "wer"), "coco_map": ("faster_coco_eval", "coco")}[name])
    outputs = np.float32([[0, 2, 1], [1, 0, 2]]) if name != "wer" else np.float32([[0, 2, 0], [1, 2, 2]])
    task = Task(name, decode=decoder(tmp_path, body))
    assert value(task, outputs, np.array(labels)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "body", "part"),
    [
        ("top1", "return 1 / 0", "decode.py:3: ZeroDivisionError"),
        ("top1", "return None", "decode.py:texts returned NoneType; expected one prediction per sample"),
        ("top1", "return [1]", "metric top1: 1 predictions for 2 samples"),
        ("top1", "return [[1], [1, 2]]", "decode.py:texts returned what is no array"),
        ("top1", "return ['a', 'b']", "decode.py:texts returned list"),
        ("wer", "return 7", "decode.py:texts returned int"),
        ("wer", "return [7, 8]", "metric wer: a prediction is int, expected text"),
        ("coco_map", "return [[1, 2], [3]]", "metric coco_map: boxes of shape (2,); expected [boxes, 6]"),
        ("coco_map", "return np.ones((2, 6, 4))", "metric coco_map: boxes of shape (6, 4); expected"),
        ("coco_map", "return ['a', 'b']", "metric coco_map: boxes are no array of numbers"),
    ],
)
def test_what_a_function_must_not_return(tmp_path: Path, name, body, part):
    if name == "wer":
        library("jiwer")
    labels = {"wer": np.array(["a", "b"]), "coco_map": np.zeros((2, 1, 5))}.get(name, np.array([0, 1]))
    task = Task(name, decode=decoder(tmp_path, body))
    with pytest.raises(CriterionError) as caught:
        value(task, np.zeros((2, 3), np.float32), labels)
    assert part in str(caught.value)


F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
LOGITS = TensorInfo("logits", F32, ("n", 10))
MASK = TensorInfo("mask", F32, ("n", 4, "h", "w"))
BOXES = TensorInfo("boxes", F32, ("n", 84, "places"))
TOP1, COCO = Task("top1"), Task("coco_map", decode="yolov8")


@pytest.mark.parametrize(
    ("task", "outputs", "labels", "part"),
    [
        (TOP1, [LOGITS], None, "metric top1 needs labels: give `labels:` in the spec"),
        (
            TOP1,
            [LOGITS],
            np.array([0, 10]),
            "class 10 of sample 1 is out of range: top1 knows classes from 0 to 9",
        ),
        (TOP1, [LOGITS], np.array([0, -1]), "class -1 of sample 1"),
        (
            TOP1,
            [LOGITS],
            np.array([0.0, 1]),
            "top1 needs class ids, as integers; found float64 of shape (2,)",
        ),
        (TOP1, [LOGITS], np.array(["a"]), "found <U1"),
        (TOP1, [LOGITS], np.zeros((2, 10), int), "do not fit labels of shape (2, 10)"),
        (TOP1, [LOGITS, MASK], np.array([0]), "has the outputs 'logits', 'mask': add `output:`"),
        (
            Task("top1", output="logit"),
            [LOGITS, MASK],
            np.array([0]),
            "no output 'logit' (did you mean 'logits'?)",
        ),
        (Task("top1", axis=2), [LOGITS], np.array([0]), "'axis: 2' is no class axis of ('n', 10)"),
        (Task("top1", axis=0), [LOGITS], np.array([0]), "axis 0 counts samples"),
        (Task("miou", ignore=255), [MASK], np.full((2, 8, 8), 254), "is left out with `ignore: ID`"),
        (Task("miou"), [MASK], np.full((2, 8, 8), 255), "class 255 of sample 0"),
        (
            TOP1,
            [LOGITS],
            {"a": np.array([0]), "b": np.array([0])},
            "takes one of 'a', 'b': name it by `label:`",
        ),
        (Task("top1", label="c"), [LOGITS], {"a": np.array([0])}, "labels: no 'c'"),
        (
            Task("psnr"),
            [MASK],
            np.zeros((2, 3, 8, 8)),
            "images of shape ('n', 4, 'h', 'w') for labels of shape",
        ),
        (COCO, [BOXES], np.zeros((2, 4)), "needs boxes [samples, boxes, 5 to 7]"),
        (COCO, [BOXES], np.zeros((2, 1, 4)), "boxes of 4 numbers (shape (2, 1, 4))"),
        (COCO, [BOXES], np.float64([[[5, 5, 2, 9, 0]]]), "box 0 of sample 0 is [5.0"),
        (COCO, [BOXES], np.float64([[[5, 5, 6, 9, 80]]]), "from 0 to 79"),
        (Task("wer"), [LOGITS], np.array(["a"]), "needs texts, and 'logits' holds float32: add `decode:`"),
        (Task("wer"), [LOGITS], np.array([["a"]]), "wer needs texts, [samples]"),
    ],
)
def test_what_does_not_fit_is_known_before_anything_has_run(task, outputs, labels, part):
    if task.name in ("wer", "coco_map"):
        library(*{"wer": ("jiwer", "wer"), "coco_map": ("faster_coco_eval", "coco")}[task.name])
    with pytest.raises((CriterionError, DataError)) as caught:
        task.check(outputs, labels)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("task", "outputs", "labels"),
    [
        (TOP1, [LOGITS], np.array([0, 9])),
        (TOP1, [TensorInfo("y", F32, None)], np.array([99])),
        (TOP1, [TensorInfo("y", I64, ("n",))], np.array([99])),
        (Task("miou", ignore=255), [MASK], np.full((2, 8, 8), 255)),
        (TOP1, [TensorInfo("y", F32, ("n", "t", "c"))], np.zeros((2, 8), int)),
        (Task("psnr"), [MASK], np.zeros((2, 4, 8, 8))),
    ],
)
def test_what_fits_as_far_as_is_known(task, outputs, labels):
    task.check(outputs, labels)


@pytest.mark.parametrize(
    ("task", "outputs", "labels", "part"),
    [
        (TOP1, np.zeros((3, 4)), np.array([0, 0, 4]), "class 4 of sample 2 is out of range"),
        (TOP1, np.zeros((3, 3, 3)), np.zeros((3, 3), int), "any of the axes [1, 2] of shape"),
        (Task("top5"), np.zeros((3, 5)), np.array([0, 0, 4]), "top5 of 5 classes is always right"),
        (Task("top5"), np.zeros(3, int), np.array([0, 0, 4]), "top5 needs a score for each class"),
        (Task("psnr"), np.zeros((3, 4, 4)), np.zeros((3, 4, 5)), "they must be alike"),
        (
            Task("coco_map", decode="yolov5"),
            np.zeros((3, 4)),
            np.zeros((3, 1, 5)),
            "'decode: yolov5' needs an output",
        ),
        (
            Task("coco_map", decode="xyxy"),
            np.zeros((3, 4, 7)),
            np.zeros((3, 1, 5)),
            "[samples, boxes, 6], this one",
        ),
    ],
)
def test_what_does_not_fit_in_a_run(task, outputs, labels, part):
    with pytest.raises((CriterionError, DataError)) as caught:
        value(task, outputs, labels, [1, 2])
    assert part in str(caught.value)


def test_images_smaller_than_a_window():
    library("skimage", "scikit-image")
    with pytest.raises(CriterionError, match=r"metric ssim: images of shape \(4, 4\): win_size"):
        value(Task("ssim"), np.zeros((1, 4, 4)), np.zeros((1, 4, 4)))


@pytest.mark.parametrize(
    ("name", "module", "wanted"),
    [
        ("coco_map", "faster_coco_eval", "faster-coco-eval"),
        ("wer", "jiwer", "jiwer"),
        ("ssim", "skimage", "scikit-image"),
    ],
)
def test_a_library_that_is_missing_is_named_as_it_is_installed(monkeypatch, name, module, wanted):
    monkeypatch.setattr("pytest_int8acc.scores.tasks.find_spec", lambda name: None)
    with pytest.raises(CriterionError) as caught:
        Task(name).check([LOGITS], None)
    message = f"metric {name} needs {module}, which is not installed: pip install {wanted}"
    assert str(caught.value) == message
