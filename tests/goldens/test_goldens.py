"""Goldens and the ratchet: recorded, compared, found stale; killed while being written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_files import LOAD
from child import in_child
from golden_support import (
    BASE,
    MINMAX,
    SAMPLES,
    WIDE,
    scale_golden,
    write_data,
    write_model,
    write_project,
)
from gpu_support import needs_gpu, tactics
from hypothesis import given, settings
from hypothesis import strategies as st
from kills import at_once, killed_at

from pytest_int8acc import Int8accError
from pytest_int8acc.goldens.location import Cutter, Location, pack, unpack
from pytest_int8acc.goldens.record import Record

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

LIVE = MINMAX + "golden: true\ncriteria: [{sqnr_db: 20}]\n"
STANDING = MINMAX + "baseline: golden\ncriteria: [{sqnr_db: 20}]\n"
Entry = dict[str, Any]


class Project:
    """A folder with one case, run as often as wanted."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester, self.folder = pytester, pytester.path
        write_project(self.folder)

    @property
    def goldens(self) -> Path:
        return self.folder / "__int8acc__" / "case"

    def run(self, spec: str, update: str = "", base: str = BASE, *options: str) -> Entry:
        """The case's entry of report.json."""
        (self.folder / "case.int8acc.yaml").write_text(base + spec)
        more = [f"--int8acc-update={update}"] if update else []
        self.pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", *more, *options)
        (entry,) = json.loads((self.folder / "out" / "report.json").read_text())["cases"]
        return dict(entry)

    def passes(self, spec: str, *args: str) -> bool:
        return bool(self.run(spec, *args)["verdict"] == "passed")

    def refuses(self, spec: str, why: str, *args: str) -> None:
        entry = self.run(spec, *args)
        assert entry["verdict"] == "error"
        assert re.search(why, entry["message"], re.DOTALL), entry["message"]

    def record(self) -> Entry:
        return dict(json.loads((self.goldens / "case.json").read_text()))

    def change(self, **fields: object) -> None:
        (self.goldens / "case.json").write_text(json.dumps({**self.record(), **fields}))


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


def missed(entry: Entry) -> list[Entry]:
    return [
        s for s in entry["scores"] if s["limit"] is not None and s["margin"] is not None and s["margin"] < 0
    ]


# --- recorded, and compared with


def test_the_json_says_what_the_golden_is_of(project: Project) -> None:
    project.run(LIVE + "  \n", "missing")
    record = project.record()
    assert record["format"] == 1
    assert record["baseline"] == "fp16"
    assert (record["samples"], record["kept"]["samples"]) == (SAMPLES, SAMPLES)
    assert record["settings"] == {"mode": "exact"}
    assert record["scripts"].keys() == {"labels.npy"}
    assert {"engine", "numpy", "onnxruntime"} <= record["made_with"].keys()
    assert len(record["files"]["model"]) == len(record["kept"]["sha256"]) == 64
    with np.load(project.goldens / record["kept"]["file"]) as arrays:
        assert arrays["logits"].shape == (SAMPLES, 4)
        assert arrays["logits"].dtype == np.float32
    assert {s["metric"] for s in record["scores"]} >= {"cosine", "sqnr_db", "kl", "top1_agreement", "max_rel"}


def test_users_metrics_judge_a_moved_baseline_too(project: Project) -> None:
    spec = MINMAX + "golden: true\ncriteria: [{metric: 'metrics.py:top1', max_drop: 0.02}]\n"
    project.run(spec, "missing")
    scale_golden(project.goldens, "case", -1.0)
    assert project.passes(spec), "the golden is the worse one: no drop"


def test_the_same_golden_is_not_written_again(project: Project) -> None:
    project.run(LIVE, "missing")
    times = {path: path.stat().st_mtime_ns for path in project.goldens.iterdir()}
    project.run(LIVE, "all")
    assert {path: path.stat().st_mtime_ns for path in project.goldens.iterdir()} == times
    write_data(project.folder, seed=8)
    project.run(LIVE, "all")
    assert len(list(project.goldens.iterdir())) == 2  # the old .npz is gone


