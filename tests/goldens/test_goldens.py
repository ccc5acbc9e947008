"""Goldens and the ratchet, below pytest: recorded, compared, found stale, killed while being written."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from child import in_child
from golden_support import (
    BASE,
    MINMAX,
    SAMPLES,
    WIDE,
    naming,
    scale_golden,
    write_data,
    write_model,
    write_project,
)
from gpu_support import needs_gpu, tactics
from hypothesis import given, settings
from hypothesis import strategies as st
from kills import killed_at

from pytest_int8acc.check import conclude
from pytest_int8acc.engines.tensorrt.child import make_workers
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.goldens import Goldens
from pytest_int8acc.goldens.arrays import cut_like, first_samples, pack, unpack
from pytest_int8acc.goldens.place import Place
from pytest_int8acc.goldens.prune import delete, survey
from pytest_int8acc.goldens.record import GoldenError, Kept, Record
from pytest_int8acc.measure.measured import Measured, measure
from pytest_int8acc.report.text import acceptances
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

LIVE = MINMAX + "golden: true\ncriteria: [{sqnr_db: 20}]\n"
STANDING = MINMAX + "baseline: golden\ncriteria: [{sqnr_db: 20}]\n"


class Project:
    """A folder with one case, measured as often as wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_project(folder)

    @property
    def goldens(self) -> Path:
        return self.folder / "__int8acc__" / "case"

    def measure(self, spec: str, update: str = "off", base: str = BASE, **more: object) -> Measured:
        path = self.folder / "case.int8acc.yaml"
        path.write_text(base + spec)
        (case,) = load_spec(path)
        folder, candidates = more.pop("folder", None), more.pop("candidates", None)
        builders = more.pop("builders", None)
        measured = measure(case, Settings(**more), Goldens(folder, update, candidates), builders=builders)
        measured.close()
        return measured

    def run(self, spec: str, update: str = "off", **more: object) -> CaseResult:
        return self.measure(spec, update, **more).result

    def record(self) -> dict:
        return json.loads((self.goldens / "case.json").read_text())

    def change(self, **fields: object) -> None:
        (self.goldens / "case.json").write_text(json.dumps({**self.record(), **fields}))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def scores(result: CaseResult) -> dict[tuple[str, str], float]:
    return {(s.subject, s.metric): s.value for s in result.scores}


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


def test_a_baseline_that_moved_fails_the_case_and_starts_no_search(project: Project) -> None:
    project.run(LIVE, "missing")
    scale_golden(project.goldens, "case", 1.5)
    measured = project.measure(LIVE)
    result = conclude(measured)
    assert not result.passed
    assert measured.int8_passed
    (missed,) = [s for s in result.scores if not s.passed]
    assert (missed.subject, missed.metric) == ("FP16 against its golden: logits", "sqnr_db")
    assert result.golden.startswith("FP16 itself moved: logits sqnr_db 9.54243 against ")
    assert "--int8acc-update=all" in result.golden
    assert result.search is None


def test_users_metrics_judge_a_moved_baseline_too(project: Project) -> None:
    spec = MINMAX + "golden: true\ncriteria: [{metric: 'metrics.py:top1', max_drop: 0.02}]\n"
    project.run(spec, "missing")
    scale_golden(project.goldens, "case", -1.0)
    subjects = {s.subject for s in project.run(spec).scores if not s.passed}
    assert subjects == set()  # the golden is the worse one: no drop
    scale_golden(project.goldens, "case", -1.0)
    assert project.run(spec).passed


def test_update_all_takes_over_and_names_old_and_new(project: Project) -> None:
    project.run(LIVE, "missing")
    before = project.record()
    result = project.run(LIVE.replace(MINMAX, WIDE), "all")
    (line,) = [line for line in acceptances(result) if line.startswith("accepted logits sqnr_db")]
    old = next(s["value"] for s in before["scores"] if s["metric"] == "sqnr_db")
    assert line == f"accepted logits sqnr_db: {old:.6g} -> {scores(result)['logits', 'sqnr_db']:.6g}"
    assert "outputs of 64 samples (unchanged)" in result.golden
    assert project.record()["kept"] == before["kept"]
    assert project.record()["scores"] != before["scores"]


