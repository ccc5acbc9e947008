import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mistakes import assert_said, read

from pytest_int8acc import DataError
from pytest_int8acc.data import RandomSource, open_dataset
from pytest_int8acc.tensors import TensorInfo

F32 = np.dtype("float32")
X = TensorInfo("x", F32, ("N", 3, 4))
ONE = [X]
TWO = [X, TensorInfo("mask", np.dtype("int64"), ("N", 4))]
GOOD = np.ones((5, 3, 4), np.float32)
MASK = np.ones((5, 4), np.int64)


def with_value(value: float, dtype: str = "float32") -> np.ndarray:
    x = GOOD.astype(dtype)
    x[2, 1, 3] = value
    return x


def read_all(folder: Path, source: str | RandomSource, inputs: list[TensorInfo]) -> None:
    for _ in open_dataset(source, inputs, base=folder).batches():
        pass


ARRAYS: dict[str, tuple[list[TensorInfo], dict[str, np.ndarray], list[str]]] = {
    "missing input": (
        TWO,
        {"x": GOOD},
        ["nothing for the model's input 'mask'", "found x", "mask: int64 [N, 4]"],
    ),
    "extra array": (ONE, {"x": GOOD, "labels": MASK}, ["'labels' is no input", "leave it out"]),
    "misspelt name": (TWO, {"x": GOOD, "maks": MASK}, ["'maks' is no input", "did you mean 'mask'?"]),
    "int for float": (ONE, {"x": GOOD.astype(np.uint8)}, ["'x' is uint8", "float32", "scaled as the model"]),
    "float for int": (TWO, {"x": GOOD, "mask": MASK * 1.0}, ["'mask' is float64", "astype('int64')"]),
    "text": (ONE, {"x": np.array(["a", "b"])}, ["'x' is str", "save plain float32"]),
    "rank too low": (ONE, {"x": GOOD[0]}, ["rank 2 (shape (3, 4))", "expected rank 3", "x[None]"]),
    "rank too high": (ONE, {"x": GOOD[None, None]}, ["rank 5", "expected rank 3", "samples on axis 0"]),
    "wrong size": (
        ONE,
        {"x": np.ones((5, 4, 3), np.float32)},
        ["size 4 on axis 1", "expected 3", "[N, 3, 4]"],
    ),
    "wrong size in a feed": (
        ONE,
        {"x": np.ones((2, 5, 4, 3), np.float32)},
        ["size 4 on axis 1", "expected 3"],
    ),
    "counts differ": (TWO, {"x": GOOD, "mask": MASK[:4]}, ["sample counts differ", "'x' 5", "'mask' 4"]),
    "feed counts differ": (TWO, {"x": GOOD[None], "mask": MASK[None][:0]}, ["numbers of feeds differ"]),
    "one input in feeds, one not": (
        TWO,
        {"x": GOOD[None], "mask": MASK},
        ["'x' has rank 4", "expected rank 3"],
    ),
    "no samples": (ONE, {"x": GOOD[:0]}, ["'x' is empty (shape (0, 3, 4))", "at least one sample"]),
    "no feeds": (ONE, {"x": GOOD[None][:0]}, ["is empty", "at least one feed"]),
    "nan": (ONE, {"x": with_value(np.nan)}, ["'x' has nan in sample 2", "remove or repair"]),
    "nan in a later slice": (ONE, {"x": np.concatenate([GOOD] * 9 + [with_value(np.nan)])}, ["in sample 47"]),
    "too big for float32": (ONE, {"x": with_value(1e300, "float64")}, ["1e+300", "does not fit", "float32"]),
    "too big for int32": (
        [TensorInfo("x", np.dtype("int32"), ("N",))],
        {"x": np.array([1, 2**40])},
        ["1099511627776", "int32"],
    ),
    "negative for uint8": (
        [TensorInfo("x", np.dtype("uint8"), ("N",))],
        {"x": np.array([1, -1])},
        ["'x' holds -1", "uint8"],
    ),
    "int for bool": ([TensorInfo("x", np.dtype("bool"), ("N",))], {"x": np.array([0, 1])}, ["takes bool"]),
    "scalar without a known shape": (
        [TensorInfo("x", F32, None)],
        {"x": np.float32(1)},
        ["rank 0", "expected rank 1"],
    ),
    "nan in an input of the run": (
        [X, TensorInfo("scale", F32, ())],
        {"x": GOOD, "scale": np.float32(np.nan)},
        ["'scale' has nan; a verdict"],
    ),
    "samples first without a batch axis": (
        [X, TensorInfo("prior", F32, ("boxes", 4))],
        {"x": GOOD, "prior": np.ones((7, 4), np.float32)},
        ["share no batch axis", "np.stack(feeds)"],
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_arrays_that_do_not_fit(tmp_path: Path, case: str, kind: str) -> None:
    inputs, arrays, parts = ARRAYS[case]
    if kind == "npz":
        np.savez(tmp_path / "a.npz", **arrays)
        source = "a.npz"
    else:
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
        source = "."
    with pytest.raises(DataError) as caught:
        read_all(tmp_path, source, inputs)
    text = str(caught.value)
    assert text.startswith(f"inputs: {source}: ")
    assert "\n" not in text
    for part in parts:
        assert part in text


def pickled_npz(folder: Path) -> str:
    np.savez(folder / "a.npz", x=np.array([{"a": 1}], dtype=object))
    return "a.npz"


def pickled_npy(folder: Path) -> str:
    np.save(folder / "x.npy", np.array([{"a": 1}], dtype=object))
    return "x.npy"


def cut(folder: Path, name: str, keep: float) -> str:
    (np.savez if name.endswith("z") else np.save)(folder / name, GOOD)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * keep)])
    return name


