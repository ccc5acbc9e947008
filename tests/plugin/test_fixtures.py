"""Fixtures for users' own tests, as users have them: in a project, alone and under pytest-xdist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from plugin_support import LOAD
from zoo import ZOO

pytestmark = pytest.mark.usefixtures("quick_processes")

EXAMPLE = Path(__file__).parents[2] / "example_project"


CASES = """
import numpy as np
import pytest
from pytest_int8acc import CaseResult, SpecError

def test_a_case_that_passes(int8acc):
    case = int8acc.load("digits.int8acc.yaml")
    assert case.case.name == "digits"
    result = case.measure()
    assert isinstance(result, CaseResult)
    assert result.passed
    assert result.samples == 360
    assert {score.metric for score in result.scores} >= {"cosine", "sqnr_db", "top1"}

def test_engines_and_outputs(int8acc):
    case = int8acc.load("digits_qdq.int8acc.yaml")
    images = np.load("data/validation.npz")["image"]
    found = {role: case.outputs(role)["logits"] for role in ("fp32", "baseline", "int8")}
    assert {array.shape for array in found.values()} == {(360, 10)}
    for role, logits in found.items():
        alone = case.engine(role)({"image": images[:5]})["logits"]
        np.testing.assert_allclose(alone, logits[:5], rtol=0.02, atol=0.02 * np.abs(logits).max())
        assert case.engine(role) is case.engine(role)
    errors = [np.abs(found[role] - found["fp32"]).max() for role in ("baseline", "int8")]
    assert 0 < errors[0] < errors[1]
    assert {tensor.name for tensor in case.engine("int8").inputs} == {"image"}
    assert "ONNX Runtime" in case.engine("int8").description
"""

#: A spec of two cases, the first without its model.
TWO = (
    "defaults: {model: digits.onnx, inputs: data/validation.npz, int8: {calibrate: {}}}\n"
    "cases:\n  - {name: first, model: none.onnx}\n  - {name: second}\n"
)

ENGINES = """
import numpy as np
import pytest

IMAGES = np.load("data/validation.npz")["image"]
LABELS = np.load("data/validation_labels.npy")

def accuracy(engine):
    return (engine({"image": IMAGES})["logits"].argmax(axis=1) == LABELS).mean()

@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_float(int8acc_engine, precision):
    assert accuracy(int8acc_engine("digits.onnx", precision=precision)) >= 0.98

@pytest.mark.parametrize(("precision", "method"), [("int8", "minmax"), ("fp8", "mse")])
def test_low(int8acc_engine, precision, method):
    engine = int8acc_engine("digits.onnx", precision, calibrate="data/calibration.npz", method=method)
    assert accuracy(engine) >= 0.97

def test_sources_of_calibration_samples(int8acc_engine):
    samples = dict(np.load("data/calibration.npz"))
    given = ["data/calibration.npz", samples, "loaders.py:load_data"]
    one, two, other = (int8acc_engine("digits.onnx", "int8", calibrate=c, method="minmax") for c in given)
    feed = {"image": IMAGES[:8]}
    np.testing.assert_array_equal(one(feed)["logits"], two(feed)["logits"])
    assert (one(feed)["logits"] != other(feed)["logits"]).any()
    assert accuracy(other) >= 0.97

def test_qdq(int8acc_engine):
    assert accuracy(int8acc_engine("digits.qdq.onnx", precision="int8")) >= 0.97

def test_precisions_differ(int8acc_engine):
    feed = {"image": IMAGES[:8]}
    exact = int8acc_engine("digits.onnx", "fp32")(feed)["logits"]
    half = int8acc_engine("digits.onnx")(feed)["logits"]
    assert 0 < np.abs(half - exact).max() < 0.05
    low = [int8acc_engine("digits.onnx", p, calibrate="data/calibration.npz") for p in ("int8", "fp8")]
    int8, fp8 = (engine(feed)["logits"] for engine in low)
    assert 0.05 < np.abs(int8 - fp8).max()
"""

ERRORS = """
import numpy as np
import pytest
from pytest_int8acc import Int8accError

SPEC = "two.int8acc.yaml"

