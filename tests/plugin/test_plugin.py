"""Options, gate, collection and verdicts, as a user of pytest meets them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_python import PYTHON
from plugin_support import CONFTEST, INSTALLED, LOAD, spec

pytestmark = pytest.mark.usefixtures("quick_processes")

ROOT = Path(__file__).parents[2]
HINT = "int8acc: {} not run (pass --int8acc, or set int8acc = true in the pytest configuration)"

#: What the terminal says of cases of each verdict, and of cases with marks.
VERDICTS = [
    "broken.onnx: no such file; write the model's path relative to the spec",
    "INT8 accuracy: 'logits' cosine 0.8741 < 0.999",
    "Fix: an engine cannot be searched: name the model it was made from, 'int8: {model: FILE}'",
    "More: -v shows scores, stages and other fixes; --int8acc-report DIR writes a report",
]
LINES = [
    "PASSED m.int8acc.yaml::good - 'logits' cosine 0.9996 >= 0.999 (margin 0.0006), auto/exact/cpu",
    "FAILED m.int8acc.yaml::bad - 'logits' cosine 0.8741 < 0.999, auto/exact/cpu",
    "ERROR m.int8acc.yaml::broken - broken.onnx: no such file; write the model's path*",
    "ERROR m.int8acc.yaml::crash - this is a fault of pytest-int8acc, *: RuntimeError in*",
]
MARKED = [
    "XFAILED a.int8acc.yaml::bad-known - 'logits' cosine 0.8741 < 0.999, auto/exact/cpu",
    "ERROR b.int8acc.yaml::broken-known - broken-known.onnx: no such file*",
    "SKIPPED c.int8acc.yaml::broken-skipped - needs a model that is not public",
    "XFAIL a.int8acc.yaml::bad-known - hand-set ranges",
    "SKIPPED [[]1[]] c.int8acc.yaml: needs a model that is not public",
]
MARKS = {
    "a": spec("good", "bad-known", xfail="hand-set ranges"),
    "b": spec("broken-known", xfail="hand-set ranges"),
    "c": spec("broken-skipped", skip="needs a model that is not public"),
    "d": spec("good-slow", marks="[slow]"),
}
SLOW = "[pytest]\nmarkers = slow: takes long\n"
#: A user's fixture and hook that see the item of a case.
SEES = """
import pytest
@pytest.fixture(autouse=True)
def chosen(request, record_property):
    record_property('fixture', request.node.name)
    assert request.node.get_closest_marker('int8acc')
def pytest_runtest_makereport(item, call):
    if call.when == 'call':
        assert ('fixture', 'good') in item.user_properties
        assert item.result.passed
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> Callable[..., pytest.Pytester]:
    """Writes spec files, by name without suffix, next to a conftest that stands in for the measuring."""

    def write(**specs: str) -> pytest.Pytester:
        pytester.makeconftest(CONFTEST)
        for name, text in specs.items():
            (pytester.path / f"{name}.int8acc.yaml").write_text(text, encoding="utf-8")
        return pytester

    return write


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    return lambda *args: pytester.runpytest(*LOAD, *args)


def check_section(result: pytest.RunResult) -> None:
    """The run names each verdict of the spec m, with no line of this package's code."""
    summary = ["*short test summary*", "FAILED m.int8acc.yaml::bad*"]
    result.stdout.fnmatch_lines([*VERDICTS, "*= int8acc =*", *LINES, *summary])
    if pytest.version_tuple >= (9, 2):  # older ones leave text out of the short summary
        result.stdout.fnmatch_lines(["FAILED m.int8acc.yaml::bad - INT8 accuracy: 'logits' cosine 0.8741*"])
    text = result.stdout.str()
    assert ">           raise RuntimeError" not in text
    assert ">           raise ModelError" not in text
    assert "raise AccuracyError" not in text


