"""Goldens that are damaged, or are no files at all: one clear error each that names the file."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_support import BASE, MINMAX, write_project
from plugin_support import LOAD

pytestmark = pytest.mark.usefixtures("quick_processes")

CASE = (
    f"{BASE}{MINMAX}golden: true\ncriteria: [{{sqnr_db: 5}}, {{regression: {{sqnr_db: 90}}}}]\n",
    f"{BASE}{MINMAX}baseline: golden\ngolden: true\ncriteria: [{{sqnr_db: 5}}]\n",
)
KINDS = ("fifo", "socket", "device", "folder")
ARRAY_TESTS = """
import numpy as np
import pytest


@pytest.mark.parametrize("name", NAMES)
def test_arrays(name, int8acc_golden):
    int8acc_golden(name, np.zeros(3, np.float32))
"""


class Goldens:
    """A project with a recorded golden, from which cases with damaged ones are made."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        write_project(pytester.path)
        for number, text in enumerate(CASE):
            (pytester.path / f"case{number}.int8acc.yaml").write_text(text)
        self.run("--int8acc-update=all").assert_outcomes(passed=len(CASE))
        self.records = [json.loads(self.file(n, f"case{n}.json").read_text()) for n in range(len(CASE))]

    def file(self, number: int, name: str) -> Path:
        return self.pytester.path / "__int8acc__" / f"case{number}" / name

    def run(self, *more: str, timeout: float | None = None) -> pytest.RunResult:
        """Runs pytest; a run with a timeout in seconds has a process of its own."""
        arguments = ("--int8acc", *LOAD, "-p", "no:cacheprovider", "--int8acc-search=off", *more)
        if timeout is None:
            return self.pytester.runpytest(*arguments)
        return self.pytester.runpytest_subprocess(*arguments, timeout=timeout)

    def add_cases(self, number: int, names: list[str]) -> None:
        """Cases that are as the one recorded, each with a golden of its own."""
        spec = self.pytester.path / f"case{number}.int8acc.yaml"
        indented = "".join(f"  {line}\n" for line in CASE[number].strip().splitlines())
        spec.write_text(f"defaults:\n{indented}cases:\n" + "".join(f"  - name: {name}\n" for name in names))

    def write(self, number: int, case: str, record: object) -> None:
        if isinstance(record, dict) and record.get("case") == f"case{number}":
            record = {**record, "case": case}
        self.file(number, f"{case}.json").write_text(json.dumps(record))

    def verdicts(self, timeout: float | None = None) -> dict[str, tuple[str, str]]:
        """Verdict and message of each case."""
        self.run("-q", "--int8acc-report=out", timeout=timeout)
        report = json.loads((self.pytester.path / "out" / "report.json").read_text())
        cases = {case["nodeid"].rpartition("::")[2]: case for case in report["cases"]}
        return {name: (case["verdict"], case.get("message", "")) for name, case in cases.items()}


@pytest.fixture
def goldens(pytester: pytest.Pytester) -> Goldens:
    return Goldens(pytester)


