"""Files that the package ships, and those that its commands write."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest_int8acc

PACKAGE = Path(pytest_int8acc.__file__).parent


def written_again(module: str, name: str, folder: Path) -> tuple[str, str]:
    """A shipped file, and what ``python -m module`` writes in its place, in a copy in ``folder``."""
    copy = shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / name).unlink()
    subprocess.run([sys.executable, "-m", module], cwd=folder, check=True)
    return (PACKAGE / name).read_text(encoding="utf-8"), (copy / name).read_text(encoding="utf-8")


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every module of the package, by its path in it."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {
        p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text(encoding="utf-8"), str(p)) for p in paths
    }