def flipped(folder: Path) -> str:
    np.savez_compressed(folder / "a.npz", x=np.random.default_rng(0).random((5, 3, 4)))
    data = bytearray((folder / "a.npz").read_bytes())
    data[200] ^= 0xFF
    (folder / "a.npz").write_bytes(data)
    return "a.npz"


def raw(name: str, data: bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(data)
        return name

    return make


def renamed(folder: Path) -> str:
    np.savez(folder / "a.npz", x=GOOD)
    (folder / "a.npz").rename(folder / "x.npy")
    return "x.npy"


def misspelt(folder: Path) -> str:
    np.savez(folder / "calib.npz", x=GOOD)
    return "calid.npz"


def zip_of_text(folder: Path) -> str:
    import zipfile

    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("x.txt", "1 2 3")
    return "a.npz"


def folder_with(*files: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "calib").mkdir()
        for file in files:
            path = folder / "calib" / file
            path.parent.mkdir(exist_ok=True)
            np.save(path, MASK if "mask" in file else GOOD)
        return "calib"

    return make


def nan_file(folder: Path) -> str:
    for i in range(3):
        np.save(folder / f"s{i}.npy", with_value(np.nan)[2] if i == 1 else GOOD[0])
    return "."


FILES: dict[str, tuple[list[TensorInfo], Callable[[Path], str], list[str]]] = {
    "pickled npz": (ONE, pickled_npz, ["a.npz: holds pickled Python objects", "refused", "np.savez("]),
    "pickled npy": (ONE, pickled_npy, ["x.npy: holds pickled Python objects", "dtype=np.float32"]),
    "bare pickle": (ONE, raw("x.npy", pickle.dumps(GOOD)), ["x.npy: holds pickled Python objects"]),
    "cut npz": (ONE, lambda f: cut(f, "a.npz", 0.5), ["a.npz: damaged or cut short"]),
    "cut npy": (ONE, lambda f: cut(f, "x.npy", 0.7), ["x.npy: damaged or cut short"]),
    "cut header": (ONE, lambda f: cut(f, "x.npy", 0.1), ["x.npy: damaged or cut short"]),
    "flipped bit": (ONE, flipped, ["a.npz: damaged"]),
    "empty file": (ONE, raw("a.npz", b""), ["a.npz: damaged or cut short (No data left in file)"]),
    "text as npz": (ONE, raw("a.npz", b"hello world"), ["a.npz: holds pickled", "or is no NumPy file"]),
    "npz named npy": (ONE, renamed, ["x.npy: holds an archive of arrays; rename it to .npz"]),
    "npz of text": (ONE, zip_of_text, ["'x' is bytes40"]),
    "npz of nothing": (ONE, raw("a.npz", b"PK\x05\x06" + bytes(18)), ["'x'; found nothing"]),
    "missing file": (ONE, misspelt, ["calid.npz: no such file", "did you mean 'calib.npz'?"]),
    "missing folder": (ONE, lambda f: "data/a.npz", ["no such file; there is no folder"]),
    "unknown kind": (ONE, raw("a.csv", b"1,2"), ["a.csv: not a kind of data", ".npz", "file.py:function"]),
    "empty folder": (ONE, folder_with(), ["calib: no .npy files", "x.npy", "x/"]),
    "folder with a stranger": (ONE, folder_with("x.npy", "labels.npy"), ["'labels' is no input"]),
    "folder lacks an input": (TWO, folder_with("x.npy"), ["nothing for the model's input 'mask'"]),
    "folders, counts differ": (
        TWO,
        folder_with("x/0.npy", "x/1.npy", "mask/0.npy"),
        ["numbers of files differ", "mask/ 1", "x/ 2"],
    ),
    "folders, one misspelt": (TWO, folder_with("x/0.npy", "mask_/0.npy"), ["'mask_' is no input", "'mask'?"]),
    "one file of many": (ONE, nan_file, ["./s1.npy: 'x' has nan in sample 1"]),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_read(tmp_path: Path, case: str) -> None:
    inputs, make, parts = FILES[case]
    source = make(tmp_path)
    with pytest.raises(DataError) as caught:
        read_all(tmp_path, source, inputs)
    text = str(caught.value)
    assert text.startswith(f"inputs: {source}")
    assert "\n" not in text
    for part in parts:
        assert part in text


DOCUMENTS = read("data", "malformed_documents.txt")


@pytest.mark.parametrize("case", [*DOCUMENTS, "too deep"])
def test_json_that_polygraphy_did_not_save(tmp_path: Path, case: str) -> None:
    text, (said,) = DOCUMENTS.get(case, ("[" * 100_000, ["not JSON that Polygraphy writes"]))
    (tmp_path / "inputs.json").write_text(text)
    with pytest.raises(DataError) as caught:
        read_all(tmp_path, "inputs.json", ONE)
    assert_said(str(caught.value), f"inputs: inputs.json|{said}")


def test_json_of_outputs_as_polygraphy_saves_them(tmp_path: Path) -> None:
    from polygraphy.comparator import IterationResult, RunResults

    results = RunResults()
    results.append(("runner", [IterationResult({"y": np.ones((1, 2))}, runner_name="runner")]))
    results.save(str(tmp_path / "outputs.json"))
    with pytest.raises(DataError, match="outputs of a run"):
        read_all(tmp_path, "outputs.json", ONE)


LOADERS = read("data", "malformed_loaders.txt")


@pytest.mark.parametrize("case", LOADERS)
def test_loaders_that_misbehave(tmp_path: Path, case: str) -> None:
    script, (said,) = LOADERS[case]
    (tmp_path / "loaders.py").write_text(script)
    with pytest.raises(DataError) as caught:
        read_all(tmp_path, "loaders.py:load", ONE)
    assert_said(str(caught.value), said)


def test_a_model_without_inputs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="takes no inputs"):
        read_all(tmp_path, RandomSource(1), [])


def test_messages_name_the_key_of_the_spec(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape("calibrate.data: a.npz: no such file")):
        open_dataset("a.npz", ONE, base=tmp_path, what="calibrate.data")
