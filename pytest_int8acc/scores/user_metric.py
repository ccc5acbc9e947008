"""A user's own metric: a function that makes one number of all outputs and the labels."""

from __future__ import annotations

import copy
import inspect
import math
import numbers
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.data.scripts import UserFunction, run_user
from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import Bound, Score
from pytest_int8acc.scores.criteria import MetricLimit, kind_of
from pytest_int8acc.tensors import Array, Outputs

UserMetric = Callable[..., object]


def evaluate_metric(
    limit: MetricLimit,
    function: UserMetric,
    baseline: Outputs,
    candidate: Outputs,
    labels: object | None = None,
    noise: Outputs | None = None,
) -> tuple[Score, ...]:
    """One score per limit of ``limit``, or one without a limit where it has none.

    The function gets ``outputs``, a dict of arrays with all samples along the first axis (a list of arrays,
    one per batch, where shapes differ), which are its own copies, and ``labels`` where it takes a second
    argument. All limits bind the INT8 value; ``max_drop`` sets that limit below the baseline's value, or
    above it where lower is better. An INT8 value of nan or inf becomes nan, which never passes.

    Outputs come per batch. ``noise`` is a second run of the baseline: the absolute difference of the two
    values is the score's noise; 0 where it is the baseline itself.

    Raises:
        CriterionError: The function raises, takes other arguments, wants labels that the spec does not give,
            or returns no number, or none that is finite for the baseline.
    """
    arguments = (labels,) if _wants_labels(limit.ref, function, labels is not None) else ()
    call = _Call(limit.ref, function, arguments)
    reference = call.finite(baseline, "the baseline's outputs")
    value, notes = _int8_value(call, candidate)
    spread = None if noise is None else 0.0
    if noise is not None and noise is not baseline:
        spread = abs(reference - call.finite(noise, "the baseline's second run"))
    score = Score(limit.ref, limit.ref.rpartition(":")[2], value, noise=spread, baseline=reference)
    return tuple(
        replace(score, limit=bar, bound=bound, note="; ".join(filter(None, [text, *notes])))
        for bar, bound, text in _bars(limit, reference)
    )


@dataclass(frozen=True, eq=False)
class _Call:
    """The user's function with its further arguments, as outputs -> number."""

    ref: str
    function: UserMetric
    arguments: tuple[object, ...]

    def __call__(self, outputs: Outputs, whose: str) -> float:
        """The function's number, possibly nan or inf; CriterionError where it fails or gives none."""
        arguments = copy.deepcopy(self.arguments)  # functions may write into what they get
        result = run_user(self.ref, self.function, _joined(outputs), *arguments, error=CriterionError)
        return _number(self.ref, result, whose)

    def finite(self, outputs: Outputs, whose: str) -> float:
        """The function's number for a run of the baseline; CriterionError unless it is finite."""
        value = self(outputs, whose)
        if not math.isfinite(value):
            raise CriterionError(
                f"metric {self.ref} returned {value} on {whose}, expected a finite number; "
                f"INT8 cannot be judged against it"
            )
        return value


def _int8_value(call: _Call, candidate: Outputs) -> tuple[float, list[str]]:
    """The value for INT8, and notes; nan where it is not finite, or the function failed because of NaN."""
    try:
        value = call(candidate, "the INT8 outputs")
    except CriterionError as error:
        if _finite(candidate):
            raise
        return math.nan, [f"failed on INT8 outputs with NaN or inf: {error}"]
    if math.isfinite(value):
        return value, []
    return math.nan, [f"returned {value} on the INT8 outputs"]


def _bars(limit: MetricLimit, reference: float) -> list[tuple[float | None, Bound, str]]:
    """Each limit on the INT8 value, its bound, and where it comes from."""
    bars: list[tuple[float | None, Bound, str]] = [(limit.min, "min", ""), (limit.max, "max", "")]
    bound: Bound = "max" if limit.lower_is_better else "min"
    share = limit.max_drop_relative
    rounding = 4 * sys.float_info.epsilon * abs(reference)  # 0.7 keeps a drop of 0.1 from 0.8
    for drop, written in (
        (limit.max_drop, f"{limit.max_drop or 0:g}"),
        (None if share is None else share * abs(reference), f"{100 * (share or 0):g}%"),
    ):
        if drop is not None:
            bar = reference + drop + rounding if limit.lower_is_better else reference - drop - rounding
            bars.append((bar, bound, f"max_drop {written} from the baseline's {reference:.6g}"))
    return [bar for bar in bars if bar[0] is not None] or [(None, bound, "")]


def _joined(outputs: Outputs) -> dict[str, Array | list[Array]]:
    """Each output as one new array of all samples; as a list of new arrays where they do not join."""
    joined: dict[str, Array | list[Array]] = {}
    for name, arrays in outputs.items():
        batches = [np.atleast_1d(array) for array in arrays]
        if len({(batch.dtype.kind, batch.shape[1:]) for batch in batches}) == 1:
            joined[name] = np.concatenate(batches)
        else:
            joined[name] = [array.copy() for array in arrays]
    return joined


def _finite(outputs: Outputs) -> bool:
    floats = (array for arrays in outputs.values() for array in arrays if kind_of(array) == "floats")
    return all(np.isfinite(array).all() for array in floats)


def _wants_labels(ref: str, function: UserMetric, given: bool) -> bool:
    """Whether to pass labels: where the second parameter has no default, or is called ``labels``."""
    expected = "expected `def f(outputs)` or `def f(outputs, labels)`"
    try:
        signature = inspect.signature(function.function if isinstance(function, UserFunction) else function)
    except (TypeError, ValueError) as error:
        raise CriterionError(f"metric {ref}: {error}; wrap it in a function; {expected}") from error
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if not positional or len(required) > 2 or keywords:
        raise CriterionError(f"metric {ref} takes {signature}; {expected}")
    if len(required) == 2 and not given:
        raise CriterionError(
            f"metric {ref} takes '{required[1].name}' as its second argument, but the case has no labels; "
            f"give `labels:` in the spec"
        )
    return given and (len(required) == 2 or any(p.name == "labels" for p in positional[1:2]))


def _number(ref: str, value: object, whose: str) -> float:
    """``value`` as a float; CriterionError unless it is a real number."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        shown = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)[:80]
        raise CriterionError(
            f"metric {ref} returned {shown} ({type(value).__name__}) on {whose}, expected one number; "
            f"return float(...)"
        )
    return float(value)
