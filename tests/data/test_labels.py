from pathlib import Path

import numpy as np
import pytest

from pytest_int8acc.data import load_labels
from pytest_int8acc.errors import DataError

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
        ("y.txt", b"1 2 3", "expected .npy, .npz, or file.py:function"),
        ("y.npy", b"1 2 3", "expected the format .npy"),
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