def check_bad_spec(result: pytest.RunResult) -> None:
    """The run names the place of the mistake in a spec, with no line of this package's code."""
    result.stdout.fnmatch_lines(["*ERROR collecting bad.int8acc.yaml*", "*bad.int8acc.yaml:1:1: *modle*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*items.py*")


def check_junit(path: Path) -> ElementTree.Element:
    """junit.xml holds the scores and messages of the cases good, bad and broken."""
    suite = ElementTree.parse(path).getroot()[0]
    cases = {element.get("name"): element for element in suite.iter("testcase")}
    properties = {p.get("name"): p.get("value") for p in cases["bad"].iter("property")}
    assert properties["int8acc.logits.cosine"] == "0.8741"
    assert properties["int8acc.logits.sqnr_db"] == "inf"
    assert properties["int8acc.summary"].startswith("'logits' cosine 0.8741 < 0.999")
    failure = cases["bad"].find("failure").get("message")
    assert failure.startswith("INT8 accuracy: 'logits' cosine 0.8741 < 0.999")
    assert "no such file" in cases["broken"].find("error").get("message")
    return suite


def test_verdicts_and_the_terminal_section(project, run):
    path = project(m=spec("good", "bad", "broken", "crash")).mkdir("models")
    (path / "e.int8acc.yaml").write_text(spec("good"))
    (path / "conftest.py").write_text(SEES)
    result = run("--int8acc", "-rfE", "--junitxml=junit.xml")
    result.assert_outcomes(passed=2, failed=1, errors=2)
    check_section(result)
    suite = check_junit(path.parent / "junit.xml")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "2")


def test_workers_of_xdist_tell_all_that_one_process_tells(project, run):
    path = project(m=spec("good", "bad", "broken", "crash"), bad="modle: a.onnx\n", **MARKS).path
    (path / "tox.ini").write_text(f"{SLOW}int8acc = true\n")
    (path / "models").mkdir()
    (path / "models" / "e.int8acc.yaml").write_text(spec("good"))
    (path / "models" / "conftest.py").write_text(SEES)
    result = run("-n2", "-rfExs", "--strict-markers", "--junitxml=junit.xml")
    # Workers of pytest-xdist always go on with what could be collected.
    result.assert_outcomes(passed=4, failed=1, errors=4, skipped=1, xfailed=1)
    check_section(result)
    check_bad_spec(result)
    result.stdout.fnmatch_lines(["*= int8acc =*", *MARKED])
    check_junit(path / "junit.xml")
    run("-n2", "--lf", "--strict-markers").assert_outcomes(failed=1, errors=4)


def test_workers_of_xdist_leave_specs_out_as_one_process_does(project, run):
    project(a=spec("good"), b=spec("bad")).makepyfile("def test_x(): pass")
    hinted = run("-n2")
    hinted.assert_outcomes(passed=1)
    assert hinted.stdout.lines.count(HINT.format("2 spec files")) == 1
    named = run("-n1", "a.int8acc.yaml::good")
    named.assert_outcomes(passed=1)
    named.stdout.no_fnmatch_line("*not run*")


def test_the_runtimes_are_named_in_the_header_where_the_gate_is_open(project, run):
    project(m=spec("good"))
    run("--int8acc").stdout.fnmatch_lines(["int8acc: *onnxruntime*"])
    run("m.int8acc.yaml").stdout.no_fnmatch_line("int8acc: *")


def test_specs_left_out_are_hinted_at(project, run):
    project(a=spec("good"), b=spec("bad")).makepyfile("def test_x(): pass")
    result = run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([HINT.format("2 spec files")])
    assert result.stdout.str().count("not run") == 1
    assert result.ret == 0


def test_no_neighbour_of_a_named_file_is_hinted_at(project, run):
    project(a=spec("good"), b=spec("bad")).makepyfile(test_x="def test_x(): pass")
    for named in ("a.int8acc.yaml::good", "test_x.py"):
        result = run(named)
        result.assert_outcomes(passed=1)
        result.stdout.no_fnmatch_line("*not run*")


