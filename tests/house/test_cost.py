"""What benchmarks/cost measures of a process, a case and a plain pass."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.cost.__main__ import main
from benchmarks.cost.against import Compared, Plan, Round, compare
from benchmarks.cost.draw import BOUNDARY, Task, draw
from benchmarks.cost.lines import Line, median
from benchmarks.cost.process import check, plain, run
from benchmarks.cost.specs import write_large, write_rival
from benchmarks.nets import trained
from benchmarks.search import commit
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


def test_a_seed_draws_failing_cases_of_both_sizes(tmp_path):
    tasks = list(draw(1, 2, tmp_path / "one"))
    again = list(draw(1, 2, tmp_path / "two"))
    assert [task.entry for task in tasks] == [task.entry for task in again]
    assert sorted(task.groups < BOUNDARY for task in tasks) == [False, True]
    for task in tasks:
        given = json.loads((task.folder / "task.json").read_text())
        assert (task.folder / given["calibration"]).exists()
        assert given["limits"]
        assert "search" not in check(task.spec, "--int8acc-search=off", fails=True).phases


def test_topic_a_has_no_seed_of_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "a"])
    assert "give --seed" in capsys.readouterr().err


def _round(ours: float, nncf: float, refused: bool = False) -> Round:
    return Round(ours, False, "high, 1 of 4 high", {}, nncf, "2 of 4 high, limits kept", refused)


def test_a_round_that_was_kept_is_not_measured_again(tmp_path):
    task, kept = Task("some", "net", 4, tmp_path / "some.int8acc.yaml"), tmp_path / "kept.jsonl"
    rounds = [_round(1.0, 4.0), _round(3.0, 4.0), _round(2.0, 5.0)]
    lines = [json.dumps([[commit(), 7, "some", i], asdict(one)]) for i, one in enumerate(rounds)]
    kept.write_text("\n".join(lines) + "\n")
    compared = compare(task, 7, Plan(Path("nowhere"), limit=0, rounds=3, kept=kept))
    assert compared.rounds == rounds
    assert compared.ratio == 2.0 / 4.0
    with pytest.raises(SystemExit):  # another seed: nothing is kept, and there is no such spec
        compare(task, 8, Plan(Path("nowhere"), limit=0, rounds=1, kept=kept))


def test_a_task_that_nncf_refuses_has_no_ratio():
    compared = Compared(Task("some", "net", 12, Path("some.yaml")), [_round(1.0, 4.0, refused=True)])
    assert compared.ratio is None
    assert compared.cells[:6] == ("some", "net", 12, "1", "4", "")