def test_an_output_that_float16_cannot_hold_is_refused(project: Project) -> None:
    model = onnx.load(project.folder / "model.onnx")
    last = next(t for t in model.graph.initializer if t.name == "w2")
    last.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(last) * np.float32(1e6), "w2"))
    onnx.save(model, project.folder / "model.onnx")
    spec = LIVE.replace("golden: true", "golden: {dtype: float16}\nbaseline: fp32")
    project.refuses(spec, r"'logits' reaches \S+e\+06, more than float16 can hold; set 'golden", "missing")


# --- missing and stale


def test_another_baseline_s_model_is_another_golden(project: Project) -> None:
    write_model(project.folder, name="own.onnx")
    own = LIVE + "baseline: {model: own.onnx}\n"
    assert project.passes(own, "all")
    assert project.passes(own)
    write_model(project.folder, seed=9, name="own.onnx")
    project.refuses(own, r"the baseline model .* has changed")


def test_external_weights_are_part_of_the_model(project: Project) -> None:
    write_model(project.folder, external=True)
    project.run(LIVE, "missing")
    assert project.passes(LIVE)
    graph = (project.folder / "model.onnx").read_bytes()
    write_model(project.folder, seed=8, external=True)
    assert (project.folder / "model.onnx").read_bytes() == graph
    project.refuses(LIVE, r"the model .* has changed")


def test_a_loader_that_gives_the_same_data_is_a_note(project: Project) -> None:
    base = BASE.replace("inputs.npz", "loader.py:load")
    project.run(LIVE, "missing", base)
    script = project.folder / "loader.py"
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    note = "golden: loader.py changed since it was recorded; model and data did not"
    assert not [said for said in project.run(LIVE, "", base)["notes"] if said.startswith("golden: ")]
    script.write_text(script.read_text() + "# a comment\n")
    assert note in project.run(LIVE, "", base)["notes"]


def test_damaged_or_missing_outputs_are_one_clear_error(project: Project) -> None:
    project.run(LIVE, "missing")
    path = project.goldens / project.record()["kept"]["file"]
    good = path.read_bytes()
    for data, spec, said in (
        (good[:-9], LIVE, "its SHA-256"),
        (b"version https://git-lfs", STANDING, "LFS pointer"),
        (None, LIVE, "missing"),
    ):
        path.unlink() if data is None else path.write_bytes(data)
        project.refuses(spec, said)


# --- the ratchet


def test_the_ratchet_holds_users_metrics(project: Project) -> None:
    error = "{metric: 'metrics.py:error', max: 0.9, lower_is_better: true}"
    top1 = "{metric: 'metrics.py:top1', min: 0.1}"
    spec = f"criteria: [{error}, {top1}, {{regression: {{'metrics.py:error': 0.002, top1: 0.002}}}}]\n"
    project.run(MINMAX + spec, "missing")
    assert project.passes(MINMAX + spec)
    scores = missed(project.run(WIDE + spec, "", BASE, "--int8acc-search=off"))
    assert {s["subject"]: s["bound"] for s in scores} == {
        "metrics.py:error": "max",
        "metrics.py:top1": "min",
    }
    assert all(score["note"].startswith("accepted ") for score in scores)


def test_a_golden_without_its_settings_is_stale_and_another_runtime_is_a_note(project: Project) -> None:
    project.run(LIVE, "missing")
    project.change(settings={})
    project.refuses(LIVE, "stale: mode was not said, this run has exact")
    # One of TensorRT serves on ONNX Runtime.
    project.change(settings={"mode": "engine"}, made_with={"engine": "TensorRT 8.6.1, NVIDIA T4"})
    entry = project.run(LIVE)
    assert entry["verdict"] == "passed"
    said = "golden: recorded with TensorRT 8.6.1, NVIDIA T4, this is simulated by ONNX"
    assert any(note.startswith(said) for note in entry["notes"])


def test_an_accepted_score_that_any_value_keeps_is_refused(project: Project) -> None:
    ratchet = MINMAX + "criteria: [{regression: {cosine: 0.1, max_abs: 0.1}}]\n"
    project.run(ratchet, "missing")
    recorded = project.record()["scores"]
    for metric, value in (("cosine", "-Infinity"), ("max_abs", "Infinity"), ("cosine", "NaN")):
        project.change(scores=[s | ({"value": value} if s["metric"] == metric else {}) for s in recorded])
        project.refuses(ratchet, rf"the accepted .* {metric} is .*, which any value keeps")


