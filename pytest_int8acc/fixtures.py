"""Fixtures for users' own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_int8acc.engines import Engine
    from pytest_int8acc.workbench import Workbench


@pytest.fixture(scope="session")
def int8acc(request: pytest.FixtureRequest) -> Iterator[Workbench]:
    """Cases of specs as Python objects: ``int8acc.load('net.int8acc.yaml').check()`` gives a CaseResult.

    A loaded case has ``check()``, ``measure()``, ``engine(role)`` and ``outputs(role)``; roles are baseline,
    int8 and fp32. Where a spec has several cases, name one: ``int8acc.load('net.int8acc.yaml', 'by-hand')``.
    Paths start from pytest's root folder.
    """
    from pytest_int8acc.items import settings_for
    from pytest_int8acc.workbench import Workbench

    config = request.config
    with Workbench(lambda spec: settings_for(config, spec), config.rootpath) as bench:
        yield bench


@pytest.fixture(scope="session")
def int8acc_engine(int8acc: Workbench) -> Callable[..., Engine]:
    """An engine of a model: ``int8acc_engine('net.onnx', precision='int8', calibrate='calib.npz')``.

    ``precision`` is fp32, fp16 (the default) or int8; a model with Q/DQ is int8 and wants no samples.
    ``backend`` is auto, onnxruntime or tensorrt. What it returns is called with a feed dict, one array per
    input, and gives one array per output. It lives until the session ends.
    """
    return int8acc.engine
