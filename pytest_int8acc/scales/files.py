"""Files of scales as text, or an error that says why they are none."""

from __future__ import annotations

from pathlib import Path

from pytest_int8acc.errors import ScalesError

EXPECTED = (
    "expected a TensorRT calibration cache (first line TRT-<version>-<algorithm>), "
    'or a JSON object of dynamic ranges like {"tensor": 6.0}'
)


def read_text(path: Path) -> str:
    """The whole file as text, without a byte order mark; ScalesError where there is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ScalesError(f"{path}: cannot be read: {error.strerror or error}; {EXPECTED}") from error
    except ValueError as error:  # a null character in the name
        raise ScalesError(f"{str(path)!r}: is no file name; {EXPECTED}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScalesError(f"{path}: holds bytes that are no text (at {error.start}); {EXPECTED}") from error
    if "\0" in text:
        raise ScalesError(f"{path}: is a binary file; {EXPECTED}")
    if not text.strip():
        raise ScalesError(f"{path}: is empty; {EXPECTED}")
    return text
