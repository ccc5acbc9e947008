"""User code named as ``file.py:function``: loaded by path, run with its folder importable, blamed by line.

While user code runs, and only then, its folder is first on ``sys.path`` and the modules it took from there
are in ``sys.modules``. So two folders may each have a ``helper.py``, and nothing of either stays behind. What
it sets for the whole process is kept for it alone, too: the working folder, ``sys.path``, what NumPy does on
floating-point errors, filters of warnings.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from pytest_int8acc.data.files import find
from pytest_int8acc.errors import DataError, Int8accError, error_text, session_ends
from pytest_int8acc.tensors import did_you_mean

_T = TypeVar("_T")
_PACKAGE = Path(__file__).parents[1]
_END = object()
#: The exceptions that pytest and unittest raise to skip a test.
_OUTCOMES = ("Skipped", "XFailed", "SkipTest")


class ProcessState:
    """The process-wide state that a script has changed; it is active only while the script runs."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._path: list[str] | None = None
        self._on_errors: Any = None
        self._filters: list[Any] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it, the script's changes are active; further changes are kept for the next time."""
        outside, importable, entries = _working_folder(), sys.path, [*sys.path]
        if self._folder is not None:
            _change_folder(self._folder)
        if self._path is not None:
            sys.path[:] = self._path
        before = [*sys.path]
        with np.errstate(), warnings.catch_warnings():
            if self._on_errors is not None:
                np.seterr(**self._on_errors)
            if self._filters is not None:
                warnings.filters[:] = self._filters  # type: ignore[index]
            on_errors, filters = np.geterr(), [*warnings.filters]
            try:
                yield
            finally:
                if np.geterr() != on_errors:
                    self._on_errors = np.geterr()
                if [*warnings.filters] != filters:
                    self._filters = [*warnings.filters]
                if isinstance(sys.path, list) and sys.path != before:
                    self._path = [*sys.path]
                sys.path = importable  # the list itself may have been replaced
                sys.path[:] = entries
                inside = _working_folder()
                self._folder = inside if inside != outside else None
                if inside != outside:
                    _change_folder(outside)


def _working_folder() -> str | None:
    """Return the working folder; None where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _change_folder(folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):  # removed meanwhile
            os.chdir(folder)


@dataclass(frozen=True, eq=False)
class UserFunction:
    """A function of a user's script; calling it raises whatever the user's code raises."""

    ref: str
    """As written: ``file.py:function``."""
    file: Path
    function: Callable[..., Any]
    modules: dict[str, ModuleType] = field(repr=False)
    """Module name to module: the script, and the modules that it imported from its own folder."""
    process: ProcessState = field(repr=False)
    """The process-wide state that the script has changed."""

    def __call__(self, *args: Any) -> Any:
        """Run the function with its folder importable; a generator's body needs :func:`iterate_user`."""
        with self.active():
            return self.function(*args)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it, the script's folder and the modules from it are importable."""
        with _importable(self.file.parent, self.modules), self.process.active():
            yield


def load_function(ref: str, base: Path, error: type[Int8accError] = DataError) -> UserFunction:
    """Run the script of ``ref``, a ``file.py:function`` below ``base``, in a module of its own; its function.

    Raises:
        error: The script or function is missing, does not compile, fails when run, or is not callable.
    """
    written, colon, name = ref.rpartition(":")
    if not colon or not written.endswith(".py") or not name:
        script = written or name
        raise error(f"'{ref}' names no function; write it as {script.removesuffix('.py')}.py:function")
    try:
        file = find(written, base, ref).resolve()
    except DataError as missing:
        raise error(str(missing)) from missing
    module_name = f"int8acc_{hashlib.blake2b(str(file).encode(), digest_size=6).hexdigest()}_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise error(f"{ref}: {written} is no Python file")
    module = importlib.util.module_from_spec(spec)
    modules, process = {module_name: module}, ProcessState()
    with _importable(file.parent, modules), process.active():
        run_user(ref, spec.loader.exec_module, module, error=error)
    return UserFunction(ref, file, _member(module, name, ref, error), modules, process)


def run_user(ref: str, function: Callable[..., _T], *args: Any, error: type[Int8accError] = DataError) -> _T:
    """``function(*args)``, with the user's exception turned into ``error``; the user calls it ``ref``.

    Raises:
        error: ``loaders.py:12: ValueError: its text (in loaders.py:function)``; the line is the innermost one
            in the folder of the user's script. So it is for ``pytest.skip``, since a case that fails would be
            skipped. Ctrl-C and ``pytest.exit`` pass.
    """
    try:
        return function(*args)
    except session_ends():
        raise
    except BaseException as failure:
        raise error(_blame(failure, ref)) from failure


