from pathlib import Path

import numpy as np
import pytest
from data_support import counting, joined, tensor, write

from pytest_int8acc import DataError
from pytest_int8acc.data import Dataset, RandomSource, open_dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.tensors import TensorInfo

F32 = np.dtype("float32")


LOADER = """
import numpy as np

def load():
    for i in range(5):
        yield {"x": np.full((2, 3), i, np.float32)}
"""


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_comes_back_in_order(tmp_path: Path, save: object) -> None:
    x, mask = counting(70, 3), np.arange(70 * 2).reshape(70, 2)
    save(tmp_path / "a.npz", mask=mask, x=x)  # type: ignore[operator]
    inputs = [tensor("x", "N", 3), tensor("mask", "N", 2, dtype="int64")]
    dataset = open_dataset("a.npz", inputs, base=tmp_path)
    assert dataset.samples == 70
    assert [batch.rows for batch in dataset.batches()] == [32, 32, 6]
    assert np.array_equal(joined(dataset), x)
    assert np.array_equal(joined(dataset, "mask"), mask)
    assert dataset.notes == ()
    assert dataset.description == "a.npz"
    assert not dataset.is_random


def test_one_array_for_one_input_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=counting(4, 3))
    dataset = open_dataset("a.npz", [tensor("x", 2, 3)], base=tmp_path)
    assert np.array_equal(joined(dataset), counting(4, 3))
    assert "'images' is taken for the model's only input 'x'" in dataset.notes[0]


def test_folder_with_a_file_per_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", counting(5, 3))
    np.save(tmp_path / "y.npy", counting(5, 2))
    dataset = open_dataset(".", [tensor("x", 2, 3), tensor("y", 2, 2)], base=tmp_path)
    assert dataset.samples == 5
    assert np.array_equal(joined(dataset, "y"), counting(5, 2))


@pytest.mark.parametrize("rows", [None, 1, 4])
@pytest.mark.parametrize("first", [3, "N"])
def test_folder_of_samples_or_batches_in_natural_order(
    tmp_path: Path, rows: int | None, first: int | str | None
) -> None:
    x = counting(12 * (rows or 1), 2)
    for i in range(12):
        np.save(tmp_path / f"s_{i}.npy", x[i] if rows is None else x[i * rows : (i + 1) * rows])
    dataset = open_dataset(".", [tensor("x", first, 2)], base=tmp_path)
    assert np.array_equal(joined(dataset), x)
    assert dataset.samples == len(x)


def test_folder_per_input(tmp_path: Path) -> None:
    for i in range(11):
        for name in ("x", "y"):
            (tmp_path / name).mkdir(exist_ok=True)
            np.save(tmp_path / name / f"{i}.npy", np.full(2, i, np.float32))
    dataset = open_dataset(".", [tensor("x", 4, 2), tensor("y", 4, 2)], base=tmp_path)
    assert joined(dataset, "y")[:, 0].tolist() == list(range(11))
    assert [(b.rows, b.padding) for b in dataset.batches()] == [(4, 0), (4, 0), (3, 1)]


def test_folder_of_images_of_several_sizes_joins_only_equal_ones(tmp_path: Path) -> None:
    for i, height in enumerate([4, 4, 6, 6, 6, 4]):
        np.save(tmp_path / f"{i}.npy", np.full((3, height), i, np.float32))
    dataset = open_dataset(".", [tensor("x", "N", 3, "H")], base=tmp_path)
    assert [b.feed["x"].shape for b in dataset.batches()] == [(2, 3, 4), (3, 3, 6), (1, 3, 4)]


def test_polygraphy_file_and_folder(tmp_path: Path) -> None:
    from polygraphy.json import save_json

    feeds = [{"x": counting(2, 3) + i, "scale": np.array(1.5, np.float32)} for i in range(3)]
    save_json(feeds, str(tmp_path / "inputs.json"))
    save_json(feeds[0], str(tmp_path / "one.json"))
    (tmp_path / "saved").mkdir()
    for i, feed in enumerate(feeds):
        save_json(feed, str(tmp_path / "saved" / f"{i:010}.json"))
    inputs = [tensor("x", "N", 3), tensor("scale")]
    for source, count in (("inputs.json", 3), ("one.json", 1), ("saved", 3)):
        dataset = open_dataset(source, inputs, base=tmp_path)
        batches = list(dataset.batches())
        assert [b.rows for b in batches] == [2] * count, source
        assert np.array_equal(batches[-1].feed["x"], feeds[count - 1]["x"])
        assert batches[0].feed["scale"] == np.float32(1.5)
        assert dataset.samples == 2 * count


