"""Builds on one GPU: who waits for whom, the timings that they share, and a second try for lack of memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from zoo import ZOO

from pytest_int8acc import EngineError
from pytest_int8acc.files import read_sealed, seal
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.runtime.children import Ended, Workers
from pytest_int8acc.runtime.trt.build import BuildRequest, build
from pytest_int8acc.runtime.trt.platform import Device, Platform

#: What the worker needs of TensorRT and Polygraphy. A build takes a while, and adds a word to its timings.
MODULES = {
    "tensorrt.py": '__version__ = "8.6.0"\n',
    "polygraphy/__init__.py": "",
    "polygraphy/config.py": "USE_TENSORRT_RTX = False\n",
    "polygraphy/exception.py": "class PolygraphyException(Exception):\n    pass\n",
    "polygraphy/logger.py": "class G_LOGGER:\n    VERBOSE = 0\n",
    "polygraphy/backend/__init__.py": "",
    "polygraphy/backend/trt.py": """
import json, pathlib, time

PostprocessConfig = None

class Network:
    num_layers = 0

class Profile:
    pass

def load_plugins(plugins):
    pass

class NetworkFromOnnxPath:
    def __init__(self, path, **options):
        pass

    def __call__(self):
        return None, Network(), None

class Timings:
    def __init__(self, content):
        self.known = set(content.split())

    def combine(self, other, ignore_mismatch):
        self.known |= other.known
        return True

    def serialize(self):
        return b" ".join(sorted(self.known))

class Config:
    def __init__(self, content):
        self.timings = Timings(content)

    def create_timing_cache(self, content):
        return Timings(content)

    def get_timing_cache(self):
        return self.timings

def CreateConfig(load_timing_cache=None, **options):
    path = pathlib.Path(load_timing_cache or "no cache")
    return lambda builder, network: Config(path.read_bytes() if path.exists() else b"")

class EngineBytesFromNetwork:
    def __init__(self, network, config):
        self.config = config

    def __call__(self):
        begun = time.time()
        time.sleep(0.5)
        if json.loads(pathlib.Path("job.json").read_text())["slots"]:
            lacking = pathlib.Path(__file__).with_name("memory")
            if lacking.exists():
                raise RuntimeError(lacking.read_text())
        pathlib.Path("times").write_text(f"{begun} {time.time()}")
        self.config.timings.known.add(pathlib.Path.cwd().name.encode())
        return json.loads(pathlib.Path("job.json").read_text())["slots"].to_bytes(1, "big")
""",
}


@pytest.fixture(autouse=True)
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "modules")


def work(folder: Path, timing: Path, slots: int) -> Ended:
    """Have a worker build an engine in ``folder``, alone on the GPU if ``slots`` is 0."""
    folder.mkdir()
    job = {
        "kind": "build",
        "engine": "engine.plan",
        "examine": False,
        "typing": "weak",
        "flags": [],
        "precisions": {},
        "outputs": None,
        "profiles": {},
        "plugins": [],
        "builder": {},
        "algorithm": None,
        "calibration_shapes": None,
        "lock": str(folder.parent / "gpu.lock"),
        "slots": slots,
        "timing": str(timing),
    }
    with Workers() as workers:
        return workers.run(job, folder, 60).ended


def overlaps(folders: list[Path]) -> int:
    """Number of builds that had begun when the first one ended."""
    times = [tuple(map(float, (folder / "times").read_text().split())) for folder in folders]
    first = min(end for _, end in times)
    return sum(begun < first for begun, _ in times)


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_builds_on_one_gpu_lose_no_timings(slots: int, tmp_path: Path) -> None:
    """Each waits until it is alone, or has one of ``slots`` slots."""
    shared = tmp_path / "timing.cache"
    folders = [tmp_path / name for name in ("a", "b", "c")]
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda folder: work(folder, shared, slots), folders)) == {Ended.DONE}
    assert sorted((read_sealed(shared, "timing cache") or b"").split()) == [b"a", b"b", b"c"]
    assert overlaps(folders) <= max(1, slots)


def test_a_build_alone_waits_for_those_beside_each_other(tmp_path: Path) -> None:
    shared = tmp_path / "timing.cache"
    kinds = {tmp_path / "a": 4, tmp_path / "b": 0, tmp_path / "c": 4}
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda folder: work(folder, shared, kinds[folder]), kinds)) == {Ended.DONE}
    spans = {folder: tuple(map(float, (folder / "times").read_text().split())) for folder in kinds}
    begun, ended = spans.pop(tmp_path / "b")
    assert all(end <= begun or start >= ended for start, end in spans.values())


def test_timings_that_cannot_be_read_or_written_do_not_fail_a_build(tmp_path: Path) -> None:
    assert work(tmp_path / "a", tmp_path, 0) is Ended.DONE


def test_timings_that_tensorrt_refuses_do_not_fail_a_build(tmp_path: Path) -> None:
    module = tmp_path / "modules" / "polygraphy" / "backend" / "trt.py"
    module.write_text(module.read_text().replace("return self.timings", "return None"))
    shared = tmp_path / "timing.cache"
    shared.write_bytes(seal(b"of another driver"))
    assert work(tmp_path / "a", shared, 0) is Ended.DONE
    assert not shared.exists()


@pytest.mark.parametrize(
    ("said", "cores", "gib", "slots"),
    [
        ("", 16, 80, 4),
        ("", 6, 80, 3),
        ("", 16, 8, 2),
        ("", 1, 80, 0),
        ("CUDA error: out of memory", 16, 80, 0),
        ("insufficient memory: Could not find any implementation", 16, 80, 0),
        ("Could not find any implementation", 16, 80, None),
    ],
)
def test_a_build_that_lacks_memory_beside_others_is_done_alone(
    said: str, cores: int, gib: int, slots: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of the stand-in tells the number of builds that might have been beside its own."""
    if said:
        (tmp_path / "modules" / "polygraphy" / "backend" / "memory").write_text(said)
    monkeypatch.setattr("pytest_int8acc.runtime.trt.build.usable_cores", lambda: cores)
    platform = Platform("rtx", (1, 7, 0), problem="no GPU")
    device = Device("0", tmp_path.name, (gib << 30) - 1)
    request = BuildRequest(make_model(ZOO["plain"]()), "INT8", {}, "strong", shares_gpu=True)
    with pytest.raises(EngineError) if slots is None else nullcontext():
        assert build(request, platform, device=device).engine.read_bytes() == bytes([slots or 0])
