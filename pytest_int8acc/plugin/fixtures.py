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
    """Cases of specs as Python objects: ``int8acc.load('net.int8acc.yaml').check()`` gives a CaseResult.

    A loaded case has ``check()``, ``measure()``, ``engine(role)`` and ``outputs(role)``; roles are baseline,
    fp32, and what the case is in: int8, fp8, fp16 or bf16. Where a spec has several cases, name one:
    ``int8acc.load('net.int8acc.yaml', 'by-hand')``. Paths start from pytest's root folder. A test that fails
    shows what its failed cases say. Where a backend is not there the test is skipped, as a case is, or fails
    where ini ``int8acc_missing`` says so.
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
    """An engine of a model: ``int8acc_engine('net.onnx', precision='int8', calibrate='calib.npz')``.

    ``precision`` is fp32, fp16 (the default), bf16, int8 or fp8; a model with Q/DQ is one of the last two and
    wants no samples.
    ``backend`` is auto, onnxruntime or tensorrt. What it returns is called with a feed dict, one array per
    input, and gives one array per output. It is freed when nothing refers to it any more.
    """
    return int8acc.engine


@pytest.fixture(scope="session")
def int8acc_golden(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Compare arrays with their golden, or record them: ``int8acc_golden('logits', logits, cosine=0.999)``.

    The second argument is one array, or several by name; limits are those of an output's criterion in a spec
    (40 dB SQNR by default). ``--int8acc-update=missing`` records what is not there, ``--int8acc-update=all``
    everything. Goldens lie in ``__int8acc__/arrays`` below pytest's root folder, or where ini
    ``int8acc_goldens`` says.
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