def test_loader_runs_feeds_as_they_come_or_in_batches(tmp_path: Path) -> None:
    write(tmp_path, "loaders.py", LOADER)
    dataset = open_dataset("loaders.py:load", [tensor("x", "N", 3)], base=tmp_path)
    assert dataset.samples is None
    assert [b.rows for b in dataset.batches()] == [2] * 5
    assert dataset.samples == 10
    batched = open_dataset("loaders.py:load", [tensor("x", "N", 3)], base=tmp_path, batch=4)
    assert [(b.rows, b.padding) for b in batched.batches()] == [(4, 0), (4, 0), (2, 0)]
    fixed = open_dataset("loaders.py:load", [tensor("x", 4, 3)], base=tmp_path)
    assert [(b.rows, b.padding) for b in fixed.batches()] == [(4, 0), (4, 0), (2, 2)]
    assert np.array_equal(joined(fixed), joined(dataset))


def test_loader_that_reuses_its_buffer(tmp_path: Path) -> None:
    body = "import numpy as np\ndef load():\n b = np.zeros((1, 2), np.float32)\n"
    write(tmp_path, "loaders.py", body + " for i in range(4):\n  b[:] = i\n  yield {'x': b}\n")
    dataset = open_dataset("loaders.py:load", [tensor("x", 4, 2)], base=tmp_path)
    assert joined(dataset)[:, 0].tolist() == [0, 1, 2, 3]


def test_loader_may_return_a_list_and_plain_lists(tmp_path: Path) -> None:
    write(tmp_path, "loaders.py", "def load():\n return [{'x': [[1.0, 2.0]]}, {'x': [[3.0, 4.0]]}]\n")
    dataset = open_dataset("loaders.py:load", [tensor("x", 1, 2)], base=tmp_path)
    assert joined(dataset).tolist() == [[1, 2], [3, 4]]
    assert dataset.notes == ("inputs: 'x' cast from float64 to float32",)


def test_random_is_seeded_said_and_independent_of_the_batch(tmp_path: Path) -> None:
    def draw(first: int | str | None, seed: int = 3, samples: int = 40) -> Dataset:
        inputs = [tensor("x", first, 2, 3), tensor("ids", first, 4, dtype="int32"), tensor("k", dtype="bool")]
        return open_dataset(RandomSource(samples, seed), inputs, base=tmp_path)

    one, seven = draw("N"), draw(7)
    assert np.array_equal(joined(one), joined(seven))
    assert np.array_equal(joined(one, "ids"), joined(seven, "ids"))
    assert one.digest == seven.digest
    assert one.is_random
    assert one.samples == 40
    assert "random" in one.notes[0]
    assert not np.array_equal(joined(one), joined(draw("N", seed=4)))
    assert np.array_equal(joined(one)[:5], joined(draw("N", samples=5)))
    assert joined(one).min() >= 0
    assert joined(one).max() <= 1
    assert set(joined(one, "ids").ravel()) == {0, 1}
    twins = open_dataset(RandomSource(8, 0), [tensor("x", "N", 3), tensor("y", "N", 3)], base=tmp_path)
    assert not np.array_equal(joined(twins), joined(twins, "y"))


@pytest.mark.parametrize(
    ("dims", "part"),
    [(("N", 3, "H"), "dimension 'H' (axis 2) of 'x'"), ((1, None), "dimension (axis 1) of 'x'")],
)
def test_random_needs_sizes(tmp_path: Path, dims: tuple[int | str | None, ...], part: str) -> None:
    with pytest.raises(DataError, match="give real data") as caught:
        open_dataset(RandomSource(2, 0), [tensor("x", *dims)], base=tmp_path)
    assert part in str(caught.value)
    with pytest.raises(DataError, match="the shape of 'x' is unknown"):
        open_dataset(RandomSource(2, 0), [TensorInfo("x", F32, None)], base=tmp_path)


