"""Whatever a user's function raises or returns: an error that names its file and line, and never a skip."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
from golden_support import write_project
from plugin_support import LOAD

pytestmark = pytest.mark.usefixtures("quick_processes")

#: How a function of a spec may leave, by name: the statement, and what the message says of it.
LEAVES = {
    "skip": ("pytest.skip('no data')", "Skipped: no data"),
    "xfail": ("pytest.xfail('known')", "XFailed: known"),
    "fail": ("pytest.fail('oh')", "Failed: oh"),
    "importorskip": ("pytest.importorskip('no_such_library')", "Skipped: could not import 'no_such_library'"),
    "unittest": ("raise unittest.SkipTest('not here')", "SkipTest: not here"),
    "generator-exit": ("raise GeneratorExit", "GeneratorExit"),
    "stop-iteration": ("raise StopIteration", "StopIteration"),
    "system-exit": ("sys.exit(0)", "SystemExit: 0"),
    "own-base": ("raise Own('boom')", "Own: boom"),
    "mute": ("raise Mute", "Mute, whose text cannot be made"),
    "syntax": ("raise SyntaxError('odd', (5, 1, 1, 'x'))", "SyntaxError: odd"),
}
INPUTS, METRIC = "inputs: SCRIPT.py:load", "criteria: [{metric: 'SCRIPT.py:m', min: 2}]"
DECODE = "labels: labels.npy\ncriteria: [{metric: top1, decode: 'SCRIPT.py:d', min: 2}]"
#: Where it may happen, by name: the script, and what the case says. LEAVE is the statement above.
PLACES = {
    "loading": ("LEAVE\ndef load(): return []", INPUTS),
    "loader": ("def load():\n  LEAVE\n  yield {}", INPUTS),
    "loader-later": ("def load():\n  yield from feeds()\n  LEAVE", INPUTS),
    "loader-after-the-verdict": (
        "def load():\n  yield from feeds()\n  if '(call)' in os.environ['PYTEST_CURRENT_TEST']:\n    LEAVE",
        "inputs: SCRIPT.py:load\ncriteria: [{sqnr_db: 99}]",
    ),
    "its-items": ("class D(dict):\n  def items(self):\n    LEAVE\ndef load():\n  yield D(x=1)", INPUTS),
    "its-array": (
        "class A:\n  def __array__(self, *a, **k):\n    LEAVE\ndef load():\n  yield {'x': A()}",
        INPUTS,
    ),
    "calibration": ("def load():\n  LEAVE\n  yield {}", "int8: {calibrate: {data: SCRIPT.py:load}}"),
    "labels": ("def load():\n  LEAVE", "labels: SCRIPT.py:load"),
    "label-array": (
        "class A:\n  def __array__(self, *a, **k):\n    LEAVE\ndef load():\n  return {'a': A()}",
        "labels: SCRIPT.py:load",
    ),
    "metric": ("def m(outputs):\n  LEAVE", METRIC),
    "metric-of-a-candidate": (
        "def m(outputs):\n  COUNT.append(1)\n  if len(COUNT) > 1:\n    LEAVE\n  return 1.0",
        METRIC,
    ),
    "streaming": (
        "def m(outputs):\n  LEAVE",
        "criteria: [{metric: 'SCRIPT.py:m', streaming: true, min: 2}]",
    ),
    "made": (
        "class m:\n  def __init__(self):\n    LEAVE\n  def update(self, o): pass\n  compute = update",
        METRIC,
    ),
    "update": ("class m:\n  def update(self, o):\n    LEAVE\n  def compute(self): return 1.0", METRIC),
    "update-looked-up": (
        "class m:\n  def __getattribute__(self, n):\n    LEAVE\n  def update(self, o): 1\n  compute = update",
        METRIC,
    ),
    "compute": ("class m:\n  def update(self, o): pass\n  def compute(self):\n    LEAVE", METRIC),
    "its-number": ("class N(float):\n  def __float__(self):\n    LEAVE\ndef m(outputs): return N(1)", METRIC),
    "its-text": ("class N:\n  def __repr__(self):\n    LEAVE\ndef m(outputs): return N()", METRIC),
    "decode": ("def d(outputs):\n  LEAVE", DECODE),
    "decoded-array": (
        "class A:\n  def __array__(self, *a, **k):\n    LEAVE\ndef d(outputs): return A()",
        DECODE,
    ),
}
#: Which leave at every place; the others leave at some.
EVERYWHERE, SOME = ("skip", "mute"), ("loader", "its-array", "metric", "compute")
HEAD = """
import os, sys, unittest
import numpy as np
import pytest
COUNT = []
class Own(BaseException): pass
class Mute(Exception):
    def __str__(self): raise Own
