"""The pytest plugin, which pytest finds by the package's entry point: it has hooks and fixtures."""

from __future__ import annotations

#: The modules with hooks and fixtures, which pytest loads after this one. This module itself imports nothing,
#: because every pytest run imports it.
pytest_plugins = ["pytest_int8acc.plugin.hooks", "pytest_int8acc.plugin.fixtures"]
