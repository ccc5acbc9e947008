"""Loads and runs user code named as ``file.py:function``; error messages name the line of the user's script.

While a script runs, and only then, its folder is first on ``sys.path``, and the modules that it imported from
this folder are in ``sys.modules``. So two folders may each have a ``helper.py``. A script may change
process-wide state: the working folder, ``sys.path``, NumPy's handling of floating-point errors, and warning
filters. These changes, too, are in force only while the script runs.
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
#: The folder of this package. Error messages never name a line in it as the user's.
_PACKAGE = Path(__file__).parents[1]
#: The value that ``next`` returns at the end of a user's iterator.
_END = object()
#: Names of the exceptions that pytest and unittest raise to skip a test, or to expect its failure.
_OUTCOMES = ("Skipped", "XFailed", "SkipTest")


class ProcessState:
    """The changes that a script made to process-wide state. They apply only while the script runs."""

    def __init__(self) -> None:
        self._changed: dict[str, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Apply the script's changes of process-wide state within the block, and undo them after the block.

        Further changes that the script makes within the block are applied again in the next block.
        """
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
                # The next block begins in the working folder in which this block ends. If blocks are nested,
                # the outermost block ends last, so the folder in which it ends is used.
                self._changed["folder"] = after["folder"]
                if after["folder"] == outside["folder"]:
                    del self._changed["folder"]
                sys.path = path  # The script may have assigned another list to ``sys.path``.
                _set_process_state(outside)


def _process_state() -> dict[str, Any]:
    try:
        folder = os.getcwd()
    except OSError:  # The working folder was removed.
        folder = ""
    filters = [*warnings.filters]
    return {"folder": folder, "path": [*sys.path], "on_errors": np.geterr(), "filters": filters}


def _set_process_state(state: Mapping[str, Any]) -> None:
    with suppress(OSError):  # The folder may have been removed.
        if state["folder"] != os.getcwd():
            os.chdir(state["folder"])
    sys.path[:] = state["path"]
    np.seterr(**state["on_errors"])
    warnings.filters[:] = state["filters"]  # type: ignore[index]


@dataclass(frozen=True, eq=False)
class UserFunction:
    """A function of a user's script. A call raises the exceptions of the user's code unchanged."""

    ref: str
    """The script and the function as the user wrote them: ``file.py:function``."""
    file: Path
    function: Callable[..., Any]
    modules: dict[str, ModuleType] = field(repr=False)
    """Module name to module, for the script and the modules that it imported from its own folder."""
    process: ProcessState = field(repr=False)
    """The changes that the script made to process-wide state."""

    def __call__(self, *args: Any) -> Any:
        """Call the function while the modules in the script's folder are importable.

        If the function is a generator, its body runs later, so use :func:`iterate_user`.
        """
        with self.active():
            return self.function(*args)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within the block, make the script's folder importable and apply the script's process-wide state.

        The script may have changed the working folder, ``sys.path``, NumPy's error handling and the warning
        filters.
        """
        with _importable(self.file.parent, self.modules), self.process.active():
            yield


def load_function(ref: str, base: Path, error: type[Int8accError] = DataError) -> UserFunction:
    """Run the script of ``ref`` as a new module; return its function.

    ``ref`` is ``file.py:function``, where the file is relative to ``base``.

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
    """Return ``function(*args)``.

    An exception of the user's code becomes ``error``; see :func:`looking_at`.
    """
    with looking_at(ref, error):
        return function(*args)


@contextmanager
def looking_at(ref: str, error: type[Int8accError] = DataError) -> Iterator[None]:
    """Turn an exception that the block raises into ``error``, which names the user's script ``ref``.

    Ctrl-C, ``pytest.exit`` and errors of this plugin are raised as they are. ``pytest.skip`` becomes
    ``error``, because otherwise a case that should fail would be skipped.

    Raises:
        error: The text is like ``loaders.py:12: ValueError: message (in loaders.py:function)``. The line is
            that of the innermost frame in the folder of the user's script.
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
    """Yield the items of the iterable that ``function()`` returns, each when it is needed.

    Raises:
        DataError: The function or its iterator fails, or the function's result is a dict or not iterable.
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
        # If not all items were taken, ``close`` runs the ``finally`` blocks of the user's generator.
        if inspect.isgenerator(iterator):
            with function.active(), looking_at(ref):
                iterator.close()


@contextmanager
def _importable(folder: Path, modules: dict[str, ModuleType]) -> Iterator[None]:
    """Put ``folder`` on ``sys.path`` and ``modules`` in ``sys.modules`` within the block.

    Modules that the block imports from the folder are added to ``modules``. After the block, ``modules`` are
    removed from ``sys.modules``. If the folder was on ``sys.path`` before the block, newly imported modules
    are not added, and stay in ``sys.modules``.
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
    """Return whether the top-level module or package of module ``name`` lies directly in ``folder``.

    Modules of a virtual environment below the folder do not lie directly in the folder.
    """
    top = sys.modules.get(name.partition(".")[0])
    spec = getattr(top, "__spec__", None)
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    own_files = {folder / f"{spec.name}.py", folder / spec.name}
    return any(place is not None and Path(place) in own_files for place in places)


def _blame(failure: BaseException, ref: str) -> str:
    """Return the message ``file:line: Type: text (in ref)`` for an exception that the user's code raised."""
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
    """Return ``file:line`` of the innermost frame in the folder of the user's script.

    The path of the file is relative to the same folder as the script in ``ref``. None if no frame is in the
    user's code.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(failure.__traceback__)]
    if isinstance(failure, SyntaxError) and isinstance(failure.filename, str):
        frames.append((failure.filename, failure.lineno))
    files = [(Path(file), line) for file, line in frames if not file.startswith("<")]
    files = [(file, line) for file, line in files if _PACKAGE not in file.parents]
    if not files:
        # Python turns a StopIteration in a generator into a RuntimeError that has no frame of the user's
        # code.
        return None if failure.__cause__ is None else _place(failure.__cause__, ref)
    folder = files[0][0].parent
    own = [(file.relative_to(folder), line) for file, line in files if folder in file.parents]
    # A virtual environment may lie in the user's folder. The libraries in it are not the user's code.
    file, line = [(file, line) for file, line in own if "site-packages" not in file.parts][-1]
    return f"{(PurePath(ref.rpartition(':')[0]).parent / file).as_posix()}:{line}"
