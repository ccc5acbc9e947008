"""Tensors inside the model that engines show change how those are built, and the case says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from detectors import TOP, detector

from pytest_int8acc.case.caveats import (
    shown_inside,
)
from pytest_int8acc.graph.model import with_extra_outputs, without_extra_outputs

if TYPE_CHECKING:
    from pytest_int8acc.runtime.protocol import Backend


@pytest.mark.parametrize("builds", [True, False])
def test_engines_that_show_tensors_inside_are_told_apart(builds: bool) -> None:
    model = with_extra_outputs(detector(TOP, "float[N, K] placed"), {"scores": 1})
    backend = cast("Backend", SimpleNamespace(builds_engines=builds))
    said = list(shown_inside(model, backend))
    assert [text.partition(":")[0] for text in said] == ["criteria name 'scores' inside the model"] * builds
    assert not list(shown_inside(without_extra_outputs(model), backend))