@pytest.mark.parametrize(("wrong", "words"), [
    (lambda f: f.load("none.int8acc.yaml"), "none.int8acc.yaml:1:1: cannot read the spec"),
    (lambda f: f.load(SPEC), "several cases: name one; it holds first, second"),
    (lambda f: f.load(SPEC, "frist"), "no case 'frist' .did you mean 'first'.+ it holds first, second"),
    (lambda f: f.load(SPEC, "first").engine("int9"), r"role 'int9': expected one of .*'int8'"),
    (lambda f: f.load(SPEC, "first").engine("fp8"), "role 'fp8': expected one of baseline, fp32, int8"),
    (lambda f: f.load("narrow.int8acc.yaml").outputs("int8"), "role 'int8': .* baseline, fp32, fp8"),
    (lambda f: f.engine("digits.onnx", "fp8"), "digits.onnx: FP8 of a float model wants calibration"),
    (lambda f: f.engine("digits.qdq.onnx", "fp8"), "quantized to INT8, and the spec asks for FP8"),
    (lambda f: f.load(SPEC, "first").check(), "none.onnx: no such"),
    (lambda f: f.engine("digits.onnx", "int8"), "digits.onnx: INT8 of a float model wants calibration"),
    (lambda f: f.engine("digits.onnx", "fp61"), "precision 'fp61': .*did you mean 'fp16'"),
    (lambda f: f.engine("digits.qdq.onnx"), "digits.qdq.onnx: holds Q/DQ.*precision='int8'"),
    (lambda f: f.engine("none.onnx"), "none.onnx: no such"),
    (lambda f: f.engine("digits.onnx", backend="tensort"), "backend 'tensort': .*'tensorrt'"),
    (lambda f: f.engine("digits.onnx", "int8", calibrate="x.npz"), r"x.npz"),
    (lambda f: f.engine("digits.onnx", "int8", calibrate={"image": np.zeros((2, 8, 9), "f4")}), "image"),
    (lambda f: f.engine("digits.onnx", "int8", calibrate="x.npz", method="mes"), "method: .*'mes'"),
    (lambda f: f.engine("digits.onnx")({"imgae": np.zeros((1, 1, 8, 8), "f4")}),
     "digits.onnx.*: no input is called 'imgae' .did you mean 'image'.*; its inputs are 'image'"),
    (lambda f: f.engine("digits.onnx")({}), "digits.onnx.*: no array for 'image'; its inputs are 'image'"),
    (lambda f: f.engine("digits.onnx", shapes={"image": [[8, 1], [1, 1], [9, 1]]}), "shrink"),
])
def test_one_clear_error(int8acc, wrong, words):
    with pytest.raises(Int8accError, match=words):
        wrong(int8acc)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """The example project without its own tests."""
    ignored = shutil.ignore_patterns("test_*", "__pycache__", "*.ini", "detector", "transformer")
    shutil.copytree(EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=ignored)
    spec = pytester.path / "digits.int8acc.yaml"
    spec.write_text(spec.read_text().replace("entropy", "minmax"))  # takes a hundredth of the time
    pytester.makeini("[pytest]\n")
    return pytester


VERDICTS = """
import pytest

@pytest.fixture(scope="module")
def by_hand(int8acc):
    return int8acc.load("digits_by_hand.int8acc.yaml").check()

def test_plain(int8acc):
    result = int8acc.load("digits_by_hand.int8acc.yaml").measure()
    assert result.search is None
    assert result.passed

def test_well(int8acc):
    assert not int8acc.load("digits_by_hand.int8acc.yaml").measure().passed
    assert int8acc.load("digits_qdq.int8acc.yaml").measure().passed

def test_of_a_fixture(by_hand):
    assert by_hand.samples
    assert by_hand.search.verified
    assert by_hand.search.culprits[0].cause.kind
    assert by_hand.passed

def test_of_its_own():
    assert False
"""

OWN_TESTS = """
import numpy as np
import pytest

@pytest.fixture
def engine(int8acc_engine):
    return int8acc_engine("digits.onnx", "fp32")

@pytest.fixture
def broken(int8acc_engine):
    return int8acc_engine("none.onnx")  # line of a fixture

def test_verdict(int8acc):
    case = int8acc.load("digits_by_hand.int8acc.yaml")
    assert case.measure().passed  # line of a verdict

def test_spec(int8acc):
    int8acc.load("none.int8acc.yaml")  # line of a spec

def test_model(int8acc):
    int8acc.load("two.int8acc.yaml", "first").check()  # line of a model

def test_feed(engine):
    engine({"imgae": np.zeros((1, 1, 8, 8), "f4")})  # line of a feed

def test_golden(int8acc_golden):
    int8acc_golden("kept", np.ones(8, "f4"))
    int8acc_golden("kept", np.zeros(8, "f4"))  # line of a golden

def test_fixture(broken):
    pass
"""


