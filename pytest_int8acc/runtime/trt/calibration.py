"""Implicit quantization's calibration cache: what it belongs to, and whether it fits.

TensorRT loads any cache without a word and leaves the tensors that it does not name to themselves: one left
from another model cost 5 dB when it was measured. So a cache is tied by a small JSON beside it to the model,
the data, the algorithm and the TensorRT version that it came from, and its names must be the network's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_int8acc.errors import EngineError
from pytest_int8acc.files import readable, replace_file
from pytest_int8acc.graph.index import all_initializers, all_nodes
from pytest_int8acc.graph.model import Model
from pytest_int8acc.runtime.trt.platform import Platform
from pytest_int8acc.spec.int8 import Algorithm as Algorithm
from pytest_int8acc.tensors import Feed

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset


#: A cache's first line ends in this, by algorithm; TensorRT ignores a cache of another one.
HEADERS: dict[Algorithm, str] = {
    "entropy2": "EntropyCalibration2",
    "entropy": "EntropyCalibration",
    "minmax": "MinMaxCalibration",
    "legacy": "LegacyCalibration",
}
_HEADER = re.compile(r"TRT-([^\s-]+)-(\S+)")
#: The legacy calibrator begins with its parameters, doubles in hex.
_LEGACY = re.compile(r"\d+ [0-9a-f]{16} [0-9a-f]{16}")
#: Names that TensorRT makes up for tensors without one.
_UNNAMED = re.compile(r"\(Unnamed (?:Layer|ITensor)\*")
_SIDECAR = ".int8acc.json"


@dataclass(frozen=True, eq=False)
class Implicit:
    """Where TensorRT's own calibrator takes its ranges from."""

    algorithm: Algorithm = "entropy2"
    cache: bytes | None = None
    """A calibration cache; TensorRT then runs no data."""
    feeds: Iterable[Feed] = field(default=())
    """Calibration batches in FP32, iterated only where an engine is built without a cache."""
    data: str = ""
    """Digest of the calibration data, which stands for ``feeds`` in an engine's fingerprint."""


def calibrate_on(dataset: Dataset, algorithm: Algorithm) -> Implicit:
    """Calibration over ``dataset``; reads it once where its digest is not known yet.

    Raises:
        DataError: The samples cannot be read.
    """
    return Implicit(algorithm, feeds=_Feeds(dataset), data=dataset.read_once())


