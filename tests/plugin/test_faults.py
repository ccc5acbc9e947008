"""What nobody foresaw: told as a fault of pytest-int8acc, as an error of that item, and never swallowed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from plugin_support import CONFTEST, LOAD, spec

pytestmark = pytest.mark.usefixtures("quick_processes")

#: Cases whose search raises, and what else may come out of a run.
CONCLUDES = (
    CONFTEST
    + """
class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


def conclude(measured, folder, root):
    name = measured.result.name
    if "later" in name:
        raise KeyError("a mistake of ours")
    if "mute" in name:
        raise Mute
    if "memory" in name:
        raise MemoryError("Unable to allocate 9 TiB")
    if "control" in name:
        raise KeyboardInterrupt
    if "skips" in name:
        pytest.skip("by a loader")
    return measured.result


stand_in("answer", conclude=conclude)


@pytest.fixture(autouse=True)
def users_own(request):
    if request.node.name == "fixture":
        raise LookupError("a mistake of theirs")
"""
)
WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Runs cases of these names."""

    def started(names: tuple[str, ...], *args: str) -> pytest.RunResult:
        pytester.makeconftest(CONCLUDES)
        (pytester.path / "m.int8acc.yaml").write_text(spec(*names))
        return pytester.runpytest(*LOAD, "--int8acc", *args)

    return started


@WORKERS
def test_a_fault_is_told_with_what_to_report(run, workers, pytester: pytest.Pytester):
    names = ("good", "crash", "good-later", "bad-later", "bad-mute", "good-memory")
    result = run(names, *workers, "-rfE", "--int8acc-report=out")
    result.assert_outcomes(passed=3, failed=2, errors=5)  # what was measured stands beside the error
    result.stdout.fnmatch_lines(
        [
            "this is a fault of pytest-int8acc, please report it: RuntimeError in api.py:[0-9]*: a*",
            "  with: Python *, pytest *, onnx *",
            "  and with the traceback, which --tb=long shows*",
        ]
    )
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "raise RuntimeError" not in text
    assert "Mute in api.py" in text
    assert "Mute, whose text cannot be made" in text
    assert "out of memory (Unable to allocate 9 TiB); use fewer samples" in text
    cases = json.loads((pytester.path / "out" / "report.json").read_text())["cases"]
    verdicts = {case["name"]: case["verdict"] for case in cases if "name" in case}
    assert verdicts["good"] == "passed"
    assert (verdicts["good-later"], verdicts["bad-later"]) == ("error", "failed")


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["plain", "n1"])
def test_the_traceback_is_shown_where_it_is_asked_for(run, workers):
    text = run(("crash", "broken"), *workers, "--tb=long").stdout.str()
    assert 'raise RuntimeError("a mistake of ours")' in text
    assert "The above exception was the direct cause of the following exception" in text
    assert "errors.ModelError" not in text


def test_ctrl_c_and_skips_pass(run, pytester: pytest.Pytester):
    result = run(("good-skips",))
    result.assert_outcomes(skipped=1)
    (pytester.path / "m.int8acc.yaml").write_text(spec("good-control"))
    done = pytester.runpytest_subprocess(*LOAD, "--int8acc")
    assert done.ret == pytest.ExitCode.INTERRUPTED


def test_what_fails_in_a_users_fixture_is_theirs(run):
    text = run(("fixture",)).stdout.str()
    assert 'raise LookupError("a mistake of theirs")' in text
    assert "fault of pytest-int8acc" not in text


@pytest.mark.parametrize("call", ["load('net.int8acc.yaml')", "engine('net.onnx')"])
def test_a_fault_in_a_fixture(pytester: pytest.Pytester, call: str):
    pytester.makeconftest(
        """
        import pytest_int8acc.api
        import pytest_int8acc.plugin.workbench as bench

        def broken(*args):
            raise IndexError("a mistake of ours")

        bench.load_spec = pytest_int8acc.api.load_model = broken
        """
    )
    pytester.makepyfile(f"def test_x(int8acc): int8acc.{call}")
    done = pytester.runpytest_subprocess(*LOAD)
    done.stdout.fnmatch_lines(["*InternalError: this is a fault of pytest-int8acc*: IndexError in *"])
