"""Fixtures for users' own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_int8acc.plugin.workbench import Workbench
    from pytest_int8acc.results import CaseResult
    from pytest_int8acc.runtime.protocol import Engine


@pytest.fixture(scope="session")
def int8acc(request: pytest.FixtureRequest) -> Iterator[Workbench]:
    """Gives the cases of specs: ``int8acc.load('net.int8acc.yaml').check()`` returns a CaseResult.

    A loaded case has ``check()``, ``measure()``, ``engine(role)`` and ``outputs(role)``. Roles are baseline,
    fp32, and the format of the case: int8, fp8, fp16 or bf16. If a spec has several cases, name one:
    ``int8acc.load('net.int8acc.yaml', 'by-hand')``. Paths are relative to pytest's root folder. If a test
    fails, its report contains the messages of its failed cases. If a backend is missing, the test is skipped,
    or fails if the ini key ``int8acc_missing`` says so.
    """
    from pytest_int8acc.plugin.hooks import ASKED
    from pytest_int8acc.plugin.session import stop_where_interrupted
    from pytest_int8acc.plugin.workbench import Workbench

    asked = request.config.stash.setdefault(ASKED, [])

    def on_result(result: CaseResult) -> None:
        asked.append(result)
        stop_where_interrupted(request.session, result)

    with closing(Workbench(request.config, on_result)) as bench:
        yield bench


@pytest.fixture(scope="session")
def int8acc_engine(int8acc: Workbench) -> Callable[..., Engine]:
    """Builds an engine of a model: ``int8acc_engine('net.onnx', precision='int8', calibrate='calib.npz')``.

    ``precision`` is fp32, fp16 (the default), bf16, int8 or fp8. A model with Q/DQ nodes is int8 or fp8
    already, and needs no calibration samples. ``backend`` is auto, onnxruntime or tensorrt. The returned
    engine is called with a dict of one array per input, and returns a dict of one array per output. Its
    memory is freed when no variable refers to it any more.
    """
    return int8acc.engine


@pytest.fixture(scope="session")
def int8acc_golden(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Compares arrays with their golden, or records them: ``int8acc_golden('logits', logits, cosine=0.999)``.

    A golden is a file of accepted values. The second argument is one array, or several by name. Limits are
    those of an output's criterion in a spec (default: 40 dB SQNR). ``--int8acc-update=missing`` records
    goldens that do not exist, ``--int8acc-update=all`` records all. Goldens are in ``__int8acc__/arrays``
    below pytest's root folder, or below the folder of the ini key ``int8acc_goldens``.
    """
    from pytest_int8acc.goldens.array_goldens import ArrayGoldens
    from pytest_int8acc.plugin.reporting import GoldenHooks
    from pytest_int8acc.plugin.session import golden_root, report_folder

    config = request.config
    root = golden_root(config) or str(config.rootpath / "__int8acc__")
    reports = report_folder(config)
    candidates = None if reports is None else reports / "golden"
    update: Any = config.getoption("int8acc_update") or "off"
    hooks: GoldenHooks | None = config.pluginmanager.get_plugin("int8acc-goldens")
    tell = None if hooks is None else hooks.arrays.append
    return ArrayGoldens(f"{root}/arrays", update, candidates, tell).check