def test_one_spec_left_out_is_not_called_files(project, run):
    project(a=spec("good"))
    result = run()
    result.stdout.fnmatch_lines([HINT.format("1 spec file")])
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_ini_key_opens_the_gate_for_both_suffixes_and_no_other(project, run):
    path = project(a=spec("good")).path
    (path / "b.int8acc.yml").write_text(spec("good"))
    (path / "c.yaml").write_text("not: ours")
    (path / "tox.ini").write_text("[pytest]\nint8acc = true")
    run("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_toml_takes_native_types(project, run):
    if pytest.version_tuple < (9,):
        pytest.skip("[tool.pytest] came with pytest 9")
    project(a=spec("good")).makepyprojecttoml(
        "[tool.pytest]\nint8acc = true\nint8acc_samples = 8\nint8acc_mode = 'native'"
    )
    result = run("-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*INT8 against FP16; 8 samples: val.npz; auto/native/cpu"])


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        (("-k", "bad"), {"failed": 1, "deselected": 2}),
        (("-m", "int8acc"), {"passed": 1, "failed": 1, "deselected": 1}),
        (("--deselect=a.int8acc.yaml::good", "-x"), {"failed": 1, "deselected": 1}),
    ],
)
def test_selection_works_as_for_any_test(project, run, flags, counts):
    project(a=spec("bad", "good")).makepyfile("def test_x(): pass")
    run("--int8acc", *flags).assert_outcomes(**counts)


def test_last_failed_runs_the_failed_case_alone(project, run):
    project(a=spec("good", "bad", "broken"))
    run("--int8acc").assert_outcomes(passed=1, failed=1, errors=1)
    run("--int8acc", "--lf").assert_outcomes(failed=1, errors=1)


def test_marks_xfail_and_skip(project, run):
    project(**MARKS).makeini(SLOW)
    result = run("--int8acc", "-rxs", "--strict-markers")
    # A model that cannot be read stays an error: xfail is for accuracy.
    result.assert_outcomes(passed=2, xfailed=1, errors=1, skipped=1)
    result.stdout.fnmatch_lines(MARKED)
    run("--int8acc", "-m", "slow").assert_outcomes(passed=1)


def test_an_xfail_that_passes_fails_where_xfail_is_strict(project, run):
    project(a=spec("good", xfail="mended")).makeini("[pytest]\nxfail_strict = true")
    result = run("--int8acc")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAILED a.int8acc.yaml::good - [[]XPASS(strict)[]] mended"])


def test_an_unknown_mark_is_one_line_where_pytest_is_strict_and_a_warning_elsewhere(project, run):
    project(a=spec("good", marks="[slwo]"), b=spec("good"))
    for strict in ("--strict-markers", "-Werror::pytest.PytestUnknownMarkWarning"):
        result = run("--int8acc", strict, "--continue-on-collection-errors")
        result.assert_outcomes(passed=1, errors=1)
        result.stdout.fnmatch_lines(["*a.int8acc.yaml:6:*mark 'slwo'*"])
        result.stdout.no_fnmatch_line("*Traceback*")
        result.stdout.no_fnmatch_line("*items.py*")
    result = run("--int8acc")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["a.int8acc.yaml:6", "*PytestUnknownMarkWarning: Unknown pytest.mark.slwo*"])


def test_a_bad_spec_leaves_the_others_alone(project, run):
    project(bad="modle: a.onnx\n", good=spec("good"))
    result = run("--int8acc")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    check_bad_spec(result)
    run("--int8acc", "--continue-on-collection-errors").assert_outcomes(passed=1, errors=1)