def feeds():
    for i in range(2):
        yield {'x': np.random.default_rng(i).normal(size=(4, 8)).astype(np.float32)}
"""
BASE = "model: model.onnx\ninputs: inputs.npz\nint8: {calibrate: {method: minmax}}\nbackend: onnxruntime\n"


def case(name: str, keys: str) -> str:
    """A case with ``keys``, and what BASE says beside them."""
    own = {line.partition(":")[0] for line in keys.splitlines()}
    rest = "".join(f"{line}\n" for line in BASE.splitlines() if line.partition(":")[0] not in own)
    return f"  - name: {name}\n" + indent(f"{keys}\n{rest}", "    ")


def write(folder: Path, script: str, place: str, statement: str) -> str:
    """A script that leaves at ``place``; the line that it leaves at, and the keys of a case that uses it."""
    body, keys = PLACES[place]
    text = HEAD + body.replace("LEAVE", statement) + "\n"
    (folder / f"{script}.py").write_text(text)
    number = text.splitlines().index(next(line for line in text.splitlines() if line.strip() == statement))
    return f"{script}.py:{number + 1}: ", keys.replace("SCRIPT", script)


def test_how_a_function_may_leave(pytester: pytest.Pytester) -> None:
    write_project(pytester.path)
    lines, cases = {}, []
    for leave, (statement, _) in LEAVES.items():
        for place in PLACES if leave in EVERYWHERE else SOME:
            name = f"{place}-{leave}"
            lines[name, leave], keys = write(pytester.path, f"u_{name}".replace("-", "_"), place, statement)
            cases.append(case(name, keys))
    (pytester.path / "net.int8acc.yaml").write_text("cases:\n" + "".join(cases))
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    report = json.loads((pytester.path / "out" / "report.json").read_text())
    found = {one["nodeid"].rpartition("::")[2]: one for one in report["cases"]}
    assert set(found) == {name for name, _ in lines}
    for (name, leave), line in lines.items():
        one = found[name]
        assert one["verdict"] in ("error", "failed"), f"{name}: {one}"
        told = [one.get("message", ""), *one.get("warnings", ())]
        blame = [text for text in told if line in text and LEAVES[leave][1] in text]
        assert blame, f"{name}: {told}"
        assert "fault of pytest-int8acc" not in blame[0], name
        skips = leave in ("skip", "xfail", "importorskip", "unittest")
        assert ("cannot skip its case" in blame[0]) is skips, name


@pytest.mark.parametrize(
    ("place", "leave", "workers"),
    [
        ("metric", "raise KeyboardInterrupt", ()),
        ("loader-after-the-verdict", "pytest.exit('enough', 7)", ()),
        ("metric", "pytest.exit('enough')", ("-n1",)),
        ("loader-after-the-verdict", "raise KeyboardInterrupt", ("-n1",)),
    ],
)
def test_what_ends_the_session(
    pytester: pytest.Pytester, place: str, leave: str, workers: tuple[str, ...]
) -> None:
    write_project(pytester.path)
    _, keys = write(pytester.path, "script", place, leave)
    cases = [case("first", ""), case("leaves", keys), case("never", "")]
    (pytester.path / "net.int8acc.yaml").write_text("cases:\n" + "".join(cases))
    arguments = ("--int8acc", "--int8acc-report=out", "--junitxml=junit.xml", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*LOAD, *arguments, *workers)
    text = result.stdout.str() + result.stderr.str()
    assert "fault of pytest-int8acc" not in text
    assert "INTERNALERROR" not in text
    report = json.loads((pytester.path / "out" / "report.json").read_text())
    verdicts = {one["nodeid"].rpartition("::")[2]: one["verdict"] for one in report["cases"]}
    after = place != "metric"
    crashed = workers and verdicts.get("leaves") == "failed"  # which pytest-xdist says of such a worker
    assert verdicts == {"first": "passed", **({"leaves": "failed"} if after or crashed else {})}
    if not workers:
        assert result.ret == (7 if "7" in leave else pytest.ExitCode.INTERRUPTED)
        if "exit" in leave:
            assert "Exit: enough" in text


SETS = """
import os, sys, warnings
import numpy as np
from pathlib import Path
np.seterr(all="raise")
warnings.simplefilter("error")
os.chdir(Path(__file__).parent / "data")
sys.path.clear()
def load():
    for name in sorted(os.listdir(".")):
        yield {"x": np.load(name)}
