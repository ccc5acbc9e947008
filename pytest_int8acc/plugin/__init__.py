"""pytest's side of it: the hooks and fixtures that the entry point brings."""

from __future__ import annotations

#: Loaded by pytest after this module, whose import is to cost nothing.
pytest_plugins = ["pytest_int8acc.plugin.hooks", "pytest_int8acc.plugin.fixtures"]
