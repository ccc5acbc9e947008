"""Shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _not_in_ci() -> Iterator[None]:
    """The plugin behaves otherwise where these are set: a test that means a CI machine sets them itself."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("CI", "GITHUB_STEP_SUMMARY"):
            patch.delenv(variable, raising=False)
        yield
