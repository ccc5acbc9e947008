"""What other samples may reverse: the keys 'undecided' and 'groups', from `pytest --int8acc` down."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from plugin_support import LOAD

SPEC = """model: model.onnx
inputs: inputs.npz
labels: labels.npy
int8: {calibrate: {method: minmax}}
criteria:
  - {metric: top1, max_drop: 0.005}
  - {output: '*', top1_agreement: 0.98}
"""


def run(digits: pytest.Pytester, more: str = "") -> tuple[pytest.RunResult, dict[str, Any]]:
    """Run the case with more keys; what was printed, and the case in report.json."""
    (digits.path / "digits.int8acc.yaml").write_text(SPEC + more)
    result = digits.runpytest(*LOAD, "--int8acc", "--int8acc-report=report")
    report = digits.path / "report" / "report.json"
    return result, json.loads(report.read_text())["cases"][0] if report.exists() else {}


def lows(case: dict[str, Any]) -> list[float]:
    """The lower ends of the intervals of scores with a limit."""
    scores = [*case["metrics"], *(score for output in case["outputs"] for score in output["scores"])]
    return [score["interval"]["low"] for score in scores if score["limit"] is not None]


def test_a_case_that_other_samples_may_reverse_passes_and_says_so(digits):
    result, case = run(digits)
    result.assert_outcomes(passed=1)
    said = "PASSED *undecided: * may be * on other *about * samples (now *) would decide*"
    result.stdout.fnmatch_lines(said)
    assert case["verdict"] == "passed"


def test_or_it_fails(digits):
    result, case = run(digits, "undecided: fail\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "INT8 accuracy: undecided: 'logits' top1_agreement may be 0.944 to 1 on *, limit 0.98",
            "Fix: give about * samples in all; or write *",
        ]
    )
    result.stdout.no_fnmatch_line("Caution: undecided*")
    assert case["verdict"] == "failed"


def test_a_verdict_that_the_samples_decide_passes_all_the_same(digits):
    spec = SPEC.replace("0.005", "0.3").replace("0.98", "0.7")
    (digits.path / "digits.int8acc.yaml").write_text(spec + "undecided: fail\n")
    digits.runpytest(*LOAD, "--int8acc").assert_outcomes(passed=1)


def test_samples_of_a_group_count_as_one(digits):
    videos, labels = np.arange(64) // 4, np.load(digits.path / "labels.npy")
    np.save(digits.path / "videos.npy", videos)
    (digits.path / "videos.txt").write_text("".join(f"video {video}\n" for video in videos))
    (digits.path / "videos.py").write_text("def of():\n    return [i // 4 for i in range(64)]\n")
    np.savez(digits.path / "both.npz", digit=labels, video=videos)
    of_key = SPEC.replace("labels.npy", "both.npz").replace("top1, max", "top1, label: digit, max")
    specs = {source: f"{SPEC}groups: videos.{source}\n" for source in ("npy", "txt", "py:of")}
    specs |= {"alone": SPEC, "key": f"{of_key}groups: video\n"}
    cases = run_all(digits, {source.partition(":")[0]: text for source, text in specs.items()})
    assert len(cases) == len(specs)
    for name, case in cases.items():
        # 16 groups without a disagreement: 1 - 0.025 ** (1 / 16) of other groups may hold one.
        low = 0.025 ** (1 / 64) if name == "alone" else 0.025 ** (1 / 16)
        assert lows(case) == pytest.approx([low] * 2, abs=0.01), name


def run_all(digits: pytest.Pytester, specs: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Entries of report.json for specs of these names."""
    (digits.path / "digits.int8acc.yaml").unlink()
    for name, text in specs.items():
        (digits.path / f"{name}.int8acc.yaml").write_text(text)
    digits.runpytest(*LOAD, "--int8acc", "--int8acc-report=report")
    report = json.loads((digits.path / "report" / "report.json").read_text())
    return {case["nodeid"].rpartition("::")[2]: case for case in report["cases"]}


def test_groups_that_do_not_fit_are_told_with_their_place(digits):
    told = {
        "absent.npy": "groups: absent.npy",
        "video": r"groups: video is neither a file \(.*\) nor an array of 'labels', which hold no",
        "few.npy": "groups: few.npy: 3 groups .* for 64 samples; .* one group per sample",
        "square.npy": r"groups: square.npy: expected one number or name .*, found shape \(64, 2\)",
        "one.npy": "groups: one.npy: all 64 samples are one group; at least two are needed",
    }
    np.save(digits.path / "few.npy", np.arange(3))
    np.save(digits.path / "square.npy", np.zeros((64, 2), int))
    np.save(digits.path / "one.npy", np.zeros(64, int))
    specs = {groups.partition(".")[0]: f"{SPEC}groups: {groups}\n" for groups in told}
    cases = run_all(digits, specs)
    for groups, text in told.items():
        case = cases[groups.partition(".")[0]]
        assert case["verdict"] == "error"
        assert re.search(rf"\w+.int8acc.yaml:8:9: {text}", case["message"])


def test_undecided_is_one_of_two_words(digits):
    (digits.path / "digits.int8acc.yaml").write_text(SPEC + "undecided: maybe\n")
    result = digits.runpytest(*LOAD, "--int8acc")
    result.stdout.fnmatch_lines("digits.int8acc.yaml:8:12: undecided: expected one of score, fail*")


def test_a_fix_is_proved_on_groups_that_chose_nothing(digits):
    (digits.path / "videos.txt").write_text("".join(f"video {i // 2}\n" for i in range(64)))
    spec = SPEC.replace("{calibrate: {method: minmax}}", "{scales: ranges.json}") + "groups: videos.txt\n"
    (digits.path / "digits.int8acc.yaml").write_text(spec)
    result = digits.runpytest(*LOAD, "--int8acc")
    result.assert_outcomes(failed=1)
    # 20 groups prove no limit on a share, so the fix is not called verified.
    result.stdout.fnmatch_lines(["Fix: *'top1' 1 >= 0.995*", "*passes on the samples*"])
