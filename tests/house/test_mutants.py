"""The planted faults of benchmarks/mutants are found again after a move, and each changes one line."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.mutants.__main__ import find  # noqa: E402
from benchmarks.mutants.draw import draw, read  # noqa: E402

MODULE = '''
def mean(values: list[float]) -> float:
    """Return the mean."""
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)


class Limit:
    def holds(self, value: float) -> bool:
        return value >= self.least and value is not None
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    room = tmp_path / "pytest_int8acc" / "scores"
    room.mkdir(parents=True)
    (room / "means.py").write_text(MODULE)
    return tmp_path


def test_mutants_of_a_module_change_one_line_each(tree: Path) -> None:
    mutants = draw(tree, count=8, seed=1)
    assert len({m.kind for m in mutants}) >= 5
    for mutant in mutants:
        place = find(mutant, tree)
        assert place is not None
        text = place.planted(mutant, MODULE)
        ast.parse(text)
        changed = [a for a, b in zip(MODULE.splitlines(), text.splitlines(), strict=True) if a != b]
        assert [line.strip() for line in changed] == [mutant.line]


def test_a_mutant_is_found_after_its_module_moved(tree: Path) -> None:
    mutants = draw(tree, count=8, seed=1)
    new = tree / "pytest_int8acc" / "judge" / "rows.py"
    new.parent.mkdir()
    (tree / mutants[0].file).rename(new)
    new.write_text("A = 1\n\n" + MODULE.replace("class Limit", "class Criterion"))
    assert {place.file for m in mutants if (place := find(m, tree))} == {"pytest_int8acc/judge/rows.py"}
    assert find(replace(mutants[0], line="no longer there"), tree) is None


def test_the_list_has_150_mutants_of_all_rooms() -> None:
    mutants = read()
    rooms = {mutant.room for mutant in mutants}
    assert len(mutants) == 150
    assert all(sum(mutant.room == room for mutant in mutants) >= 3 for room in rooms)