@pytest.mark.parametrize("workers", [False, True], ids=["plain", "n2"])
def test_users_own_tests(project: pytest.Pytester, workers: bool) -> None:
    """Cases and engines work, and what fails is shown with what its case says, by the user's own line."""
    (project.path / "two.int8acc.yaml").write_text(TWO)
    project.makepyfile(test_cases=CASES, test_verdicts=VERDICTS, test_own=OWN_TESTS)
    if not workers:  # engines of models know nothing of workers
        project.makepyfile(test_engines=ENGINES)
    arguments = ("-n2",) if workers else ("--int8acc", "-k", "py")
    result = project.runpytest(*LOAD, *arguments, "--int8acc-update=missing")
    passed, deselected = (2 + 1, 0) if workers else (2 + 1 + 8, 5)
    result.assert_outcomes(passed=passed, failed=3 + 5, errors=1, deselected=deselected)
    for name, count in (("cases", 0), ("verdicts", 3), ("own", 6), ("engines", 0)):
        failed = [line for line in result.outlines if re.match(rf"(FAILED|ERROR) test_{name}\.py::", line)]
        assert len(failed) == count
    result.stdout.fnmatch_lines_random(
        [
            "E*where*= <CaseResult digits_by_hand: failed, 4 of 4 limits missed>.passed",
            "E*where*<case digits_by_hand of digits_by_hand.int8acc.yaml>*",
            "INT8 accuracy: 'logits' cosine 0.9* < 0.998 (+3 more missed)",
            "Fix: 100 % *",
            "*; also on * held-out ones; *",
            "Layers at fault *",
        ]
    )
    titles = [line for line in result.outlines if line.strip("- ") == "int8acc: digits_by_hand"]
    assert len(titles) == 3  # of test_plain, test_of_a_fixture and test_verdict
    assert not [line for line in result.outlines if "OutputResult" in line]
    for what in ("verdict", "spec", "model", "feed", "golden", "fixture"):
        result.stdout.fnmatch_lines([f">*# line of a {what}"])
    locations = [line for line in result.outlines if re.match(r"\S+:\d+: ", line)]
    assert len(locations) >= 9
    assert {line.partition(":")[0] for line in locations} == {"test_own.py", "test_verdicts.py"}
    assert "direct cause" not in result.stdout.str()


def test_the_whole_traceback_is_shown_where_it_is_asked_for(project: pytest.Pytester) -> None:
    (project.path / "two.int8acc.yaml").write_text(TWO)
    project.makepyfile(OWN_TESTS)
    result = project.runpytest(*LOAD, "--full-trace", "-k", "model")
    result.stdout.fnmatch_lines(["*workbench.py:*: *"])


def test_mistakes_are_one_clear_error(project: pytest.Pytester) -> None:
    (project.path / "two.int8acc.yaml").write_text(TWO)
    narrow = "model: digits.onnx\ninputs: data/validation.npz\nfp8: {calibrate: {}}\n"
    (project.path / "narrow.int8acc.yaml").write_text(narrow)
    project.makepyfile(ERRORS)
    result = project.runpytest(*LOAD)
    result.assert_outcomes(passed=20)


