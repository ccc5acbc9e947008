"""The pytest plugin: hooks and fixtures, which pytest finds by the package's entry point."""

from __future__ import annotations

#: pytest loads these modules after this one. This module is imported in every pytest run, so it imports
#: nothing.
pytest_plugins = ["pytest_int8acc.plugin.hooks", "pytest_int8acc.plugin.fixtures"]
