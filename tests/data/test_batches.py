import sys
import tracemalloc
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from data_support import counting, joined, tensor, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_int8acc import DataError
from pytest_int8acc.data import RandomSource, open_dataset
from pytest_int8acc.tensors import TensorInfo


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunks=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    first=st.one_of(st.just("N"), st.integers(1, 5)),
    limit=st.one_of(st.none(), st.integers(1, 40)),
)
def test_a_loader_gives_what_it_yields(
    tmp_path: Path, chunks: list[int], first: int | str | None, limit: int | None
) -> None:
    x = np.random.default_rng(0).random((sum(chunks), 2), dtype=np.float32)
    np.savez(tmp_path / "a.npz", x=x)
    script = "import json\nimport numpy as np\nfrom pathlib import Path\nhere = Path(__file__).parent\n"
    script += "x = np.load(here / 'a.npz')['x']\nends = json.loads((here / 'ends.json').read_text())\n"
    script += "def load():\n return [{'x': part} for part in np.split(x, ends)]\n"
    write(tmp_path, "loaders.py", script)
    write(tmp_path, "ends.json", str(np.cumsum(chunks)[:-1].tolist()))
    digests = set()
    for source in ("a.npz", "loaders.py:load"):
        dataset = open_dataset(source, [tensor("x", first, 2)], base=tmp_path, samples=limit)
        assert np.array_equal(joined(dataset), x[:limit])
        assert dataset.samples == len(x[:limit])
        *whole, last = dataset.batches()
        if isinstance(first, int):
            assert [(batch.rows, batch.padding) for batch in whole] == [(first, 0)] * len(whole)
            assert len(last.feed["x"]) == last.rows + last.padding == first
            assert (last.feed["x"][last.rows :] == x[:limit][-1]).all()
        else:
            assert last.padding == 0
        digests.add(dataset.digest)
    assert len(digests) == 1


def test_a_loader_is_read_no_further_than_the_batch_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = ModuleType("progress")
    progress.made = made = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "progress", progress)
    body = "import numpy as np\nimport progress\ndef load():\n for i in range(1000):\n"
    body += "  progress.made.append(i)\n  yield {'x': np.zeros((3, 2), np.float32)}\n"
    write(tmp_path, "loaders.py", body)
    dataset = open_dataset("loaders.py:load", [tensor("x", 4, 2)], base=tmp_path, samples=50)
    used = 0
    for batch in dataset.batches():
        used += batch.rows
        assert 3 * len(made) - used < 3
    assert used == 50
    assert len(made) == 17  # and nothing asked for after the 50th sample


@pytest.mark.parametrize("first", ["N", 3])
def test_memory_does_not_grow_with_a_loader(tmp_path: Path, first: int | str) -> None:
    body = "import numpy as np\ndef load():\n for i in range(60):\n"
    write(tmp_path, "loaders.py", body + "  yield {'x': np.full((2, 100_000), i, np.float32)}\n")
    dataset = open_dataset("loaders.py:load", [tensor("x", first, 100_000)], base=tmp_path)
    tracemalloc.start()
    try:
        for _ in dataset.batches():
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10e6  # a feed is 0.8 MB, all of them 48 MB


def test_fewer_samples_than_asked_for_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=counting(5, 2))
    dataset = open_dataset("a.npz", [tensor("x", "N", 2)], base=tmp_path, samples=9, what="calibrate.data")
    assert joined(dataset).shape == (5, 2)
    assert dataset.notes == ("calibrate.data: 5 samples, fewer than the 9 asked for",)
    assert dataset.description == "a.npz, its first 9"


def test_a_bad_sample_beyond_the_limit_does_not_count(tmp_path: Path) -> None:
    x = counting(10, 2)
    x[7] = np.nan
    np.savez(tmp_path / "a.npz", x=x)
    assert len(joined(open_dataset("a.npz", [tensor("x", "N", 2)], base=tmp_path, samples=7))) == 7


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        ([tensor("x", 4, 2)], "a batch of 3 does not fit the model, which fixes it at 4"),
        ([tensor("x", 4, 2), tensor("prior", 9, 4)], "share no batch axis"),
    ],
)
def test_batch_must_agree_with_the_model(tmp_path: Path, inputs: list[TensorInfo], part: str) -> None:
    with pytest.raises(DataError, match=part):
        open_dataset(RandomSource(5), inputs, base=tmp_path, batch=3)


