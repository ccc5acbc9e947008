"""Finds what all cases of one pytest session share: settings, folders, worker processes and the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_int8acc.errors import EngineError, MissingBackendError
from pytest_int8acc.names import is_url
from pytest_int8acc.settings import SETTINGS, Settings, resolve, stem

if TYPE_CHECKING:
    from pytest_int8acc.api import Run
    from pytest_int8acc.results import CaseResult
    from pytest_int8acc.runtime.children import Workers
    from pytest_int8acc.spec.models import Case

_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: The folder in which NVIDIA's driver for Linux creates a folder for each GPU.
_DRIVER = Path("/proc/driver/nvidia/gpus")
_WORKERS = pytest.StashKey["Workers"]()
_DEVICE_IS_CHOSEN = pytest.StashKey[bool]()


def visible_devices(environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES; the numbers of all GPUs if the variable is not set.

    The list ends before a negative entry, as it does in CUDA. ``driver`` is the folder in which NVIDIA's
    driver lists the GPUs.
    """
    if (given := environment.get(_VARIABLE)) is not None:
        entries = (part.strip() for part in given.split(","))
        return list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    try:
        return [str(i) for i in range(len(os.listdir(driver)))]
    except OSError:
        return []


def choose_device(worker: str | None, device: int | None, visible: list[str]) -> str | None:
    """Return the entry of ``visible`` for the GPU that this process uses; None if it may use all GPUs.

    Args:
        worker: The name of this process in pytest-xdist, such as gw3; None without pytest-xdist.
        device: The index in ``visible`` that the user requests. With None, workers use the GPUs in turn.
        visible: The list that :func:`visible_devices` returns.

    Raises:
        ValueError: There is no such GPU.
    """
    if device is not None:
        if device >= len(visible):
            seen = f"{len(visible)} GPUs are" if len(visible) != 1 else "1 GPU is"
            raise ValueError(f"there is no GPU {device}: {seen} visible; count from 0")
        return visible[device]
    if worker is None or not visible or not worker[2:].isdecimal():
        return None
    return visible[int(worker[2:]) % len(visible)]


def _choose_device(config: pytest.Config) -> None:
    """Restrict CUDA to the GPU that this process uses, before any library initializes CUDA.

    Only the first call in a session has an effect.

    Raises:
        EngineError: The option or ini key names a GPU that does not exist.
    """
    if config.stash.get(_DEVICE_IS_CHOSEN, False):
        return
    config.stash[_DEVICE_IS_CHOSEN] = True
    device = config.getoption("int8acc_device")
    if device is None and config.getini("int8acc_device"):
        device = int(config.getini("int8acc_device"))
    worker = getattr(config, "workerinput", {}).get("workerid")
    try:
        chosen = choose_device(worker, device, visible_devices())
    except ValueError as error:
        raise EngineError(f"--int8acc-device: {error}") from None
    if chosen is not None:
        os.environ[_VARIABLE] = chosen


def settings_of(config: pytest.Config, spec: Mapping[str, object]) -> Settings:
    """Return the settings from the command line, from ``spec``, and from pytest's configuration.

    Values on the command line come first, then those of the spec. ``pytest_configure`` has checked the values
    in pytest's configuration.
    """
    _choose_device(config)
    return resolve(
        {setting.name: config.getoption(setting.ini) for setting in SETTINGS},
        spec,
        {s.name: s.read(config.getini(s.ini)) for s in SETTINGS},
    )


def workers_of(config: pytest.Config) -> Workers:
    """Return the session's worker processes, in which TensorRT builds engines.

    The processes are reused, because starting one takes longer than most builds.
    """
    if _WORKERS not in config.stash:
        from pytest_int8acc.runtime.children import Workers

        config.stash[_WORKERS] = Workers()
        config.add_cleanup(config.stash[_WORKERS].close)
    return config.stash[_WORKERS]


def open_run(config: pytest.Config, case: Case, *, records: bool) -> Run:
    """Return a run of ``case``.

    Args:
        config: The configuration of pytest.
        case: The case.
        records: Whether the run may write goldens, as ``--int8acc-update`` says, or candidates for goldens
            into the report folder.
    """
    from pytest_int8acc.api import Run
    from pytest_int8acc.goldens import Goldens

    goldens = Goldens(golden_folder(config, case.file))
    if records:
        folder = case_folder(config, case)
        goldens = Goldens(
            goldens.folder,
            config.getoption("int8acc_update") or "off",
            None if folder is None else folder / "golden",
            report_folder(config),
        )
    return Run(case, settings_of(config, case.settings()), goldens, workers_of(config))


@contextmanager
def skipping_unavailable(settings: Settings) -> Iterator[None]:
    """Return a context in which a missing backend skips the test, or fails it if the settings say so."""
    try:
        yield
    except MissingBackendError as error:
        if settings.missing == "skip":
            pytest.skip(str(error))
        raise


def stop_where_interrupted(session: pytest.Session, result: CaseResult) -> None:
    """End the session if Ctrl-C or SIGTERM has ended the search for causes and fixes in this case."""
    if result.stopped is not None and result.stopped.kind == "interrupted":
        session.shouldstop = f"interrupted (Ctrl-C or SIGTERM) after the verdict on {result.name}"


def report_folder(config: pytest.Config) -> Path | None:
    """Return the report folder; None if no report is written.

    A path on the command line is relative to the folder where pytest was started. A path in the configuration
    is relative to pytest's root folder.
    """
    if given := config.getoption("int8acc_report"):
        return config.invocation_params.dir / str(given)
    given = config.getini("int8acc_report")
    return config.rootpath / str(given) if given else None


def case_folder(config: pytest.Config, case: Case) -> Path | None:
    """Return the folder for the files of a case inside the report folder; None without a report folder.

    Inside the report folder, its path is that of the spec relative to pytest's root folder, without suffix,
    followed by the name of the case. The name is left out if it equals the spec's name.
    """
    reports, spec = report_folder(config), _spec_stem(config, case.file)
    if reports is None:
        return None
    return reports / spec if spec.name == case.name else reports / spec / case.name


def golden_root(config: pytest.Config) -> str | None:
    """Return the folder or URL that holds the goldens of all specs.

    The result is None if the goldens of each spec are in a folder beside the spec.
    """
    given = config.getini("int8acc_goldens")
    if not given:
        return None
    return str(given) if is_url(str(given)) else str(config.rootpath / str(given))


def golden_folder(config: pytest.Config, spec: Path) -> str | None:
    """Return the folder or URL of the goldens of ``spec``; None if they are in a folder beside the spec."""
    root = golden_root(config)
    return None if root is None else f"{root.rstrip('/')}/{_spec_stem(config, spec).as_posix()}"


def _spec_stem(config: pytest.Config, spec: Path) -> Path:
    """Return the path of a spec without its suffix, relative to pytest's root folder.

    For a spec outside the root folder it is the file's name alone.
    """
    below = config.rootpath in spec.parents
    path = spec.relative_to(config.rootpath) if below else Path(spec.name)
    return path.with_name(stem(path.name))
