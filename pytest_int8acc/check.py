"""One case from spec to result: measured, and where it fails, searched; the whole story, read downward."""

from __future__ import annotations

from pytest_int8acc.measure import measure
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case


def check(case: Case, settings: Settings) -> CaseResult:
    """Run one case; the result says whether it passed, and if not, which layers are at fault.

    Args:
        case: From ``load_spec``.
        settings: What command line, spec and configuration say together.

    Raises:
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    return measure(case, settings).result