def test_update_missing_replaces_nothing_and_the_same_golden_is_not_written_again(project: Project) -> None:
    project.run(LIVE, "missing")
    times = {path: path.stat().st_mtime_ns for path in project.goldens.iterdir()}
    project.run(LIVE.replace(MINMAX, WIDE), "missing")
    project.run(LIVE, "all")
    assert {path: path.stat().st_mtime_ns for path in project.goldens.iterdir()} == times
    write_data(project.folder, seed=8)
    with pytest.raises(GoldenError, match="stale"):
        project.run(LIVE, "missing")
    project.run(LIVE, "all")
    assert len(list(project.goldens.iterdir())) == 2  # the old .npz is gone


def test_an_output_that_float16_cannot_hold_is_refused(project: Project) -> None:
    with pytest.raises(GoldenError, match=r"'big' reaches 1e\+06, more than float16 can hold; set 'golden"):
        pack({"big": [np.full((2, 2), 1e6, np.float32)]}, 2, "float16")


# --- missing and stale


def test_another_baseline_is_another_golden(project: Project) -> None:
    project.run(LIVE, "missing")
    with pytest.raises(GoldenError, match="its baseline is fp16, the spec's is fp32"):
        project.run(LIVE + "baseline: fp32\n")
    write_model(project.folder, name="own.onnx")
    own = LIVE + "baseline: {model: own.onnx}\n"
    project.run(own, "all")
    assert project.run(own).passed
    write_model(project.folder, seed=9, name="own.onnx")
    with pytest.raises(GoldenError, match=r"the baseline model .* has changed"):
        project.run(own)


def test_external_weights_are_part_of_the_model(project: Project) -> None:
    write_model(project.folder, external=True)
    project.run(LIVE, "missing")
    assert project.run(LIVE).passed
    graph = (project.folder / "model.onnx").read_bytes()
    write_model(project.folder, seed=8, external=True)
    assert (project.folder / "model.onnx").read_bytes() == graph
    with pytest.raises(GoldenError, match=r"the model .* has changed"):
        project.run(LIVE)


def test_a_loader_that_gives_the_same_data_is_a_note(project: Project) -> None:
    base = BASE.replace("inputs.npz", "loader.py:load")
    project.run(LIVE, "missing", base=base)
    script = project.folder / "loader.py"
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    assert not [note for note in project.run(LIVE, base=base).notes if note.startswith("golden: ")]
    script.write_text(script.read_text() + "# a comment\n")
    notes = project.run(LIVE, base=base).notes
    assert "golden: loader.py changed since it was recorded; model and data did not" in notes


def test_another_runtime_is_a_note(project: Project) -> None:
    project.run(LIVE, "missing")
    project.change(made_with={"engine": "TensorRT 8.6.1, NVIDIA T4"})
    result = project.run(LIVE)
    assert result.passed
    assert any(
        note.startswith("golden: recorded with TensorRT 8.6.1, NVIDIA T4, this is ONNX")
        for note in result.notes
    )


def test_damaged_or_missing_outputs_are_one_clear_error(project: Project) -> None:
    project.run(LIVE, "missing")
    path = project.goldens / project.record()["kept"]["file"]
    good = path.read_bytes()
    for data, said in (
        (good[:-9], "its SHA-256"),
        (b"version https://git-lfs", "LFS pointer"),
        (None, "missing"),
    ):
        path.unlink() if data is None else path.write_bytes(data)
        for spec in (LIVE, STANDING):
            with pytest.raises(GoldenError, match=said):
                project.run(spec)


# --- the ratchet

RATCHET = "criteria: [{sqnr_db: 5}, {regression: {cosine: 1e-4, sqnr_db: 0.5}}]\n"
TOP1 = "criteria: [{metric: 'metrics.py:top1', min: 0.1}, {regression: {top1: 0.002}}]\n"