def put(path: Path, kind: str) -> None:
    """Something that is no file, in place of one."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(os.path.relpath(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


def damaged(value: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], object]]:
    """Each value of a record, by its path, and what stands in its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from damaged(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from damaged(inner, (*path, index))
    for other in (0, -1, 10**20, 0.5, "", "x", "../x", None, [], {}, True):
        if other != value or type(other) is not type(value):
            yield path, other


def with_value(record: Any, path: tuple[object, ...], value: object) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(record)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs os.mkfifo")
def test_what_is_no_file_is_refused(goldens: Goldens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(goldens.pytester.path)
    names = {f"{kind}-{part}": (kind, part) for kind in KINDS for part in ("json", "npz")}
    goldens.add_cases(0, list(names))
    for name, (kind, part) in names.items():
        record = goldens.records[0]
        if part == "json":
            put(goldens.file(0, f"{name}.json"), kind)
            continue
        put(goldens.file(0, f"{name}.npz"), kind)
        goldens.write(0, name, with_value(record, ("kept", "file"), f"{name}.npz"))
    (goldens.pytester.path / "__int8acc__" / "arrays").mkdir()
    for kind in KINDS:
        put(goldens.pytester.path / "__int8acc__" / "arrays" / f"{kind}.npz", kind)
    (goldens.pytester.path / "test_arrays.py").write_text(ARRAY_TESTS.replace("NAMES", repr(KINDS)))
    (goldens.pytester.path / "case1.int8acc.yaml").unlink()
    found = goldens.verdicts(timeout=120)  # a read of a FIFO never ends
    assert set(found) == set(names)
    words = {"fifo": "a FIFO", "socket": "a socket", "device": "a device", "folder": "directory"}
    for name, (verdict, message) in found.items():
        kind, part = names[name]
        assert verdict == "error"
        assert f"{name}.{part}: " in message
        assert words[kind] in message
    result = goldens.run("test_arrays.py", timeout=120)
    result.assert_outcomes(failed=len(KINDS))
    for kind in KINDS:
        result.stdout.fnmatch_lines([f"E *arrays/{kind}.npz: *{words[kind]}*"])


def test_each_value_of_the_record(goldens: Goldens) -> None:
    parts = ("kept", "outputs", "logits", "parts")
    names = {}
    for number, record in enumerate(goldens.records):
        changes = [*damaged(record)]
        chosen = np.random.default_rng(number).permutation(len(changes))[:24]
        wanted = [*(changes[index] for index in chosen), *((parts, value) for value in (0, -1, 3, 10**9))]
        for index, (path, value) in enumerate(wanted):
            goldens.write(number, f"c{number}-{index}", with_value(record, path, value))
            names[f"c{number}-{index}"] = (path, value)
        goldens.add_cases(number, [f"c{number}-{index}" for index in range(len(wanted))])
    check(goldens, names)


def arrays_of(kept: np.ndarray) -> dict[str, Callable[[], dict[str, object]]]:
    """What may lie in an .npz in place of its array."""
    return {
        "nothing": dict,
        "another name": lambda: {"x": kept},
        "a number": lambda: {"logits": np.float32(1)},
        "no rows": lambda: {"logits": kept[:0]},
        "fewer rows": lambda: {"logits": kept[:9]},
        "fewer columns": lambda: {"logits": kept[:, :2]},
        "no columns": lambda: {"logits": kept[:, :0]},
        "an axis more": lambda: {"logits": kept[..., None]},
        "an axis less": lambda: {"logits": kept[:, 0]},
        "NaN": lambda: {"logits": np.where(kept == kept[3, 1], np.float32(np.nan), kept)},
        "infinity": lambda: {"logits": np.where(kept == kept[3, 1], np.float32(np.inf), kept)},
        "words": lambda: {"logits": kept.astype(str)},
        "text": lambda: {"logits": np.full(kept.shape, "word")},
        "complex": lambda: {"logits": kept.astype(complex)},
        "dates": lambda: {"logits": np.full(kept.shape, "2020-01-01", "datetime64[D]")},
        "records": lambda: {"logits": np.zeros(kept.shape, [("a", "f4"), ("b", "i4")])},
    }


def test_what_the_outputs_hold(goldens: Goldens) -> None:
    names = {}
    for number, record in enumerate(goldens.records):
        with np.load(goldens.file(number, record["kept"]["file"])) as stored:
            kept = stored["logits"]
        for what, make in arrays_of(kept).items():
            name = f"c{number}-{what.replace(' ', '-')}"
            names[name] = what
            np.savez(goldens.file(number, f"{name}.npz"), **make())
            sha256 = hashlib.sha256(goldens.file(number, f"{name}.npz").read_bytes()).hexdigest()
            changed = with_value(record, ("kept", "file"), f"{name}.npz")
            goldens.write(number, name, with_value(changed, ("kept", "sha256"), sha256))
        goldens.add_cases(number, [name for name in names if name.startswith(f"c{number}")])
    assert set(check(goldens, names).values()) == {"error"}


def check(goldens: Goldens, names: dict[str, Any]) -> dict[str, str]:
    """Every damaged golden is an error that names it, or what it says can be judged."""
    found = goldens.verdicts()
    assert set(found) >= set(names)
    for name, change in names.items():
        verdict, message = found[name]
        assert "fault of pytest-int8acc" not in message, f"{change}: {message}"
        if verdict == "error":
            assert "__int8acc__/case" in message, f"{change}: {message}"
            assert f"/{name}." in message or f"::{name} " in message, f"{change}: {message}"
    return {name: found[name][0] for name in names}