def test_collect_only_reads_yaml_alone(project, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("sys.executable", PYTHON)
    project(a=spec("good", "bad"))
    pytester.makeconftest(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    print('loaded', sorted({'numpy', 'onnx', 'onnxruntime', 'polygraphy'} & set(sys.modules)))"
    )
    result = pytester.runpytest_subprocess(*LOAD, "--int8acc", "--collect-only", "-q", "-s")
    result.stdout.fnmatch_lines(["a.int8acc.yaml::good", "a.int8acc.yaml::bad", "*loaded []"])
    result.stdout.no_fnmatch_line("*not run*")


@pytest.mark.parametrize("flag", ["--setup-only", "--setup-plan"])
def test_nothing_is_measured_where_nothing_is_to_run(project, run, flag):
    project(a=spec("broken"))
    result = run("--int8acc", flag)
    result.assert_outcomes()
    assert result.ret == 0


def test_verbosity_adds_detail(project, run):
    project(a=spec("good"))
    plain, more, most = (run("--int8acc", *flag).stdout.str() for flag in ((), ("-v",), ("-vv",)))
    assert "sqnr_db" not in plain
    assert "sqnr_db" in more
    assert "note: the data is random" in more
    assert "settings: backend auto (default), mode exact (default), " in more
    assert "max_abs" not in more
    assert "max_abs" in most


def test_quiet_names_failures_alone(project, run):
    project(a=spec("good", "bad"))
    text = run("--int8acc", "-q").stdout.str()
    assert "a.int8acc.yaml::bad - 'logits'" in text
    assert "::good" not in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--int8acc-backend=tensorflow"], "*--int8acc-backend: invalid choice: 'tensorflow'*"),
        (["--int8acc-mode=fast"], "*--int8acc-mode: invalid choice: 'fast'*"),
        (["--int8acc-provider=tpu"], "*--int8acc-provider: invalid choice: 'tpu'*"),
        (["--int8acc-samples=0"], "*--int8acc-samples: '0' is not a whole number of 1 or more*"),
        (["--int8acc-samples=many"], "*--int8acc-samples: 'many' is not a whole number of 1 or more*"),
        (["--int8acc-prune", "models"], "*--int8acc-prune: invalid choice: 'models'*"),
        (["-o", "int8acc_backend=tensorflow"], "*int8acc_backend*'tensorflow' is not one of auto, onnx*"),
        (["-o", "int8acc_mode="], "*int8acc_mode*'' is not one of exact, native*"),
        (["-o", "int8acc_samples=0"], "*int8acc_samples*0 is not a whole number of 1 or more*"),
        (["-o", "int8acc_samples=many"], "*int8acc_samples*'many'*expected a whole number of 1 or more*"),
        (["-o", "int8acc=perhaps"], "*int8acc in the pytest configuration*'perhaps'*expected true or false*"),
    ],
)
def test_unknown_values_are_usage_errors(project, run, args, said):
    project(a=spec("good"))
    result = run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


@pytest.mark.parametrize(
    ("args", "key", "told"),
    [
        ((), "", "mode exact (default)"),
        (("-o", "int8acc_mode=native"), "", "mode native (ini int8acc_mode)"),
        (("-o", "int8acc_mode=native"), "exact", "mode exact (spec)"),
        ((), "native", "mode native (spec)"),
        (("--int8acc-mode=exact", "-o", "int8acc_mode=native"), "native", "mode exact (--int8acc-mode)"),
    ],
)
def test_command_line_over_spec_over_ini_over_default(project, run, args, key, told):
    project(a=spec("good", **({"onnxruntime": f"{{mode: {key}}}"} if key else {})))
    result = run("--int8acc", "-v", *args)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*settings: *{told.replace('[', '[[]')}*"])


def test_it_can_be_switched_off(project, pytester):
    if not INSTALLED:
        pytest.skip("needs the entry point: pytest-int8acc is not installed")
    project(a=spec("good")).makepyfile("def test_x(): pass")
    result = pytester.runpytest(*LOAD, "-p", "no:int8acc")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*int8acc*not run*")


def test_options_are_in_the_help(run):
    text = run("--help").stdout.str()
    options = (
        "--int8acc ",
        "--int8acc-mode={exact,native}",
        "--int8acc-samples=N",
        "--int8acc-update={missing,all}",
    )
    for word in (*options, "int8acc_provider (string):", "int8acc_goldens (string):"):
        assert word in text
