"""Builds of baseline and candidate go on side by side; on one GPU one process times kernels at a time."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock, Timeout
from plugin_support import LOAD
from projects import CALIBRATED, Project

from pytest_int8acc import Case, EngineError, Settings
from pytest_int8acc.case.data import open_source
from pytest_int8acc.case.forms import candidate_form, load_float
from pytest_int8acc.results import Latency, Role
from pytest_int8acc.runtime.forms import ModelForm
from pytest_int8acc.runtime.trt import backend as backends
from pytest_int8acc.runtime.trt import latency
from pytest_int8acc.runtime.trt.backend import TrtBackend
from pytest_int8acc.runtime.trt.build import Built
from pytest_int8acc.runtime.trt.platform import Device, Platform, find_platform
from pytest_int8acc.runtime.worker import alone, lock_of, sharing

SETTINGS = Settings(no_cache=True, backend="tensorrt")
FIRST, SECOND = Device("0", "0000:01:00.0"), Device("1", "0000:02:00.0")


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two to spare, however many workers run these tests."""
    monkeypatch.setattr(backends, "share_of_cores", lambda: 2)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    project = Project(tmp_path)
    project.data(project.model("plain"))
    return project.case(f"{CALIBRATED}criteria: [{{cosine: 0.5}}]")


@pytest.fixture
def rtx() -> Platform:
    """TensorRT-RTX that can build and not run."""
    found, _ = find_platform("rtx")
    if found is None or not found.is_rtx:
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx")
    if found.can_run:
        pytest.skip("there is a GPU")
    return found


def forms_of(case: Case) -> SimpleNamespace:
    model = load_float(case)
    candidate, _ = candidate_form(case, model, SETTINGS, implicit=False)
    return SimpleNamespace(model=model, baseline=ModelForm.in_full(model), candidate=candidate)


@pytest.fixture
def opened(case: Case, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TrtBackend]]:
    """Opens baseline and candidate of a case with a given ``build``; engines stand for themselves."""
    made: list[TrtBackend] = []

    def opening(build: Callable[..., Any], *devices: Device) -> TrtBackend:
        monkeypatch.setattr(backends, "build", build)
        monkeypatch.setattr(backends, "open_built", lambda built: SimpleNamespace(close=lambda: None))
        platform = Platform("tensorrt", (10, 13, 0), "a GPU", (9, 0), devices=devices)
        backend = TrtBackend(platform, case, SETTINGS)
        made.append(backend)
        forms = forms_of(case)
        inputs = open_source(case, case.inputs, forms.model, "inputs", None)
        backend.begin(forms.candidate, Role.INT8, inputs)  # in the order of a case that is measured
        backend.open(forms.baseline, Role.BASELINE, inputs)
        backend.open(forms.candidate, Role.INT8, inputs)
        return backend

    yield opening
    for backend in made:
        backend.close()


def built_of(request: Any) -> Built:
    facts = {"role": request.role, "name": request.model.name, "platform": None, "nbytes": 1}
    paths = {"engine": Path("e"), "log": Path("l"), "stored": False, "layers": "", "network": ()}
    paths |= {"seconds": 1.0, "waited": 0.0}
    rest = {"calibration": None, "inputs": (), "outputs": request.model.outputs, "profiles": {}}
    return Built(**facts, **paths, **rest)


def test_baseline_and_candidate_are_built_at_the_same_time(opened: Callable[..., TrtBackend]) -> None:
    """Each build waits for the other one to have begun."""
    both = threading.Barrier(2, timeout=20)

    def build(request: Any, *_: Any, **__: Any) -> Built:
        both.wait()
        return built_of(request)

    backend = opened(build)
    assert [info.role for info in backend.engines] == [Role.BASELINE, Role.INT8]


def test_the_second_gpu_builds_the_candidate(opened: Callable[..., TrtBackend]) -> None:
    places: dict[str, Device | None] = {}

    def build(request: Any, *_: Any, device: Device | None = None, **__: Any) -> Built:
        places[request.role] = device
        return built_of(request)

    opened(build, FIRST, SECOND)
    assert places == {Role.BASELINE: None, Role.INT8: SECOND}


def test_the_only_gpu_is_left_to_one_builder(opened: Callable[..., TrtBackend]) -> None:
    """Two would take turns there, and each of them starts for seconds first."""
    threads: list[str] = []

    def build(request: Any, *_: Any, **__: Any) -> Built:
        threads.append(threading.current_thread().name)
        return built_of(request)

    opened(build, FIRST)
    assert threads == [threading.current_thread().name] * 2


