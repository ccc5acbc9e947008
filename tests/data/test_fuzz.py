"""Whatever stands in a data file: arrays that fit the model, or one DataError that names the file."""

from __future__ import annotations

import base64
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytest_int8acc import DataError
from pytest_int8acc.data import load_labels, open_dataset
from pytest_int8acc.tensors import TensorInfo

X = TensorInfo("x", np.dtype("float32"), ("N", 3, 4))
GOOD = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
#: Malformed files of each kind.
EACH = 80
DTYPES = ("<f4", ">f8", "|b1", "<f99", "|O", "<U3", "<M8[s]", "|V7", "<c8", "f4,f4", "\x00", "<i8", "|S0")
SHAPES = (
    "(5, 3, 4)",
    "()",
    "(0,)",
    "(-1, 3, 4)",
    "(5, 3)",
    "(2**62, 4)",
    "(4611686018427387904, 4)",
    "(5,",
    "None",
)


def npy(rng: random.Random) -> bytes:
    """A .npy file whose header, length or bytes are not as they should be."""
    dtype, shape = rng.choice(DTYPES), rng.choice(SHAPES)
    order = rng.choice(("False", "True", "3", "__import__('os')"))
    header = f"{{'descr': {dtype!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    if rng.random() < 0.2:
        header = rng.choice(("", "{}", "[" * 3000, "{" + "'a':1," * 30, header * 2, header[:-3]))
    raw = header.encode("latin1").ljust(rng.choice((54, 118))) + b"\n"
    length = len(raw) + rng.choice((0, 0, 0, 0, 1, -1, 60_000))
    magic = b"\x93NUMPY" + rng.choice((b"\x01\x00", b"\x02\x00", b"\x09\x09"))
    size = 4 if magic[6] == 2 else 2
    body = GOOD.tobytes()[: rng.choice((240, 240, 239, 0, 7))]
    return magic + max(length, 0).to_bytes(size, "little") + raw + body


def npz(rng: random.Random) -> bytes:
    """An archive with odd members, or damaged bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name in rng.choice(
            (("x.npy",), ("x.npy", "y.npy"), ("",), ("../x.npy",), ("x",), ("x.npy", "x.npy"))
        ):
            archive.writestr(zipfile.ZipInfo(name), npy(rng))
    return flipped(rng, buffer.getvalue()) if rng.random() < 0.5 else buffer.getvalue()


def document(rng: random.Random) -> bytes:
    """JSON that Polygraphy did not write."""
    array = rng.choice((base64.b64encode(npy(rng)).decode(), "", "!", 3, None, [], "é"))
    kind = rng.choice(("ndarray", "ndarray", "ndarray", "Tensor", "x", 3))
    feed = rng.choice(({"x": {"array": array, "polygraphy_class": kind}}, {"x": array}, {}, [], array))
    text = json.dumps(rng.choice(([feed], feed, [feed, feed], {"lst": [feed]})))
    return flipped(rng, text.encode()) if rng.random() < 0.4 else text.encode()


def flipped(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.choice((len(raw), len(raw), rng.randrange(len(raw)) + 1))])


KINDS = {"x.npy": npy, "a.npz": npz, "inputs.json": document}


def told(action: Callable[[], object]) -> str:
    """The DataError of ``action``; empty where it ends without one."""
    try:
        action()
    except DataError as error:
        return str(error)
    return ""


def read(folder: Path, source: str) -> None:
    """Reads all; what is read is what the model takes."""
    for batch in open_dataset(source, [X], base=folder).batches():
        array = batch.feed["x"]
        assert array.dtype == X.dtype
        assert array.shape[1:] == (3, 4)
        assert np.isfinite(array).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_malformed_inputs(name: str, tmp_path: Path) -> None:
    refused = 0
    for seed in range(EACH):
        (tmp_path / name).write_bytes(KINDS[name](random.Random(seed)))
        text = told(lambda: read(tmp_path, name))
        assert not text or text.startswith(f"inputs: {name}"), seed
        refused += bool(text)
    assert refused >= EACH // 2, "the generator breaks too little"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["x.npy", "a.npz"])
def test_malformed_labels_and_folders(name: str, tmp_path: Path) -> None:
    for seed in range(EACH, 2 * EACH):
        (tmp_path / name).write_bytes(KINDS[name](random.Random(seed)))
        for action in (lambda: load_labels(name, 5, tmp_path), lambda: read(tmp_path, ".")):
            text = told(action)
            assert not text or name in text or text.startswith("inputs: ."), seed
