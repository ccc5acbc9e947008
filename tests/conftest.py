"""Shared by all tests."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin behaves otherwise where these are set: a test that means a CI machine sets them itself."""
    for variable in ("CI", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
