"""Calibration caches of implicit quantization, and checks that a cache belongs to a model.

TensorRT loads any cache without a warning, and chooses no range for a tensor that the cache does not name. In
a measurement, the cache of another model cost 5 dB. So a small JSON file next to the cache, the sidecar,
records the model, the data, the algorithm and the TensorRT version of the cache. A cache that names tensors
of another model is refused.
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


#: For each algorithm, the end of the first line of its caches. TensorRT ignores a cache of another algorithm.
HEADERS: dict[Algorithm, str] = {
    "entropy2": "EntropyCalibration2",
    "entropy": "EntropyCalibration",
    "minmax": "MinMaxCalibration",
    "legacy": "LegacyCalibration",
}
_HEADER = re.compile(r"TRT-([^\s-]+)-(\S+)")
#: The parameters of the legacy calibrator in the first line of its caches: doubles in hexadecimal digits.
_LEGACY = re.compile(r"\d+ [0-9a-f]{16} [0-9a-f]{16}")
#: Matches the beginning of the names that TensorRT gives to tensors without a name.
_UNNAMED = re.compile(r"\(Unnamed (?:Layer|ITensor)\*")
_SIDECAR = ".int8acc.json"


@dataclass(frozen=True, eq=False)
class Implicit:
    """The source of the ranges of TensorRT's own calibrator."""

    algorithm: Algorithm = "entropy2"
    cache: bytes | None = None
    """The content of a calibration cache. With a cache, TensorRT runs no calibration data. If None,
    TensorRT calibrates."""
    feeds: Iterable[Feed] = field(default=())
    """Calibration batches in FP32. They are read only if an engine is built without a cache."""
    data: str = ""
    """Digest of the calibration data, on which the key of the engine depends."""


def calibrate_on(dataset: Dataset, algorithm: Algorithm) -> Implicit:
    """Ranges from calibration on ``dataset``, which is read once if its digest is not known yet.

    Raises:
        DataError: The samples cannot be read.
    """
    return Implicit(algorithm, feeds=_Feeds(dataset), data=dataset.read_once())


class _Feeds:
    """The feeds of a dataset. They may be iterated several times."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Feed]:
        return (batch.feed for batch in self._dataset.batches())


@dataclass(frozen=True)
class Provenance:
    """All that a calibration cache depends on."""

    model: str
    """Digest of the model, from :func:`model_digest`."""
    data: str
    algorithm: str
    tensorrt: str
    """Major, minor and patch version, since caches of other releases cannot be used."""

    @classmethod
    def of(cls, model: Model, implicit: Implicit, platform: Platform) -> Provenance:
        """The provenance of the cache that a calibration of ``model`` on this platform makes."""
        version = ".".join(map(str, platform.version[:3]))
        return cls(model_digest(model), implicit.data, implicit.algorithm, version)


def model_digest(model: Model) -> str:
    """BLAKE2b digest of the graph and all weights in hexadecimal digits, without the model's name."""
    found = hashlib.blake2b(model.proto.SerializeToString(deterministic=True), digest_size=20)
    for name in sorted(model.weights):
        array = model.weights[name]
        found.update(f"\0{name}\0{array.dtype.str}{array.shape}\0".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def tensor_names(model: Model) -> set[str]:
    """The names of all tensors of the model, which a calibration cache may name."""
    names = {value.name for value in model.graph.input}
    names |= {tensor.name for tensor in all_initializers(model.graph)}
    return names | {name for node in all_nodes(model.graph) for name in node.output}


def sidecar_path(cache: Path) -> Path:
    """The path of the JSON file with the provenance of ``cache``."""
    return cache.with_name(cache.name + _SIDECAR)


def write_cache(cache: Path, content: bytes, provenance: Provenance) -> None:
    """Write a calibration cache and its sidecar, each atomically.

    Raises:
        EngineError: One of the files cannot be written.
    """
    sidecar = {"cache": digest(content), **dataclasses.asdict(provenance)}
    try:
        replace_file(cache, content)
        replace_file(sidecar_path(cache), (json.dumps(sidecar, indent=2) + "\n").encode())
    except OSError as error:
        raise EngineError(f"{cache}: cannot be written: {error.strerror or error}") from error


def read_cache(cache: Path, expected_origin: Provenance, names: Collection[str]) -> tuple[bytes, str]:
    """The content of a calibration cache that fits the model, and a note for the report, which may be empty.

    Args:
        cache: A calibration cache.
        expected_origin: The provenance that the cache must have. With an empty digest of the data, a cache
            from any data is accepted.
        names: Tensors of the model, from :func:`tensor_names`.

    Raises:
        EngineError: The cache cannot be read, or does not fit. The message has the reason.
    """
    content = read_content(cache)
    check_names(content, str(cache), expected_origin.algorithm, names)
    return content, check_sidecar(cache, content, expected_origin)


def read_content(cache: Path) -> bytes:
    """The bytes of a calibration cache; raises EngineError if the file cannot be read."""
    try:
        return readable(cache).read_bytes()
    except OSError as error:
        raise EngineError(
            f"{cache}: the calibration cache cannot be read: {error.strerror or error}"
        ) from error


def check_sidecar(cache: Path, content: bytes, expected_origin: Provenance) -> str:
    """A note that ``cache`` has no sidecar; empty if the sidecar has the expected provenance.

    Raises:
        EngineError: The sidecar cannot be read, or has another provenance.
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
    """Raise EngineError unless a cache is of ``algorithm`` and names tensors among ``names`` only.

    Names that TensorRT gave to unnamed tensors cannot be checked, and are ignored.
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
    """Raise EngineError unless ``line``, the first line of a cache, names ``algorithm``."""
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
    """The algorithm that the first line of a cache names; ``entropy2`` if it names no known algorithm.

    Raises:
        EngineError: The cache cannot be read.
    """
    first = read_content(cache).decode("utf-8", errors="replace").partition("\n")[0]
    return next((name for name in HEADERS if name == named_algorithm(first)), "entropy2")


def named_algorithm(line: str) -> str:
    """The algorithm that ``line`` names; empty if it cannot be the first line of a cache.

    An unknown algorithm is returned in TensorRT's spelling.
    """
    if _LEGACY.fullmatch(line.strip()):
        return "legacy"
    header = _HEADER.fullmatch(line.strip())
    return next((name for name, text in HEADERS.items() if text == header[2]), header[2]) if header else ""


def _again(cache: Path) -> str:
    return (
        f"delete {cache.name} and calibrate again with 'implicit: {{calibrate: {{}}, cache: {cache.name}}}'"
    )


def digest(content: bytes) -> str:
    """The BLAKE2b digest in hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=20).hexdigest()