def test_settings_reach_fixtures(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        def test_it(int8acc, int8acc_engine):
            case = int8acc.load("digits.int8acc.yaml")
            assert case.measure().samples == 16
            assert len(case.outputs("int8")["logits"]) == 16
            assert case.settings.mode == "native"
            engine = int8acc_engine("digits.onnx", "int8", calibrate="data/calibration.npz", method="minmax")
            assert "native" in engine.description
        """
    )
    result = project.runpytest(*LOAD, "--int8acc-samples=16", "--int8acc-mode=native")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(("missing", "expected"), [("skip", {"skipped": 3}), ("fail", {"failed": 3})])
def test_a_backend_that_is_not_there_does_what_it_does_to_a_case(
    project: pytest.Pytester, missing: str, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    project.makepyfile(
        """
        def test_engine(int8acc_engine):
            int8acc_engine("digits.onnx", "int8", calibrate="data/calibration.npz", backend="tensorrt")

        def test_check(int8acc):
            int8acc.load("digits_qdq.int8acc.yaml").check()

        def test_outputs(int8acc):
            int8acc.load("digits_qdq.int8acc.yaml").outputs("int8")
        """
    )
    result = project.runpytest(*LOAD, "--int8acc-backend=tensorrt", "-o", f"int8acc_missing={missing}", "-rs")
    result.assert_outcomes(**expected)
    result.stdout.fnmatch_lines(["*: *TensorRT*"])


def test_goldens_are_read_where_the_configuration_says(project: pytest.Pytester) -> None:
    spec = (project.path / "digits.int8acc.yaml").read_text(encoding="utf-8")
    (project.path / "kept.int8acc.yaml").write_text(re.sub("baseline: .*", "baseline: golden", spec))
    project.makepyfile(
        """
        def test_check(int8acc):
            result = int8acc.load("kept.int8acc.yaml").check()
            assert result.passed
            assert result.baseline.startswith("golden")
        """
    )
    arguments = (*LOAD, "-o", "int8acc_goldens=far/away", "--int8acc-backend=onnxruntime")
    project.runpytest(*arguments).assert_outcomes(failed=1)
    recorded = project.runpytest(*arguments, "--int8acc", "--int8acc-update=missing", "kept.int8acc.yaml")
    recorded.assert_outcomes(passed=1)
    assert (project.path / "far" / "away" / "kept").is_dir()
    project.runpytest(*arguments).assert_outcomes(passed=1)


def test_dynamic_sizes_and_odd_names_want_no_data(pytester: pytest.Pytester) -> None:
    """A runtime that builds nothing asks for no shapes; and an input may be called what it likes."""
    proto = ZOO["dynamic"]()
    onnx.save(proto, pytester.path / "net.onnx")
    odd = ZOO["mlp"]()
    name = odd.graph.input[0].name
    for node in odd.graph.node:
        node.input[:] = ["file" if i == name else i for i in node.input]
    odd.graph.input[0].name = "file"
    onnx.save(odd, pytester.path / "odd.onnx")
    shape = [d.dim_value or 4 for d in odd.graph.input[0].type.tensor_type.shape.dim]
    np.savez(pytester.path / "shape.npz", shape=shape)
    pytester.makepyfile(
        """
        import numpy as np

        def test_dynamic(int8acc_engine):
            engine = int8acc_engine("net.onnx", "fp32")
            (taken,) = engine.inputs
            for size in (16, 24):
                shape = [d if isinstance(d, int) else size for d in taken.shape]
                assert engine({taken.name: np.zeros(shape, "f4")})

        def test_odd(int8acc_engine):
            shape = tuple(np.load("shape.npz")["shape"])
            values = np.random.default_rng(0).normal(size=shape).astype("f4")
            assert int8acc_engine("odd.onnx", "int8", calibrate={"file": values})({"file": values})
        """
    )
    pytester.runpytest(*LOAD).assert_outcomes(passed=2)


def test_an_input_of_text_is_one_clear_error(pytester: pytest.Pytester) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (string[2] s, float[2] x) => (float[2] y, string[2] t) { y = Relu(x)  t = Identity(s) }"""
    onnx.save(onnx.parser.parse_model(text), pytester.path / "net.onnx")
    pytester.makepyfile(
        """
        import pytest
        from pytest_int8acc import Int8accError

        def test_text(int8acc_engine):
            with pytest.raises(Int8accError, match="int8acc_engine: input 's' holds text; only numbers"):
                int8acc_engine("net.onnx", "fp32")
        """
    )
    pytester.runpytest(*LOAD).assert_outcomes(passed=1)


def test_pytest_lists_and_documents_them(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*LOAD, "--fixtures", "-v")
    result.stdout.fnmatch_lines_random(
        [
            "int8acc [[]session scope[]]*",
            "*int8acc.load('net.int8acc.yaml').check()*",
            "int8acc_engine [[]session scope[]]*",
            "*int8acc_engine('net.onnx', precision='int8', calibrate='calib.npz')*",
        ]
    )


def test_ctrl_c_after_the_verdict_of_a_case_ends_the_session_after_its_test(digits):
    digits.makeconftest(
        """
        from pytest_int8acc.answer import steps

        def find_precision(lab):
            raise KeyboardInterrupt

        steps.find_precision = find_precision
        """
    )
    digits.makepyfile(
        """
        def test_first(int8acc):
            result = int8acc.load("digits.int8acc.yaml", "by-hand").check()
            assert not result.passed
            assert result.stopped.kind == "interrupted"

        def test_second():
            pass
        """
    )
    result = digits.runpytest_subprocess(*LOAD)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*interrupted (Ctrl-C or SIGTERM) after the verdict on by-hand*"])