def test_digest_follows_the_data_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=counting(9, 2))
    np.savez(tmp_path / "b.npz", x=counting(9, 2)[::-1])
    (tmp_path / "c").mkdir()
    np.save(tmp_path / "c" / "x.npy", counting(9, 2).astype(np.float64))

    def digest(source: str, first: int | str | None = "N", samples: int | None = None) -> str | None:
        dataset = open_dataset(source, [tensor("x", first, 2)], base=tmp_path, samples=samples)
        assert dataset.digest is None
        list(dataset.batches())
        return dataset.digest

    assert digest("a.npz") == digest("a.npz", first=4) == digest("c")
    assert digest("a.npz") != digest("b.npz")
    assert digest("a.npz") != digest("a.npz", samples=8)


def test_digest_tells_where_an_input_of_the_run_changed(tmp_path: Path) -> None:
    digests = set()
    for name, values in (("a", "1, 1, 2"), ("b", "1, 2, 2"), ("c", "1, 1, 2")):
        body = f"import numpy as np\ndef load():\n for t in {values}:\n"
        write(tmp_path, f"{name}.py", body + "  yield {'x': np.ones((2, 3), 'f4'), 't': np.float32(t)}\n")
        dataset = open_dataset(f"{name}.py:load", [tensor("x", "N", 3), tensor("t")], base=tmp_path)
        list(dataset.batches())
        digests.add(dataset.digest)
    assert len(digests) == 2


def test_digest_needs_a_full_pass(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=counting(9, 2))
    dataset = open_dataset("a.npz", [tensor("x", 2, 2)], base=tmp_path)
    next(dataset.batches())
    assert dataset.digest is None


@pytest.mark.parametrize(
    "values",
    ["np.random.rand(1, 2).astype('f4')", "np.zeros((next(counter), 2), 'f4')"],
    ids=["unseeded", "more each time"],
)
def test_an_unseeded_loader_is_found_on_the_second_pass(tmp_path: Path, values: str) -> None:
    (tmp_path / "calls.txt").write_text("")
    script = "import numpy as np\nfrom pathlib import Path\nlog = Path(__file__).with_name('calls.txt')\n"
    script += "log.write_text(log.read_text() + 'x')\ncounter = iter([len(log.read_text())])\n"
    write(tmp_path, "loaders.py", script + f"def load():\n yield {{'x': {values}}}\n")
    dataset = open_dataset("loaders.py:load", [tensor("x", "N", 2)], base=tmp_path)
    list(dataset.batches())
    with pytest.raises(DataError, match=r"loaders.py:load yields different data on each call.*seed it"):
        list(dataset.batches())


@pytest.mark.parametrize("first", ["N", 8])
def test_some_samples_in_batches_of_another_size(tmp_path: Path, first: int | str) -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.savez(tmp_path / "a.npz", x=x)
    dataset = open_dataset("a.npz", [tensor("x", first, 2)], base=tmp_path, batch=8)
    rows = [0, 3, 7, 8, 11, 12, 19]
    some = dataset.of_rows(rows, size=3)
    for _ in range(2):
        assert [(batch.rows, batch.padding) for batch in some.batches()] == [(3, 0), (3, 0), (1, 2)]
        assert np.array_equal(joined(some), x[rows])
    assert some.read_once() == dataset.of_rows(rows).read_once()
    assert some.samples == len(rows)
    assert some.digest not in (None, dataset.digest)
    assert np.array_equal(joined(some.first(2)), x[rows[:2]])


def test_equal_samples_have_equal_digests(tmp_path: Path) -> None:
    x = np.array([[1, 2], [3, 4], [1, 2]], np.float32)
    np.savez(tmp_path / "a.npz", x=x)
    one, two, three = open_dataset("a.npz", [tensor("x", "N", 2)], base=tmp_path).digests()
    assert one == three != two
    np.savez(tmp_path / "b.npz", x=x[1:])
    assert open_dataset("b.npz", [tensor("x", "N", 2)], base=tmp_path, batch=1).digests() == [two, one]
