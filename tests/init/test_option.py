"""``--int8acc-init`` and ``--int8acc-data`` as options of pytest, and what is written as an item."""

from __future__ import annotations

import pytest
from init_projects import dense, saved, write_images
from plugin_support import LOAD

pytestmark = pytest.mark.usefixtures("quick_processes")


@pytest.mark.parametrize(
    ("data", "workers"),
    [(False, ()), (False, ("-n2",)), (True, ())],
    ids=["made-up", "made-up-n2", "images"],
)
def test_what_is_written_runs(pytester: pytest.Pytester, workers: tuple[str, ...], data: bool) -> None:
    saved(pytester.path, dense(12, "logits", shape=["N", 3, "H", "W"]))
    given: tuple[str, ...] = ()
    if data:
        pytest.importorskip("PIL")
        write_images(pytester.path / "images", [f"{kind}/{n}.png" for kind in "ab" for n in range(4)])
        given = ("--int8acc-data", "images")
    init = pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx", *given)
    assert init.ret == 0
    init.stdout.fnmatch_lines("int8acc: wrote model.int8acc.yaml and model_inputs.py; *")
    result = pytester.runpytest(*LOAD, "--int8acc-report", "report", "model.int8acc.yaml", *workers)
    result.assert_outcomes(passed=1)
    if not data:
        result.stdout.fnmatch_lines("*UserWarning: the inputs are made up, so the verdict says nothing*")
    assert (pytester.path / "report" / "report.json").is_file()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--int8acc-data", "images"), "*--int8acc-data has no effect without --int8acc-init MODEL"),
        (
            ("--int8acc-init", "model.onnx", "--int8acc-data", "absent"),
            "int8acc: absent: no such file or folder; *",
        ),
    ],
    ids=["alone", "absent"],
)
def test_data_in_vain(pytester: pytest.Pytester, args: tuple[str, ...], message: str) -> None:
    saved(pytester.path, dense(12))
    result = pytester.runpytest(*LOAD, *args)
    assert result.ret != 0
    (result.stderr if len(args) == 2 else result.stdout).fnmatch_lines(message)
    assert not list(pytester.path.glob("*.yaml"))