def test_a_build_that_fails_beside_is_told_when_it_is_opened(opened: Callable[..., TrtBackend]) -> None:
    roles: list[str] = []

    def build(request: Any, *_: Any, **__: Any) -> Built:
        roles.append(request.role)
        if request.role == Role.INT8:
            raise EngineError("no kernel")
        return built_of(request)

    with pytest.raises(EngineError, match="no kernel"):
        opened(build)
    assert sorted(roles) == [Role.INT8, Role.BASELINE]


def test_what_ends_the_first_build_ends_the_other_one(opened: Callable[..., TrtBackend], case: Case) -> None:
    ended = threading.Event()

    def build(request: Any, *_: Any, stopped: Callable[[], bool], **__: Any) -> Built:
        if request.role == Role.BASELINE:
            raise KeyboardInterrupt
        while not stopped():
            time.sleep(0.01)
        ended.set()
        raise EngineError("stopped")

    with pytest.raises(KeyboardInterrupt):
        opened(build)
    assert not ended.is_set()


def test_a_closed_backend_ends_what_it_builds(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def build(request: Any, *_: Any, stopped: Callable[[], bool], **__: Any) -> Built:
        begun.set()
        while not stopped():
            time.sleep(0.01)
        ended.set()
        raise EngineError("stopped")

    monkeypatch.setattr(backends, "build", build)
    backend = TrtBackend(Platform("tensorrt", (10, 13, 0), "a GPU", (9, 0)), case, SETTINGS)
    forms = forms_of(case)
    inputs = open_source(case, case.inputs, forms.model, "inputs", None)
    backend.begin(forms.candidate, Role.INT8, inputs)
    assert begun.wait(20)
    backend.close()
    assert ended.wait(20)


@pytest.mark.rtx
def test_what_a_case_builds_it_builds_once_though_nothing_is_kept(
    case: Case, rtx: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pytest_int8acc")
    backend, forms = TrtBackend(rtx, case, SETTINGS), forms_of(case)
    inputs = open_source(case, case.inputs, forms.model, "inputs", None)
    for _ in range(2):
        backend.open(forms.baseline, Role.BASELINE, inputs)
    said = [record.getMessage() for record in caplog.records]
    assert sum("MB built in" in line for line in said) == 1
    folder = Path(next(line for line in said if "taken from the store" in line).rpartition(", ")[2])
    assert folder.exists()
    backend.close()
    assert not folder.exists()


def test_a_gpu_is_for_one_process_at_a_time() -> None:
    lock = lock_of("0000:00:00.0-test")
    assert lock is not None
    assert lock != lock_of("0000:01:00.0-test")
    with alone(lock) as waited:
        assert waited is not None
        assert waited < 5
        with pytest.raises(Timeout):
            FileLock(str(lock)).acquire(timeout=0)
    with FileLock(str(lock)).acquire(timeout=0):
        pass
    with alone(None) as waited:
        assert waited is not None


def test_a_gpu_in_use_is_not_waited_for_where_nobody_wants_to(tmp_path: Path) -> None:
    lock = tmp_path / "gpu.lock"
    with sharing(lock, 4), sharing(lock, 4):
        with alone(lock, timeout=0) as waited:
            assert waited is None
        with sharing(lock, 4) as waited:  # the try to be alone has left no slot locked
            assert waited is not None
    with alone(lock, timeout=0) as waited:
        assert waited is not None


def test_who_waits_to_be_alone_is_not_passed_by_all_others(tmp_path: Path) -> None:
    """Slots become free and are taken again all the time."""
    lock, stop = tmp_path / "gpu.lock", threading.Event()

    def builds() -> None:
        while not stop.is_set():
            with sharing(lock, 4):
                time.sleep(0.1)

    threads = [threading.Thread(target=builds, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    limit = threading.Timer(20, stop.set)
    limit.start()
    with alone(lock):
        is_in_time = not stop.is_set()
    limit.cancel()
    stop.set()
    for thread in threads:
        thread.join()
    assert is_in_time


def test_a_lock_that_cannot_be_held_keeps_nobody_from_work(tmp_path: Path) -> None:
    lock = tmp_path / "no folder" / ("x" * 300)
    with alone(lock) as first, sharing(lock, 2) as second:
        assert first is not None
        assert second < 5


def test_latency_is_measured_while_nothing_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = lock_of(FIRST.bus)
    held: list[bool] = []

    class Timer:
        def __init__(self, engine: object) -> None: ...

        def run(self) -> float:
            try:
                FileLock(str(lock)).acquire(timeout=0).lock.release()
            except Timeout:
                held.append(True)
            else:
                held.append(False)
            return 1.0

        def free(self) -> None: ...

    monkeypatch.setattr(latency, "_Timer", Timer)
    monkeypatch.setattr(latency, "WARM_UP_SECONDS", 0.0)
    platform = Platform("tensorrt", (8, 6, 0), "a GPU", (9, 0), devices=(FIRST,))
    engine: Any = SimpleNamespace(platform=platform, run_all=lambda feed: feed)
    times = latency.measure_latency({Role.INT8: engine}, {}, runs=3)
    assert times[Role.INT8].runs == 3
    assert held
    assert all(held)
    with sharing(lock, 4):
        assert latency.measure_latency({Role.INT8: engine}, {}, runs=3, waits=False) == {}


@pytest.mark.parametrize(
    ("level", "criterion", "search", "shares_gpu"),
    [
        (0, "cosine: 0.5", "accuracy", True),
        (1, "cosine: 0.5", "accuracy", True),
        (1, "speedup: 1.1", "accuracy", False),
        (1, "cosine: 0.5", "latency", False),
        (2, "cosine: 0.5", "accuracy", False),
        (None, "cosine: 0.5", "accuracy", False),
    ],
)
def test_builds_go_beside_each_other_only_where_nobody_judges_time(
    level: int | None,
    criterion: str,
    search: str,
    shares_gpu: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = Project(tmp_path)
    project.data(project.model("plain"))
    made = "" if level is None else f"tensorrt: {{optimization_level: {level}}}\n"
    criteria = f"criteria: [{{cosine: 0.4}}, {{{criterion}}}]\n"
    case = project.case(f"{CALIBRATED}{made}search: {{for: {search}}}\n{criteria}")
    asked: list[bool] = []
    waits_of: list[bool] = []

    def build(request: Any, *_: Any, **__: Any) -> Built:
        asked.append(request.shares_gpu)
        return built_of(request)

    def measured(*_: Any, waits: bool) -> dict[Role, Latency]:
        waits_of.append(waits)
        return {Role.BASELINE: Latency(1.0, 0.9, 1.1, 20)}

    monkeypatch.setattr(backends, "build", build)
    monkeypatch.setattr(backends, "open_built", lambda built: SimpleNamespace(close=lambda: None))
    backend = TrtBackend(Platform("tensorrt", (10, 13, 0), "a GPU", (9, 0), devices=(FIRST,)), case, SETTINGS)
    forms = forms_of(case)
    inputs = open_source(case, case.inputs, forms.model, "inputs", None)
    backend.open(forms.baseline, Role.BASELINE, inputs)
    monkeypatch.setattr(backends, "measure_latency", measured)
    for _ in range(2):
        backend.measure_latency([Role.BASELINE], inputs)
    backend.close()
    assert asked == [shares_gpu]
    assert waits_of == [not shares_gpu, True]  # all engines of a case are timed, or none
    assert backend.notes == ()


def test_a_case_that_finds_the_gpu_in_use_times_no_engine_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    project.data(project.model("plain"))
    case = project.case(f"{CALIBRATED}tensorrt: {{optimization_level: 1}}\ncriteria: [{{cosine: 0.4}}]\n")
    monkeypatch.setattr(backends, "build", lambda request, *_, **__: built_of(request))
    monkeypatch.setattr(backends, "open_built", lambda built: SimpleNamespace(close=lambda: None))
    tries: list[bool] = []

    def in_use(*_: Any, waits: bool) -> dict[Role, Latency]:
        tries.append(waits)
        return {}

    monkeypatch.setattr(backends, "measure_latency", in_use)
    platform = Platform("tensorrt", (10, 13, 0), "a GPU", (9, 0), devices=(FIRST,))
    backend, forms = TrtBackend(platform, case, SETTINGS), forms_of(case)
    inputs = open_source(case, case.inputs, forms.model, "inputs", None)
    backend.open(forms.baseline, Role.BASELINE, inputs)
    for _ in range(2):
        backend.measure_latency([Role.BASELINE], inputs)
    backend.close()
    assert tries == [False]
    assert [note for note in backend.notes if "engines not timed: the GPU was in use" in note]


@pytest.mark.rtx
@pytest.mark.usefixtures("rtx")
def test_cases_of_a_session_share_its_builders(case: Case, tmp_path: Path) -> None:
    """TensorRT's start takes longer than most builds: one process looks for TensorRT, and two build."""
    starts = tmp_path / "starts"
    tell = f"    open({str(starts)!r}, 'a').write(f'{{__import__(\"os\").getpid()}}\\n')\n"
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif any('runtime.worker' in word for word in sys.orig_argv):\n{tell}"
    )
    text = case.file.read_text(encoding="utf-8")
    for number in range(3):
        spec = tmp_path / f"more{number}.int8acc.yaml"
        spec.write_text(text.replace("cosine: 0.5", f"cosine: 0.{number + 1}"), encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    options = ("--int8acc", "--int8acc-backend", "tensorrt", "--int8acc-no-cache", "-n0")
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *LOAD, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**outer, "PYTHONPATH": path},
        check=False,
    )
    assert "4 skipped" in done.stdout
    assert len(starts.read_text().splitlines()) <= 3
