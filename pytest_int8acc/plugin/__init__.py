"""pytest's side of it: the hooks and fixtures that the entry point brings."""

from __future__ import annotations

from pytest_int8acc.plugin.hooks import (
    pytest_addoption,
    pytest_cmdline_main,
    pytest_collect_file,
    pytest_collection_finish,
    pytest_configure,
    pytest_configure_node,
    pytest_report_header,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_xdist_auto_num_workers,
)

__all__ = [
    "pytest_addoption",
    "pytest_cmdline_main",
    "pytest_collect_file",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "pytest_xdist_auto_num_workers",
]

#: Loaded by pytest after this module, whose import is to cost nothing.
pytest_plugins = ["pytest_int8acc.plugin.fixtures"]
