"""Killed at every write of goldens, fixes, reports, caches: each file is the old or the new."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixes import DIGITS, fix_of
from kills import steps
from report_cases import entry, full_report, report

from pytest_int8acc.fix import write_fix
from pytest_int8acc.goldens.array_goldens import ArrayGoldens
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.init import write_spec
from pytest_int8acc.report.folder import merge_folders, write_folder
from pytest_int8acc.report.json import Report
from pytest_int8acc.runtime.trt.calibration import Provenance, write_cache

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
#: How many kills each test counts at least; docs/reliability.md has the sum.
LEAST = {"fix": 35, "report": 12, "merge": 22, "golden": 24, "cache": 10}


def states(folder: Path, write: Callable[[int], object], least: int) -> Iterator[dict[str, bytes]]:
    """Kill ``write(1)`` over what ``write(0)`` left at every step; the files there after each kill."""

    def files() -> dict[str, bytes]:
        paths = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith((".part", ".tmp"))]
        found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}
        return {name: data for name, data in found.items() if ".part/" not in name}

    write(1)
    new = files()
    write(0)
    old = files()
    assert old != new
    for _ in steps(lambda: write(1), least=least):
        found = files()
        assert {name for name in found if not name.endswith(".data")} == set(old) | (set(found) & set(new))
        for name, data in found.items():
            assert data in (old.get(name), new.get(name)), f"{name} is neither the old one nor the new one"
        yield found
        write(0)
        assert files() == old, "what a kill left stands in the way of the next run"
        left = [path.name for path in folder.rglob("*") if path.suffix in (".part", ".tmp")]
        assert not left, "what a kill left is not cleared by the next run"


def test_files_of_a_fix(tmp_path: Path) -> None:
    fixes = [fix_of(DIGITS, Plan({name: "fp16"})) for name in ("/head/Gemm", "/block1/conv1/Conv")]
    for found in states(tmp_path / "fix", lambda i: write_fix(tmp_path / "fix", fixes[i]), LEAST["fix"]):
        onnx.load_model_from_string(found["fixed.onnx"])


def test_reports(tmp_path: Path) -> None:
    reports = [report(entry(None, verdict="skipped")), full_report()]
    for found in states(tmp_path, lambda i: write_folder(tmp_path, Report(reports[i], {})), LEAST["report"]):
        assert len(json.loads(found["report.json"])["cases"]) in [len(r["cases"]) for r in reports]
        assert found["report.html"].rstrip().endswith(b"</html>")


def test_merged_reports(tmp_path: Path) -> None:
    tool = {"name": "n", "version": "1"}
    shards = [tmp_path / "one", tmp_path / "two"]
    for number, shard in enumerate(shards):
        case = entry(None, verdict="passed", written=("c/plan.yaml", "c/fixed.onnx"))
        write_folder(shard, Report(report(case), {}))
        (shard / "c").mkdir()
        for name in ("plan.yaml", "fixed.onnx"):
            (shard / "c" / name).write_text(f"{name} of {number}")
    out = tmp_path / "out"

    def merge(number: int) -> None:
        write_folder(out, merge_folders([shards[number]], out, tool=tool))

    for found in states(out, merge, LEAST["merge"]):
        assert json.loads(found["report.json"])["cases"]


def test_goldens_of_arrays(tmp_path: Path) -> None:
    goldens = ArrayGoldens(str(tmp_path), "all")
    for found in states(tmp_path, lambda i: goldens.check("y", np.full(99, float(i))), LEAST["golden"]):
        assert list(found) == ["y.npz"]


def test_a_calibration_cache_and_what_it_came_from(tmp_path: Path) -> None:
    content = b"TRT-8601-EntropyCalibration2\nx: 3c010a14\n"
    origin = Provenance("m", "d", "entropy2", "8.6.1")

    def write(number: int) -> None:
        write_cache(tmp_path / "x.cache", content * (number + 1), origin)

    assert len(list(states(tmp_path, write, LEAST["cache"]))) >= LEAST["cache"]


def test_a_first_spec_is_whole_or_not_there(tmp_path: Path) -> None:
    spec = tmp_path / "digits.int8acc.yaml"
    whole = write_spec(DIGITS, tmp_path).read_bytes()
    spec.unlink()
    for _ in steps(lambda: write_spec(DIGITS, tmp_path), least=3):
        assert not spec.exists() or spec.read_bytes() == whole
        spec.unlink(missing_ok=True)


def test_they_are_more_than_a_hundred() -> None:
    assert sum(LEAST.values()) >= 100
