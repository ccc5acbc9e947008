"""Shared by all tests."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_python import forked_python
from plugin_support import LOAD
from zoo import need_opset_23

#: Tests on a GPU whose engines take longest, in the order in which their files are to begin.
LONGEST = (
    "test_five_rebuilds_have_one_verdict",
    "test_a_golden_on_tensorrt_spares_the_baseline_s_engine",
    "test_a_fusion_that_is_computed_wrong_is_broken_up",
    "test_each_kind_of_fix_is_verified_with_its_price",
    "test_the_example_project_passes_and_fails_as_it_should",
    "test_implicit_quantization_that_fails_gets_an_explicit_fix",
    "test_a_cache_is_read_and_layer_precisions_are_obeyed",
    "test_simulated_sqnr_is_the_engines",
)

pytest_plugins = ["pytester", "digits_project", "told_engines"]


@pytest.fixture(scope="session")
def workers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that workers of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def gpu_store(workers_folder: Path) -> Path:
    """One engine store for all tests and workers, so that each engine is built once."""
    return workers_folder / "engines"


@pytest.fixture(autouse=True, scope="session")
def _own_cache(workers_folder: Path) -> Iterator[None]:
    """Nothing is read from the user's cache folder, or left in it; workers of pytest-xdist share one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(workers_folder / "cache"))
        yield


@pytest.fixture(scope="session")
def _stand_in() -> Iterator[str]:
    """The script that stands for Python in tests with quick_processes."""
    if sys.platform != "linux":
        yield sys.executable
        return
    with forked_python(*LOAD) as script:
        yield script


@pytest.fixture
def quick_processes(_stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes and workers of runs inside a test are forked, with all modules imported."""
    monkeypatch.setattr(sys, "executable", _stand_in)


@pytest.fixture(autouse=True)
def _opset_23(request: pytest.FixtureRequest) -> None:
    """An old ONNX Runtime is not asked for opset 23."""
    if re.search(r"\[(opset23|inception-23)\b", request.node.name):
        need_opset_23()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What builds for long comes first."""
    if all(item.get_closest_marker("gpu") for item in items):
        order = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(item.name.partition("[")[0], len(order)))


@pytest.fixture(autouse=True)
def _wide_terminal() -> Iterator[None]:
    """Lines that tests look for are not wrapped; for narrow terminals there is plugin/test_terminal.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "500")
        yield


@pytest.fixture(autouse=True)
def _not_in_ci() -> Iterator[None]:
    """The plugin behaves otherwise where these are set: a test that means a CI machine sets them itself."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("CI", "GITHUB_STEP_SUMMARY"):
            patch.delenv(variable, raising=False)
        yield
