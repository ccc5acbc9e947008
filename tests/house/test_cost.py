"""What benchmarks/cost measures of a process, a case and a plain pass."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.cost import __main__ as command
from benchmarks.cost import against, lines
from benchmarks.cost import draw as drawing
from benchmarks.cost.__main__ import main
from benchmarks.cost.against import KEPT, Compared, Plan, Round, Side, compare, key_of
from benchmarks.cost.draw import FEW, MANY, Task, draw
from benchmarks.cost.lines import Line, median, ratios
from benchmarks.cost.process import Ran, check, plain, run
from benchmarks.cost.specs import write_large, write_rival
from benchmarks.nets import trained
from benchmarks.regressions.corpus import corpus
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
    passed = [Line("x", figure, 1) for figure in (0.1, 0.9)]
    assert median([*passed, Line("x", 3.0, 1, least=True)]).met
    low = median([*passed, Line("x", 0.5, 1, least=True)])
    assert (low.figure, low.least, low.met) == (0.5, True, False)


def test_a_seed_draws_failing_cases_of_both_sizes(tmp_path):
    tasks = list(draw(1, 2, tmp_path / "one"))
    again = list(draw(1, 2, tmp_path / "two"))
    assert [task.entry for task in tasks] == [task.entry for task in again]
    assert sorted(task.size for task in tasks) == sorted([FEW, MANY])
    for task in tasks:
        given = json.loads((task.folder / "task.json").read_text())
        assert (task.folder / given["calibration"]).exists()
        assert given["limits"]
        assert "baseline: fp32" in task.spec.read_text()
        assert "search" not in check(task.spec, "--int8acc-search=off", fails=True).phases


def test_topic_a_has_no_seed_of_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "a"])
    assert "give --seed" in capsys.readouterr().err


def test_rounds_are_kept_of_a_commit_without_changes_only(capsys, monkeypatch, tmp_path):
    for state in ("abc123-dirty", "unknown"):
        monkeypatch.setattr(command, "commit", lambda state=state: state)
        with pytest.raises(SystemExit):
            main(["--only", "a", "--seed", "1", "--kept", str(tmp_path / "kept.jsonl")])
        assert "--kept needs a commit without changes" in capsys.readouterr().err


def _round(ours: float, nncf: float, ours_outcome: str = KEPT, nncf_outcome: str = KEPT) -> Round:
    sides = (Side(ours, ours_outcome, "high, 1 of 4 high"), Side(nncf, nncf_outcome, "2 of 4 reverted"))
    return Round(*sides, phases={}, reverted=2)


def _compared(*rounds: Round, groups: int = 12) -> Compared:
    return Compared(Task("some", "net", groups, Path("some.yaml")), list(rounds))


def test_a_round_that_was_kept_is_not_measured_again(tmp_path):
    task, kept = Task("some", "net", 4, tmp_path / "some.int8acc.yaml"), tmp_path / "kept.jsonl"
    rounds = [_round(1.0, 4.0), _round(3.0, 4.0), _round(2.0, 5.0)]
    plan = Plan(
        Path("nowhere"), limit=9, rounds=3, kept=kept, conditions={"commit": "abc", "machine": "here"}
    )
    keys = [json.loads(key_of(task, 7, number, plan)) for number in range(3)]
    texts = [json.dumps([key, asdict(each)]) for key, each in zip(keys, rounds, strict=True)]
    kept.write_text("\n".join(texts) + "\n")
    compared = compare(task, 7, plan)
    assert compared.rounds == rounds
    assert compared.ratio == 2.0 / 4.0
    others = (
        (8, plan),
        (7, replace(plan, limit=10)),
        (7, replace(plan, conditions={"commit": "abc", "machine": "there"})),
    )
    for seed, other in others:
        with pytest.raises(SystemExit):  # nothing is kept, and there is no such spec
            compare(task, seed, other)


def test_both_tools_are_first_in_turn_and_nothing_of_a_round_is_left_for_the_next(tmp_path, monkeypatch):
    (task,), order = draw(1, 1, tmp_path), []
    plan = Plan(Path("nncf"), limit=9, rounds=4, kept=None, conditions={})

    def nncf(command, limit=0, may_fail=False):
        order.append("nncf")
        assert limit == 9
        assert not may_fail
        assert not (task.folder / "nncf.json").exists()
        content = {"refusal": "ValidationError: no"} if len(order) < 5 else {"layers": 0, "reverted": []}
        (task.folder / "nncf.json").write_text(json.dumps(content))
        return Ran(1.0, False, "", 0)

    def ours(spec, limit, fails, report):
        order.append("ours")
        fix = {"kind": "high", "layers": ["a"], "verified": True}
        return Ran(1.0, False, "", 1, {"int8_groups": 3, "diagnosis": {"repairs": [fix]}})

    monkeypatch.setattr(against, "run", nncf)
    monkeypatch.setattr(against, "check", ours)
    compared = compare(task, 1, plan)
    assert order == ["ours", "nncf", "nncf", "ours"] * 2
    assert [each.nncf.outcome for each in compared.rounds] == ["refused"] * 2 + ["no layer quantized"] * 2
    assert compared.cells[-2:] == (
        "high, 1 of 3 high, no fixed.onnx",
        "ValidationError: no, refused",
    )


def test_a_report_folder_holds_one_round(tmp_path):
    (task,), report = draw(1, 1, tmp_path), tmp_path / "report"
    (report / "old").mkdir(parents=True)
    (report / "old" / "fixed.onnx").write_bytes(b"")
    check(task.spec, "--int8acc-search=off", fails=True, report=report)
    assert (report / "report.json").exists()
    assert not list(report.glob("*/fixed.onnx"))


def test_a_task_counts_for_the_ratio_only_where_both_keep_the_limits():
    both = _compared(_round(1.0, 4.0))
    ours = _compared(_round(1.0, 4.0), _round(1.0, 4.0, ours_outcome="no fix"))
    nncf = _compared(_round(1.0, 4.0, nncf_outcome="limits missed"))
    assert ours.ratio is None
    assert ours.cells[:6] == ("some", "net", 12, "1", "4", "")
    first, second = ratios([both, ours, nncf], MANY, 0.5)
    assert (first.figure, first.met) == (0.25, True)
    assert (second.figure, second.unit) == (2, "of 3; ours: no fix (1); NNCF: limits missed (1)")


def test_a_size_without_a_ratio_is_named():
    refused = _compared(_round(1.0, 4.0, nncf_outcome="refused"))
    (line,) = ratios([refused, refused], FEW, 0.7)
    assert line.what == f"no ratio: tasks in which not both keep the limits, {FEW}"
    assert (line.figure, line.unit) == (2, "of 2; NNCF: refused (2)")
    (line,) = ratios([], FEW, 0.7)
    assert (line.figure, line.unit) == (0, "of 0")


def test_a_draw_that_finds_too_few_tasks_says_so(tmp_path, monkeypatch, capsys):
    entries = {name: corpus()[name] for name in ("data_times255_mlp", "stale_retrained_resnet")}
    monkeypatch.setattr(drawing, "corpus", lambda: entries)
    faulty = {task.entry: task.faulty_data for task in draw(1, 4, tmp_path / "four")}
    assert faulty == {"data_times255_mlp": True, "stale_retrained_resnet": False}
    said = capsys.readouterr().out
    assert [line[:25] for line in said.splitlines()] == ["missing in the corpus: 1 "] * 2

    monkeypatch.setattr(drawing, "corpus", dict)
    monkeypatch.setattr(lines, "conditions", lambda python: {"NNCF's environment": "nncf 3"})
    (tmp_path / "nncf" / "bin").mkdir(parents=True)
    (tmp_path / "nncf" / "bin" / "python").touch()
    setup = lines.Setup(tmp_path, tmp_path, limit=9, rounds=1, seed=1, tasks=2, kept=None)
    assert [line.figure for line in lines.rivals(setup)] == [0, 0, 0]
