"""Shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest_plugins = ["pytester", "digits_project"]


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from the user's cache folder, or left in it; workers of pytest-xdist share one."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "XDG_CACHE_HOME", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache")
        )
        yield


@pytest.fixture(autouse=True)
def _not_in_ci() -> Iterator[None]:
    """The plugin behaves otherwise where these are set: a test that means a CI machine sets them itself."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("CI", "GITHUB_STEP_SUMMARY"):
            patch.delenv(variable, raising=False)
        yield