def m(outputs):
    assert np.geterr()["under"] == "raise" and Path.cwd().name == "data" and not sys.path
    os.chdir("..")
    return 1.0
def fails(outputs):
    return float(np.float32(1e-30) * np.float32(1e-30))
"""


def write_wide_project(folder: Path) -> Path:
    """A project whose KL divergence underflows where NumPy computes it; its folder."""
    write_project(folder)
    np.savez(folder / "inputs.npz", x=np.load(folder / "inputs.npz")["x"] * 300)
    return folder


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["plain", "n1"])
def test_what_a_script_sets_for_its_process_holds_for_it_alone(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    rows = np.load(write_wide_project(pytester.path) / "inputs.npz")["x"]
    (pytester.path / "data").mkdir()
    for index in range(4):
        np.save(pytester.path / "data" / f"{index}.npy", rows[index * 16 : index * 16 + 16])
    (pytester.path / "sets.py").write_text(SETS)
    cases = {
        "own-folder": "inputs: sets.py:load\ncriteria: [{sqnr_db: 5}]",
        "own-errors": "criteria: [{metric: 'sets.py:fails', min: 0}]",
        "kl": "criteria: [{metric: 'sets.py:m', min: 0}, {kl: 1.0e-9}]",
        "kl-of-another": "criteria: [{kl: 1.0e-9}]",
        "nowhere": "inputs: nowhere.npz",
    }
    text = "".join(case(name, f"{keys}\naccept_blind: it is for its state") for name, keys in cases.items())
    (pytester.path / "net.int8acc.yaml").write_text(f"cases:\n{text}")
    arguments = ("--int8acc", "--int8acc-report=out", "-p", "no:cacheprovider", "--int8acc-search=off")
    pytester.runpytest_subprocess(*LOAD, *workers, *arguments)
    report = json.loads((pytester.path / "out" / "report.json").read_text())
    found = {one["nodeid"].rpartition("::")[2]: one for one in report["cases"]}
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert verdicts == {
        "own-folder": "passed",
        "own-errors": "error",
        "kl": "failed",
        "kl-of-another": "failed",
        "nowhere": "error",
    }
    assert "FloatingPointError: underflow" in found["own-errors"]["message"]
    assert found["nowhere"]["message"].startswith("net.int8acc.yaml:")


def test_a_conftest_that_makes_numpy_raise_is_no_fault_of_ours(pytester: pytest.Pytester) -> None:
    write_wide_project(pytester.path)
    pytester.makeconftest("import numpy as np\nnp.seterr(all='raise')\n")
    (pytester.path / "net.int8acc.yaml").write_text(
        f"{BASE}criteria: [{{kl: 1.0e-9}}]\naccept_blind: it is\n"
    )
    own = "def test_own(int8acc):\n    assert not int8acc.load('net.int8acc.yaml').check().passed\n"
    (pytester.path / "test_own.py").write_text(own)
    result = pytester.runpytest_subprocess(
        *LOAD, "--int8acc", "--int8acc-search=always", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(failed=1, passed=1)
