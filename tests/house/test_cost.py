"""What benchmarks/cost measures of a process, a case and a plain pass."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.cost.lines import Line, median
from benchmarks.cost.process import check, plain, run
from benchmarks.cost.specs import write_large, write_rival
from benchmarks.nets import trained
from pytest_int8acc.graph.model import save_model

BUSY = "x = 0\nfor i in range({}): x += i"


def test_cpu_seconds_are_those_of_the_whole_tree(tmp_path):
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY.format(4 * 10**6)!r}])"
    alone = run([sys.executable, "-c", BUSY.format(4 * 10**6)])
    within = run([sys.executable, "-c", child])
    assert 0.1 < alone.cpu < within.cpu * 3  # a busy machine counts more for the same; without it, a tenth
    assert not alone.cut


def test_a_process_is_cut_at_the_limit():
    ran = run([sys.executable, "-c", BUSY.format(10**10)], limit=1)
    assert ran.cut
    assert 0.5 < ran.cpu < 3


def test_a_failing_case_is_measured_step_by_step(tmp_path):
    case = write_rival("cnn", tmp_path)
    ran = check(case.spec, fails=True)
    assert {"runs", "search", "proof", "causes", "repair"} <= set(ran.phases)
    assert min(ran.phases.values()) > 0
    assert 0 < case.plain_pass() < ran.cpu


def test_forms_by_hand_are_what_the_case_runs(tmp_path):
    model = trained("resnet")
    case = write_large(model, tmp_path / "resnet")
    assert case.by_hand() > 0
    assert "search" not in check(case.spec, fails=False).phases


def test_memory_of_a_session_is_told(tmp_path):
    save_model(trained("cnn"), tmp_path / "cnn.onnx")
    np.savez(tmp_path / "feed.npz", image=np.zeros((8, 1, 8, 8), np.float32))
    assert plain("memory", tmp_path / "cnn.onnx", tmp_path / "feed.npz") > 1 << 16


def test_a_median_is_a_bound_where_a_case_that_was_cut_may_lie_beyond_it():
    lines = [Line("x", figure, 1) for figure in (0.1, 0.9)]
    assert median([*lines, Line("x", 3.0, 1, least=True)]).met
    low = median([*lines, Line("x", 0.5, 1, least=True)])
    assert (low.figure, low.least, low.met) == (0.5, True, False)