@pytest.mark.parametrize(
    ("inputs", "batched", "size"),
    [
        ([tensor("x", 8, 3), tensor("y", 8)], {"x", "y"}, 8),
        ([tensor("x", 8, 3), tensor("scale")], {"x"}, 8),
        ([tensor("x", 8, 3), tensor("scale", 1)], set(), None),
        ([tensor("x", "N", 3), tensor("scale", 1)], {"x"}, None),
        ([tensor("x", "N", 3), tensor("y", None, 3)], {"x", "y"}, None),
        ([tensor("x", "batch", 3), tensor("boxes", "num_boxes", 4)], set(), None),
        ([tensor("x", "x_dynamic_axes_1", 3), tensor("y", "y_dynamic_axes_1")], {"x", "y"}, None),
        ([tensor("x", "unk__330", 21), tensor("y", "unk__331", 21)], {"x", "y"}, None),
        ([tensor("x", "p2o.DynamicDimension.0", 3), tensor("y", "p2o.DynamicDimension.1")], {"x", "y"}, None),
        ([TensorInfo("x", F32, None)], {"x"}, None),
        ([tensor("a"), tensor("b")], set(), None),
    ],
)
def test_layout(inputs: list[TensorInfo], batched: set[str], size: int | None) -> None:
    layout = read_layout(inputs)
    assert layout.batched == batched
    assert layout.size == size


def test_an_input_without_a_batch_axis_is_the_same_in_each_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=counting(5, 3), scale=np.float32(0.5))
    dataset = open_dataset("a.npz", [tensor("x", 2, 3), tensor("scale")], base=tmp_path)
    assert [float(b.feed["scale"]) for b in dataset.batches()] == [0.5] * 3  # type: ignore[arg-type]
    assert "'scale' has no sample axis" in dataset.notes[0]


def test_one_axis_more_means_whole_feeds(tmp_path: Path) -> None:
    x = counting(6, 2, 3)
    np.savez(tmp_path / "a.npz", x=x)
    dataset = open_dataset("a.npz", [tensor("x", "N", 3)], base=tmp_path)
    assert dataset.samples == 12
    assert [b.rows for b in dataset.batches()] == [2] * 6
    fixed = open_dataset("a.npz", [tensor("x", 5, 3)], base=tmp_path)
    assert [(b.rows, b.padding) for b in fixed.batches()] == [(5, 0), (5, 0), (2, 3)]
    assert np.array_equal(joined(fixed), x.reshape(12, 3))


def test_without_a_batch_axis_feeds_stay_whole(tmp_path: Path) -> None:
    x, prior = counting(4, 8, 3), counting(4, 100, 4)
    inputs = [tensor("x", 8, 3), tensor("prior", 100, 4)]
    np.savez(tmp_path / "a.npz", x=x, prior=prior)
    np.savez(tmp_path / "b.npz", x=x, prior=prior[0])
    dataset = open_dataset("a.npz", inputs, base=tmp_path, samples=3)
    batches = list(dataset.batches())
    assert [(b.rows, b.padding) for b in batches] == [(1, 0)] * 3
    assert np.array_equal(batches[2].feed["prior"], prior[2])
    assert dataset.samples == 3
    shared = open_dataset("b.npz", inputs, base=tmp_path)
    assert all(np.array_equal(b.feed["prior"], prior[0]) for b in shared.batches())
    random = open_dataset(RandomSource(2, 0), inputs, base=tmp_path)
    first, second = random.batches()
    assert not np.array_equal(first.feed["x"], second.feed["x"])


def test_without_a_batch_axis_files_are_feeds(tmp_path: Path) -> None:
    for name, shape in (("x", (8, 3)), ("prior", (100, 4))):
        (tmp_path / name).mkdir()
        for i in range(3):
            np.save(tmp_path / name / f"{i}.npy", np.full(shape, i, np.float32))
    dataset = open_dataset(".", [tensor("x", 8, 3), tensor("prior", 100, 4)], base=tmp_path)
    assert [b.feed["prior"][0, 0] for b in dataset.batches()] == [0, 1, 2]


