"""Builds that share a GPU share TensorRT's timings: each starts from those of all builds before it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_int8acc.files import read_sealed
from pytest_int8acc.runtime.children import Ended, Workers

#: What the worker needs of TensorRT and Polygraphy. A build takes a while, and adds a line to its timings.
MODULES = {
    "tensorrt.py": '__version__ = "8.6.0"\n',
    "polygraphy/__init__.py": "",
    "polygraphy/config.py": "USE_TENSORRT_RTX = False\n",
    "polygraphy/exception.py": "class PolygraphyException(Exception):\n    pass\n",
    "polygraphy/logger.py": "class G_LOGGER:\n    VERBOSE = 0\n",
    "polygraphy/backend/__init__.py": "",
    "polygraphy/backend/trt.py": """
import pathlib, time

PostprocessConfig = None

class Network:
    num_layers = 0

class Profile:
    pass

def load_plugins(plugins):
    pass

class NetworkFromOnnxPath:
    def __init__(self, path):
        pass

    def __call__(self):
        return None, Network(), None

def CreateConfig(load_timing_cache=None, **options):
    return load_timing_cache

class EngineBytesFromNetwork:
    def __init__(self, network, loaded, save_timing_cache):
        self.loaded, self.saved = loaded, save_timing_cache

    def __call__(self):
        known = pathlib.Path(self.loaded).read_bytes() if pathlib.Path(self.loaded).exists() else b""
        time.sleep(0.3)
        pathlib.Path(self.saved).write_bytes(known + pathlib.Path.cwd().name.encode() + b" ")
        return b"engine"
""",
}


@pytest.fixture(autouse=True)
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "modules")


def build(folder: Path, timing: Path) -> Ended:
    """Have a worker build an engine in ``folder``, while it holds the GPU."""
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
        "timing": str(timing),
    }
    with Workers() as workers:
        return workers.run(job, folder, 60).ended


def test_builds_that_wait_for_each_other_lose_no_timings(tmp_path: Path) -> None:
    shared = tmp_path / "timing.cache"
    folders = [tmp_path / name for name in ("a", "b", "c")]
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda folder: build(folder, shared), folders)) == {Ended.DONE}
    assert sorted((read_sealed(shared, "timing cache") or b"").split()) == [b"a", b"b", b"c"]


def test_timings_that_cannot_be_read_or_written_do_not_fail_a_build(tmp_path: Path) -> None:
    assert build(tmp_path / "a", tmp_path) is Ended.DONE