@contextmanager
def looking_at(ref: str, error: type[Int8accError] = DataError) -> Iterator[None]:
    """Let what the objects of a user raise be the fault of ``ref``, which gave them; errors of ours pass.

    Raises:
        error: As for :func:`run_user`.
    """
    try:
        yield
    except Int8accError:
        raise
    except session_ends():
        raise
    except BaseException as failure:
        raise error(_blame(failure, ref)) from failure


def iterate_user(ref: str, function: UserFunction) -> Iterator[Any]:
    """The items of the iterable that ``function()`` returns, asked for one at a time.

    Raises:
        DataError: The function or its iterator fails, or what it returns cannot be iterated.
    """
    result = run_user(ref, function)
    with looking_at(ref):
        iterates = hasattr(result, "__iter__") or hasattr(result, "__getitem__")
    if isinstance(result, dict) or not iterates:
        found = "nothing" if result is None else f"one {type(result).__name__}"
        raise DataError(f"{ref}: returned {found}; yield, or return a list of, dicts of input name to array")
    with function.active():
        iterator = run_user(ref, iter, result)
    try:
        while True:
            with function.active():
                item = run_user(ref, functools.partial(next, iterator, _END))
            if item is _END:
                return
            yield item
    finally:
        if inspect.isgenerator(iterator):  # where enough was taken, its own ``finally`` runs here
            with function.active():
                run_user(ref, iterator.close)


@contextmanager
def _importable(folder: Path, modules: dict[str, ModuleType]) -> Iterator[None]:
    """Put ``folder`` on ``sys.path`` and ``modules`` in ``sys.modules`` for a while.

    Modules newly taken from the folder join ``modules``; a folder that was importable before keeps its own.
    """
    added = str(folder) not in sys.path
    hidden = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    before = set(sys.modules)
    if added:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if added:
            if str(folder) in sys.path:
                sys.path.remove(str(folder))
            for name in set(sys.modules) - before:
                if _comes_from(folder, name):
                    modules[name] = sys.modules[name]
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def _comes_from(folder: Path, name: str) -> bool:
    """Return whether the module's top package or file lies directly in ``folder``, not in a venv below it."""
    top = sys.modules.get(name.partition(".")[0])
    spec = getattr(top, "__spec__", None)
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    own_files = {folder / f"{spec.name}.py", folder / spec.name}
    return any(place is not None and Path(place) in own_files for place in places)


def _member(module: ModuleType, name: str, ref: str, error: type[Int8accError]) -> Callable[..., Any]:
    """Return the callable ``name`` of the module; raises ``error``, which lists the module's functions."""
    if not hasattr(module, name):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        listed = f"; it has {', '.join(known)}" if known else "; it has no functions"
        raise error(f"{ref}: the script has no '{name}'{did_you_mean(name, known)}{listed}")
    member = getattr(module, name)
    if not callable(member):
        raise error(f"{ref}: '{name}' is of type {type(member).__name__}; expected a function")
    function: Callable[..., Any] = member
    return function


def _blame(failure: BaseException, ref: str) -> str:
    """Return ``file:line: Type: text (in ref)`` for an exception from the user's code."""
    said = error_text(failure)
    text = type(failure).__name__ + ("" if said == type(failure).__name__ else f": {said}")
    if isinstance(failure, SyntaxError):
        text = f"{type(failure).__name__}: {failure.msg}"
    place = _place(failure, ref)
    blame = f"{place}: {text} (in {ref})" if place else f"{ref}: {text}"
    if type(failure).__name__ in _OUTCOMES:
        blame += "; a function cannot skip its case: say 'skip: REASON' or 'xfail: REASON' in the spec"
    return blame


def _place(failure: BaseException, ref: str) -> str | None:
    """Return ``file:line`` of the innermost frame in the user's folder, relative to that folder."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(failure.__traceback__)]
    if failure.__cause__ is not None and not _written(frames):  # a StopIteration in a generator
        return _place(failure.__cause__, ref)
    if isinstance(failure, SyntaxError) and isinstance(failure.filename, str):
        frames.append((failure.filename, failure.lineno))
    files = _written(frames)
    if not files:
        return None
    folder = files[0][0].parent
    own = [(file.relative_to(folder), line) for file, line in files if folder in file.parents]
    file, line = [f for f in own if "site-packages" not in f[0].parts][-1]  # no library in a venv below it
    return f"{(PurePath(ref.rpartition(':')[0]).parent / file).as_posix()}:{line}"


def _written(frames: list[tuple[str, int | None]]) -> list[tuple[Path, int | None]]:
    """Return the frames that are in a file outside this package."""
    files = [(Path(file), line) for file, line in frames if not file.startswith("<")]
    return [(file, line) for file, line in files if _PACKAGE not in file.parents]
