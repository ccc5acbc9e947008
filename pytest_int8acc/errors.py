"""The errors that end a case without a verdict; each message is complete and meant for the user."""

from __future__ import annotations

import platform
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from pytest_int8acc.names import shown, shown_lines

#: Maximum number of names that a message lists. Of further names the message gives only the number.
_LISTED = 5
#: The Python packages whose versions are part of the error message on a bug of this plugin.
_NAMED = (
    "pytest-int8acc",
    "pytest",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "polygraphy",
)


class Int8accError(Exception):
    """A case cannot be judged; the message says what is wrong, where, what was expected and what to do.

    Attributes:
        place: ``file:line:col`` of the spec's key that caused the error; empty if it is not known.
    """

    place = ""

    def __str__(self) -> str:
        """The place and the message, with control characters made visible."""
        return ": ".join(filter(None, (self.place, shown_lines(super().__str__()))))


class SpecError(Int8accError):
    """A spec file has mistakes. The message has one line ``file:line:col: message`` for each mistake."""


class ModelError(Int8accError):
    """An ONNX model cannot be read, edited or built."""


class DataError(Int8accError):
    """Inputs, labels or calibration samples cannot be read, or do not fit the model."""


class ScalesError(Int8accError):
    """A calibration cache or a file of dynamic ranges cannot be read, or does not fit the model."""


class EngineError(Int8accError):
    """A runtime is missing, or a model does not run in it."""


class MissingBackendError(EngineError):
    """The backend of the case is not available: there is no TensorRT, or no GPU."""


class CriterionError(Int8accError):
    """A criterion does not fit the model's outputs, or a user's metric function failed."""


class BaselineNotFiniteError(CriterionError):
    """An output of the baseline has NaN or infinite values, although a criterion compares it.

    Attributes:
        found: The message without advice. It says how many elements of which output are not finite.
    """

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}. If FP16 overflows, set `baseline: fp32`; otherwise look at the inputs")
        self.found = found


class InternalError(Int8accError):
    """A bug of pytest-int8acc. The message says what to report, and the original exception is the cause."""


def session_ends() -> tuple[type[BaseException], ...]:
    """Return the exceptions that end the whole session: Ctrl-C, and under pytest also ``pytest.exit``."""
    runner = sys.modules.get("pytest")
    return (KeyboardInterrupt,) if runner is None else (KeyboardInterrupt, runner.exit.Exception)


@contextmanager
def own_faults() -> Iterator[None]:
    """Turn unexpected exceptions of the block into InternalError.

    An Int8accError, pytest's exception for a skip, and an exception that ends the session pass through
    unchanged. Inside the block, NumPy handles floating-point errors in its default way, although a conftest
    may have made NumPy raise exceptions for them.

    Raises:
        InternalError: The block raised an unexpected exception.
    """
    try:
        with _usual_arithmetic():
            yield
    except Int8accError:
        raise
    except session_ends():
        raise
    except MemoryError as error:
        raise InternalError(
            f"out of memory ({error_text(error)}); use fewer samples, a smaller batch, or a machine with more"
        ) from error
    except Exception as error:
        raise InternalError(_fault(error)) from error


def _usual_arithmetic() -> AbstractContextManager[Any]:
    numpy = sys.modules.get("numpy")  # NumPy is not imported here, because that would slow pytest's start
    if numpy is None:
        return nullcontext()
    usual: AbstractContextManager[Any] = numpy.errstate(
        divide="warn", over="warn", under="ignore", invalid="warn"
    )
    return usual


def error_text(error: BaseException) -> str:
    """Return the text of ``error``. If the text is empty or ``str`` fails, the type of ``error`` is named."""
    try:
        return str(error) or type(error).__name__
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"{type(error).__name__}, whose text cannot be made"


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return a mapping of name to version for the Python packages in ``names`` that are installed."""
    from importlib import metadata

    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _fault(error: Exception) -> str:
    package = Path(__file__).parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if package in Path(frame.filename).parents]
    place = "".join(f" in {Path(f.filename).relative_to(package)}:{f.lineno}" for f in own[-1:])
    versions = [f"Python {platform.python_version()}", platform.platform()]
    versions += [f"{name} {version}" for name, version in installed(_NAMED).items()]
    fault = f"{type(error).__name__}{place}: {error_text(error)}"
    return (
        f"this is a fault of pytest-int8acc, please report it: {fault}\n"
        f"  with: {', '.join(versions)}\n"
        "  and with the traceback, which --tb=long shows, and the model and spec where you may give them away"
    )


@contextmanager
def blaming(place: str) -> Iterator[None]:
    """Set the attribute ``place`` of an Int8accError that the block raises, unless the error has a place.

    ``place`` is a position in the spec, as ``file:line:col``. A MissingBackendError gets no place, because no
    line of a spec causes the error.
    """
    try:
        yield
    except MissingBackendError:
        raise
    except Int8accError as error:
        error.place = error.place or place
        raise


def listed(names: Sequence[str] | Iterable[str]) -> str:
    """Return text like ``'a', 'b' and 3 more``: the first ``_LISTED`` names, and the number of the others."""
    known = list(names)
    rest = len(known) - _LISTED
    return ", ".join(f"'{shown(name)}'" for name in known[:_LISTED]) + (
        f" and {rest} more" if rest > 0 else ""
    )


def assert_never(value: NoReturn) -> NoReturn:
    """Raise AssertionError. Call it after the last branch of a choice, so that mypy reports a missing branch.

    ``typing.assert_never`` is not in Python 3.10.
    """
    raise AssertionError(f"{value!r} has no branch")
