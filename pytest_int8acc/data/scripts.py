"""Loads and runs user code named as ``file.py:function``. Its exceptions become errors that name its line.

While user code runs, and only then, its folder is first on ``sys.path``, and the modules that it imported
from there are in ``sys.modules``. So two folders may each have a ``helper.py``. The process-wide state that a
script changes is also active only while the script runs: the working folder, ``sys.path``, NumPy's handling
of floating-point errors, and warning filters.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from pytest_int8acc.data.files import find
from pytest_int8acc.errors import DataError, Int8accError, error_text, session_ends
from pytest_int8acc.tensors import Array, did_you_mean

_T = TypeVar("_T")
#: The folder of this package. Its frames are never the user's fault.
_PACKAGE = Path(__file__).parents[1]
#: Marks the end of a user's iterator.
_END = object()
#: The exceptions that pytest and unittest raise to skip a test.
_OUTCOMES = ("Skipped", "XFailed", "SkipTest")


class ProcessState:
    """The process-wide state that a script has changed; it is active only while the script runs."""

    def __init__(self) -> None:
        self._changed: dict[str, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it, the script's changes are active; further changes are kept for the next time."""
        path = sys.path
        outside = _process_state()
        with np.errstate(), warnings.catch_warnings():
            _set_process_state(outside | self._changed)
            before = _process_state()
            try:
                yield
            finally:
                after = _process_state()
                self._changed |= {key: value for key, value in after.items() if value != before[key]}
                # Blocks may be nested. The outer block decides which folder is kept.
                self._changed["folder"] = after["folder"]
                if after["folder"] == outside["folder"]:
                    del self._changed["folder"]
                sys.path = path  # the script may have replaced the list itself
                _set_process_state(outside)


def _process_state() -> dict[str, Any]:
    try:
        folder = os.getcwd()
    except OSError:  # the folder was removed
        folder = ""
    filters = [*warnings.filters]
    return {"folder": folder, "path": [*sys.path], "on_errors": np.geterr(), "filters": filters}


def _set_process_state(state: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the folder was removed
        if state["folder"] != os.getcwd():
            os.chdir(state["folder"])
    sys.path[:] = state["path"]
    np.seterr(**state["on_errors"])
    warnings.filters[:] = state["filters"]  # type: ignore[index]


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
    """Run the script of ``ref``, a ``file.py:function`` below ``base``, as a new module; return its function.

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
    if not file.is_file():
        raise error(f"{ref}: {written} is no Python file")
    module_name = f"int8acc_{hashlib.blake2b(str(file).encode(), digest_size=6).hexdigest()}_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None, "a file ending in .py has a spec"
    assert spec.loader is not None, "a file ending in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    modules, process = {module_name: module}, ProcessState()
    with _importable(file.parent, modules), process.active():
        run_user(ref, spec.loader.exec_module, module, error=error)
    member = getattr(module, name, None)
    if callable(member):
        return UserFunction(ref, file, member, modules, process)
    if hasattr(module, name):
        raise error(f"{ref}: '{name}' is of type {type(member).__name__}; expected a function")
    known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    listed = f"it has {', '.join(known)}" if known else "it has no functions"
    raise error(f"{ref}: the script has no '{name}'{did_you_mean(name, known)}; {listed}")


def run_user(ref: str, function: Callable[..., _T], *args: Any, error: type[Int8accError] = DataError) -> _T:
    """Return ``function(*args)``; an exception becomes ``error``, as for :func:`looking_at`."""
    with looking_at(ref, error):
        return function(*args)


@contextmanager
def looking_at(ref: str, error: type[Int8accError] = DataError) -> Iterator[None]:
    """Turn an exception of user code into ``error``, which names the script ``ref``.

    Ctrl-C, ``pytest.exit`` and our own errors pass. ``pytest.skip`` does not pass, because a case that fails
    would be skipped.

    Raises:
        error: ``loaders.py:12: ValueError: its text (in loaders.py:function)``. The line is the innermost one
            in the folder of the user's script.
    """
    try:
        yield
    except Int8accError:
        raise
    except session_ends():
        raise
    except BaseException as failure:
        raise error(_blame(failure, ref)) from failure


def user_array(ref: str, value: object, where: str) -> Array:
    """Return a copy of ``value`` as an array, because the user's code may write into its own buffer later.

    Raises:
        DataError: ``value`` cannot become an array; the message begins with ``where``.
    """
    try:
        return run_user(ref, np.array, value)
    except DataError as error:
        raise DataError(
            f"{where} of type {type(value).__name__} cannot become a NumPy array ({error}); give NumPy arrays"
        ) from error


def iterate_user(ref: str, function: UserFunction) -> Iterator[Any]:
    """Yield the items of the iterable that ``function()`` returns, each when it is asked for.

    Raises:
        DataError: The function or its iterator fails, or what it returns cannot be iterated.
    """
    result = run_user(ref, function)
    with looking_at(ref):
        iterates = hasattr(result, "__iter__") or hasattr(result, "__getitem__")
    if isinstance(result, dict) or not iterates:
        found = "nothing" if result is None else f"one {type(result).__name__}"
        raise DataError(f"{ref}: returned {found}; yield, or return a list of, dicts of input name to array")
    with function.active(), looking_at(ref):
        iterator = iter(result)
    try:
        while True:
            with function.active(), looking_at(ref):
                item = next(iterator, _END)
            if item is _END:
                return
            yield item
    finally:
        if inspect.isgenerator(iterator):  # not all items may have been taken: its own ``finally`` runs here
            with function.active(), looking_at(ref):
                iterator.close()


@contextmanager
def _importable(folder: Path, modules: dict[str, ModuleType]) -> Iterator[None]:
    """Put ``folder`` on ``sys.path`` and ``modules`` in ``sys.modules`` within the block.

    Modules that the block imports from the folder are added to ``modules`` and leave ``sys.modules``. The
    modules of a folder that was importable before stay there.
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
    if isinstance(failure, SyntaxError) and isinstance(failure.filename, str):
        frames.append((failure.filename, failure.lineno))
    files = [(Path(file), line) for file, line in frames if not file.startswith("<")]
    files = [(file, line) for file, line in files if _PACKAGE not in file.parents]
    if not files:
        # Python turns a StopIteration in a generator into a RuntimeError without a frame of the user's.
        return None if failure.__cause__ is None else _place(failure.__cause__, ref)
    folder = files[0][0].parent
    own = [(file.relative_to(folder), line) for file, line in files if folder in file.parents]
    # A virtual environment may lie below the user's folder: its libraries are not the user's code.
    file, line = [(file, line) for file, line in own if "site-packages" not in file.parts][-1]
    return f"{(PurePath(ref.rpartition(':')[0]).parent / file).as_posix()}:{line}"