@pytest.mark.parametrize("function", ["top1", "metrics.py:top1", "error"])
def test_the_ratchet_holds_users_metrics(project: Project, function: str) -> None:
    lower = function == "error"
    name = "metrics.py:error" if lower else "metrics.py:top1"
    more = ", max: 0.9, lower_is_better: true" if lower else ", min: 0.1"
    spec = f"criteria: [{{metric: '{name}'{more}}}, {{regression: {{'{function}': 0.002}}}}]\n"
    project.run(MINMAX + spec, "missing")
    assert project.run(MINMAX + spec).passed
    (missed,) = [s for s in project.run(WIDE + spec).scores if not s.passed]
    assert missed.subject == name
    assert missed.bound == ("max" if lower else "min")
    assert missed.note.startswith("accepted ")


def test_a_golden_without_its_settings_is_stale(project: Project) -> None:
    project.run(LIVE, "missing")
    project.change(settings={})
    with pytest.raises(GoldenError, match="stale: mode was not said, this run has exact"):
        project.run(LIVE)
    project.change(settings={"mode": "engine"})  # one of TensorRT serves on ONNX Runtime
    assert project.run(LIVE).passed


@pytest.mark.parametrize(("bound", "value"), [("min", "-Infinity"), ("max", "Infinity"), ("min", "NaN")])
def test_an_accepted_score_that_any_value_keeps_is_refused(project: Project, bound: str, value: str) -> None:
    metric = "cosine" if bound == "min" else "max_abs"
    ratchet = MINMAX + f"criteria: [{{regression: {{{metric}: 0.1}}}}]\n"
    project.run(ratchet, "missing")
    scores = [s | ({"value": value} if s["metric"] == metric else {}) for s in project.record()["scores"]]
    project.change(scores=scores)
    with pytest.raises(GoldenError, match=rf"the accepted .* {metric} is .*, which any value keeps"):
        project.run(ratchet)


def test_a_score_that_bounds_nothing_is_not_accepted(project: Project) -> None:
    script = (
        "CALLS = []\ndef worst(outputs):\n    CALLS.append(1)\n    return -{} if len(CALLS) == 2 else 0.5\n"
    )
    (project.folder / "metric.py").write_text(script.format("float('inf')"))
    spec = MINMAX + "golden: true\ncriteria: [{metric: metric.py:worst, max: 1}]\n"
    project.run(spec, "missing")
    assert "worst" not in [score["metric"] for score in project.record()["scores"]]


# --- candidates


