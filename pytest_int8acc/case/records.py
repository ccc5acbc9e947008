"""Records the trials and proofs of a case, so that an interrupted search continues in the next run.

A record is kept in the engine store under the digest of everything that decides its result. The next run uses
a recorded result like one of its own, so the search takes the same steps to the same answer. The records of a
case are removed when the case has its answer, so the run after that starts anew.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import logging
import platform
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError, installed
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.runtime.store import Store, open_folder
from pytest_int8acc.runtime.trt.calibration import model_digest
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import MetricCriterion
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Outputs

logger = logging.getLogger("pytest_int8acc")
#: Python packages whose versions may change a result.
_LIBRARIES = ("onnxruntime", "onnxruntime-gpu", "onnx", "numpy")
#: Types whose ``repr`` is the same in every process.
_SIMPLE = {int, float, str, bool, type(None)}


class Records:
    """The records of one case."""

    def __init__(self, store: Store | None = None, case: str = "") -> None:
        """Open the records of a case.

        Args:
            store: The store. With None, nothing is kept.
            case: The digest of everything that decides the results of the case, apart from the plan.
        """
        self._store, self._case = store, case
        self._part: tuple[object, ...] = ()
        self._made = set[str]()
        self._found = set[str]()

    @property
    def kept(self) -> bool:
        """Whether results are recorded. If they are not, the keys of records need not be computed."""
        return self._store is not None

    def of(self, *part: object) -> Records:
        """The same records for results that also depend on ``part``, which becomes part of every key."""
        other = copy(self)
        other._part = (*self._part, *part)
        return other

    def find(self, *key: object) -> Mapping[str, Any] | None:
        """The values that an earlier run recorded under ``key``; None if the record is missing or damaged."""
        if self._store is None:
            return None
        name = digest_of(self._part, key)
        data = None if name in self._made else self._store.record(self._case, name)
        if data is None:
            return None
        self._found.add(name)
        found: dict[str, Any] = json.loads(data, object_hook=_array)
        return found

    def keep(self, *key: object, **values: object) -> None:
        """Record ``values``, arrays or JSON types, under ``key``. NaN and inf are allowed."""
        if self._store is None:
            return
        name, data = digest_of(self._part, key), json.dumps(values, default=_plain).encode()
        self._made.add(name)
        try:
            self._store.keep_record(self._case, name, data)
        except EngineError as error:
            logger.warning("trials are not kept: %s", error)
            self._store = None

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for the report on the records of an earlier run that were used."""
        if not self._found:
            return ()
        return (f"an earlier run was cut off; {len(self._found)} of its trials and proofs are not repeated",)

    def forget(self) -> None:
        """Remove all records of the case."""
        if self._store is not None:
            self._store.forget_records(self._case)


def _plain(array: Any) -> dict[str, Any]:
    """An array, or a number of NumPy, as JSON types."""
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": array.shape, "base64": data}


def _array(plain: dict[str, Any]) -> Any:
    if "base64" not in plain:
        return plain
    data = bytearray(base64.b64decode(plain["base64"]))
    return np.frombuffer(data, plain["dtype"]).reshape(plain["shape"])


def open_records(
    case: Case,
    settings: Settings,
    backend: str,
    judge: Judge,
    inputs: Dataset,
    baseline: Outputs,
    int8: Int8Form,
) -> Records:
    """The records of a case. Nothing is kept if the settings say so, or if criteria call a user's function.

    A user's function may depend on anything, so a recorded result may be out of date.

    Args:
        case: The case. Its spec is part of what decides a result.
        settings: The settings of the run.
        backend: The description of the runtime.
        judge: Applies the criteria of the case.
        inputs: The samples.
        baseline: The baseline's outputs on all samples.
        int8: The quantized network.
    """
    metrics = [criterion for criterion in case.criteria if isinstance(criterion, MetricCriterion)]
    if settings.no_cache or any(".py" in metric.model_dump_json() for metric in metrics):
        return Records()
    limits = [*judge.limits, *(limit for limit, _ in judge.metrics)]
    try:
        digest = digest_of(
            _program(),
            case.model_dump_json(),
            (backend, settings.mode, settings.provider),
            (network_digest(int8.network), int8.rest),
            (inputs.digest or inputs.read_once(), baseline),
            (judge.labels, judge.groups, [vars(limit) for limit in limits]),
        )
        return Records(open_folder(settings.cache_dir), digest)
    except (EngineError, TypeError) as error:  # TypeError: labels of a type that has no digest
        logger.info("%s: trials are not kept: %s", case.name, error)
        return Records()


@cache
def _program() -> str:
    """The digest of this package's source, the versions of libraries, and the processor.

    ONNX Runtime has other kernels for other processors.
    """
    root = Path(__file__).parents[1]
    sources = [(path.relative_to(root).as_posix(), path.read_bytes()) for path in sorted(root.rglob("*.py"))]
    return digest_of(sources, installed(_LIBRARIES), platform.machine(), _processor())


def _processor() -> list[str]:
    """The models and the features of the processors; only a name if Linux does not report them."""
    try:
        entries = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.processor()]
    names = ("model name", "flags", "CPU part", "Features")
    return sorted({entry for entry in entries if entry.startswith(names)})


def network_digest(network: Network) -> str:
    """The digest of a network: its model, and its groups with their scales."""
    return digest_of(model_digest(network.model), network.groups, network.low.name)


def digest_of(*values: object) -> str:
    """The BLAKE2b digest of values in hex.

    Values are numbers, texts, bytes, arrays, and dataclasses, mappings, sets and sequences of them. The order
    within a set does not matter.

    Raises:
        TypeError: There is a value of another type.
    """
    digest = hashlib.blake2b(digest_size=20)
    for value in values:
        _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: object) -> None:
    content: Any
    if isinstance(value, np.ndarray) and value.dtype != object:
        _add(digest, (value.dtype.str, value.shape))
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, bytes):
        content = value
    elif type(value) in _SIMPLE or (isinstance(value, tuple) and all(type(v) in _SIMPLE for v in value)):
        content = repr(value).encode("utf-8", "surrogatepass")
    else:
        members = _members(value)
        digest.update(f"{len(members)} of {type(value).__name__}:".encode())
        for member in members:
            _add(digest, member)
        return
    digest.update(f"{len(content)} in {type(value).__name__}:".encode())
    digest.update(content)


def _members(value: object) -> Sequence[object]:
    if isinstance(value, Model):
        return [model_digest(value)]
    if isinstance(value, np.generic):
        return [value.item()]
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, set | frozenset):
        return sorted(digest_of(member) for member in value)
    if isinstance(value, list | tuple):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return list(vars(value).values())
    raise TypeError(f"no digest of {type(value).__name__}")
