"""Arrays of users' own tests and their goldens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plugin_support import LOAD

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.goldens.record import GoldenError
from pytest_int8acc.goldens.tested import ArrayGoldens

TEST = """
import numpy as np


def test_logits(int8acc_golden):
    logits = np.linspace(0, FACTOR, 60, dtype=np.float32).reshape(6, 10)
    int8acc_golden("net-logits", {"logits": logits, "classes": logits.argmax(1)}, top1_agreement=1)
"""


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=(8, 5)).astype(np.float32), "b": np.arange(8)}


def test_recorded_and_compared(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    where = str(tmp_path / "kept")
    with pytest.raises(GoldenError, match="no golden yet; record it with --int8acc-update=missing"):
        ArrayGoldens(where).check("net", arrays)
    ArrayGoldens(where, "missing").check("net", arrays)
    results = ArrayGoldens(where).check("net", {**arrays, "a": arrays["a"] * np.float32(1.001)})
    assert [result.name for result in results] == ["a", "b"]
    with pytest.raises(AssertionError, match=r"'a' sqnr_db 33\.\d+ < 40"):
        ArrayGoldens(where).check("net", {**arrays, "a": arrays["a"] * np.float32(1.02)})
    moved = {**arrays, "a": arrays["a"] * np.float32(1.02)}
    ArrayGoldens(where, "missing").check("net", arrays)
    with pytest.raises(AssertionError):
        ArrayGoldens(where, "missing").check("net", moved)
    ArrayGoldens(where, "all").check("net", moved)
    ArrayGoldens(where).check("net", moved)


def test_every_difference_is_told(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    ArrayGoldens(str(tmp_path), "all").check("net", arrays)
    candidates = tmp_path / "report"
    with pytest.raises(AssertionError) as caught:
        ArrayGoldens(str(tmp_path), "off", candidates).check(
            "net", {"b": arrays["b"][::-1], "c": arrays["a"]}
        )
    text = str(caught.value)
    assert "array 'a' is gone" in text
    assert "array 'c' is new" in text
    assert "'b'" in text
    with np.load(candidates / "net.npz") as kept:
        np.testing.assert_array_equal(kept["c"], arrays["a"])


def test_mistakes_are_named(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    goldens = ArrayGoldens(str(tmp_path), "all")
    with pytest.raises(CriterionError, match=r"unknown limit 'cosin' \(did you mean 'cosine'\?\)"):
        goldens.check("net", arrays, cosin=0.9)
    with pytest.raises(GoldenError, match="a name holds letters"):
        goldens.check("../net", arrays)
    (tmp_path / "net.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(GoldenError, match="the golden is damaged"):
        ArrayGoldens(str(tmp_path)).check("net", arrays)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["plain", "n2"])
def test_the_fixture(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_net=TEST.replace("FACTOR", "1"))
    arguments = (*LOAD, *workers, "-p", "no:cacheprovider")
    missing = pytester.runpytest_subprocess(*arguments, "--int8acc-report", "out")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*GoldenError: __int8acc__/arrays/net-logits.npz: no golden yet*"])
    assert (pytester.path / "out" / "golden" / "net-logits.npz").exists()
    pytester.runpytest_subprocess(*arguments, "--int8acc-update=missing").assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)
    pytester.makepyfile(test_net=TEST.replace("FACTOR", "-1"))
    failed = pytester.runpytest_subprocess(*arguments)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*'logits' top1_agreement 0 < 1*", "*'classes' agreement 0 < 1*"])