def test_a_score_that_bounds_nothing_is_not_accepted(project: Project) -> None:
    script = "CALLS = []\ndef worst(outputs):\n    CALLS.append(1)\n"
    script += "    return -float('inf') if len(CALLS) == 2 else 0.5\n"
    (project.folder / "metric.py").write_text(script)
    spec = MINMAX + "golden: true\ncriteria: [{metric: metric.py:worst, max: 1}]\n"
    project.run(spec, "missing")
    assert "worst" not in [score["metric"] for score in project.record()["scores"]]


# --- candidates


def test_a_failing_case_leaves_a_candidate_if_it_can_and_a_passing_one_none(project: Project) -> None:
    project.run(STANDING, "missing")
    assert project.passes(STANDING)
    assert not list((project.folder / "out").rglob("*.npz"))
    failing = STANDING.replace("20", "90")
    assert "The candidate is in " in project.run(failing)["golden"]
    (candidate,) = (project.folder / "out").rglob("*.npz")
    assert candidate.name == project.record()["kept"]["file"]
    shutil.rmtree(project.folder / "out" / "case")
    (project.folder / "out" / "case").write_text("a file, no folder")
    entry = project.run(failing)
    assert entry["verdict"] == "failed"
    assert "No candidate was left: " in entry["golden"]


# --- outputs as files

NAMES = st.sampled_from(["logits", "file", "/head/Conv_output_0", "a:0", "x.npy", "self"])
DTYPES = st.sampled_from(["float64", "float32", "float16", "int64", "uint8", "bool", "object"])


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, list[np.ndarray]], int]:
    """Outputs of a run, of any type, whose batches join along the samples or do not."""
    rows = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    outputs = {}
    for name in draw(st.sets(NAMES, min_size=1)):
        dtype, ragged = draw(DTYPES), draw(st.booleans())
        rng = np.random.default_rng(draw(st.integers(0, 9)))
        shapes = [(draw(st.integers(0, 4)), 2) if ragged else (n, 2, 3) for n in rows]
        arrays = [rng.normal(size=shape) * 50 for shape in shapes]
        outputs[name] = [(a.astype(str) if dtype == "object" else a).astype(dtype) for a in arrays]
    return outputs, sum(rows)


