import json
from pathlib import Path

import numpy as np
import pytest

from pytest_int8acc import DataError
from pytest_int8acc.data import load_labels

LABELS = np.arange(6)


def test_stored_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", LABELS)
    np.savez(tmp_path / "one.npz", anything=LABELS)
    np.savez(tmp_path / "two.npz", y=LABELS, boxes=np.ones((6, 4)))
    for source in ("y.npy", "one.npz"):
        labels = load_labels(source, 6, tmp_path)
        assert isinstance(labels, np.ndarray)
        assert labels.tolist() == LABELS.tolist()
    several = load_labels("two.npz", 6, tmp_path)
    assert isinstance(several, dict)
    assert several["boxes"].shape == (6, 4)
    assert several["y"].tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("returned", "want"),
    [
        ("np.arange(3)", [0, 1, 2]),
        ("['a', 'b', 'c']", ["a", "b", "c"]),
        ("{'y': [0, 1, 2]}", {"y": [0, 1, 2]}),
    ],
)
def test_labels_from_a_script(tmp_path: Path, returned: str, want: object) -> None:
    (tmp_path / "m.py").write_text(f"import numpy as np\ndef labels():\n    return {returned}\n")
    labels = load_labels("m.py:labels", 3, tmp_path)
    assert (
        {n: a.tolist() for n, a in labels.items()} if isinstance(labels, dict) else labels.tolist()
    ) == want


def test_more_labels_are_cut_only_where_the_samples_were(tmp_path: Path) -> None:
    np.savez(tmp_path / "y.npz", y=LABELS, z=LABELS)
    cut = load_labels("y.npz", 4, tmp_path, limited=True)
    assert isinstance(cut, dict)
    assert cut["z"].tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"labels: y.npz: 'y': 6 labels \(shape \(6,\)\) for 4 samples"):
        load_labels("y.npz", 4, tmp_path)


@pytest.mark.parametrize("limited", [True, False])
def test_too_few_labels(tmp_path: Path, limited: bool) -> None:
    np.save(tmp_path / "y.npy", LABELS)
    with pytest.raises(DataError, match=r"6 labels .* for 7 samples; axis 0 must hold one label per sample"):
        load_labels("y.npy", 7, tmp_path, limited=limited)


@pytest.mark.parametrize(
    ("source", "content", "part"),
    [
        ("y.csv", b"1 2 3", "expected .npy, .npz, .txt (a line per sample), .json (COCO's instances)"),
        ("y.npy", b"1 2 3", "or is no NumPy file"),
        ("z.npy", None, "no such file"),
        ("m.py", b"", "names no function"),
        ("m.py:f", b"def f(): return None", "returned nothing"),
        ("m.py:f", b"def f(): return object()", "returned Python objects (object)"),
        ("m.py:f", b"def f(): return [[1], [1, 2]]", "list cannot become a NumPy array"),
        ("m.py:f", b"def f(): return 3", "0 labels (shape ()) for 6 samples"),
        ("m.py:f", b"def f(): return {'y': None}", "'y': returned nothing"),
        ("m.py:f", b"def f(): 1 / 0", "m.py:1: ZeroDivisionError"),
    ],
)
def test_labels_that_cannot_be_read(tmp_path: Path, source: str, content: bytes | None, part: str) -> None:
    if content is not None:
        (tmp_path / source.partition(":")[0]).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_labels(source, 6, tmp_path)
    assert source.partition(":")[0] in str(caught.value)
    assert part in str(caught.value)


def test_labels_saved_as_objects(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([{}] * 6, dtype=object))
    with pytest.raises(DataError, match=r"labels: y.npy: holds pickled Python objects"):
        load_labels("y.npy", 6, tmp_path)


def test_a_line_per_sample(tmp_path: Path) -> None:
    (tmp_path / "y.txt").write_bytes("a b\r\n\ngrün\u2028x\n".encode())
    labels = load_labels("y.txt", 3, tmp_path)
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == ["a b", "", "grün\u2028x"]
    with pytest.raises(DataError, match=r"labels: y.txt: has .* 'max_data' allows"):
        load_labels("y.txt", 3, tmp_path, most=3)
    (tmp_path / "y.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"labels: y.txt: cannot be read as text in UTF-8"):
        load_labels("y.txt", 3, tmp_path)


IMAGES = [{"id": 7}, {"id": 3}]
CATEGORIES = [{"id": 90, "name": "b"}, {"id": 18, "name": "a"}]
BOX = {"image_id": 3, "category_id": 90, "bbox": [1, 2, 3, 4]}


def test_boxes_of_coco(tmp_path: Path) -> None:
    held = {"images": IMAGES, "annotations": [BOX, BOX | {"iscrowd": 1, "area": 5}], "categories": CATEGORIES}
    (tmp_path / "y.json").write_text(json.dumps(held))
    labels = load_labels("y.json", 2, tmp_path)
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == [[[-1] * 7] * 2, [[1, 2, 4, 6, 1, 0, 12], [1, 2, 4, 6, 1, 1, 5]]]
    with pytest.raises(DataError, match=r"labels: y.json: 2 labels .* for 3 samples"):
        load_labels("y.json", 3, tmp_path)


@pytest.mark.parametrize(
    ("held", "part"),
    [
        ("{", "no instances of COCO: Invalid JSON: EOF while parsing"),
        ("[" * 100000, "no instances of COCO: Invalid JSON"),
        ([], "no instances of COCO: "),
        (
            {"images": IMAGES},
            "no instances of COCO: categories: Field required; expected a mapping",
        ),
        ({"images": 3, "annotations": [], "categories": []}, "no instances of COCO: images: "),
        ({"annotations": [BOX | {"image_id": 8}]}, "annotation 0: image_id 8 or category_id 90 is not in"),
        ({"annotations": [BOX, BOX | {"category_id": 1}]}, "annotation 1: image_id 3 or category_id 1"),
        ({"annotations": [BOX | {"bbox": [1, 2, 3]}]}, "annotations.0.bbox.3: Field required; expected"),
        ({"annotations": [BOX | {"bbox": [1, 2, -3, 4]}]}, "annotations.0.bbox.2: Input should be greater"),
        ({"annotations": [BOX | {"bbox": [1, 2, float("nan"), 4]}]}, "annotations.0.bbox.2: Input should be"),
        ({"annotations": [BOX | {"bbox": "abcd"}]}, "annotations.0.bbox: Input should be"),
        ({"annotations": [BOX | {"bbox": None}]}, "annotations.0.bbox: Input should be"),
        ({"annotations": [BOX | {"area": 10**400}]}, "annotations.0.area: Input should be"),
        ({"annotations": [7]}, "annotations.0: Input should be an object"),
    ],
)
def test_what_are_no_boxes_of_coco(tmp_path: Path, held: object, part: str) -> None:
    whole = {"images": IMAGES, "categories": CATEGORIES, **held} if "annotations" in held else held
    (tmp_path / "y.json").write_text(whole if isinstance(whole, str) else json.dumps(whole))
    with pytest.raises(DataError) as caught:
        load_labels("y.json", 2, tmp_path)
    assert str(caught.value).startswith("labels: y.json: ")
    assert part in str(caught.value)
