"""Arrays of users' own tests and their goldens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from plugin_support import LOAD

TEST = """
import numpy as np

ARRAYS = {"a": np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32), "b": np.arange(8)}


def test_net(int8acc_golden):
    int8acc_golden("NAME", CHANGED)
"""
SAME = "ARRAYS"
NEAR = "{**ARRAYS, 'a': ARRAYS['a'] * np.float32(1.001)}"
MOVED = "{**ARRAYS, 'a': ARRAYS['a'] * np.float32(1.02)}"
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Runs a test that hands over these arrays."""

    def runs(changed: str, *options: str, name: str = "net") -> pytest.RunResult:
        pytester.makepyfile(test_net=TEST.replace("NAME", name).replace("CHANGED", changed))
        return pytester.runpytest(*LOAD, "-p", "no:cacheprovider", *options)

    return runs


def kept(pytester: pytest.Pytester) -> Path:
    return pytester.path / "__int8acc__" / "arrays" / "net.npz"


def test_recorded_and_compared(run: Run, pytester: pytest.Pytester) -> None:
    missing = run(SAME, "--int8acc-report=out")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(
        ["*__int8acc__/arrays/net.npz: no golden yet; record it with *--int8acc-update=missing*"]
    )
    assert (pytester.path / "out" / "golden" / "net.npz").exists()
    run(SAME, "--int8acc-update=missing").assert_outcomes(passed=1)
    run(NEAR).assert_outcomes(passed=1)
    for options in ((), ("--int8acc-update=missing",)):
        moved = run(MOVED, *options)
        moved.assert_outcomes(failed=1)
        moved.stdout.re_match_lines([r".*'a' sqnr_db 33\.\d+ < 40"])
    run(MOVED, "--int8acc-update=all").assert_outcomes(passed=1)
    run(MOVED).assert_outcomes(passed=1)
    run(SAME).assert_outcomes(failed=1)


def test_every_difference_is_told(run: Run, pytester: pytest.Pytester) -> None:
    run(SAME, "--int8acc-update=all").assert_outcomes(passed=1)
    with np.load(kept(pytester)) as arrays:
        first = arrays["a"]
    result = run("{'b': ARRAYS['b'][::-1], 'c': ARRAYS['a']}", "--int8acc-report=out")
    result.stdout.fnmatch_lines_random(["*array 'a' is gone*", "*array 'c' is new*", "*'b' *"])
    with np.load(pytester.path / "out" / "golden" / "net.npz") as candidate:
        np.testing.assert_array_equal(candidate["c"], first)


def test_mistakes_are_named(run: Run, pytester: pytest.Pytester) -> None:
    update = "--int8acc-update=all"
    for changed, name, said in (
        ("ARRAYS, cosin=0.9", "net", "*unknown limit 'cosin' (did you mean 'cosine'[?])*"),
        (SAME, "../net", "*a name holds letters*"),
    ):
        result = run(changed, update, name=name)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([said])
    run(SAME, update).assert_outcomes(passed=1)
    kept(pytester).write_bytes(b"PK\x03\x04 cut off")
    run(SAME).stdout.fnmatch_lines(["*the golden is damaged*"])


def test_limits_and_kinds_of_arrays(run: Run) -> None:
    text = "{'logits': np.linspace(0, FACTOR, 60, dtype=np.float32).reshape(6, 10), 'classes': CLASSES}"
    arrays = text.replace("CLASSES", "np.linspace(0, FACTOR, 60).reshape(6, 10).argmax(1)")
    run(f"{arrays}, top1_agreement=1".replace("FACTOR", "1"), "--int8acc-update=missing")
    run(f"{arrays}, top1_agreement=1".replace("FACTOR", "1")).assert_outcomes(passed=1)
    failed = run(f"{arrays}, top1_agreement=1".replace("FACTOR", "-1"))
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*'logits' top1_agreement 0 < 1*", "*'classes' agreement 0 < 1*"])
