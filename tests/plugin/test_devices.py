"""Which GPU a process takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_support import CONFTEST, LOAD, spec

from pytest_int8acc.plugin.session import choose_device, visible_devices

pytestmark = pytest.mark.usefixtures("quick_processes")

#: Tells the workers and the GPUs that they see, after a case has run.
TELLS = """
def pytest_sessionfinish(session):
    worker = getattr(session.config, "workerinput", {}).get("workerid", "alone")
    with open("seen.txt", "a") as file:
        print(worker, os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
"""


@pytest.mark.parametrize(
    ("visible", "arguments", "seen"),
    [
        ("2,5", ("-n2",), ["alone 2,5", "gw0 2", "gw1 5"]),
        (" 2 , 5", ("-n2",), ["alone  2 , 5", "gw0 2", "gw1 5"]),
        ("GPU-8f1,-1,GPU-3a2", ("-n2",), ["alone GPU-8f1,-1,GPU-3a2", "gw0 GPU-8f1", "gw1 GPU-8f1"]),
        ("2,5", ("-n1", "--int8acc-device=1"), ["alone 2,5", "gw0 5"]),
        ("2,5", (), ["alone 2,5"]),
        ("2,5", ("--int8acc-device=1",), ["alone 5"]),
        ("2,5", ("-o", "int8acc_device=1"), ["alone 5"]),
        ("", ("-n2",), ["alone ", "gw0 ", "gw1 "]),
        ("-1", (), ["alone -1"]),
    ],
)
def test_each_process_takes_one_of_the_gpus_that_the_caller_lists(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    arguments: tuple[str, ...],
    seen: list[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pytester.makeconftest(f"import os\n{CONFTEST}{TELLS}")
    (pytester.path / "a.int8acc.yaml").write_text(spec("good", "good-too"))
    pytester.runpytest(*LOAD, "--int8acc", *arguments).assert_outcomes(passed=2)
    assert sorted((pytester.path / "seen.txt").read_text().splitlines()) == seen


@pytest.mark.parametrize("visible", ["2,5", ""])
def test_a_gpu_that_is_not_there_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pytester.makeconftest(CONFTEST)
    (pytester.path / "a.int8acc.yaml").write_text(spec("good"))
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-device=2")
    result.assert_outcomes(errors=1)
    count = len(visible.split(",")) if visible else 0
    result.stdout.fnmatch_lines([f"*--int8acc-device: there is no GPU 2: {count} GPUs are visible; *"])


def test_without_a_list_the_driver_tells_the_gpus(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    assert visible_devices({}, tmp_path) == ["0", "1", "2", "3"]
    assert visible_devices({}, tmp_path / "none") == []
    assert choose_device("gw11", None, ["2", "5"]) == "5"