@settings(max_examples=25, deadline=None)
@given(runs(), st.sampled_from(["float32", "float16"]))
def test_outputs_come_back_as_they_were(run: tuple[dict[str, list[np.ndarray]], int], dtype: str) -> None:
    outputs, samples = run
    data, kept = pack(outputs, samples, dtype)
    assert pack(outputs, samples, dtype)[0] == data
    back = unpack(data, kept)
    for name, arrays in outputs.items():
        stored = back[name]
        if not isinstance(stored, list):
            stored = np.split(stored, np.cumsum([len(array) for array in arrays])[:-1])
        for a, b in zip(arrays, stored, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if a.dtype.kind != "f":
                assert (a == b).all()
            else:
                tolerance = {"float32": 1e-7, "float16": 1e-3}[dtype] if a.dtype.itemsize > 2 else 0
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# --- written at one stroke


def pair(value: float, case: str = "case") -> tuple[Record, bytes]:
    """A golden whose outputs and scores tell ``value``."""
    data, outputs = pack({"y": [np.full((4, 500), value, np.float32)]}, 4, "float32")
    sha256 = hashlib.sha256(data).hexdigest()
    kept = {"file": f"{case}.{sha256[:12]}.npz", "sha256": sha256, "dtype": "float32", "samples": 4}
    record = {"case": case, "baseline": "fp16", "samples": 4, "data": f"of {value}", "scores": ()}
    record |= {name: {} for name in ("files", "settings", "scripts", "made_with")}
    return Record.model_validate({**record, "kept": {**kept, "data": "d", "outputs": outputs}}), data


def value_of(location: Location) -> float | None:
    """The value of the pair that lies there; None for none; an error where it is not whole."""
    record = location.read()
    if record is None:
        return None
    (value,) = np.unique(location.outputs(record)["y"])
    assert record.data == f"of {value}"
    return float(value)


def test_what_does_not_fit_is_said() -> None:
    y = {"y": [np.zeros((2, 3))]}
    for stored, said in (
        ({}, "holds no output 'y'"),
        ({"y": np.zeros((3, 3))}, "kept with 3 rows, and this run has 2"),
        ({"y": [np.zeros(1)] * 2}, "kept in 2 batches, and this run has 1"),
    ):
        with pytest.raises(Int8accError, match=said):
            Cutter(stored, "case.json", "record it again").cut(y)


@forks
@pytest.mark.parametrize("before", [None, 1.0, 2.0], ids=["first", "changed", "same"])
def test_killed_at_any_write_the_old_pair_or_the_new_one_is_there(
    tmp_path: Path, before: float | None
) -> None:
    folder = tmp_path / "case"
    location = Location(str(folder), "case")
    seen = set()
    new = pair(2.0)
    for step in range(1, 99):
        if before is not None:
            location.write(*pair(before), replace=True)
        killed = killed_at(step, lambda: location.write(*new, replace=True))
        found = value_of(location)
        seen.add(found)
        assert found in (before, 2.0)
        if not killed:
            break
        shutil.rmtree(folder, ignore_errors=True)
    assert step > (1 if before == 2.0 else 5)
    assert seen == {before, 2.0}


@forks
def test_two_processes_that_update_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each writes its own case, and both write a third one."""
    folder = str(tmp_path / "g")

    def update(number: float) -> None:
        own = f"own{number:g}"
        for round_ in range(8):
            Location(folder, own).write(*pair(float(round_), own), replace=True)
            Location(folder, "shared").write(*pair(number + round_ % 2, "shared"), replace=True)

    at_once(lambda: update(1.0), lambda: update(2.0))
    assert value_of(Location(folder, "shared")) in (1.0, 2.0, 3.0)
    assert [value_of(Location(folder, f"own{n}")) for n in (1, 2)] == [7.0, 7.0]
    assert len(os.listdir(folder)) == 6  # no draft, and no .npz that was replaced


@forks
def test_who_replaces_a_golden_waits_for_who_is_about_to_tidy_up(tmp_path: Path) -> None:
    """Else the outputs that the one names again are those that the other removes."""
    location = Location(str(tmp_path / "g"), "case")
    location.write(*pair(1.0), replace=True)
    removing = tmp_path / "removing"

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.remove" and str(arguments[0]).endswith(".npz"):
            removing.touch()
            time.sleep(0.1)

    def replaced_slowly() -> None:
        sys.addaudithook(hook)
        location.write(*pair(2.0), replace=True)

    def replaced_meanwhile() -> None:
        while not removing.exists():
            time.sleep(0.01)
        location.write(*pair(1.0), replace=True)

    at_once(replaced_slowly, replaced_meanwhile)
    assert value_of(location) == 1.0


@forks
def test_a_full_disk_is_one_clear_error_and_the_old_golden_stays(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    location = Location(str(tmp_path / "g"), "case")
    location.write(*pair(1.0), replace=True)

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60))  # as ENOSPC: a write fails half-way
        location.write(*pair(2.0), replace=True)

    text = in_child(write)
    assert "the golden cannot be written: " in text
    assert "int8acc_goldens" in text
    assert value_of(location) == 1.0
    assert len(os.listdir(location.folder)) == 2
    assert not location.write(*pair(2.0), replace=False), "it may have come meanwhile"
    assert value_of(location) == 1.0


@forks
def test_a_read_only_folder_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    location = Location(str(tmp_path / "g"), "case")
    location.write(*pair(1.0), replace=True)
    Path(location.folder).chmod(0o555)

    def write() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        location.write(*pair(2.0), replace=True)

    try:
        text = in_child(write)
    finally:
        Path(location.folder).chmod(0o755)
    assert "case.json: the golden cannot be written: Permission denied" in text
    assert value_of(location) == 1.0


# --- in shared storage


def test_shared_storage_that_is_not_known_is_an_error(project: Project) -> None:
    project.refuses(STANDING, "nosuch", "", BASE, "-o", "int8acc_goldens=nosuch://bucket")


# --- on real engines


@needs_gpu[0]
@needs_gpu[1]
def test_a_golden_on_tensorrt_spares_the_baseline_s_engine(project: Project, gpu_store: Path) -> None:
    base = BASE.replace("backend: onnxruntime\n", "backend: tensorrt\n") + tactics()
    store = f"--int8acc-cache-dir={gpu_store}"
    recorded = project.run(STANDING, "missing", base, store)
    if recorded["verdict"] == "skipped":  # by test_gpu_dry, which lets no engine be built
        pytest.skip(recorded["message"])
    assert {engine["role"] for engine in recorded["engines"]} == {"baseline", "INT8"}
    entry = project.run(STANDING, "", base, store)
    assert entry["verdict"] == "passed"
    assert {engine["role"] for engine in entry["engines"]} == {"INT8"}
    assert project.record()["settings"] == {"mode": "engine"}
    assert "TensorRT" in project.record()["made_with"]["engine"]
    # A search has no baseline's engine to time, and finds its way all the same.
    entry = project.run(STANDING.replace(MINMAX, WIDE).replace("20", "31"), "", base, store)
    assert entry["verdict"] == "failed"
    assert entry["search"] is not None


# --- orphans


def pruned(project: Project, *options: str) -> str:
    """What ``--int8acc-prune`` says, without running a case."""
    result = project.pytester.runpytest(
        *LOAD, "--int8acc", "--collect-only", "-q", "--int8acc-prune", *options
    )
    return result.stdout.str()


def orphans(project: Project, *options: str) -> dict[str, str]:
    """Files that it names, and why."""
    lines = re.findall(r"^    (\S+): (.*)$", pruned(project, *options), re.MULTILINE)
    return {Path(name).name: why for name, why in lines}


def test_orphans_are_files_that_no_case_on_the_disk_has(project: Project) -> None:
    project.run(LIVE, "missing")
    spec = project.folder / "case.int8acc.yaml"
    assert orphans(project) == {}
    npz = project.record()["kept"]["file"]
    draft = f"{npz}.{'0' * 32}.tmp"
    (project.goldens / draft).write_bytes(b"half")
    arrays = project.goldens.with_name("arrays")
    arrays.mkdir()
    of_array = f"x.npz.{'1' * 32}.tmp"
    (arrays / of_array).touch()
    (project.goldens / f"case.{'a' * 12}.npz").write_bytes(b"old")
    (project.goldens / "notes.json").write_text("{}")  # somebody's own
    (project.goldens / "notes.npz").write_text("")
    left = {
        **dict.fromkeys((draft, of_array), "left by a process that was killed"),
        f"case.{'a' * 12}.npz": "no golden names it",
    }
    assert orphans(project) == left
    spec.write_text(spec.read_text() + "name: renamed\n")
    assert orphans(project)["case.json"].startswith("no case 'case' of ")
    assert npz in orphans(project)
    spec.write_text("model: [")
    assert "cannot be read: nothing is said of its goldens" in pruned(project)
    assert orphans(project).keys() <= {"case.int8acc.yaml", of_array}
    spec.unlink()
    (project.folder / "test_x.py").write_text("def test_x(): pass\n")
    assert orphans(project).keys() == {"case.json", npz, *left}
    pruned(project, "--int8acc-prune=delete")
    assert sorted(os.listdir(project.goldens)) == ["notes.json", "notes.npz"]
    assert not list(arrays.rglob("*.tmp"))


def test_outputs_of_a_golden_in_conflict_are_no_orphans(project: Project) -> None:
    project.run(LIVE, "missing")
    path = project.goldens / "case.json"
    path.write_text("<<<<<<< HEAD\n" + path.read_text())
    assert orphans(project) == {}


def test_folders_that_pytest_does_not_look_into_are_skipped(project: Project) -> None:
    project.run(LIVE, "missing")
    folder = project.folder / "skipped" / "__int8acc__" / "case"
    folder.mkdir(parents=True)
    (folder / "case.json").write_bytes((project.goldens / "case.json").read_bytes())
    assert orphans(project).keys() == {"case.json"}
    assert orphans(project, "-o", "norecursedirs=skipped") == {}