class _Feeds:
    """The feeds of a dataset, as often as wanted."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Feed]:
        return (batch.feed for batch in self._dataset.batches())


@dataclass(frozen=True)
class Provenance:
    """What a calibration cache came from."""

    model: str
    """Digest, from :func:`model_digest`."""
    data: str
    algorithm: str
    tensorrt: str
    """Major, minor and patch: caches are not portable between releases."""

    @classmethod
    def of(cls, model: Model, implicit: Implicit, platform: Platform) -> Provenance:
        """Of a cache that calibrating ``model`` here would give."""
        version = ".".join(map(str, platform.version[:3]))
        return cls(model_digest(model), implicit.data, implicit.algorithm, version)


def model_digest(model: Model) -> str:
    """BLAKE2b of the graph and all weights, in hex; the model's file name has no part in it."""
    found = hashlib.blake2b(model.proto.SerializeToString(deterministic=True), digest_size=20)
    for name in sorted(model.weights):
        array = model.weights[name]
        found.update(f"\0{name}\0{array.dtype.str}{array.shape}\0".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def tensor_names(model: Model) -> set[str]:
    """Every tensor of the model that a calibration cache may name."""
    names = {value.name for value in model.graph.input}
    names |= {tensor.name for tensor in all_initializers(model.graph)}
    return names | {name for node in all_nodes(model.graph) for name in node.output}


def sidecar_path(cache: Path) -> Path:
    """Where the provenance of ``cache`` is kept."""
    return cache.with_name(cache.name + _SIDECAR)


def write_cache(cache: Path, content: bytes, provenance: Provenance) -> None:
    """Write a calibration cache and its sidecar, each whole or not at all.

    Raises:
        EngineError: They cannot be written.
    """
    sidecar = {"cache": digest(content), **dataclasses.asdict(provenance)}
    try:
        replace_file(cache, content)
        replace_file(sidecar_path(cache), (json.dumps(sidecar, indent=2) + "\n").encode())
    except OSError as error:
        raise EngineError(f"{cache}: cannot be written: {error.strerror or error}") from error


def read_cache(cache: Path, expected_origin: Provenance, names: Collection[str]) -> tuple[bytes, str]:
    """The content of a calibration cache that fits, and a note on it; empty where nothing need be said.

    Args:
        cache: A calibration cache.
        expected_origin: What it must have come from; data of the empty digest are any data.
        names: Tensors of the model, from :func:`tensor_names`.

    Raises:
        EngineError: It cannot be read, or does not fit; says why.
    """
    content = read_content(cache)
    check_names(content, str(cache), expected_origin.algorithm, names)
    return content, check_sidecar(cache, content, expected_origin)


def read_content(cache: Path) -> bytes:
    """The bytes of a calibration cache; EngineError where there is none."""
    try:
        return readable(cache).read_bytes()
    except OSError as error:
        raise EngineError(
            f"{cache}: the calibration cache cannot be read: {error.strerror or error}"
        ) from error


def check_sidecar(cache: Path, content: bytes, expected_origin: Provenance) -> str:
    """A note where nothing proves what ``cache`` came from; empty where its sidecar does.

    Raises:
        EngineError: The sidecar cannot be read, or tells of another origin.
    """
    path = sidecar_path(cache)
    try:
        found: Any = json.loads(readable(path).read_bytes())
    except FileNotFoundError:
        return (
            f"calibration cache {cache.name}: nothing proves that it belongs to this model and data "
            f"(no {path.name} beside it); its names do fit"
        )
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: cannot be read ({error}); remove it, and {_again(cache)}") from error
    if not isinstance(found, dict):
        raise EngineError(f"{path}: expected a mapping; remove it, and {_again(cache)}")
    expected = {"cache": digest(content), **dataclasses.asdict(expected_origin)}
    said = {
        "cache": "the cache was changed after it was written",
        "model": "it is of another model (weights or graph have changed since)",
        "data": "it is of other calibration data",
        "algorithm": f"it is of algorithm {found.get('algorithm')}, wanted is {expected_origin.algorithm}",
        "tensorrt": f"it is of TensorRT {found.get('tensorrt')}, here is {expected_origin.tensorrt}",
    }
    wrong = [said[key] for key, value in expected.items() if value and found.get(key) != value]
    if wrong:
        raise EngineError(f"{cache}: the calibration cache does not fit: {'; '.join(wrong)}; {_again(cache)}")
    return ""


def check_names(content: bytes, where: str, algorithm: str, names: Collection[str]) -> None:
    """Do nothing where a cache is of ``algorithm`` and names tensors among ``names`` only.

    Names that TensorRT made up cannot be checked and are passed over.

    Raises:
        EngineError: It is no cache, of another algorithm, or of another model.
    """
    lines = content.decode("utf-8", errors="replace").splitlines()
    check_header(lines[0] if lines else "", where, algorithm)
    entries = [line.rpartition(": ")[0] for line in lines[1:] if line.strip() and not named_algorithm(line)]
    named = [name for name in entries if not _UNNAMED.match(name)]
    foreign = [name for name in named if name not in names]
    if foreign or not named:
        some = ", ".join(f"'{name}'" for name in foreign[:3])
        raise EngineError(
            f"{where}: the calibration cache is of another model: {len(foreign)} of its {len(named)} tensors "
            f"are not in this one{' (' + some + ')' if some else ''}; calibrate again"
        )


def check_header(line: str, where: str, algorithm: str) -> None:
    """Do nothing where ``line``, a cache's first, is of ``algorithm``.

    Raises:
        EngineError: It is no cache's, or of another algorithm.
    """
    known = named_algorithm(line)
    if not known:
        raise EngineError(
            f"{where}: no calibration cache: expected a first line like TRT-8601-EntropyCalibration2"
        )
    if known != algorithm:
        raise EngineError(
            f"{where}: a cache of algorithm {known}, and TensorRT would ignore it under {algorithm}; "
            f"set 'algorithm: {known}', or calibrate again"
        )


def algorithm_of(cache: Path) -> Algorithm:
    """The algorithm that a calibration cache's first line names; entropy2 where it names none that is known.

    Raises:
        EngineError: It cannot be read.
    """
    first = read_content(cache).decode("utf-8", errors="replace").partition("\n")[0]
    return next((name for name in HEADERS if name == named_algorithm(first)), "entropy2")


def named_algorithm(line: str) -> str:
    """What a cache's first line names, as TensorRT spells it where it is not known; empty for other lines."""
    if _LEGACY.fullmatch(line.strip()):
        return "legacy"
    header = _HEADER.fullmatch(line.strip())
    return next((name for name, text in HEADERS.items() if text == header[2]), header[2]) if header else ""


def _again(cache: Path) -> str:
    return (
        f"delete {cache.name} and calibrate again with 'implicit: {{calibrate: {{}}, cache: {cache.name}}}'"
    )


def digest(content: bytes) -> str:
    """BLAKE2b in hex."""
    return hashlib.blake2b(content, digest_size=20).hexdigest()