def test_a_changed_run_input_is_not_joined(tmp_path: Path) -> None:
    script = "import numpy as np\ndef load():\n  for t in (1, 2, 2):\n"
    script += "    yield {'x': np.zeros((2, 1), np.float32), 't': np.float32(t)}\n"
    (tmp_path / "loaders.py").write_text(script)
    dataset = open_dataset("loaders.py:load", [tensor("x", 4, 1), tensor("t")], base=tmp_path)
    batches = list(dataset.batches())
    assert [(b.rows, b.padding, float(b.feed["t"])) for b in batches] == [(2, 2, 1), (4, 0, 2)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stored", "wanted", "note"),
    [
        ("float64", "float32", True),
        ("float32", "float16", True),
        ("float16", "float32", True),
        (">f4", "float32", False),
        ("int64", "int32", True),
        ("int32", "int64", True),
        ("uint8", "uint8", False),
        ("uint8", "int32", True),
        ("bool", "bool", False),
        ("bool", "int64", True),
    ],
)
def test_casts_that_lose_nothing_are_made_and_said(
    tmp_path: Path, stored: str, wanted: str, note: bool
) -> None:
    x = np.array([[0, 1], [1, 0], [1, 1]]).astype(stored)
    np.savez(tmp_path / "a.npz", x=x)
    dataset = open_dataset("a.npz", [tensor("x", 2, 2, dtype=wanted)], base=tmp_path)
    got = joined(dataset)
    assert got.dtype == np.dtype(wanted)
    assert got.dtype.isnative
    assert np.array_equal(got, x)
    assert bool(dataset.notes) == note
    if note:
        assert dataset.notes == (f"inputs: 'x' cast from {np.dtype(stored).name} to {wanted}",)


def test_strided_arrays_come_out_contiguous(tmp_path: Path) -> None:
    x = np.asfortranarray(counting(6, 2, 3))
    np.save(tmp_path / "x.npy", x)
    for batch in open_dataset("x.npy", [tensor("x", 4, 2, 3)], base=tmp_path).batches():
        assert batch.feed["x"].flags.c_contiguous
        assert type(batch.feed["x"]) is np.ndarray
    assert np.array_equal(joined(open_dataset("x.npy", [tensor("x", 4, 2, 3)], base=tmp_path)), x)


def endless(tmp_path: Path, rows: int) -> str:
    text = "import itertools, numpy as np\n"
    text += f"def f(): return ({{'x': np.ones(({rows}, 2), 'f4')}} for _ in itertools.count())\n"
    (tmp_path / "endless.py").write_text(text)
    return "endless.py:f"


X = TensorInfo("x", np.dtype(np.float32), ("N", 2))


def test_a_loader_without_end_is_stopped_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = endless(tmp_path, 1000)
    data = open_dataset(source, [X], base=tmp_path, most=1 << 20)
    with pytest.raises(DataError, match=r"gave 132000 samples, .* and goes on; 'samples: N' takes"):
        data.read_once()
    limited = open_dataset(source, [X], base=tmp_path, most=1 << 10, samples=3000)
    limited.read_once()
    assert limited.samples == 3000
    monkeypatch.setattr("pytest_int8acc.data.dataset._MAX_LOADED_SAMPLES", 5000)
    with pytest.raises(DataError, match="gave 6000 samples"):
        open_dataset(source, [X], base=tmp_path).read_once()


def test_too_many_random_samples_are_refused_before_any_is_drawn() -> None:
    many = RandomSource(999_999_999_999)
    with pytest.raises(DataError, match=r"999999999999 random samples are 7.45e\+03 GiB, more than"):
        open_dataset(many, [X], base=Path())
    assert open_dataset(many, [X], base=Path(), samples=8).samples == 8


def test_what_an_archive_unpacks_to_is_bounded(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((1 << 18, 2), np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    with pytest.raises(DataError, match=r"bomb.npz: unpacks to .*'max_data' allows .*raise it in the case"):
        open_dataset("bomb.npz", [X], base=tmp_path, most=1 << 20)
    assert open_dataset("bomb.npz", [X], base=tmp_path, most=1 << 22).samples == 1 << 18