def test_a_candidate_is_left_where_the_golden_does_not_serve(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for spec in (STANDING, LIVE):
        with pytest.raises(
            GoldenError, match=r"no golden yet; .*The candidate is in .*out: copy its files to "
        ):
            project.run(spec, candidates=out)
        assert not project.goldens.exists()
    project.goldens.mkdir(parents=True)
    for path in out.iterdir():
        path.rename(project.goldens / path.name)
    assert project.run(LIVE).passed
    assert project.run(STANDING).passed
    write_data(project.folder, seed=8)
    with pytest.raises(GoldenError, match=r"stale: .*The candidate is in "):
        project.run(STANDING, candidates=out)


def test_a_failing_case_leaves_a_candidate_and_a_passing_one_none(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    project.run(STANDING, "missing")
    assert project.run(STANDING, candidates=out).passed
    assert not out.exists()
    result = project.run(STANDING.replace("20", "90"), candidates=out)
    assert "The candidate is in " in result.golden
    assert (out / project.record()["kept"]["file"]).is_file()


def test_a_candidate_that_cannot_be_written_changes_no_verdict(project: Project, tmp_path: Path) -> None:
    project.run(STANDING, "missing")
    (tmp_path / "out").write_text("a file, no folder")
    result = project.run(STANDING.replace("20", "90"), candidates=tmp_path / "out")
    assert not result.passed
    assert "No candidate was left: " in result.golden


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


@settings(max_examples=40, deadline=None)
@given(runs(), st.sampled_from(["float32", "float16"]))
def test_outputs_come_back_as_they_were(run: tuple[dict[str, list[np.ndarray]], int], dtype: str) -> None:
    outputs, samples = run
    data, kept = pack(outputs, samples, dtype)
    assert pack(outputs, samples, dtype)[0] == data
    back = cut_like(unpack(data, kept), outputs)
    for name, arrays in outputs.items():
        for a, b in zip(arrays, back[name], strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if a.dtype.kind != "f":
                assert (a == b).all()
            else:
                tolerance = {"float32": 1e-7, "float16": 1e-3}[dtype] if a.dtype.itemsize > 2 else 0
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 20))
def test_the_first_samples_across_batches(rows: list[int], wanted: int) -> None:
    whole = np.arange(sum(rows) * 2.0).reshape(-1, 2)
    batches = {"y": np.split(whole, np.cumsum(rows)[:-1])}
    found = first_samples(batches, sum(rows), wanted)["y"]
    assert (np.concatenate(found) == whole[:wanted]).all()


def test_an_output_without_samples_cannot_be_kept_in_part() -> None:
    with pytest.raises(GoldenError, match="'boxes' has no axis of 4 samples"):
        first_samples({"boxes": [np.zeros((7, 4)), np.zeros((9, 4))]}, 4, 2)


def test_what_does_not_fit_is_said() -> None:
    y = {"y": [np.zeros((2, 3))]}
    for stored, said in (
        ({}, "holds no output 'y'"),
        ({"y": np.zeros((3, 3))}, "kept with 3 rows, and this run has 2"),
        ({"y": [np.zeros(1)] * 2}, "kept in 2 batches, and this run has 1"),
    ):
        with pytest.raises(ValueError, match=said):
            cut_like(stored, y)


# --- written at one stroke


def pair(value: float, case: str = "case") -> tuple[Record, bytes]:
    """A golden whose outputs and scores tell ``value``."""
    data, outputs = pack({"y": [np.full((4, 500), value, np.float32)]}, 4, "float32")
    kept = Kept(file="x.npz", sha256="", dtype="float32", samples=4, data="d", outputs=outputs)
    record = Record(
        case=case,
        files={},
        baseline="fp16",
        samples=4,
        data=f"of {value}",
        settings={},
        scripts={},
        made_with={},
        scores=(),
        kept=kept,
    )
    return naming(record, data), data


def value_of(place: Place) -> float | None:
    """The value of the pair that lies there; None for none; an error where it is not whole."""
    record = place.read()
    if record is None:
        return None
    (value,) = np.unique(place.outputs(record)["y"])
    assert record.data == f"of {value}"
    return float(value)


@forks
@pytest.mark.parametrize("before", [None, 1.0, 2.0], ids=["first", "changed", "same"])
def test_killed_at_any_write_the_old_pair_or_the_new_one_is_there(
    tmp_path: Path, before: float | None
) -> None:
    (tmp_path / "case.int8acc.yaml").write_text(BASE + LIVE)
    folder = tmp_path / "__int8acc__" / "case"
    place = Place(str(folder), "case")
    seen = set()
    new = pair(2.0)
    for step in range(1, 99):
        if before is not None:
            place.write(*pair(before), replace=True)
        killed = killed_at(step, lambda: place.write(*new, replace=True))
        found = value_of(place)
        seen.add(found)
        assert found in (before, 2.0)
        if not killed:
            break
        # What is left over is known as such, and the next update goes through.
        record = place.read()
        whole = {"case.json", record.kept.file} if record else set()
        assert {Path(o.file).name for o in survey(tmp_path).orphans} == set(
            os.listdir(folder) if folder.exists() else ()
        ) - whole
        place.write(*pair(2.0), replace=True)
        assert value_of(place) == 2.0
        for path in folder.iterdir():
            path.unlink()
    assert step > (1 if before == 2.0 else 5)
    assert seen == {before, 2.0}


@forks
def test_two_processes_that_update_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each writes its own case, and both write a third one."""
    folder = str(tmp_path / "g")
    children = []
    for number in (1.0, 2.0):
        child = os.fork()
        if not child:
            try:
                for round_ in range(25):
                    Place(folder, f"own{number:g}").write(
                        *pair(float(round_), f"own{number:g}"), replace=True
                    )
                    Place(folder, "shared").write(*pair(number + round_ % 2, "shared"), replace=True)
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert value_of(Place(folder, "shared")) in (1.0, 2.0, 3.0)
    assert [value_of(Place(folder, f"own{n}")) for n in (1, 2)] == [24.0, 24.0]
    assert len(os.listdir(folder)) == 6  # no draft, and no .npz that was replaced


@forks
def test_who_replaces_a_golden_waits_for_who_is_about_to_tidy_up(tmp_path: Path) -> None:
    """Else the outputs that the one names again are those that the other removes."""
    place = Place(str(tmp_path / "g"), "case")
    place.write(*pair(1.0), replace=True)
    child = os.fork()
    if not child:

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.remove" and str(arguments[0]).endswith(".npz"):
                (tmp_path / "removing").touch()
                time.sleep(0.5)

        try:
            sys.addaudithook(hook)
            place.write(*pair(2.0), replace=True)
            os._exit(0)
        except BaseException:
            os._exit(1)
    while not (tmp_path / "removing").exists():
        time.sleep(0.01)
    place.write(*pair(1.0), replace=True)
    assert os.waitpid(child, 0)[1] == 0
    assert value_of(place) == 1.0


def test_missing_does_not_replace_what_came_meanwhile(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "g"), "case")
    assert place.write(*pair(1.0), replace=False)
    assert not place.write(*pair(2.0), replace=False)
    assert value_of(place) == 1.0


@forks
@pytest.mark.parametrize("room", [3, 60])
def test_a_full_disk_is_one_clear_error_and_the_old_golden_stays(tmp_path: Path, room: int) -> None:
    resource = pytest.importorskip("resource")
    place = Place(str(tmp_path / "g"), "case")
    place.write(*pair(1.0), replace=True)

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # as ENOSPC: a write fails half-way
        place.write(*pair(2.0), replace=True)

    text = in_child(write)
    assert "the golden cannot be written: " in text
    assert "int8acc_goldens" in text
    assert value_of(place) == 1.0
    assert len(os.listdir(place.folder)) == 2


@forks
def test_a_read_only_folder_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    place = Place(str(tmp_path / "g"), "case")
    place.write(*pair(1.0), replace=True)
    Path(place.folder).chmod(0o555)

    def write() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        place.write(*pair(2.0), replace=True)

    try:
        text = in_child(write)
    finally:
        Path(place.folder).chmod(0o755)
    assert "case.json: the golden cannot be written: Permission denied" in text
    assert value_of(place) == 1.0


# --- in shared storage


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder in one of fsspec's file systems."""
    fsspec = pytest.importorskip("fsspec")
    yield f"memory://{tmp_path}/goldens" if request.param == "memory" else (tmp_path / "shared").as_uri()
    fsspec.filesystem("memory").store.clear()


def test_goldens_in_shared_storage(project: Project, url: str) -> None:
    folder = f"{url}/case"
    with pytest.raises(GoldenError, match="no golden yet"):
        project.run(STANDING, folder=folder)
    project.run(STANDING, "missing", folder=folder)
    assert not project.goldens.exists()
    assert project.run(STANDING, folder=folder).passed
    write_data(project.folder, seed=8)
    with pytest.raises(GoldenError, match="stale"):
        project.run(STANDING, folder=folder)
    project.run(STANDING, "all", folder=folder)
    assert project.run(STANDING, folder=folder).passed
    # Nothing but prune removes what others might be about to name.
    (orphan,) = survey(project.folder, url).orphans
    assert orphan.why == "no golden names it"
    assert delete(orphan)
    assert not survey(project.folder, url).orphans
    (project.folder / "case.int8acc.yaml").unlink()
    assert len(survey(project.folder, url).orphans) == 2


def test_shared_storage_that_is_not_known_is_an_error(project: Project) -> None:
    with pytest.raises(Int8accError, match="nosuch"):
        project.run(STANDING, folder="nosuch://bucket/case")


# --- on real engines


@needs_gpu[0]
@needs_gpu[1]
def test_a_golden_on_tensorrt_spares_the_baseline_s_engine(project: Project, gpu_store: Path) -> None:
    base = BASE.replace("backend: onnxruntime\n", "backend: tensorrt\n") + tactics()
    with contextlib.closing(make_workers()) as builders:
        kept = {"cache_dir": str(gpu_store)}
        recorded = project.run(STANDING, "missing", base=base, builders=builders, **kept)
        assert {engine.role for engine in recorded.engines} == {"baseline", "INT8"}
        result = project.run(STANDING, base=base, builders=builders, **kept)
        assert result.passed
        assert {engine.role for engine in result.engines} == {"INT8"}
        assert project.record()["settings"] == {"mode": "engine"}
        assert "TensorRT" in project.record()["made_with"]["engine"]
        # A search has no baseline's engine to time, and finds its way all the same.
        path = project.folder / "case.int8acc.yaml"
        path.write_text(base + STANDING.replace(MINMAX, WIDE).replace("20", "31"))
        (case,) = load_spec(path)
        with closing(measure(case, Settings(**kept), builders=builders)) as measured:
            assert not measured.int8_passed
            assert conclude(measured).search is not None


# --- orphans


def found(folder: Path, goldens: str | None = None) -> dict[str, str]:
    return {Path(o.file).name: o.why for o in survey(folder, goldens, ("skipped",)).orphans}


def test_orphans_are_files_that_no_case_on_the_disk_has(project: Project) -> None:
    project.run(LIVE, "missing")
    spec = project.folder / "case.int8acc.yaml"
    assert found(project.folder) == {}
    npz = project.record()["kept"]["file"]
    draft = f"{npz}.{'0' * 32}.tmp"
    (project.goldens / draft).write_bytes(b"half")
    (project.goldens / f"case.{'a' * 12}.npz").write_bytes(b"old")
    (project.goldens / "notes.json").write_text("{}")  # somebody's own
    (project.goldens / "notes.npz").write_text("")
    assert found(project.folder) == {
        draft: "left by a process that was killed",
        f"case.{'a' * 12}.npz": "no golden names it",
    }
    spec.write_text(spec.read_text() + "name: renamed\n")
    assert found(project.folder)["case.json"].startswith("no case 'case' of ")
    assert npz in found(project.folder)
    spec.write_text("model: [")
    assert survey(project.folder).orphans == ()
    assert "cannot be read: nothing is said of its goldens" in survey(project.folder).unknown[0]
    spec.unlink()
    assert found(project.folder).keys() == {"case.json", npz, draft, f"case.{'a' * 12}.npz"}
    for orphan in survey(project.folder).orphans:
        assert delete(orphan)
    assert sorted(os.listdir(project.goldens)) == ["notes.json", "notes.npz"]


def test_outputs_of_a_golden_in_conflict_are_no_orphans(project: Project) -> None:
    project.run(LIVE, "missing")
    path = project.goldens / "case.json"
    path.write_text("<<<<<<< HEAD\n" + path.read_text())
    assert found(project.folder) == {}


def test_an_orphan_that_was_named_meanwhile_stays(project: Project) -> None:
    place = Place(str(project.goldens), "case")
    place.write(*pair(1.0), replace=True)
    record = (project.goldens / "case.json").read_bytes()
    (project.goldens / "case.json").unlink()
    (orphan,) = survey(project.folder).orphans
    (project.goldens / "case.json").write_bytes(record)
    assert not delete(orphan)
    assert value_of(place) == 1.0


def test_goldens_in_a_folder_of_their_own_have_orphans_too(project: Project, tmp_path: Path) -> None:
    root = tmp_path / "goldens"
    project.run(LIVE, "missing", folder=str(root / "case"))
    project.run(LIVE, "missing", folder=str(root / "sub" / "case"))
    orphans = survey(project.folder, str(root)).orphans
    assert {Path(o.file).parent for o in orphans} == {root / "sub" / "case"}


def test_folders_to_skip_are_skipped(project: Project) -> None:
    (project.folder / "skipped").mkdir()
    place = Place(str(project.folder / "skipped" / "__int8acc__" / "case"), "case")
    place.write(*pair(1.0), replace=True)
    assert found(project.folder) == {}
    assert survey(project.folder).orphans


def test_a_record_may_hold_what_is_not_finite(tmp_path: Path) -> None:
    from pytest_int8acc.goldens.record import Accepted

    place = Place(str(tmp_path), "case")
    perfect = Accepted(subject="y", metric="sqnr_db", value=float("inf"), bound="min")
    record = replace_scores(pair(1.0)[0], perfect)
    place.write(record, pair(1.0)[1], replace=True)
    assert place.read() == record
    json.loads((tmp_path / "case.json").read_text(), parse_constant=lambda text: pytest.fail(text))


def replace_scores(record: Record, *scores_: object) -> Record:
    return record.model_copy(update={"scores": scores_})
