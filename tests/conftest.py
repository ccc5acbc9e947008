"""Shared by all tests."""

from __future__ import annotations

pytest_plugins = ["pytester"]
