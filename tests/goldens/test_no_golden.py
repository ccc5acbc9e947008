"""A case that keeps no golden: what stands in the keeper's place does nothing."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from projects import CALIBRATED, Project

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.goldens import Goldens
from pytest_int8acc.goldens.keeper import Keeper, NoGolden, open_keeper
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

#: What the answer is no to where there is no golden.
ANSWERS = ("recording", "replaces_baseline", "wants_baseline", "wants_candidate")


def public(kind: type) -> dict[str, object]:
    """What callers ask of a keeper: methods with their signatures, and properties."""
    own = (*ANSWERS, "case", "settings", "goldens", "place", "record", "origin")
    found = {name: member for name, member in vars(kind).items() if name[0] != "_" and name not in own}
    return {
        name: list(inspect.signature(member).parameters) if callable(member) else type(member)
        for name, member in found.items()
        if callable(member) or isinstance(member, property)
    }


def test_it_answers_all_that_a_keeper_does() -> None:
    assert public(NoGolden) == public(Keeper)


def test_nothing_changes(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.data(project.model("plain"))
    spec = tmp_path / "case.int8acc.yaml"
    spec.write_text(f"model: model.onnx\ninputs: data.npz\n{CALIBRATED}")
    (case,) = load_spec(spec)
    keeper = open_keeper(case, Settings(samples=5), Goldens(update="all"), {})
    assert isinstance(keeper, NoGolden)
    assert keeper.limit == 5
    assert not any(getattr(keeper, answer) for answer in ANSWERS)
    result = project.check(CALIBRATED)
    assert result.golden == ""
    assert not (tmp_path / "__int8acc__").exists()


def test_a_ratchet_that_names_no_metric_is_refused_before_anything_runs(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.data(project.model("plain"))
    with pytest.raises(CriterionError, match="regression: unknown metric 'cosin'"):
        project.check(f"{CALIBRATED}criteria: [{{regression: {{cosin: 0.1}}}}]\n")
