"""Compares arrays of a user's own test with a golden: a file of arrays that an earlier run recorded."""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytest_int8acc.errors import CriterionError, listed, own_faults
from pytest_int8acc.files import check_inside
from pytest_int8acc.goldens import Update
from pytest_int8acc.goldens.location import read_golden, shown, write_npz
from pytest_int8acc.goldens.record import GoldenError
from pytest_int8acc.results import OutputResult
from pytest_int8acc.runtime.storage import write_bytes_atomic
from pytest_int8acc.scores.criteria import OutputLimits, kind_of
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import Options
from pytest_int8acc.spec.criteria import OutputCriterion
from pytest_int8acc.tensors import Array, did_you_mean

#: The default limits on float arrays: a minimum SQNR of 40 dB. At 40 dB the error is 1 % of the signal.
DEFAULT_LIMITS = {"sqnr_db": 40.0}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ArrayGoldens:
    """The goldens of a user's own tests: one .npz file of recorded arrays for each name.

    Args:
        folder: A path or an fsspec URL, which may contain a password.
        update: Which goldens are recorded: none, the missing ones, or all.
        candidates: A folder inside the report folder, for arrays that differ from their golden or have no
            golden. With None, such arrays are not written.
        tell: Called with a line for each golden that is recorded.
    """

    folder: str = field(repr=False)
    update: Update = "off"
    candidates: Path | None = None
    tell: Callable[[str], None] | None = field(default=None, repr=False)

    def check(
        self, name: str, arrays: Mapping[str, Array] | Array, *, axis: int = -1, **limits: float
    ) -> tuple[OutputResult, ...]:
        """Compare arrays with their golden, or record them if ``update`` says so.

        Args:
            name: The golden's file name: letters, digits, '_', '-' and '.'.
            arrays: One array, or several by name. Axis 0 of each array counts the samples.
            axis: The axis of classes, for ``kl`` and the top-k agreements.
            **limits: Limits with the names of an output criterion in a spec, such as ``cosine=0.999``. Each
                limit applies to the arrays whose type it fits. An array without a limit must reach 40 dB SQNR
                if it holds floats, and must be equal otherwise.

        Returns:
            One result per array. All limits are met.

        Raises:
            AssertionError: A limit is missed, or the golden has more or fewer arrays. The message names
                each missed limit and each such array.
            GoldenError: There is no golden, or it cannot be read or written.
            CriterionError: A limit is unknown, or does not fit an array.
        """
        if not _NAME.fullmatch(name):
            raise GoldenError(f"golden {name!r}: a name holds letters, digits, '_', '-' and '.'")
        known = OutputCriterion.limits()
        for key in limits:
            if key not in known:
                raise CriterionError(f"unknown limit '{key}'{did_you_mean(key, known)}: {', '.join(known)}")
        by_name = arrays if isinstance(arrays, Mapping) else {"array": arrays}
        current = {k: np.asarray(v) for k, v in by_name.items()}
        file = f"{self.folder}/{name}.npz"
        stored = _read(file)
        if self.update == "all" or (self.update == "missing" and stored is None):
            _write(file, current)
            if self.tell is not None:
                self.tell(f"recorded {listed(current)} in {shown(file)}")
            stored = current
        if stored is None:
            hint = "record it with --int8acc-update=missing" + self._candidate(name, current)
            raise GoldenError(f"{shown(file)}: no golden yet; {hint}")
        with own_faults():
            results = _compare(stored, current, axis, limits or DEFAULT_LIMITS)
        problems = [f"array '{key}' is gone" for key in stored if key not in current]
        problems += [f"array '{key}' is new" for key in current if key not in stored]
        problems += _missed(results)
        if problems:
            lines = "\n".join(f"  {problem}" for problem in problems)
            hint = "record what is right now with --int8acc-update=all" + self._candidate(name, current)
            raise AssertionError(f"golden {name} ({shown(file)}):\n{lines}\n{hint}")
        return results

    def _candidate(self, name: str, arrays: Mapping[str, Array]) -> str:
        """Write ``arrays`` as ``name``.npz into the folder ``candidates``, for users to commit as the golden.

        Returns the end of an error message, which names the file or says why it was not written. Without a
        folder nothing is written, and the text is empty.
        """
        if self.candidates is None:
            return ""
        try:
            check_inside(self.candidates, self.candidates.parent)
        except OSError as error:
            return f". No candidate was left: {error.strerror or error}"
        file = str(self.candidates / f"{name}.npz")
        _write(file, arrays)
        return f", or commit {shown(file)} in its place"


def _read(file: str) -> dict[str, Array] | None:
    """Return the arrays in an .npz, given by path or URL; None if there is no file.

    Raises:
        GoldenError: The file cannot be read, or is damaged.
    """
    mend = "restore it from version control"
    data = read_golden(file, f"{mend}, or record it again with --int8acc-update=all")
    if data is None:
        return None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return dict(stored)
    except Exception as error:  # NumPy and zipfile raise many types of errors for a damaged file
        raise GoldenError(f"{shown(file)}: the golden is damaged ({error}); {mend}") from error


def _write(file: str, arrays: Mapping[str, Array]) -> None:
    buffer = io.BytesIO()
    write_npz(buffer, arrays.items())
    try:
        write_bytes_atomic(file, buffer.getvalue())
    except OSError as error:
        raise GoldenError(f"{shown(file)}: cannot be written: {error.strerror or error}") from error


def _compare(
    stored: Mapping[str, Array], current: Mapping[str, Array], axis: int, limits: Mapping[str, float]
) -> tuple[OutputResult, ...]:
    common = [name for name in stored if name in current]
    fitting_limits = [
        OutputLimits(glob.escape(name), _fitting(stored[name], limits), Options(axis)) for name in common
    ]
    kept, live = {n: [stored[n]] for n in common}, {n: [current[n]] for n in common}
    return Judge(fitting_limits).compare(kept, live).results()


def _fitting(array: Array, limits: Mapping[str, float]) -> Mapping[str, float]:
    """Return the ``limits`` whose metric fits the array's dtype; the default limits if no metric fits."""
    kind = kind_of(array)
    fitting = {name: limit for name, limit in limits.items() if kind in METRICS[name].kinds}
    return fitting or (DEFAULT_LIMITS if kind == "floats" else {"agreement": 1.0})


def _missed(results: tuple[OutputResult, ...]) -> list[str]:
    """Return a line for each output that cannot be compared, and for each limit that is missed."""
    lines = [f"'{result.name}': {result.problem}" for result in results if result.problem]
    for result in results:
        for score in result.scores:
            if not score.passed:
                sign = "<" if score.bound == "min" else ">"
                lines.append(f"'{result.name}' {score.metric} {score.value:.6g} {sign} {score.limit:g}")
    return lines
